//! The line in front of a lock, a semaphore, a queue: who waits for it, in order of arrival.
//!
//! A line sits beside the state it guards, and one function of its owner, [`Serve::serve`], looks
//! at both: as long as the state allows, it *calls* the first in line, changes the state on behalf
//! of who was called, and wakes them. So what a waiter was called for is theirs before they run:
//! newcomers find it taken. The owner serves whenever something may have become possible, which is
//! when the state was changed, and when somebody left the line.
//!
//! ```text
//!            (1)           (2)             (4)
//!    Away ────────▶ Awake ────▶ Parked ──────────▶ Called ────▶ Away
//!                    ▲  │ ▲        │ │     (4)       ▲     (5)
//!                    │  │ └────────┘ │               │
//!                    │  │    (3)     │               │
//!                    │  └────────────┼───────────────┘
//!                    └── (6) ◀───────┘  left: interrupted or dropped
//! ```
//!
//! (1) [`Turn`] is polled for the first time and takes the last place. (2) Its owner could not
//! serve it, so it parks. (3) The kernel answered without a call, as it may: it looks again.
//! (4) [`Line::call`], by somebody else or, while awake, by itself. (5) It collects, or it is
//! dropped before it could: then it [gives back](Serve::give_back) what it was called for. (6) The
//! drop of [`Turn`], or an interruption; its owner serves those behind it.
//!
//! Every place in the line has a wait queue of its own, with at most one task in it. That is how a
//! caller knows whether somebody is still there to be called: who was interrupted and does not know
//! it yet is in the line, but not in its wait queue any more, and is passed over. So what has been
//! given is never taken back, and nothing is given to those who will not take it.
//!
//! Places are used again, so that in the long run waiting allocates nothing.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_traps::{Interrupted, KernelTrap, WaitQueue, kernel_trap_at};

use crate::stand::{Stand, Waiters};

/// How many places a line keeps when nobody waits.
const PLACES_KEPT: usize = 64;

/// No place.
const NONE: u32 = u32::MAX;

/// A primitive with a line in front of it.
pub(crate) trait Serve {
    /// What a waiter brings along: how much it asks for, or what it wants to hand over.
    type Brings;

    /// The line.
    fn line(&self) -> &Line<Self::Brings>;

    /// Calls those in line for whom the state allows it.
    fn serve(&self);

    /// Takes back what a waiter was called for that is gone.
    fn give_back(&self);
}

/// Who waits, in order of arrival.
pub(crate) struct Line<W> {
    places: RefCell<Places<W>>,
    waiting: Cell<usize>,
}

struct Places<W> {
    all: Vec<Rc<Place<W>>>,
    /// The first of those that nobody has; they are chained by `next`.
    free: u32,
    first: u32,
    last: u32,
    taken: usize,
}

struct Place<W> {
    index: u32,
    state: Cell<State>,
    previous: Cell<u32>,
    next: Cell<u32>,
    brings: Cell<Option<W>>,
    queue: WaitQueue,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not in the line.
    Away,
    /// In the line, and looking whether it can be served.
    Awake,
    /// In the line, and in its wait queue unless it was interrupted.
    Parked,
    /// Out of the line: it got what it waits for.
    Called,
    /// Out of the line: it is told that there will be nothing.
    Dismissed,
}

impl<W> Line<W> {
    pub(crate) const fn new() -> Self {
        let places = Places { all: Vec::new(), free: NONE, first: NONE, last: NONE, taken: 0 };
        Self { places: RefCell::new(places), waiting: Cell::new(0) }
    }

    /// Whether nobody is in the line.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.get() == 0
    }

    /// How many are in the line.
    pub(crate) fn len(&self) -> usize {
        self.waiting.get()
    }

    /// Whether somebody in the line could be called.
    pub(crate) fn has_callable(&self) -> bool {
        !self.is_empty() && self.places.borrow().first_callable().is_some()
    }

    /// Calls the first in line, who is to be [woken](Called::wake) at once, when the state has been
    /// changed.
    pub(crate) fn call(&self) -> Option<Called<W>> {
        self.call_if(|_| true)
    }

    /// [`call`](Self::call), if the first in line brings the right thing. Those behind wait.
    pub(crate) fn call_if(&self, suits: impl FnOnce(&W) -> bool) -> Option<Called<W>> {
        self.take_first(State::Called, suits)
    }

    /// Sends everybody away, with what they brought.
    pub(crate) fn dismiss_all(&self) {
        while let Some(mut dismissed) = self.take_first(State::Dismissed, |_| true) {
            dismissed.place.brings.set(dismissed.brings.take());
            dismissed.wake();
        }
    }

    fn take_first(&self, state: State, suits: impl FnOnce(&W) -> bool) -> Option<Called<W>> {
        if self.is_empty() {
            return None;
        }
        let mut places = self.places.borrow_mut();
        let index = places.first_callable()?;
        let place = places.all[index as usize].clone();
        let brings = place.brings.take();
        if !brings.as_ref().is_some_and(suits) {
            place.brings.set(brings);
            return None;
        }
        places.unlink(&place);
        self.waiting.set(self.waiting.get() - 1);
        let is_parked = place.state.replace(state) == State::Parked;
        Some(Called { place, brings, is_parked })
    }

    fn join(&self, brings: W) -> Rc<Place<W>> {
        let mut places = self.places.borrow_mut();
        let place = places.take();
        place.brings.set(Some(brings));
        place.state.set(State::Awake);
        places.link_last(&place);
        self.waiting.set(self.waiting.get() + 1);
        place
    }

    /// Gives a place up, wherever it is. What was brought and not taken comes back.
    fn leave(&self, place: &Place<W>) -> Option<W> {
        let mut places = self.places.borrow_mut();
        if matches!(place.state.replace(State::Away), State::Awake | State::Parked) {
            places.unlink(place);
            self.waiting.set(self.waiting.get() - 1);
        }
        let surplus = places.put_back(place);
        drop(places);
        drop(surplus);
        place.brings.take()
    }
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W> Places<W> {
    /// The first in line that is there to be called.
    fn first_callable(&self) -> Option<u32> {
        let mut at = self.first;
        while let Some(place) = self.all.get(at as usize) {
            if place.state.get() == State::Awake || !place.queue.is_empty() {
                return Some(at);
            }
            at = place.next.get();
        }
        None
    }

    /// A place that nobody has.
    fn take(&mut self) -> Rc<Place<W>> {
        self.taken += 1;
        if let Some(place) = self.all.get(self.free as usize) {
            self.free = place.next.get();
            return place.clone();
        }
        let place = Rc::new(Place {
            index: u32::try_from(self.all.len()).expect("fewer than 2^32 wait"),
            state: Cell::new(State::Away),
            previous: Cell::new(NONE),
            next: Cell::new(NONE),
            brings: Cell::new(None),
            queue: WaitQueue::new(),
        });
        self.all.push(place.clone());
        place
    }

    /// Takes back a place. Drop what comes back when the places are not borrowed.
    fn put_back(&mut self, place: &Place<W>) -> Vec<Rc<Place<W>>> {
        self.taken -= 1;
        if self.taken == 0 && self.all.len() > PLACES_KEPT {
            self.free = NONE;
            return std::mem::take(&mut self.all);
        }
        place.next.set(self.free);
        self.free = place.index;
        Vec::new()
    }

    fn link_last(&mut self, place: &Place<W>) {
        place.previous.set(self.last);
        place.next.set(NONE);
        match self.all.get(self.last as usize) {
            Some(last) => last.next.set(place.index),
            None => self.first = place.index,
        }
        self.last = place.index;
    }

    fn unlink(&mut self, place: &Place<W>) {
        let (previous, next) = (place.previous.get(), place.next.get());
        match self.all.get(previous as usize) {
            Some(previous) => previous.next.set(next),
            None => self.first = next,
        }
        match self.all.get(next as usize) {
            Some(next) => next.previous.set(previous),
            None => self.last = previous,
        }
    }
}

/// Somebody who was called and is to be woken.
#[must_use = "who is called is to be woken"]
pub(crate) struct Called<W> {
    place: Rc<Place<W>>,
    brings: Option<W>,
    is_parked: bool,
}

impl<W> Called<W> {
    /// What they brought; it is the caller's.
    pub(crate) fn take(&mut self) -> W {
        self.brings.take().expect("who waits has brought something, and it is taken once")
    }

    /// Has them go on.
    pub(crate) fn wake(self) {
        if self.is_parked {
            self.place.queue.wake(1);
        }
    }
}

impl<W> Waiters for Place<W> {
    fn waiters(&self) -> &WaitQueue {
        &self.queue
    }
}

/// How a wait in a line ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turned {
    /// What was waited for is the waiter's.
    Called,
    /// There is no use in waiting.
    Dismissed,
}

/// A wait in a line, from its end to its head.
pub(crate) struct Turn<S: Serve> {
    source: S,
    /// What is brought to the line, before and after.
    brings: Option<S::Brings>,
    standing: Option<Standing<S::Brings>>,
    awaited_at: &'static Location<'static>,
}

struct Standing<W> {
    place: Rc<Place<W>>,
    /// `None` until it parks.
    trap: Option<KernelTrap<Stand<Place<W>>>>,
}

impl<S: Serve> Turn<S> {
    pub(crate) fn new(
        source: S,
        brings: S::Brings,
        awaited_at: &'static Location<'static>,
    ) -> Self {
        Self { source, brings: Some(brings), standing: None, awaited_at }
    }

    /// What was brought and was not taken.
    pub(crate) fn take_back(&mut self) -> Option<S::Brings> {
        self.brings.take()
    }

    /// Takes the last place in the line, as the first poll does.
    pub(crate) fn stand(&mut self) {
        let brings = self.brings.take().expect("a wait in a line was polled after it had ended");
        let place = self.source.line().join(brings);
        self.standing = Some(Standing { place, trap: None });
        self.source.serve();
    }

    /// Gives the place up, and tells what had come of it.
    fn end(&mut self) -> Option<State> {
        let Standing { place, trap } = self.standing.take()?;
        let state = place.state.get();
        drop(trap);
        self.brings = self.source.line().leave(&place);
        Some(state)
    }
}

// It is used by reference and by value, and never pinned.
impl<S: Serve> Unpin for Turn<S> {}

impl<S: Serve> Future for Turn<S> {
    type Output = Result<Turned, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.standing.is_none() {
            this.stand();
        }
        loop {
            let Some(Standing { place, trap }) = &mut this.standing else {
                unreachable!("it stands until it was called or has left");
            };
            // A call while parked comes with a wake, and is collected by way of the kernel.
            let turned = match (place.state.get(), &trap) {
                (State::Called, None) => Turned::Called,
                (State::Dismissed, None) => Turned::Dismissed,
                _ => {
                    let trap = trap.get_or_insert_with(|| {
                        place.state.set(State::Parked);
                        kernel_trap_at(Stand(place.clone()), this.awaited_at)
                    });
                    let answer = match Pin::new(trap).poll(cx) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(answer) => answer,
                    };
                    this.standing.as_mut().expect("it stands").trap = None;
                    this.answered(answer)?;
                    continue;
                }
            };
            this.end();
            return Poll::Ready(Ok(turned));
        }
    }
}

impl<S: Serve> Turn<S> {
    fn answered(&mut self, answer: Result<(), Interrupted>) -> Result<(), Interrupted> {
        let place = &self.standing.as_ref().expect("it stands").place;
        if place.state.get() != State::Parked {
            // Called or dismissed while it was in its wait queue, and woken in the same moment: the
            // kernel does not interrupt a wait that is satisfied.
            return Ok(());
        }
        if answer.is_ok() {
            // Without a call: whoever served meanwhile has passed over this place.
            place.state.set(State::Awake);
        } else {
            self.end();
        }
        self.source.serve();
        answer
    }
}

impl<S: Serve> Drop for Turn<S> {
    fn drop(&mut self) {
        match self.end() {
            Some(State::Called) => self.source.give_back(),
            Some(State::Awake | State::Parked) => self.source.serve(),
            Some(State::Away | State::Dismissed) | None => {}
        }
    }
}

//! The line in front of a lock, a semaphore, a queue: who waits for it, in order of arrival.
//!
//! A line sits beside the state it guards, and one function of its owner, [`Serve::serve`], looks
//! at both: as long as the state allows, it *calls* the first in line, changes the state on behalf
//! of who was called, and wakes them. So what a waiter was called for is theirs before they run:
//! newcomers find it taken. The owner serves whenever something may have become possible, which is
//! when the state was changed, and when somebody left the line.
//!
//! ```text
//!            (1)             (2)            (3)
//!    Away ────────▶ Waiting ──────▶ Called ──────▶ Away
//!      ▲             │ │  ▲
//!      │    (5)      │ └──┘ (4)
//!      └─────────────┘
//! ```
//!
//! (1) [`Turn`] is polled for the first time and takes the last place. If its owner cannot serve it
//! at once, it parks. (2) [`Line::call`], by somebody else or, before it parks, by itself. (3) It
//! collects, or it is dropped before it could: then it [gives back](Serve::give_back) what it was
//! called for. (4) The kernel answered without a call, as it may: it looks again, and parks again.
//! (5) The drop of [`Turn`], or an interruption; its owner serves those behind it.
//!
//! Every place in the line has a wait queue of its own, with at most one task in it. That is how a
//! caller knows whether somebody is still there to be called: the wait queue of a waiter whose kernel
//! has ended is empty, and the waiter is passed over. A waiter that a cause is about to interrupt is
//! in its wait queue until it is polled. Called before that, it has what it waits for.
//!
//! Places are used again, so that in the long run waiting allocates nothing.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;

use pikake_traps::WaitQueue;

#[cfg(doc)]
use crate::line_turn::Turn;
use crate::stand::Waiters;

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

/// A place in a line.
pub(crate) struct Place<W> {
    index: u32,
    pub(crate) state: Cell<State>,
    /// Its trap is with the kernel. It can be called as long as it is in its wait queue.
    pub(crate) parked: Cell<bool>,
    previous: Cell<u32>,
    next: Cell<u32>,
    brings: Cell<Option<W>>,
    queue: WaitQueue,
}

/// Where somebody is who has a place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Not in the line.
    Away,
    /// In the line.
    Waiting,
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
    #[inline]
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
        let place = places.first_callable()?.clone();
        let brings = place.brings.take();
        if !brings.as_ref().is_some_and(suits) {
            place.brings.set(brings);
            return None;
        }
        places.unlink(&place);
        self.waiting.set(self.waiting.get() - 1);
        place.state.set(state);
        Some(Called { place, brings })
    }

    #[inline]
    pub(crate) fn join(&self, brings: W) -> Rc<Place<W>> {
        let mut places = self.places.borrow_mut();
        let place = places.take();
        place.brings.set(Some(brings));
        place.state.set(State::Waiting);
        places.link_last(&place);
        self.waiting.set(self.waiting.get() + 1);
        place
    }

    /// Gives a place up, wherever it is. What was brought and not taken comes back.
    pub(crate) fn leave(&self, place: &Place<W>) -> Option<W> {
        if place.state.get() == State::Waiting {
            self.places.borrow_mut().unlink(place);
            self.waiting.set(self.waiting.get() - 1);
        }
        self.put_back(place)
    }

    /// Gives up a place that is out of the line.
    #[inline]
    pub(crate) fn put_back(&self, place: &Place<W>) -> Option<W> {
        place.state.set(State::Away);
        let mut places = self.places.borrow_mut();
        if places.put_back(place) {
            self.forget_places(places);
        }
        place.brings.take()
    }

    /// Forgets all places, of which nobody has any.
    #[cold]
    fn forget_places(&self, mut places: RefMut<'_, Places<W>>) {
        places.free = NONE;
        let all = std::mem::take(&mut places.all);
        // Dropped with the places not borrowed.
        drop(places);
        drop(all);
    }
}

impl Line<()> {
    /// Calls the first in line and wakes it; tells whether somebody was there. `give` changes the
    /// state on behalf of who is called, `take_back` undoes it: a waiter that cannot be woken, because
    /// its kernel has ended, is passed over.
    ///
    /// The same as [`call`](Self::call) and [`wake`](Called::wake) with the kernel asked once.
    #[inline(always)]
    pub(crate) fn hand_to_first(&self, give: impl Fn(), take_back: impl Fn()) -> bool {
        let mut passed_over = None;
        loop {
            let mut places = self.places.borrow_mut();
            let at = passed_over.unwrap_or(places.first);
            let Some(place) = places.all.get(at as usize).cloned() else { return false };
            places.unlink(&place);
            self.waiting.set(self.waiting.get() - 1);
            place.state.set(State::Called);
            drop(places);
            give();
            if !place.parked.get() || place.queue.wake(1) > 0 {
                return true;
            }
            take_back();
            passed_over = Some(place.next.get());
            self.pass_over(&place);
        }
    }

    /// Puts a place back between those where it was a moment ago. Nobody's code has run meanwhile,
    /// since nobody was woken.
    #[cold]
    fn pass_over(&self, place: &Place<()>) {
        self.places.borrow_mut().link_again(place);
        self.waiting.set(self.waiting.get() + 1);
        place.state.set(State::Waiting);
    }
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W> Places<W> {
    /// The first in line that is there to be called.
    #[inline]
    fn first_callable(&self) -> Option<&Rc<Place<W>>> {
        let mut at = self.first;
        while let Some(place) = self.all.get(at as usize) {
            if !place.parked.get() || !place.queue.is_empty() {
                return Some(place);
            }
            at = place.next.get();
        }
        None
    }

    /// A place that nobody has.
    #[inline]
    fn take(&mut self) -> Rc<Place<W>> {
        self.taken += 1;
        match self.all.get(self.free as usize) {
            Some(place) => {
                self.free = place.next.get();
                place.clone()
            }
            None => self.add(),
        }
    }

    #[cold]
    fn add(&mut self) -> Rc<Place<W>> {
        let place = Rc::new(Place {
            index: u32::try_from(self.all.len()).expect("fewer than 2^32 wait"),
            state: Cell::new(State::Away),
            parked: Cell::new(false),
            previous: Cell::new(NONE),
            next: Cell::new(NONE),
            brings: Cell::new(None),
            queue: WaitQueue::new(),
        });
        self.all.push(place.clone());
        place
    }

    /// Takes back a place. Tells whether all are to be forgotten.
    #[inline]
    fn put_back(&mut self, place: &Place<W>) -> bool {
        self.taken -= 1;
        place.next.set(self.free);
        self.free = place.index;
        self.taken == 0 && self.all.len() > PLACES_KEPT
    }

    #[inline]
    fn link_last(&mut self, place: &Place<W>) {
        place.previous.set(self.last);
        place.next.set(NONE);
        match self.all.get(self.last as usize) {
            Some(last) => last.next.set(place.index),
            None => self.first = place.index,
        }
        self.last = place.index;
    }

    /// Undoes [`unlink`](Self::unlink), if nothing was done in between.
    fn link_again(&mut self, place: &Place<W>) {
        let (previous, next) = (place.previous.get(), place.next.get());
        match self.all.get(previous as usize) {
            Some(previous) => previous.next.set(place.index),
            None => self.first = place.index,
        }
        match self.all.get(next as usize) {
            Some(next) => next.previous.set(place.index),
            None => self.last = place.index,
        }
    }

    #[inline]
    fn unlink(&mut self, place: &Place<W>) {
        let (previous, next) = (place.previous.get(), place.next.get());
        if (previous, next) == (NONE, NONE) {
            (self.first, self.last) = (NONE, NONE);
            return;
        }
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
}

impl<W> Called<W> {
    /// What they brought; it is the caller's.
    pub(crate) fn take(&mut self) -> W {
        self.brings.take().expect("who waits has brought something, and it is taken once")
    }

    /// Has them go on.
    pub(crate) fn wake(self) {}
}

/// Also when the caller's code panics in between.
impl<W> Drop for Called<W> {
    fn drop(&mut self) {
        if self.place.parked.get() {
            self.place.queue.wake(1);
        }
    }
}

impl<W> Waiters for Place<W> {
    fn waiters(&self) -> &WaitQueue {
        &self.queue
    }
}

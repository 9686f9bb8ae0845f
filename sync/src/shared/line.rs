//! The line in front of something that threads share: who waits for it, in order of arrival.
//!
//! The line is part of a state behind a lock of the standard library, which is held for a few
//! instructions at a time and never while anybody's code runs: wakers are cloned, called and
//! dropped, and items are dropped, when it is open. As in the line of one kernel (`line.rs`), one
//! function serves: it calls who is first as long as the state allows, and what somebody was called
//! for is theirs from then on.
//!
//! A wait has two sides (`wait.rs`). To the line it is a `Wait`, a future that knows nothing of kernels; a
//! thread blocks on it, and a task awaits it inside `Trapped`, which shows it to
//! the kernel. Who is interrupted gives back what it was called for in the same moment. What
//! somebody has *brought* and another has taken cannot be given back: so those who bring something
//! step aside for the moment in which they ask the kernel whether they were interrupted, and
//! nobody takes anything from them, nor from those behind them, in between.

use std::collections::VecDeque;
use std::task::Waker;

use pikake_traps::catch_and_log;

use super::block::{self, Guard, Mutex};

/// What is behind the lock: the state that is waited for, and those who wait.
pub(crate) trait State {
    /// Calls those in line for whom the state allows it.
    fn serve(&mut self, wakers: &mut Wakers);
}

/// One of the lines of a state, and what those in it want.
pub(crate) trait Side<S> {
    /// What they bring along.
    type Request;
    /// What they get.
    type Gets;

    /// Whether what they were called for cannot be given back.
    const STEPS_ASIDE: bool = false;

    fn line(state: &mut S) -> &mut Line<Self::Request, Self::Gets>;

    /// Does it at once, if nobody waits and the state allows it.
    fn now(state: &mut S, request: Self::Request) -> Result<Self::Gets, Self::Request>;

    /// Notes that somebody has seen what they got.
    fn collected(_: &mut S) {}

    /// Takes back what somebody got who is gone.
    fn give_back(state: &mut S, gets: Self::Gets);
}

/// A state and its lock.
pub(crate) struct Shared<S>(Mutex<S>);

impl<S: State> Shared<S> {
    pub(crate) fn new(state: S) -> Self {
        Self(Mutex::new(state))
    }

    pub(crate) fn lock(&self) -> Guard<'_, S> {
        block::lock(&self.0)
    }

    /// Changes the state, serves, and wakes who was called.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let mut wakers = Wakers::default();
        let mut state = self.lock();
        let result = change(&mut state);
        state.serve(&mut wakers);
        drop(state);
        wakers.wake();
        result
    }
}

/// The wakers of those who were called, until the lock is open. Hardly ever more than one.
#[derive(Default)]
pub(crate) struct Wakers {
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl Wakers {
    fn add(&mut self, waker: Option<Waker>) {
        match (&self.first, waker) {
            (None, waker) => self.first = waker,
            (Some(_), Some(waker)) => self.others.push(waker),
            (Some(_), None) => {}
        }
    }

    pub(crate) fn wake(self) {
        for waker in self.first.into_iter().chain(self.others) {
            // Whoever calls has an item in hand, and others are to be woken.
            catch_and_log("the waker of somebody who waits for another thread", || waker.wake());
        }
    }
}

/// How many places without anybody in them a line keeps, at least, before it looks for them.
const GONE_KEPT: usize = 32;

/// Who waits, in order of arrival.
#[derive(Debug)]
pub(crate) struct Line<W, G> {
    /// By the numbers of their arrival.
    places: VecDeque<(u64, Place<W, G>)>,
    last: u64,
    /// How many wait.
    waiting: usize,
    /// How many have gone, and have left their place empty.
    gone: usize,
    /// Nobody in the places before this one waits.
    callable_from: usize,
}

#[derive(Debug)]
enum Place<W, G> {
    Waiting(Waiting<W>),
    /// Out of the line, and has not seen it.
    Left(Left<W, G>),
    Gone,
}

#[derive(Debug)]
pub(crate) struct Waiting<W> {
    request: W,
    pub(crate) waker: Waker,
    /// It is not to be called: its task is asking its kernel whether it was interrupted.
    pub(crate) aside: bool,
}

/// What has become of somebody who left the line.
#[derive(Debug)]
pub(crate) enum Left<W, G> {
    /// They were called, and get this.
    Called(G),
    /// There will be nothing for them, or they went by themselves. This they brought.
    Uncalled(W),
}

impl<W, G> Line<W, G> {
    pub(crate) const fn new() -> Self {
        Self { places: VecDeque::new(), last: 0, waiting: 0, gone: 0, callable_from: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// The first in line, if it is there to be called. While it is aside, those behind it wait.
    fn first(&self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let mut places = self.places.range(self.callable_from..).enumerate();
        places.find_map(|(index, (_, place))| match place {
            Place::Waiting(waiting) => Some((!waiting.aside).then_some(self.callable_from + index)),
            Place::Left(_) | Place::Gone => None,
        })?
    }

    pub(crate) fn has_callable(&self) -> bool {
        self.first().is_some()
    }

    /// Calls the first in line for what `gets` gives, and gives what they brought.
    pub(crate) fn call(&mut self, wakers: &mut Wakers, gets: impl FnOnce() -> G) -> Option<W> {
        let index = self.first()?;
        let Waiting { request, waker, .. } = self.take(index, || Left::Called(gets()))?;
        self.callable_from = index + 1;
        wakers.add(Some(waker));
        Some(request)
    }

    /// Sends everybody away, with what they brought.
    pub(crate) fn dismiss_all(&mut self, wakers: &mut Wakers) {
        if self.is_empty() {
            return;
        }
        self.waiting = 0;
        for (_, place) in &mut self.places {
            *place = match std::mem::replace(place, Place::Gone) {
                Place::Waiting(Waiting { request, waker, .. }) => {
                    wakers.add(Some(waker));
                    Place::Left(Left::Uncalled(request))
                }
                other => other,
            };
        }
    }

    /// Takes somebody who waits out of the line.
    fn take(&mut self, index: usize, left: impl FnOnce() -> Left<W, G>) -> Option<Waiting<W>> {
        let place = &mut self.places.get_mut(index)?.1;
        if !matches!(place, Place::Waiting(_)) {
            return None;
        }
        let Place::Waiting(waiting) = std::mem::replace(place, Place::Left(left())) else {
            return None;
        };
        self.waiting -= 1;
        Some(waiting)
    }

    /// The place of that number.
    fn index(&self, ticket: u64) -> usize {
        let found = self.places.binary_search_by_key(&ticket, |(ticket, _)| *ticket);
        found.expect("a place is kept until it is given up")
    }

    /// Takes the last place.
    pub(crate) fn join(&mut self, request: W, waker: Waker, aside: bool) -> u64 {
        self.last += 1;
        self.waiting += 1;
        self.places.push_back((self.last, Place::Waiting(Waiting { request, waker, aside })));
        self.last
    }

    /// Who has that place, if they still wait.
    pub(crate) fn waiting(&mut self, ticket: u64) -> Option<&mut Waiting<W>> {
        let index = self.index(ticket);
        match &mut self.places[index].1 {
            Place::Waiting(waiting) => Some(waiting),
            _ => None,
        }
    }

    /// Lets somebody be called again who was aside.
    pub(crate) fn step_back(&mut self, ticket: u64) {
        if let Some(waiting) = self.waiting(ticket) {
            waiting.aside = false;
        }
    }

    /// Gives a place up.
    pub(crate) fn leave(&mut self, ticket: u64) -> (Left<W, G>, Option<Waker>) {
        let index = self.index(ticket);
        let left = match std::mem::replace(&mut self.places[index].1, Place::Gone) {
            Place::Waiting(Waiting { request, waker, .. }) => {
                self.waiting -= 1;
                (Left::Uncalled(request), Some(waker))
            }
            Place::Left(left) => (left, None),
            Place::Gone => unreachable!("a place is given up once"),
        };
        self.gone += 1;
        self.clear_up();
        left
    }

    /// Takes out the places that were given up: those in front, and all when they are many.
    fn clear_up(&mut self) {
        while let Some((_, Place::Gone)) = self.places.front() {
            self.places.pop_front();
            self.gone -= 1;
            self.callable_from = self.callable_from.saturating_sub(1);
        }
        if self.gone > GONE_KEPT + self.places.len() / 2 {
            self.places.retain(|(_, place)| !matches!(place, Place::Gone));
            self.gone = 0;
            self.callable_from = 0;
        }
    }
}

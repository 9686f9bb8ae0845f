//! The waiters of a state that threads share, in order of arrival.
//!
//! State and waiters are behind a lock of the standard library, which is held for a few
//! instructions and never while foreign code runs: wakers are cloned, called and dropped, and items
//! dropped, without the lock. One function serves: it grants to the first waiter as long as the
//! state allows. A grant belongs to its waiter from then on.
//!
//! A `Wait` (`wait.rs`) is a future without a kernel, on which a thread blocks. A task awaits the
//! `Wait` inside a `TaskWait`, which the kernel lists and interrupts. An interrupted waiter gives
//! its grant back at once. An item that another has taken from its waiter cannot be given back.
//! So a waiter with an item is *paused* while it asks the kernel whether it was interrupted:
//! meanwhile, the waiter and those behind it are granted nothing.

use std::collections::VecDeque;
use std::task::Waker;

use pikake_traps::catch_and_log;

use super::block::{self, Guard, Mutex};

/// A state behind the lock, with its waiters.
pub(crate) trait Waitable {
    /// Grants to waiters what the state allows.
    fn serve(&mut self, wakers: &mut Wakers);
}

/// A kind of wait for a state: its waiters, their requests and grants.
pub(crate) trait WaitKind<S> {
    /// An item to put, or nothing.
    type Request;
    /// An item to get, or nothing.
    type Grant;

    /// The primitive, for listings of waits.
    const NAME: &'static str;

    /// Whether a grant cannot be given back, so a task pauses while it asks its kernel.
    const MAY_PAUSE: bool = false;

    fn waiters(state: &mut S) -> &mut Waiters<Self::Request, Self::Grant>;

    /// Grants without a wait, if there are no waiters and the state allows it.
    fn try_now(state: &mut S, request: Self::Request) -> Result<Self::Grant, Self::Request>;

    /// Notes that a waiter collects its grant, which may be completed now.
    fn collected(_: &mut S, _: &mut Self::Grant) {}

    /// Takes back the grant of a waiter that left without collecting it.
    fn give_back(state: &mut S, grant: Self::Grant);
}

/// A state and its lock.
pub(crate) struct Shared<S>(Mutex<S>);

impl<S: Waitable> Shared<S> {
    pub(crate) fn new(state: S) -> Self {
        Self(Mutex::new(state))
    }

    pub(crate) fn lock(&self) -> Guard<'_, S> {
        block::lock(&self.0)
    }

    /// Changes the state, serves, and wakes the waiters with grants.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let (result, wakers) = self.change_and_serve(change);
        wakers.wake();
        result
    }

    /// Changes the state and serves. The caller wakes the waiters with grants.
    pub(crate) fn change_and_serve<R>(&self, change: impl FnOnce(&mut S) -> R) -> (R, Wakers) {
        let mut wakers = Wakers::default();
        let mut state = self.lock();
        let result = change(&mut state);
        state.serve(&mut wakers);
        (result, wakers)
    }
}

/// The wakers to call when the lock is open.
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
            // A panic must neither lose the caller's item nor keep other waiters asleep.
            catch_and_log("the waker of a waiter for another thread", || waker.wake());
        }
    }
}

/// How many empty entries are kept, at least, before all entries are searched for them.
const GAPS_KEPT: usize = 32;

/// Waiters in order of arrival, with requests `R` and grants `G`.
#[derive(Debug)]
pub(crate) struct Waiters<R, G> {
    /// Sorted by ticket.
    entries: VecDeque<(u64, Entry<R, G>)>,
    last: u64,
    /// The number of waiters.
    waiting: usize,
    /// The number of empty entries.
    gaps: usize,
    /// No entry before this index waits.
    first_waiting: usize,
}

#[derive(Debug)]
enum Entry<R, G> {
    Waiting(Waiting<R>),
    /// The outcome is not collected yet.
    Done(Outcome<R, G>),
    Empty,
}

#[derive(Debug)]
pub(crate) struct Waiting<R> {
    request: R,
    pub(crate) waker: Waker,
    /// Nothing may be granted: the task is asking its kernel whether it was interrupted.
    pub(crate) paused: bool,
}

/// The outcome of a wait.
#[derive(Debug)]
pub(crate) enum Outcome<R, G> {
    /// The waiter gets this.
    Granted(G),
    /// The waiter left, or will never be granted anything. Its request is returned.
    Dismissed(R),
}

impl<R, G> Waiters<R, G> {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new(), last: 0, waiting: 0, gaps: 0, first_waiting: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// The index of the first waiter, unless it is paused. A paused waiter holds up those behind
    /// it.
    fn first(&self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        let mut entries = self.entries.range(self.first_waiting..).enumerate();
        entries.find_map(|(index, (_, entry))| match entry {
            Entry::Waiting(waiting) => {
                Some((!waiting.paused).then_some(self.first_waiting + index))
            }
            Entry::Done(_) | Entry::Empty => None,
        })?
    }

    pub(crate) fn can_grant(&self) -> bool {
        self.first().is_some()
    }

    /// Grants the result of `make` to the first waiter, and returns its request.
    pub(crate) fn grant(&mut self, wakers: &mut Wakers, make: impl FnOnce() -> G) -> Option<R> {
        let index = self.first()?;
        let Waiting { request, waker, .. } = self.end(index, || Outcome::Granted(make()))?;
        self.first_waiting = index + 1;
        wakers.add(Some(waker));
        Some(request)
    }

    /// Dismisses all waiters, and returns their requests to them.
    pub(crate) fn dismiss_all(&mut self, wakers: &mut Wakers) {
        if self.is_empty() {
            return;
        }
        self.waiting = 0;
        for (_, entry) in &mut self.entries {
            *entry = match std::mem::replace(entry, Entry::Empty) {
                Entry::Waiting(Waiting { request, waker, .. }) => {
                    wakers.add(Some(waker));
                    Entry::Done(Outcome::Dismissed(request))
                }
                other => other,
            };
        }
    }

    /// Ends the wait at `index` with an outcome.
    fn end(&mut self, index: usize, outcome: impl FnOnce() -> Outcome<R, G>) -> Option<Waiting<R>> {
        let entry = &mut self.entries.get_mut(index)?.1;
        if !matches!(entry, Entry::Waiting(_)) {
            return None;
        }
        let Entry::Waiting(waiting) = std::mem::replace(entry, Entry::Done(outcome())) else {
            return None;
        };
        self.waiting -= 1;
        Some(waiting)
    }

    /// The index of the entry of a ticket.
    fn index(&self, ticket: u64) -> usize {
        let found = self.entries.binary_search_by_key(&ticket, |(ticket, _)| *ticket);
        found.expect("an entry is kept until its waiter leaves")
    }

    /// Adds a waiter at the end, and returns its ticket.
    pub(crate) fn enqueue(&mut self, request: R, waker: Waker, paused: bool) -> u64 {
        self.last += 1;
        self.waiting += 1;
        self.entries.push_back((self.last, Entry::Waiting(Waiting { request, waker, paused })));
        self.last
    }

    /// The entry of a ticket, if it still waits.
    pub(crate) fn waiting(&mut self, ticket: u64) -> Option<&mut Waiting<R>> {
        let index = self.index(ticket);
        match &mut self.entries[index].1 {
            Entry::Waiting(waiting) => Some(waiting),
            _ => None,
        }
    }

    /// Ends the pause of a waiter.
    pub(crate) fn resume(&mut self, ticket: u64) {
        if let Some(waiting) = self.waiting(ticket) {
            waiting.paused = false;
        }
    }

    /// Removes a waiter, and returns its outcome.
    pub(crate) fn leave(&mut self, ticket: u64) -> (Outcome<R, G>, Option<Waker>) {
        let index = self.index(ticket);
        let outcome = match std::mem::replace(&mut self.entries[index].1, Entry::Empty) {
            Entry::Waiting(Waiting { request, waker, .. }) => {
                self.waiting -= 1;
                (Outcome::Dismissed(request), Some(waker))
            }
            Entry::Done(outcome) => (outcome, None),
            Entry::Empty => unreachable!("a waiter leaves once"),
        };
        self.gaps += 1;
        self.remove_gaps();
        outcome
    }

    /// Removes empty entries: those at the front, and all of them when they are many.
    fn remove_gaps(&mut self) {
        while let Some((_, Entry::Empty)) = self.entries.front() {
            self.entries.pop_front();
            self.gaps -= 1;
            self.first_waiting = self.first_waiting.saturating_sub(1);
        }
        if self.gaps > GAPS_KEPT + self.entries.len() / 2 {
            self.entries.retain(|(_, entry)| !matches!(entry, Entry::Empty));
            self.gaps = 0;
            self.first_waiting = 0;
        }
    }
}

//! The line in front of something that threads share: who waits for it, in order of arrival.
//!
//! The line is part of a state behind a lock of the standard library, which is held for a few
//! instructions at a time and never while anybody's code runs: wakers are cloned, called and
//! dropped, and items are dropped, when it is open. As in the line of one kernel (`line.rs`), one
//! function serves: it calls who is first as long as the state allows, and what somebody was called
//! for is theirs from then on.
//!
//! A wait has two sides. To the line it is a [`Wait`], a future that knows nothing of kernels; a
//! thread [blocks](Wait::block) on it, and a task awaits it inside [`Trapped`], which shows it to
//! the kernel. Who is interrupted gives back what it was called for in the same moment. What
//! somebody has *brought* and another has taken cannot be given back: so those who bring something
//! step aside for the moment in which they ask the kernel whether they were interrupted, and
//! nobody takes anything from them in between.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pikake_traps::{Interrupted, KernelTrap, Trap, TrapKind, kernel_trap_at};

use crate::shared_block::{self, Guard, Mutex};

/// What is behind the lock: the state that is waited for, and those who wait.
pub(crate) trait State {
    /// Calls those in line for whom the state allows it.
    fn serve(&mut self, wakers: &mut Wakers);
}

/// One of the lines of a state, and what those in it want.
pub(crate) trait Side<S> {
    /// What they bring along.
    type Brings;
    /// What they get.
    type Gets;

    /// Whether what they were called for cannot be given back.
    const STEPS_ASIDE: bool = false;

    fn line(state: &mut S) -> &mut Line<Self::Brings, Self::Gets>;

    /// Does it at once, if nobody waits and the state allows it.
    fn now(state: &mut S, brings: Self::Brings) -> Result<Self::Gets, Self::Brings>;

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
        shared_block::lock(&self.0)
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

/// The wakers of those who were called, until the lock is open.
#[derive(Default)]
pub(crate) struct Wakers(Vec<Waker>);

impl Wakers {
    fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// Who waits, by the numbers of their arrival.
#[derive(Debug)]
pub(crate) struct Line<W, G> {
    last: u64,
    waiting: BTreeMap<u64, Waiting<W>>,
    /// Those who are out of the line and have not seen it.
    answered: BTreeMap<u64, Left<W, G>>,
}

#[derive(Debug)]
struct Waiting<W> {
    brings: W,
    waker: Option<Waker>,
    /// It is passed over: its task is asking its kernel whether it was interrupted.
    aside: bool,
}

/// What has become of somebody who left the line.
#[derive(Debug)]
enum Left<W, G> {
    /// They were called, and get this.
    Called(G),
    /// There will be nothing for them, or they went by themselves. This they brought.
    Uncalled(W),
}

impl<W, G> Line<W, G> {
    pub(crate) const fn new() -> Self {
        Self { last: 0, waiting: BTreeMap::new(), answered: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The first in line that is there to be called.
    fn first(&self) -> Option<u64> {
        self.waiting.iter().find(|(_, waiting)| !waiting.aside).map(|(ticket, _)| *ticket)
    }

    pub(crate) fn has_callable(&self) -> bool {
        self.first().is_some()
    }

    /// Calls the first in line for what `gets` gives, and gives what they brought.
    pub(crate) fn call(&mut self, wakers: &mut Wakers, gets: impl FnOnce() -> G) -> Option<W> {
        let ticket = self.first()?;
        let Waiting { brings, waker, .. } = self.waiting.remove(&ticket)?;
        wakers.0.extend(waker);
        self.answered.insert(ticket, Left::Called(gets()));
        Some(brings)
    }

    /// Sends everybody away, with what they brought.
    pub(crate) fn dismiss_all(&mut self, wakers: &mut Wakers) {
        while let Some((ticket, Waiting { brings, waker, .. })) = self.waiting.pop_first() {
            wakers.0.extend(waker);
            self.answered.insert(ticket, Left::Uncalled(brings));
        }
    }

    fn join(&mut self, brings: W) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, Waiting { brings, waker: None, aside: false });
        self.last
    }

    fn leave(&mut self, ticket: u64) -> (Left<W, G>, Option<Waker>) {
        if let Some(Waiting { brings, waker, .. }) = self.waiting.remove(&ticket) {
            return (Left::Uncalled(brings), waker);
        }
        (self.answered.remove(&ticket).expect("who left the line was answered"), None)
    }

    fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains_key(&ticket)
    }
}

/// A wait in a line. `Err`: there will be nothing, and here is what was brought.
pub(crate) struct Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    shared: P,
    brings: Option<D::Brings>,
    ticket: Option<u64>,
    side: PhantomData<fn() -> D>,
}

impl<P, S, D> Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    pub(crate) fn new(shared: P, brings: D::Brings) -> Self {
        Self { shared, brings: Some(brings), ticket: None, side: PhantomData }
    }

    /// What was brought, of one who is out of the line.
    pub(crate) fn take_back(&mut self) -> Option<D::Brings> {
        self.brings.take()
    }

    /// Blocks the thread until it is its turn; `None` if it was not by then.
    pub(crate) fn block(&mut self, until: Option<Instant>) -> Option<Result<D::Gets, D::Brings>> {
        assert!(
            !pikake_traps::door::is_open(),
            "a call that blocks its thread was made inside a kernel, all of whose tasks it would \
             stop: await the call without `_blocking` instead, or make it on another thread"
        );
        let done = shared_block::block_on(&mut *self, until);
        if done.is_none() {
            self.leave(true);
        }
        done
    }

    /// Does it, or takes the last place in the line.
    fn begin(&mut self) -> Option<Result<D::Gets, D::Brings>> {
        let brings = self.brings.take().expect("a wait was polled after it had ended");
        let mut wakers = Wakers::default();
        let mut state = self.shared.lock();
        let done = match D::now(&mut state, brings) {
            Ok(gets) => {
                state.serve(&mut wakers);
                Some(Ok(gets))
            }
            Err(brings) => {
                let ticket = D::line(&mut state).join(brings);
                self.ticket = Some(ticket);
                state.serve(&mut wakers);
                None
            }
        };
        drop(state);
        wakers.wake();
        done
    }

    /// Its turn, if it has come; otherwise that waker will be called.
    fn look(&mut self, waker: &Waker, aside: bool) -> Option<Result<D::Gets, D::Brings>> {
        let ticket = self.ticket?;
        let mut fresh = None;
        loop {
            let mut state = self.shared.lock();
            let line = D::line(&mut state);
            let Some(waiting) = line.waiting.get_mut(&ticket) else {
                drop(state);
                return Some(self.collect());
            };
            if waiting.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                waiting.aside = aside;
                return None;
            }
            // A waker is another's code, and not cloned under the lock.
            match fresh.take() {
                Some(fresh) => {
                    waiting.aside = aside;
                    let before = waiting.waker.replace(fresh);
                    drop(state);
                    drop(before);
                    return None;
                }
                None => {
                    drop(state);
                    fresh = Some(waker.clone());
                }
            }
        }
    }

    /// Out of the line: what has come of it.
    fn collect(&mut self) -> Result<D::Gets, D::Brings> {
        let ticket = self.ticket.take().expect("it was in the line");
        let mut wakers = Wakers::default();
        let mut state = self.shared.lock();
        let (left, waker) = D::line(&mut state).leave(ticket);
        let done = match left {
            Left::Called(gets) => {
                D::collected(&mut state);
                Ok(gets)
            }
            Left::Uncalled(brings) => Err(brings),
        };
        state.serve(&mut wakers);
        drop(state);
        drop(waker);
        wakers.wake();
        done
    }

    /// Steps back into the line; tells whether its turn has come meanwhile.
    fn step_back(&mut self) -> bool {
        let Some(ticket) = self.ticket else { return false };
        self.shared.change(|state| {
            if let Some(waiting) = D::line(state).waiting.get_mut(&ticket) {
                waiting.aside = false;
            }
        });
        !D::line(&mut self.shared.lock()).is_waiting(ticket)
    }

    /// Leaves the line, and gives back what it was called for; it is a matter of `keep` whether
    /// what was brought stays here.
    pub(crate) fn leave(&mut self, keep: bool) {
        let Some(ticket) = self.ticket.take() else { return };
        let (brings, waker) = self.shared.change(|state| match D::line(state).leave(ticket) {
            (Left::Called(gets), waker) => {
                D::give_back(state, gets);
                (None, waker)
            }
            (Left::Uncalled(brings), waker) => (Some(brings), waker),
        });
        drop(waker);
        if keep {
            self.brings = brings;
        }
    }
}

// It is used by reference and by value, and never pinned.
impl<P, S, D> Unpin for Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
}

impl<P, S, D> Future for Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    type Output = Result<D::Gets, D::Brings>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.ticket.is_none()
            && let Some(done) = self.begin()
        {
            return Poll::Ready(done);
        }
        match self.look(cx.waker(), false) {
            Some(done) => Poll::Ready(done),
            None => Poll::Pending,
        }
    }
}

impl<P, S, D> Drop for Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    fn drop(&mut self) {
        self.leave(false);
    }
}

/// The trap of a wait for what another thread does.
#[derive(Debug)]
struct Foreign;

impl Trap for Foreign {
    /// `Ok`: look again.
    type Answer = Result<(), Interrupted>;
    const KIND: TrapKind = TrapKind::FutureWait;

    fn wait(&mut self) -> pikake_traps::Wait<'_> {
        pikake_traps::Wait::Foreign(TrapKind::FutureWait)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// A [`Wait`] as a task awaits it: visible to the kernel, and interruptible.
pub(crate) struct Trapped<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    wait: Wait<P, S, D>,
    trap: Option<KernelTrap<Foreign>>,
    awaited_at: &'static Location<'static>,
}

impl<P, S, D> Trapped<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    pub(crate) fn new(
        shared: P,
        brings: D::Brings,
        awaited_at: &'static Location<'static>,
    ) -> Self {
        Self { wait: Wait::new(shared, brings), trap: None, awaited_at }
    }

    /// What was brought, of one who is out of the line.
    pub(crate) fn take_back(&mut self) -> Option<D::Brings> {
        self.wait.take_back()
    }
}

impl<P, S, D> Unpin for Trapped<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
}

impl<P, S, D> Future for Trapped<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    type Output = Result<Result<D::Gets, D::Brings>, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { wait, trap, awaited_at } = &mut *self;
        if wait.ticket.is_none()
            && let Some(done) = wait.begin()
        {
            return Poll::Ready(Ok(done));
        }
        loop {
            if let Some(done) = wait.look(cx.waker(), D::STEPS_ASIDE) {
                *trap = None;
                return Poll::Ready(Ok(done));
            }
            let asked = trap.get_or_insert_with(|| kernel_trap_at(Foreign, awaited_at));
            match Pin::new(asked).poll(cx) {
                Poll::Pending => {
                    if !D::STEPS_ASIDE || !wait.step_back() {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(Ok(())) => *trap = None,
                Poll::Ready(Err(interrupted)) => {
                    *trap = None;
                    wait.leave(true);
                    return Poll::Ready(Err(interrupted));
                }
            }
        }
    }
}

//! A wait for a state that threads share, by a thread that blocks or by a task. See `waiters.rs`.
//!
//! An operation that need not wait locks once. Otherwise the waker is cloned without the lock; the
//! second lock enqueues the waiter, and the third, after the wake, removes it.

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pikake_traps::{
    About, ForeignTrap, Interrupted, KernelTrap, kernel_trap_at, yield_thread_before_sleep,
};

use super::block;
use super::waiters::{Outcome, Shared, WaitKind, Waitable, Wakers};

/// How often a thread yields before it enqueues itself and sleeps. Where many threads wait for one,
/// that thread then does more work per wake.
const YIELDS: usize = 8;

/// A wait for a grant. `Err`: the waiter was dismissed, and gets its request back.
pub(crate) struct Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    shared: P,
    request: Option<D::Request>,
    ticket: Option<u64>,
    side: PhantomData<fn() -> D>,
}

impl<P, S, D> Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    pub(crate) fn new(shared: P, request: D::Request) -> Self {
        Self { shared, request: Some(request), ticket: None, side: PhantomData }
    }

    /// The request, if the wait has ended and nothing was granted.
    pub(crate) fn take_back(&mut self) -> Option<D::Request> {
        self.request.take()
    }

    /// Blocks the thread until the wait ends; `None` if it has not ended by `until`.
    pub(crate) fn block(&mut self, until: Option<Instant>) -> Option<Result<D::Grant, D::Request>> {
        assert!(
            !pikake_traps::door::is_open(),
            "a call that blocks its thread was made inside a kernel, all of whose tasks it would \
             stop: await the call without `_blocking` instead, or make it on another thread"
        );
        for attempt in 0..=YIELDS {
            if let Some(grant) = self.try_now() {
                return Some(Ok(grant));
            }
            if attempt < YIELDS {
                block::yield_now();
            }
        }
        let done = block::block_on(&mut *self, until);
        if done.is_none() {
            self.leave(true);
        }
        done
    }

    /// The grant, if no wait is needed.
    fn try_now(&mut self) -> Option<D::Grant> {
        let request = self.request.take().expect("a wait must not be polled after its end");
        let mut wakers = Wakers::default();
        let mut state = self.shared.lock();
        let done = D::try_now(&mut state, request);
        if done.is_ok() {
            state.serve(&mut wakers);
        }
        drop(state);
        wakers.wake();
        done.map_err(|request| self.request = Some(request)).ok()
    }

    /// The grant, if no wait is needed; otherwise enqueues the waiter.
    fn enqueue(&mut self, waker: Waker, paused: bool) -> Option<Result<D::Grant, D::Request>> {
        let request = self.request.take().expect("a wait must not be polled after its end");
        let mut wakers = Wakers::default();
        let mut surplus = None;
        let mut state = self.shared.lock();
        let done = match D::try_now(&mut state, request) {
            Ok(grant) => {
                state.serve(&mut wakers);
                surplus = Some(waker);
                Some(Ok(grant))
            }
            Err(request) => {
                let ticket = D::waiters(&mut state).enqueue(request, waker, paused);
                state.serve(&mut wakers);
                let done = Self::collect(&mut state, ticket, &mut wakers);
                if done.is_none() {
                    self.ticket = Some(ticket);
                }
                done
            }
        };
        drop(state);
        drop(surplus);
        wakers.wake();
        done
    }

    /// The outcome of a ticket, unless it still waits.
    fn collect(
        state: &mut S,
        ticket: u64,
        wakers: &mut Wakers,
    ) -> Option<Result<D::Grant, D::Request>> {
        let waiters = D::waiters(state);
        if waiters.waiting(ticket).is_some() {
            return None;
        }
        let done = match waiters.leave(ticket).0 {
            Outcome::Granted(mut grant) => {
                D::collected(state, &mut grant);
                Ok(grant)
            }
            Outcome::Dismissed(request) => Err(request),
        };
        state.serve(wakers);
        Some(done)
    }

    /// The outcome, unless the ticket still waits; then `waker` is called later.
    fn check(&mut self, waker: &Waker, paused: bool) -> Option<Result<D::Grant, D::Request>> {
        let ticket = self.ticket?;
        let mut fresh = None;
        loop {
            let mut wakers = Wakers::default();
            let mut state = self.shared.lock();
            let done = Self::collect(&mut state, ticket, &mut wakers);
            if done.is_some() {
                self.ticket = None;
                drop(state);
                wakers.wake();
                return done;
            }
            let waiting = D::waiters(&mut state).waiting(ticket)?;
            // Cloning a waker runs foreign code, so it happens without the lock.
            if !waiting.waker.will_wake(waker) && fresh.is_none() {
                drop(state);
                fresh = Some(waker.clone());
                continue;
            }
            waiting.paused = paused;
            let before = fresh.map(|fresh| std::mem::replace(&mut waiting.waker, fresh));
            drop(state);
            drop(before);
            return None;
        }
    }

    /// Ends the pause of the waiter. Returns whether its wait has ended.
    fn resume(&mut self) -> bool {
        let Some(ticket) = self.ticket else { return false };
        let mut wakers = Wakers::default();
        let mut state = self.shared.lock();
        let waiters = D::waiters(&mut state);
        waiters.resume(ticket);
        state.serve(&mut wakers);
        let is_done = D::waiters(&mut state).waiting(ticket).is_none();
        drop(state);
        wakers.wake();
        is_done
    }

    /// Removes the waiter and gives its grant back. With `keep`, a request without grant stays
    /// here.
    pub(crate) fn leave(&mut self, keep: bool) {
        let Some(ticket) = self.ticket.take() else { return };
        let (request, waker) = self.shared.change(|state| match D::waiters(state).leave(ticket) {
            (Outcome::Granted(grant), waker) => {
                D::give_back(state, grant);
                (None, waker)
            }
            (Outcome::Dismissed(request), waker) => (Some(request), waker),
        });
        drop(waker);
        if keep {
            self.request = request;
        }
    }
}

// The wait is used by reference and by value, and never pinned.
impl<P, S, D> Unpin for Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
}

impl<P, S, D> Future for Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    type Output = Result<D::Grant, D::Request>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let done = match self.ticket {
            None => self.enqueue(cx.waker().clone(), false),
            Some(_) => self.check(cx.waker(), false),
        };
        done.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<P, S, D> Drop for Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    fn drop(&mut self) {
        self.leave(false);
    }
}

/// Ends the pause of a waiter if the kernel panics. Otherwise those behind it would wait forever.
struct ResumeOnDrop<'a, P, S, D>(&'a mut Wait<P, S, D>)
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>;

impl<P, S, D> Drop for ResumeOnDrop<'_, P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// A [`Wait`] of a task, which the kernel lists and interrupts.
pub(crate) struct TaskWait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    wait: Wait<P, S, D>,
    trap: Option<KernelTrap<ForeignTrap>>,
    awaited_at: &'static Location<'static>,
}

impl<P, S, D> TaskWait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    pub(crate) fn new(
        shared: P,
        request: D::Request,
        awaited_at: &'static Location<'static>,
    ) -> Self {
        Self { wait: Wait::new(shared, request), trap: None, awaited_at }
    }

    /// The request, if the wait has ended and nothing was granted.
    pub(crate) fn take_back(&mut self) -> Option<D::Request> {
        self.wait.take_back()
    }
}

impl<P, S, D> Unpin for TaskWait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
}

impl<P, S, D> Future for TaskWait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: Waitable,
    D: WaitKind<S>,
{
    type Output = Result<Result<D::Grant, D::Request>, Interrupted>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { wait, trap, awaited_at } = &mut *self;
        if wait.ticket.is_none() {
            let done = wait.try_now().map(Ok);
            if let Some(done) = done.or_else(|| wait.enqueue(cx.waker().clone(), D::MAY_PAUSE)) {
                return Poll::Ready(Ok(done));
            }
        } else if let Some(done) = wait.check(cx.waker(), D::MAY_PAUSE) {
            *trap = None;
            return Poll::Ready(Ok(done));
        }
        loop {
            let foreign = || {
                let about: fn() -> About = || About::new(D::NAME);
                kernel_trap_at(ForeignTrap::new(about), awaited_at)
            };
            let asked = trap.get_or_insert_with(foreign);
            let paused = ResumeOnDrop(wait);
            let answer = Pin::new(asked).poll(cx);
            std::mem::forget(paused);
            match answer {
                Poll::Pending => {
                    if !D::MAY_PAUSE || !wait.resume() {
                        yield_thread_before_sleep();
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
            if let Some(done) = wait.check(cx.waker(), D::MAY_PAUSE) {
                *trap = None;
                return Poll::Ready(Ok(done));
            }
        }
    }
}

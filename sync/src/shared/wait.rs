//! A wait for something that threads share: as a thread blocks on it, and as a task awaits it. See
//! `line.rs` for the line it is in.
//!
//! What can be had at once takes one look under the lock. Otherwise the waker is cloned with the
//! lock open, and a second look takes a place in the line, with the waker; a third one, after the
//! wake, gives the place up.

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pikake_traps::{
    ForeignTrap, Interrupted, KernelTrap, TrapKind, kernel_trap_at, yield_thread_before_sleep,
};

use super::block;
use super::line::{Left, Shared, Side, State, Wakers};

/// How often a thread lets others run before it takes a place in the line and sleeps. Where many
/// threads wait for one, that one gets to do a lot at a time, and not one thing for each wake.
const YIELDS: usize = 8;

/// A wait in a line. `Err`: there will be nothing, and here is what was brought.
pub(crate) struct Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    shared: P,
    request: Option<D::Request>,
    ticket: Option<u64>,
    side: PhantomData<fn() -> D>,
}

impl<P, S, D> Wait<P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    pub(crate) fn new(shared: P, request: D::Request) -> Self {
        Self { shared, request: Some(request), ticket: None, side: PhantomData }
    }

    /// What was brought, of one who is out of the line.
    pub(crate) fn take_back(&mut self) -> Option<D::Request> {
        self.request.take()
    }

    /// Blocks the thread until it is its turn; `None` if it was not by then.
    pub(crate) fn block(&mut self, until: Option<Instant>) -> Option<Result<D::Gets, D::Request>> {
        assert!(
            !pikake_traps::door::is_open(),
            "a call that blocks its thread was made inside a kernel, all of whose tasks it would \
             stop: await the call without `_blocking` instead, or make it on another thread"
        );
        for attempt in 0..=YIELDS {
            if let Some(gets) = self.at_once() {
                return Some(Ok(gets));
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

    /// Does it, if that is possible at once.
    fn at_once(&mut self) -> Option<D::Gets> {
        let request = self.request.take().expect("a wait was polled after it had ended");
        let mut wakers = Wakers::default();
        let mut state = self.shared.lock();
        let done = D::now(&mut state, request);
        if done.is_ok() {
            state.serve(&mut wakers);
        }
        drop(state);
        wakers.wake();
        done.map_err(|request| self.request = Some(request)).ok()
    }

    /// Does it, or takes the last place in the line.
    fn join(&mut self, waker: Waker, aside: bool) -> Option<Result<D::Gets, D::Request>> {
        let request = self.request.take().expect("a wait was polled after it had ended");
        let mut wakers = Wakers::default();
        let mut surplus = None;
        let mut state = self.shared.lock();
        let done = match D::now(&mut state, request) {
            Ok(gets) => {
                state.serve(&mut wakers);
                surplus = Some(waker);
                Some(Ok(gets))
            }
            Err(request) => {
                let ticket = D::line(&mut state).join(request, waker, aside);
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

    /// What has come of somebody who is out of the line; nothing if they still wait.
    fn collect(
        state: &mut S,
        ticket: u64,
        wakers: &mut Wakers,
    ) -> Option<Result<D::Gets, D::Request>> {
        let line = D::line(state);
        if line.waiting(ticket).is_some() {
            return None;
        }
        let done = match line.leave(ticket).0 {
            Left::Called(gets) => {
                D::collected(state);
                Ok(gets)
            }
            Left::Uncalled(request) => Err(request),
        };
        state.serve(wakers);
        Some(done)
    }

    /// Its turn, if it has come; otherwise that waker will be called.
    fn look(&mut self, waker: &Waker, aside: bool) -> Option<Result<D::Gets, D::Request>> {
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
            let waiting = D::line(&mut state).waiting(ticket)?;
            // A waker is another's code, and not cloned under the lock.
            if !waiting.waker.will_wake(waker) && fresh.is_none() {
                drop(state);
                fresh = Some(waker.clone());
                continue;
            }
            waiting.aside = aside;
            let before = fresh.map(|fresh| std::mem::replace(&mut waiting.waker, fresh));
            drop(state);
            drop(before);
            return None;
        }
    }

    /// Steps back into the line; tells whether its turn has come meanwhile.
    fn step_back(&mut self) -> bool {
        let Some(ticket) = self.ticket else { return false };
        let mut wakers = Wakers::default();
        let mut state = self.shared.lock();
        let line = D::line(&mut state);
        line.step_back(ticket);
        state.serve(&mut wakers);
        let is_called = D::line(&mut state).waiting(ticket).is_none();
        drop(state);
        wakers.wake();
        is_called
    }

    /// Leaves the line, and gives back what it was called for; it is a matter of `keep` whether
    /// what was brought stays here.
    pub(crate) fn leave(&mut self, keep: bool) {
        let Some(ticket) = self.ticket.take() else { return };
        let (request, waker) = self.shared.change(|state| match D::line(state).leave(ticket) {
            (Left::Called(gets), waker) => {
                D::give_back(state, gets);
                (None, waker)
            }
            (Left::Uncalled(request), waker) => (Some(request), waker),
        });
        drop(waker);
        if keep {
            self.request = request;
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
    type Output = Result<D::Gets, D::Request>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let done = match self.ticket {
            None => self.join(cx.waker().clone(), false),
            Some(_) => self.look(cx.waker(), false),
        };
        done.map_or(Poll::Pending, Poll::Ready)
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

/// Who is aside, and steps back into the line if the kernel panics, which others would wait for.
struct Aside<'a, P, S, D>(&'a mut Wait<P, S, D>)
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>;

impl<P, S, D> Drop for Aside<'_, P, S, D>
where
    P: Deref<Target = Shared<S>>,
    S: State,
    D: Side<S>,
{
    fn drop(&mut self) {
        self.0.step_back();
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
    trap: Option<KernelTrap<ForeignTrap>>,
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
        request: D::Request,
        awaited_at: &'static Location<'static>,
    ) -> Self {
        Self { wait: Wait::new(shared, request), trap: None, awaited_at }
    }

    /// What was brought, of one who is out of the line.
    pub(crate) fn take_back(&mut self) -> Option<D::Request> {
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
    type Output = Result<Result<D::Gets, D::Request>, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { wait, trap, awaited_at } = &mut *self;
        if wait.ticket.is_none() {
            let done = wait.at_once().map(Ok);
            if let Some(done) = done.or_else(|| wait.join(cx.waker().clone(), D::STEPS_ASIDE)) {
                return Poll::Ready(Ok(done));
            }
        } else if let Some(done) = wait.look(cx.waker(), D::STEPS_ASIDE) {
            *trap = None;
            return Poll::Ready(Ok(done));
        }
        loop {
            let foreign = || kernel_trap_at(ForeignTrap::new(TrapKind::FutureWait), awaited_at);
            let asked = trap.get_or_insert_with(foreign);
            let aside = Aside(wait);
            let answer = Pin::new(asked).poll(cx);
            std::mem::forget(aside);
            match answer {
                Poll::Pending => {
                    if !D::STEPS_ASIDE || !wait.step_back() {
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
            if let Some(done) = wait.look(cx.waker(), D::STEPS_ASIDE) {
                *trap = None;
                return Poll::Ready(Ok(done));
            }
        }
    }
}

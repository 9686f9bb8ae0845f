//! The futures that wait: each names its event at its first poll.

use std::cell::Cell;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::machine::{next_number, try_with, with};
use super::rules::{At, Event, Number, State};
use super::{Interrupted, nanos};

/// The waker of a poll, if it is not the task's own.
pub(super) fn waker_of(cx: &Context<'_>) -> Option<Waker> {
    let is_own = with(|state| {
        let task = state.task_here();
        let mut tasks = state.tasks.iter();
        tasks.any(|one| one.number == task && one.waker.will_wake(cx.waker()))
    });
    (!is_own).then(|| cx.waker().clone())
}

/// A wait, from its first pending poll to its answer. After the answer it can begin again.
#[derive(Default)]
pub(super) struct Parked(Option<Number>);

impl Parked {
    pub(super) fn is_parked(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn poll(
        &mut self,
        event: impl FnOnce(&State) -> Event,
        at: At,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Interrupted>> {
        let waker = waker_of(cx);
        let answer = match self.0 {
            Some(wait) => with(|state| state.poll_wait(wait, waker, at)),
            None => {
                let begun = with(|state| {
                    let event = event(state);
                    state.begin_wait(event, waker, at)
                });
                match begun {
                    Ok(wait) => {
                        self.0 = Some(wait);
                        Poll::Pending
                    }
                    Err(answer) => Poll::Ready(answer),
                }
            }
        };
        if answer.is_ready() {
            self.0 = None;
        }
        answer
    }

    /// Ends the wait, whose foreign future is ready.
    fn end_foreign(&mut self) {
        if let Some(wait) = self.0.take() {
            with(|state| state.end_foreign_wait(wait));
        }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some(wait) = self.0 {
            try_with(|state| state.drop_wait(wait));
        }
    }
}

fn moment_after(state: &State, length: Duration) -> u64 {
    state.now.saturating_add(nanos(length))
}

/// The future of [`sleep`] and [`yield_now`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct Sleep {
    length: Duration,
    at: At,
    parked: Parked,
}

/// Waits so long; a length of zero until the next step.
#[track_caller]
pub(crate) fn sleep(length: Duration) -> Sleep {
    Sleep { length, at: Location::caller(), parked: Parked::default() }
}

/// Waits until the next step.
#[track_caller]
pub(crate) fn yield_now() -> Sleep {
    sleep(Duration::ZERO)
}

impl Future for Sleep {
    type Output = Result<(), Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Sleep { length, at, .. } = *self;
        let event = |state: &State| match moment_after(state, length) {
            moment if moment <= state.now => Event::NextStep(state.this_step()),
            moment => Event::Moment(moment),
        };
        self.parked.poll(event, at, cx)
    }
}

/// The future of [`elapse`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct Elapse {
    length: Duration,
    parked: Parked,
}

/// Waits so long, and is not interrupted.
pub(crate) fn elapse(length: Duration) -> Elapse {
    Elapse { length, parked: Parked::default() }
}

impl Future for Elapse {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let length = self.length;
        let event = |state: &State| Event::Elapse(moment_after(state, length));
        let never_noted = Location::caller();
        let polled = self.parked.poll(event, never_noted, cx);
        polled.map(|answer| assert!(answer.is_ok(), "never interrupted"))
    }
}

/// A place to wait in.
#[derive(Default)]
pub(crate) struct WaitQueue(Cell<Option<Number>>);

impl WaitQueue {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn number(&self) -> Number {
        let number = self.0.get().unwrap_or_else(next_number);
        self.0.set(Some(number));
        number
    }

    /// Wakes the first `count` waiters; returns how many it woke.
    pub(crate) fn wake(&self, count: usize) -> usize {
        try_with(|state| state.wake_queue(self.number(), count)).unwrap_or(0)
    }

    /// The number of waiters.
    pub(crate) fn len(&self) -> usize {
        try_with(|state| state.queue_len(self.number())).unwrap_or(0)
    }
}

/// The future of [`park`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct Park<'a> {
    queue: &'a WaitQueue,
    at: At,
    parked: Parked,
}

/// Waits in a queue until woken.
#[track_caller]
pub(crate) fn park(queue: &WaitQueue) -> Park<'_> {
    Park { queue, at: Location::caller(), parked: Parked::default() }
}

impl Future for Park<'_> {
    type Output = Result<(), Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (queue, at) = (self.queue.number(), self.at);
        self.parked.poll(|_| Event::WakeOf(queue), at, cx)
    }
}

/// The future of [`future_wait`].
#[must_use = "a future does nothing until it is awaited"]
pub(crate) struct FutureWait<F> {
    future: Pin<Box<F>>,
    at: At,
    parked: Parked,
}

/// Makes a foreign future a wait.
#[track_caller]
pub(crate) fn future_wait<F: Future>(future: F) -> FutureWait<F> {
    FutureWait { future: Box::pin(future), at: Location::caller(), parked: Parked::default() }
}

impl<F: Future> Future for FutureWait<F> {
    type Output = Result<F::Output, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            self.parked.end_foreign();
            return Poll::Ready(Ok(output));
        }
        let at = self.at;
        match self.parked.poll(|_| Event::Foreign, at, cx) {
            Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
            Poll::Ready(Ok(())) => unreachable!("no event of the model's own"),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Returns the interruption that the next wait here would return, and so delivers it.
#[track_caller]
pub(crate) fn check_interrupt() -> Result<(), Interrupted> {
    let at = Location::caller();
    with(|state| state.check_interrupt(at)).map_or(Ok(()), Err)
}

/// Returns the interruption that the next wait here would return, and does not deliver it.
pub(crate) fn pending_interrupt() -> Option<Interrupted> {
    with(|state| state.pending_interrupt())
}

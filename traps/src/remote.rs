//! A future on another kernel than that of the task that waits for it.
//!
//! ```text
//!   the waiting task, with a Remote                a task of the other kernel, with a Visitor
//!                    ──cancel──▶  request_cancel of the task: its waits are interrupted
//!                    ──abort───▶  the future is dropped
//!                    ◀─outcome──
//! ```
//!
//! All of these are [`Reply`]s, whose drop is a message as well: a `Remote` that is dropped
//! cancels, and a kernel that ends has no outcome.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::catch::catch_and_log;
use crate::interrupt::{Interrupted, Panic, TaskError};
use crate::reply::{Replied, Reply};
use crate::task::{current, try_current};

/// The reasons of a cancel.
const DROPPED: &str = "the caller was dropped";
const TIMED_OUT: &str = "a deadline of the caller passed";

/// The side of the task that waits for the outcome.
pub(crate) struct Remote<T> {
    /// Taken when the future is cancelled.
    cancel: Option<Reply<Interrupted>>,
    /// Taken when the future is aborted.
    abort: Option<Reply<()>>,
    outcome: Replied<Result<T, TaskError>>,
}

impl<T> Remote<T> {
    /// The two sides of a future.
    pub(crate) fn new() -> (Self, Visitor<T>) {
        let (cancel, cancelled) = Reply::channel();
        let (abort, aborted) = Reply::channel();
        let (reply, outcome) = Reply::channel();
        let visitor = Visitor { cancelled, aborted, answer: Answer(Some(reply)) };
        (Self { cancel: Some(cancel), abort: Some(abort), outcome }, visitor)
    }

    /// The outcome, once. [`TaskError::Stopped`]: the other kernel has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, TaskError>> {
        let outcome = Pin::new(&mut self.outcome).poll(cx);
        outcome.map(|outcome| outcome.unwrap_or(Err(TaskError::Stopped)))
    }

    /// Asks the future to end. The second call does nothing.
    pub(crate) fn cancel(&mut self, why: &Interrupted) {
        if let Some(cancel) = self.cancel.take() {
            cancel.send(passed_on(why));
        }
    }

    /// Has the future dropped.
    pub(crate) fn abort(&mut self) {
        if let Some(abort) = self.abort.take() {
            abort.send(());
        }
    }
}

/// The side of the task that runs the future.
pub(crate) struct Visitor<T> {
    cancelled: Replied<Interrupted>,
    aborted: Replied<()>,
    answer: Answer<T>,
}

impl<T> Visitor<T> {
    /// Makes the future and runs it, as a task of its own. A cancel from before the first poll ends
    /// the future unmade.
    pub(crate) async fn run<F>(self, make: impl FnOnce() -> F)
    where
        F: Future<Output = T>,
    {
        let Self { cancelled, aborted, answer } = self;
        let (mut cancelled, mut aborted) = (Some(cancelled), Some(aborted));
        let mut make = Some(make);
        let mut future = pin!(None);
        let outcome = poll_fn(|cx| {
            if let Some(Poll::Ready(order)) = poll_if_some(&mut aborted, cx) {
                aborted = None;
                if order.is_some() {
                    return Poll::Ready(Err(TaskError::Cancelled(Interrupted::cancelled(
                        "aborted",
                    ))));
                }
            }
            if let Some(Poll::Ready(order)) = poll_if_some(&mut cancelled, cx) {
                cancelled = None;
                let why = order.unwrap_or_else(|| Interrupted::cancelled(DROPPED));
                if make.take().is_some() {
                    return Poll::Ready(Err(TaskError::Cancelled(why)));
                }
                current().task_ref().request_cancel(why);
            }
            let polled = catch_unwind(AssertUnwindSafe(|| {
                if let Some(make) = make.take() {
                    future.set(Some(make()));
                }
                let future = future.as_mut().as_pin_mut().expect("the future is made");
                future.poll(cx)
            }));
            match polled {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Err(TaskError::Panicked(Panic::new(panic)))),
            }
        })
        .await;
        catch_and_log("the drop of work for another kernel", || future.set(None));
        answer.send(outcome);
    }
}

/// Sends the outcome. The drop of the future before its end is an outcome, too.
struct Answer<T>(Option<Reply<Result<T, TaskError>>>);

impl<T> Answer<T> {
    fn send(mut self, outcome: Result<T, TaskError>) {
        if let Some(reply) = self.0.take() {
            reply.send(outcome);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let Some(reply) = self.0.take() else { return };
        // A task that was asked to end and waits on foreign futures alone is dropped.
        let why = try_current().and_then(|task| task.task_ref().cancel_reason());
        if let Some(why) = why {
            reply.send(Err(TaskError::Cancelled(why)));
        }
    }
}

/// Polls the future, if there is one.
fn poll_if_some<F: Future + Unpin>(
    future: &mut Option<F>,
    cx: &mut Context<'_>,
) -> Option<Poll<F::Output>> {
    future.as_mut().map(|future| Pin::new(future).poll(cx))
}

/// The interruption of the future for one of its caller: a deadline there is none here.
fn passed_on(why: &Interrupted) -> Interrupted {
    if why.is_timeout() { Interrupted::cancelled(TIMED_OUT) } else { why.clone() }
}

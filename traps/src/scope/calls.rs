//! The calls that open a scope: [`timeout_after`] and its like, and [`shield`].

use std::future::Future;
use std::iter::successors;
use std::panic::Location;
use std::time::Duration;

use pikake_time::Deadline;

use super::futures::{IgnoreAfter, Shield, TimedFuture, Timeout};
use crate::cause::{Cause, Query};
use crate::door;
use crate::interrupt::Interrupted;
use crate::wait::Until;

/// Runs a future with a deadline, counted from the first poll.
///
/// When the deadline passes, the future's current await returns
/// [`Interrupted`](crate::Interrupted). The future may clean up, also by awaiting. When the future
/// is done, the call drops the output and returns [`TimedOut`](crate::TimedOut). If the future ends
/// before one of its waits is interrupted, the call returns the output. A future that waits on
/// foreign futures alone cannot be interrupted, and is dropped.
///
/// Around the `next()` of a stream, the interruption arrives inside the stream, and ends one that
/// is a generator. The item that says so is dropped, with a warning if the body is a `Next` of a
/// known library. `pikake::next_timeout` waits for an item, and does not interrupt the stream.
///
/// Deadlines nest to any depth. The scope of the passed deadline reports `TimedOut`. Scopes inside
/// see an interruption that is not theirs. Scopes outside see nothing unless the program passes the
/// error on.
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, TimedOut, sleep, timeout_after};
/// use std::time::Duration;
///
/// async fn transfer() -> Result<(), Interrupted> {
///     if let Err(interrupted) = sleep(Duration::from_secs(60)).await {
///         sleep(Duration::from_millis(5)).await?; // roll back, by awaiting
///         return Err(interrupted);
///     }
///     Ok(())
/// }
///
/// # async fn example() {
/// let limit = Duration::from_millis(10);
/// assert_eq!(timeout_after(limit, transfer()).await, Err(TimedOut));
/// assert_eq!(timeout_after(limit, async { 42 }).await, Ok(42));
/// # }
/// # pikake::sim::example(example());
/// ```
///
/// # Cancellation
///
/// Interruptions of the task and of outer scopes arrive inside the future. If the call reports
/// `TimedOut` and drops one of these with the late output, the next wait returns it. The drop of
/// this call drops the future.
///
/// # Errors
///
/// [`TimedOut`](crate::TimedOut).
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
#[doc(alias = "timeout")]
#[track_caller]
pub fn timeout_after<F: Future>(length: Duration, future: F) -> Timeout<F> {
    Timeout::new(Until::After(length), future)
}

/// Runs a future with a deadline at a moment, a [`Deadline`] or an [`Instant`](crate::Instant). See
/// [`timeout_after`].
///
/// # Errors
///
/// [`TimedOut`](crate::TimedOut).
///
/// # Panics
///
/// As for [`timeout_after`].
#[track_caller]
pub fn timeout_at<F: Future>(deadline: impl Into<Deadline>, future: F) -> Timeout<F> {
    Timeout::new(Until::At(deadline.into()), future)
}

/// Runs a future with a deadline, and returns both its output and whether the deadline interrupted
/// it.
///
/// As [`timeout_after`], but keeps an output that came too late.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake::{sleep, timed};
/// use std::time::Duration;
///
/// let timed = timed(Duration::from_millis(10), async {
///     match sleep(Duration::from_secs(60)).await {
///         Ok(()) => "all of it",
///         Err(_) => "as far as we got",
///     }
/// });
/// let timed = timed.await;
/// assert!(timed.expired);
/// assert_eq!(timed.output, Some("as far as we got"));
/// # }
/// # pikake::sim::example(example());
/// ```
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
#[track_caller]
pub fn timed<F: Future>(length: Duration, future: F) -> TimedFuture<F> {
    TimedFuture::new(Until::After(length), future)
}

/// Runs a future with a deadline, and returns `None` if the deadline interrupted it.
///
/// As [`timeout_after`], for callers that need no error.
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
#[track_caller]
pub fn ignore_after<F: Future>(length: Duration, future: F) -> IgnoreAfter<F> {
    IgnoreAfter::new(Until::After(length), future)
}

/// Runs a future to its end before a cancel or an outer deadline interrupts its task.
///
/// The shield holds back cancels, and deadlines of scopes around it, while the future is being
/// polled. Their interruptions are due at the first wait after the shield that would suspend.
/// Deadlines set inside the shield work as usual. Shields may nest.
/// [`Task::abort`](crate::Task::abort) and the end of a kernel's grace ignore shields.
///
/// # Examples
///
/// ```
/// # async fn close() -> Result<(), pikake::Interrupted> { Ok(()) }
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// pikake::shield(close()).await?; // is done, or fails, but is not interrupted
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// Not an interruption point. The drop of the shield drops the future.
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
pub fn shield<F: Future>(future: F) -> Shield<F> {
    Shield::new(future)
}

/// Collects an interruption that is due to the current task here, if there is one.
///
/// For long code without awaits. A wait does not return an interruption again that this call has
/// returned. Inside a shield, interruptions from outside of the shield are not due.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn check_interrupt() -> Result<(), Interrupted> {
    door::with(|_| ());
    let place = Location::caller();
    let due = door::try_with_task(|local, task| {
        local.collect_due(task, &Query::new(local.step.branch.get()), place)
    });
    due.flatten().map_or(Ok(()), Err)
}

/// The interruption that [`check_interrupt`] would return, without collecting it.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn pending_interrupt() -> Option<Interrupted> {
    door::with(|_| ());
    door::try_with_task(|local, task| local.peek_due(task)).flatten()
}

/// The soonest deadline of the scopes around the code that calls this, such as those of
/// [`timeout_after`]. A [`shield`] hides the deadlines of the scopes around it. A deadline that has
/// passed counts until a wait has returned its interruption: what the code does after that, such as
/// to clean up, has no such limit. [`Deadline::NEVER`] without one, and outside of a kernel.
///
/// For calls that pass on how much time is left, as to another process.
///
/// # Examples
///
/// ```
/// use pikake::traps::nearest_deadline;
/// use pikake::time::deadline_after;
/// use pikake::timeout_after;
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// assert!(nearest_deadline().is_never());
/// timeout_after(Duration::from_secs(2), async {
///     let soon = timeout_after(Duration::from_secs(1), async { nearest_deadline() });
///     assert!(soon.await.unwrap() <= deadline_after(Duration::from_secs(1)));
/// }).await.unwrap();
/// let late = timeout_after(Duration::from_secs(1), async {
///     assert!(pikake::sleep(Duration::from_secs(2)).await.is_err());
///     assert!(nearest_deadline().is_never());
/// });
/// assert!(late.await.is_err());
/// # });
/// ```
pub fn nearest_deadline() -> Deadline {
    let nearest = door::try_with(|local| {
        let scopes = successors(local.step.innermost(), |scope| scope.parent());
        let inside = scopes.take_while(|scope| !scope.is_shield());
        let to_come = inside.filter(|scope| !scope.cause().is_some_and(Cause::was_returned));
        to_come.map(|scope| scope.deadline.get()).min()
    });
    nearest.flatten().unwrap_or(Deadline::NEVER)
}

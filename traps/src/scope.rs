//! Scopes: regions of a task with a deadline of their own.
//!
//! A scope follows polling. It is entered when its future is polled and left when that poll
//! returns, so it holds for exactly what happens inside, also when several run side by side in one
//! task. When its deadline passes, everything that waits inside is told; see the crate's front page
//! for who is told what.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_time::Deadline;

use crate::door;
use crate::handler::{Until, Verdict};
use crate::home::KernelId;
use crate::interrupt::{ScopeId, TimedOut};

/// Runs a future with a deadline, counted from the first poll.
///
/// When the deadline passes, the await that the future sits in returns
/// [`Interrupted`](crate::Interrupted). The future may clean up, awaiting if it must; when it is
/// done, this returns [`TimedOut`] and drops its output. A future that ends before it was told is
/// not too late: its output is returned. A future that waits on nothing but foreign futures cannot
/// be told, and is dropped.
///
/// Deadlines nest to any depth. The scope whose deadline it was reports `TimedOut`; those inside
/// see an interruption that is not theirs, and those outside see nothing unless it is returned to
/// them.
///
/// # Examples
///
/// ```no_run
/// # async fn example() {
/// use pikake_traps::{TimedOut, sleep, timeout_after};
/// use std::time::Duration;
///
/// let nap = sleep(Duration::from_secs(60));
/// assert_eq!(timeout_after(Duration::from_millis(10), nap).await, Err(TimedOut));
/// # }
/// ```
///
/// # Cancellation
///
/// Passes on interruptions of the task and of scopes further out: they arrive inside the future.
/// Dropped, it drops the future.
///
/// # Errors
///
/// [`TimedOut`].
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
pub fn timeout_after<F: Future>(length: Duration, future: F) -> Timeout<F> {
    Timeout { until: Until::After(length), body: Some(future), scope: None }
}

/// Runs a future with a deadline at a moment. See [`timeout_after`].
///
/// # Errors
///
/// [`TimedOut`].
///
/// # Panics
///
/// As for [`timeout_after`].
pub fn timeout_at<F: Future>(deadline: Deadline, future: F) -> Timeout<F> {
    Timeout { until: Until::At(deadline), body: Some(future), scope: None }
}

pin_project_lite::pin_project! {
    /// The future of [`timeout_after`] and [`timeout_at`].
    #[must_use = "a future does nothing until it is awaited"]
    pub struct Timeout<F> {
        until: Until,
        // Dropped before the scope is: what the body waits on is withdrawn from an open scope.
        #[pin]
        body: Option<F>,
        scope: Option<OpenScope>,
    }
}

impl<F> fmt::Debug for Timeout<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A scope of a kernel, closed when this is dropped.
struct OpenScope {
    kernel: KernelId,
    id: ScopeId,
}

impl Drop for OpenScope {
    fn drop(&mut self) {
        door::reach(self.kernel, |kernel| kernel.close_scope(self.id));
    }
}

/// A scope during a poll, left when this is dropped, also by a panic.
struct Entered<'a> {
    scope: &'a OpenScope,
    back_to: Option<ScopeId>,
    left: bool,
}

impl<'a> Entered<'a> {
    fn new(scope: &'a OpenScope, cx: &mut Context<'_>) -> Self {
        let back_to = door::with(|kernel| kernel.enter_scope(scope.id, cx));
        Self { scope, back_to, left: false }
    }

    fn leave(mut self, pending: bool) -> Verdict {
        self.left = true;
        door::with(|kernel| kernel.leave_scope(self.scope.id, self.back_to, pending))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.left {
            door::try_with(|kernel| kernel.leave_scope(self.scope.id, self.back_to, false));
        }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let scope = match this.scope {
            Some(scope) => {
                assert!(
                    door::is_inside(scope.kernel),
                    "a timeout that was started in kernel {} was polled outside of it: a future \
                     that has started stays with its kernel",
                    scope.kernel
                );
                scope
            }
            None => this.scope.insert(open(*this.until)),
        };
        let body = this.body.as_mut().as_pin_mut();
        let body = body.expect("a timeout was polled after it had given its output");
        let entered = Entered::new(scope, cx);
        let polled = body.poll(cx);
        let verdict = entered.leave(polled.is_pending());
        let output = match (polled, verdict) {
            (Poll::Pending, Verdict::Keep) => return Poll::Pending,
            (Poll::Pending, Verdict::Drop) => Err(TimedOut),
            (Poll::Ready(output), _) => Ok(output),
        };
        this.body.set(None);
        let (kernel, id) = (scope.kernel, scope.id);
        // Closed by hand, for the sake of what it had come to.
        std::mem::forget(this.scope.take());
        let end = door::reach(kernel, |kernel| kernel.close_scope(id)).unwrap_or_default();
        Poll::Ready(if end.interrupted { Err(TimedOut) } else { output })
    }
}

fn open(until: Until) -> OpenScope {
    door::with(|kernel| {
        assert!(
            kernel.current().is_some(),
            "a timeout was polled inside a kernel but outside a task: spawn a task and await it \
             there"
        );
        OpenScope { kernel: kernel.id(), id: kernel.open_scope(until) }
    })
}

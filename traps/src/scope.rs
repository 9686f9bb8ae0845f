//! Scopes: regions of a task with a deadline of their own.
//!
//! A scope follows polling. It is entered when its future is polled and left when that poll
//! returns, so it holds for exactly what happens inside, also when several run side by side in one
//! task. When its deadline passes, everything that waits inside is told; see the crate's front page
//! for who is told what.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pikake_time::Deadline;

use crate::door;
use crate::handler::{Polled, ScopeEnd, ScopeKind, Until};
use crate::home::KernelId;
use crate::interrupt::{Interrupted, ScopeId, TimedOut};

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
/// ```
/// # async fn example() {
/// use pikake_traps::{TimedOut, sleep, timeout_after};
/// use std::time::Duration;
///
/// let nap = sleep(Duration::from_secs(60));
/// assert_eq!(timeout_after(Duration::from_millis(10), nap).await, Err(TimedOut));
/// # }
/// # pikake_sim::example(example());
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
    Timeout { scoped: Scoped::deadline(Until::After(length), future) }
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
    Timeout { scoped: Scoped::deadline(Until::At(deadline), future) }
}

/// Runs a future with a deadline, and tells both what it returned and whether it was too late.
///
/// As [`timeout_after`], but nothing is dropped that the future returned.
///
/// # Examples
///
/// ```
/// # async fn example() {
/// use pikake_traps::{sleep, timed};
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
/// # pikake_sim::example(example());
/// ```
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
pub fn timed<F: Future>(length: Duration, future: F) -> TimedFuture<F> {
    TimedFuture { scoped: Scoped::deadline(Until::After(length), future) }
}

/// Runs a future with a deadline, and gives nothing if it was too late.
///
/// As [`timeout_after`], for those who do not mind.
///
/// # Cancellation
///
/// As for [`timeout_after`].
///
/// # Panics
///
/// As for [`timeout_after`].
pub fn ignore_after<F: Future>(length: Duration, future: F) -> IgnoreAfter<F> {
    IgnoreAfter { scoped: Scoped::deadline(Until::After(length), future) }
}

/// Runs a future to its end before anything from outside interrupts its task.
///
/// Cancels, and deadlines of scopes around it, are held back while the future is being polled. They
/// are due at the first wait after it that would suspend. Deadlines set inside do their work as
/// ever. Shields may nest. Neither [`Task::abort`](crate::Task::abort) nor the end of a kernel's
/// grace knows of shields.
///
/// # Examples
///
/// ```
/// # async fn close() -> Result<(), pikake_traps::Interrupted> { Ok(()) }
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// pikake_traps::shield(close()).await?; // is done, or fails, but is not interrupted
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// Not an interruption point. Dropped, it drops the future.
///
/// # Panics
///
/// When polled outside a task of a kernel, or in another kernel than before.
pub fn shield<F: Future>(future: F) -> Shield<F> {
    Shield { scoped: Scoped::new(ScopeKind::Shield, future) }
}

/// Collects an interruption that is due to the current task here, if there is one.
///
/// For straight-line code that wants to know before it goes on. What this returned, no wait returns
/// any more. Inside a shield, what comes from outside of it is not due.
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
    match door::with(|kernel| kernel.check_interrupt()) {
        Some(interrupted) => Err(interrupted),
        None => Ok(()),
    }
}

/// The interruption that [`check_interrupt`] would return, left where it is.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn pending_interrupt() -> Option<Interrupted> {
    door::with(|kernel| kernel.pending_interrupt())
}

/// What came of a future with a deadline. Given by [`timed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<T> {
    /// What the future returned; `None` if it had to be dropped.
    pub output: Option<T>,
    /// The future was told that its time was up.
    pub expired: bool,
    /// How long after its deadline it ended; zero if it was in time. A future that overran in
    /// straight-line code was late without having been told.
    pub late: Duration,
}

pin_project_lite::pin_project! {
    /// A future in a scope of its own.
    struct Scoped<F> {
        kind: ScopeKind,
        // Dropped before the scope is: what the body waits on is withdrawn from an open scope.
        #[pin]
        body: Option<F>,
        scope: Option<OpenScope>,
    }
}

impl<F: Future> Scoped<F> {
    fn new(kind: ScopeKind, body: F) -> Self {
        Self { kind, body: Some(body), scope: None }
    }

    fn deadline(until: Until, body: F) -> Self {
        Self::new(ScopeKind::Deadline { until, grace: None }, body)
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Timed<F::Output>> {
        let mut this = self.project();
        let body = this.body.as_mut().as_pin_mut();
        let body = body.expect("a scope was polled after it had given its output");
        let entered = Entered::new(this.scope, *this.kind, cx);
        match body.poll(cx) {
            Poll::Ready(output) => {
                this.body.set(None);
                // Closed by hand, for the sake of what it had come to.
                std::mem::forget(this.scope.take());
                let ScopeEnd { interrupted: expired, late } = entered.finish();
                Poll::Ready(Timed { output: Some(output), expired, late })
            }
            Poll::Pending => match entered.leave() {
                Polled::Keep => Poll::Pending,
                Polled::Drop => {
                    this.body.set(None);
                    let end = this.scope.take().map(OpenScope::close).unwrap_or_default();
                    Poll::Ready(Timed { output: None, expired: true, late: end.late })
                }
            },
        }
    }
}

/// The setting that the futures with a deadline share.
macro_rules! with_grace {
    ($($name:ident)*) => {$(
        impl<F: Future> $name<F> {
            /// Drops the future when it has not ended so long after its deadline, whatever it does.
            ///
            /// Without this it may take its time to clean up, as long as it waits on traps. To be
            /// set before the first poll.
            pub fn grace(mut self, length: Duration) -> Self {
                if let ScopeKind::Deadline { grace, .. } = &mut self.scoped.kind {
                    *grace = Some(length);
                }
                self
            }
        }
    )*};
}

with_grace!(Timeout TimedFuture IgnoreAfter);

/// Names the futures of this file: each is a [`Scoped`] that makes something of its end.
macro_rules! scoped_futures {
    ($($(#[$doc:meta])* $name:ident => $output:ty, $make:expr;)*) => {$(
        pin_project_lite::pin_project! {
            $(#[$doc])*
            #[must_use = "a future does nothing until it is awaited"]
            pub struct $name<F> {
                #[pin]
                scoped: Scoped<F>,
            }
        }

        impl<F: Future> Future for $name<F> {
            type Output = $output;

            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.project().scoped.poll(cx).map($make)
            }
        }

        impl<F> fmt::Debug for $name<F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

scoped_futures! {
    /// The future of [`timeout_after`] and [`timeout_at`].
    ///
    /// It cannot leave its thread, whatever its body is:
    ///
    /// ```compile_fail,E0277
    /// fn send<T: Send>(_: T) {}
    /// send(pikake_traps::timeout_after(std::time::Duration::ZERO, std::future::ready(())));
    /// ```
    Timeout => Result<F::Output, TimedOut>, |timed| match timed {
        Timed { output: Some(output), expired: false, .. } => Ok(output),
        Timed { .. } => Err(TimedOut),
    };
    /// The future of [`timed`].
    TimedFuture => Timed<F::Output>, |timed| timed;
    /// The future of [`ignore_after`].
    IgnoreAfter => Option<F::Output>, |timed| timed.output.filter(|_| !timed.expired);
    /// The future of [`shield`].
    Shield => F::Output, |timed| {
        timed.output.expect("the body of a shield is never dropped by its kernel (D3)")
    };
}

/// A scope of a kernel, closed when this is dropped.
struct OpenScope {
    kernel: KernelId,
    id: ScopeId,
    /// It belongs to its kernel's thread, where it must be dropped to be closed.
    _home: PhantomData<*const ()>,
}

impl OpenScope {
    /// Closes the scope of a body that was dropped at the kernel's word.
    fn close(self) -> ScopeEnd {
        let Self { kernel, id, .. } = self;
        std::mem::forget(self);
        door::reach(kernel, |kernel| kernel.close_scope(id, true)).unwrap_or_default()
    }
}

impl Drop for OpenScope {
    fn drop(&mut self) {
        door::reach(self.kernel, |kernel| kernel.close_scope(self.id, false));
    }
}

/// A scope during a poll, left when this is dropped, also by a panic.
struct Entered {
    scope: ScopeId,
    back_to: Option<ScopeId>,
}

impl Entered {
    /// Enters a scope, which is opened if it is not yet.
    #[inline]
    fn new(scope: &mut Option<OpenScope>, kind: ScopeKind, cx: &mut Context<'_>) -> Self {
        if let Some(scope) = scope {
            assert!(
                door::is_inside(scope.kernel),
                "a scope that was opened in kernel {} was polled outside of it: a future that \
                 has started stays with its kernel",
                scope.kernel
            );
            let back_to = door::with(|kernel| kernel.enter_scope(scope.id, cx));
            return Self { scope: scope.id, back_to };
        }
        door::with(|kernel| {
            let (id, back_to) = kernel.open_scope(kind, cx);
            *scope = Some(OpenScope { kernel: kernel.home().id(), id, _home: PhantomData });
            Self { scope: id, back_to }
        })
    }

    /// Leaves it with a body that is not done.
    #[inline]
    fn leave(self) -> Polled {
        let Self { scope, back_to } = self;
        std::mem::forget(self);
        door::with(|kernel| kernel.leave_scope(scope, back_to, true))
    }

    /// Leaves it with a body that is done, and closes it.
    #[inline]
    fn finish(self) -> ScopeEnd {
        let Self { scope, back_to } = self;
        std::mem::forget(self);
        door::with(|kernel| kernel.finish_scope(scope, back_to))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        door::try_with(|kernel| kernel.leave_scope(self.scope, self.back_to, false));
    }
}

//! One future on each of several kernels, which end together.
//!
//! Each kernel runs the future in a task of its own, and the caller has a [`Remote`] of each.

use std::future::{Future, poll_fn};
use std::iter::once;
use std::task::{Context, Poll, ready};

use crate::handle::KernelHandle;
use crate::interrupt::{Interrupted, TaskError};
use crate::remote::Remote;
use crate::traps::foreign::future_wait;

/// The reason of a cancel.
const FAILED: &str = "the task of another kernel has failed";

/// Runs a future on the current kernel and on each of the others, in a task of its own, until all
/// have ended. Returns their results: that of the current kernel first, the others in their order.
///
/// A failure ends all: when the first task fails or panics, or its kernel ends, the others are
/// cancelled. So no server goes on with a part of its kernels.
///
/// `make` is sent to each kernel and called there, so it is `Send`, and its future need not be. For
/// a single task on another kernel, see [`KernelHandle::call`].
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::{TaskError, on_kernels};
///
/// let others = Vec::new(); // in a program with `#[pikake::main(threads = 4)]`: `other_kernels()`
/// let results = on_kernels(&others, || async { Ok::<_, TaskError>(42) }).await;
/// assert!(matches!(results[..], [Ok(42)]));
/// # });
/// ```
///
/// # Cancellation
///
/// An interruption point. An interruption cancels the tasks, with its reason, and the wait for
/// their ends goes on: the results tell what they did. A second interruption aborts them. A drop
/// cancels them, without a wait for their ends.
///
/// # Errors
///
/// For each kernel: the task's own error, or one made from a [`TaskError`]. It is
/// [`Panicked`](TaskError::Panicked); [`Cancelled`](TaskError::Cancelled), if the task was aborted,
/// or cancelled before its first step; [`Stopped`](TaskError::Stopped), if its kernel has ended.
///
/// # Panics
///
/// Outside a task of a kernel.
#[track_caller]
pub fn on_kernels<M, F, T, E>(
    others: &[KernelHandle],
    make: M,
) -> impl Future<Output = Vec<Result<T, E>>> + use<M, F, T, E>
where
    M: FnOnce() -> F + Clone + Send + 'static,
    F: Future<Output = Result<T, E>> + 'static,
    T: Send + 'static,
    E: From<TaskError> + Send + 'static,
{
    let kernels: Vec<_> = once(KernelHandle::current()).chain(others.iter().cloned()).collect();
    async move {
        let mut members: Vec<_> =
            kernels.iter().map(|kernel| Member::start(kernel, &make)).collect();
        drop(make);
        let mut is_interrupted = false;
        loop {
            let all_ended = poll_fn(|cx| {
                let mut is_pending = false;
                for number in 0..members.len() {
                    is_pending |= members[number].poll(cx).is_pending();
                    if matches!(members[number].result, Some(Err(_))) {
                        let why = Interrupted::cancelled(FAILED);
                        members.iter_mut().for_each(|member| member.remote.cancel(&why));
                    }
                }
                if is_pending { Poll::Pending } else { Poll::Ready(()) }
            });
            match future_wait(all_ended).await {
                Ok(()) => break,
                Err(_) if is_interrupted => {
                    members.iter_mut().for_each(|member| member.remote.abort())
                }
                Err(why) => {
                    is_interrupted = true;
                    members.iter_mut().for_each(|member| member.remote.cancel(&why));
                }
            }
        }
        let result = |member: Member<_, _>| member.result.expect("all tasks have ended");
        members.into_iter().map(result).collect()
    }
}

/// A kernel's task, as its caller sees it.
struct Member<T, E> {
    remote: Remote<Result<T, E>>,
    result: Option<Result<T, E>>,
}

impl<T, E> Member<T, E>
where
    T: Send + 'static,
    E: From<TaskError> + Send + 'static,
{
    fn start<M, F>(kernel: &KernelHandle, make: &M) -> Self
    where
        M: FnOnce() -> F + Clone + Send + 'static,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let (remote, visitor) = Remote::new();
        let make = make.clone();
        // A kernel that has ended drops the closure, and so the visitor.
        let _ = kernel.spawn(move || visitor.run(make));
        Self { remote, result: None }
    }

    /// Waits until the task has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.result.is_none() {
            let ended = ready!(self.remote.poll(cx));
            self.result = Some(ended.unwrap_or_else(|error| Err(error.into())));
        }
        Poll::Ready(())
    }
}

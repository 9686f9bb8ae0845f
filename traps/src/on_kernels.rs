//! One future on each of several kernels, which end together.
//!
//! Each kernel runs the future in a task, and another task beside it passes on the requests to end:
//!
//! ```text
//!   caller ──cancel──▶ attend ──request_cancel──▶ task
//!          ──abort───▶        ──abort───────────▶
//!          ◀──────────reply───────────────────── its outcome
//! ```
//!
//! All of these are [`Reply`]s, whose drop is a message as well: a caller that is dropped cancels,
//! and a kernel that ends has no outcome.

use std::future::{Future, poll_fn};
use std::iter::once;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::handle::KernelHandle;
use crate::interrupt::{Interrupted, TaskError};
use crate::reply::{Replied, Reply};
use crate::task::{CancelOnDrop, spawn};
use crate::traps::foreign::future_wait;

/// The reasons of a cancel.
const FAILED: &str = "the task of another kernel has failed";
const DROPPED: &str = "the caller was dropped";
const TIMED_OUT: &str = "a deadline of the caller passed";

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
                        members.iter_mut().for_each(|member| member.cancel(&why));
                    }
                }
                if is_pending { Poll::Pending } else { Poll::Ready(()) }
            });
            match future_wait(all_ended).await {
                Ok(()) => break,
                Err(_) if is_interrupted => members.iter_mut().for_each(Member::abort),
                Err(why) => {
                    is_interrupted = true;
                    members.iter_mut().for_each(|member| member.cancel(&why));
                }
            }
        }
        let result = |member: Member<_, _>| member.result.expect("all tasks have ended");
        members.into_iter().map(result).collect()
    }
}

/// A kernel's task, as its caller sees it.
struct Member<T, E> {
    /// Taken when the task is cancelled.
    cancel: Option<Reply<Interrupted>>,
    /// Taken when the task is aborted.
    abort: Option<Reply<()>>,
    replied: Replied<Result<T, E>>,
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
        let (cancel, cancelled) = Reply::channel();
        let (abort, aborted) = Reply::channel();
        let (reply, replied) = Reply::channel();
        let make = make.clone();
        // A kernel that has ended drops the closure, and so the reply.
        let _ = kernel.spawn(move || async move {
            let task = spawn(async move { make().await }).cancel_on_drop();
            let ended = attend(task, cancelled, aborted).await;
            reply.send(ended.unwrap_or_else(|error| Err(error.into())));
        });
        Self { cancel: Some(cancel), abort: Some(abort), replied, result: None }
    }

    /// Waits until the task has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.result.is_none() {
            let replied = ready!(Pin::new(&mut self.replied).poll(cx));
            self.result = Some(replied.unwrap_or_else(|| Err(TaskError::Stopped.into())));
        }
        Poll::Ready(())
    }

    fn cancel(&mut self, why: &Interrupted) {
        if let Some(cancel) = self.cancel.take() {
            cancel.send(why.clone());
        }
    }

    fn abort(&mut self) {
        if let Some(abort) = self.abort.take() {
            abort.send(());
        }
    }
}

/// Waits for a task, on its kernel, and passes on the requests of the caller. An interruption of
/// this wait, by a shutdown of the kernel, is a request as well.
async fn attend<T>(
    mut task: CancelOnDrop<T>,
    cancelled: Replied<Interrupted>,
    aborted: Replied<()>,
) -> Result<T, TaskError> {
    let (mut cancelled, mut aborted) = (Some(cancelled), Some(aborted));
    poll_fn(|cx| {
        loop {
            match Pin::new(&mut task).poll(cx) {
                Poll::Ready(Err(TaskError::Interrupted(why))) => task.request_cancel(&reason(&why)),
                Poll::Ready(ended) => return Poll::Ready(ended),
                Poll::Pending => break,
            }
        }
        if let Some(Poll::Ready(order)) = poll_if_some(&mut cancelled, cx) {
            cancelled = None;
            task.request_cancel(&order.as_ref().map_or_else(|| DROPPED.to_owned(), reason));
        }
        if let Some(Poll::Ready(order)) = poll_if_some(&mut aborted, cx) {
            aborted = None;
            if order.is_some() {
                task.abort();
            }
        }
        Poll::Pending
    })
    .await
}

/// Polls the future, if there is one.
fn poll_if_some<F: Future + Unpin>(
    future: &mut Option<F>,
    cx: &mut Context<'_>,
) -> Option<Poll<F::Output>> {
    future.as_mut().map(|future| Pin::new(future).poll(cx))
}

fn reason(why: &Interrupted) -> String {
    why.reason().unwrap_or(TIMED_OUT).to_owned()
}

//! One future on each of several kernels, which end together.
//!
//! Each kernel runs the future in a task of its own, and the caller has a [`Remote`] of each.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::iter::once;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use crate::cell::locals::LocalKey;
use crate::handle::KernelHandle;
use crate::interrupt::{Interrupted, TaskError};
use crate::remote::Remote;
use crate::task::{current, try_current};
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
        let common = Common::default();
        let start = |kernel| Member::start(kernel, &make, &common);
        let mut members: Vec<_> = kernels.iter().map(start).collect();
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

/// What the tasks of one call have in common: one value of a type.
#[derive(Clone, Default)]
struct Common(Arc<Mutex<Vec<Arc<dyn Any + Send + Sync>>>>);

static COMMON: u8 = 0;

impl Common {
    fn key() -> LocalKey {
        LocalKey(std::ptr::from_ref(&COMMON).addr())
    }

    fn value<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = values.iter().find_map(|value| value.clone().downcast().ok());
        known.unwrap_or_else(|| {
            let made = Arc::<T>::default();
            values.push(made.clone());
            made
        })
    }
}

/// The value of this type that the tasks of one [`on_kernels`] have in common. The first use makes
/// it. `None` in other tasks, also in those that such a task has started.
///
/// For services that run on several kernels, and help each other there.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::traps::common;
/// use pikake::{TaskError, on_kernels};
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// assert!(common::<AtomicUsize>().is_none());
/// let numbers = on_kernels(&[], || async {
///     let count = common::<AtomicUsize>().unwrap();
///     Ok::<_, TaskError>(count.fetch_add(1, Ordering::Relaxed))
/// });
/// assert_eq!(numbers.await[0].as_ref().unwrap(), &0);
/// # });
/// ```
pub fn common<T: Default + Send + Sync + 'static>() -> Option<Arc<T>> {
    let common = try_current()?.local(Common::key())?;
    Some(common.downcast_ref::<Common>()?.value())
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
    fn start<M, F>(kernel: &KernelHandle, make: &M, common: &Common) -> Self
    where
        M: FnOnce() -> F + Clone + Send + 'static,
        F: Future<Output = Result<T, E>> + 'static,
    {
        let (remote, visitor) = Remote::new();
        let (make, common) = (make.clone(), common.clone());
        // A kernel that has ended drops the closure, and so the visitor.
        let _ = kernel.spawn(move || {
            // A new task takes it.
            let _ = current().set_local(Common::key(), Rc::new(common));
            visitor.run(make)
        });
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

//! A task around a future that lies on the caller's stack and may borrow from there.
//!
//! The task's cell holds a pointer to the future. The cell drops the pointer before the future goes
//! out of scope, on every path, which makes this sound. Remaining references to the task then find
//! a task that has ended.

use std::cell::Cell;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::cell::reference::{NewTask, TaskRef};
use crate::home::LocalHome;
use crate::interrupt::TaskError;

/// Runs `drive` with a task whose future may borrow; returns the future's output.
///
/// `drive` hands the task to a kernel and runs the kernel. When `drive` returns or panics, a future
/// that has not ended is dropped.
///
/// # Errors
///
/// The task panicked or was cancelled, or `drive` returned before the task had ended
/// ([`TaskError::Stopped`]).
///
/// # Panics
///
/// When `drive` panics.
pub fn borrowing<F: Future>(
    future: F,
    home: &LocalHome,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
    drive: impl FnOnce(&TaskRef),
) -> Result<F::Output, TaskError> {
    struct Finish(TaskRef);
    impl Drop for Finish {
        fn drop(&mut self) {
            self.0.abandon(TaskError::Stopped);
        }
    }

    let output = Cell::new(None);
    let outcome = {
        let body = std::pin::pin!(Body { future: Some(future), output: &output });
        let body: Pin<&mut (dyn Clear + '_)> = body;
        // SAFETY: only the lifetime changes. The task's cell owns the reference, and drops it in
        // `Finish::drop` at the latest, which runs before `body` goes out of scope, also when
        // `drive` panics. A task that has ended is never polled again.
        let body: Pin<&'static mut (dyn Clear + 'static)> = unsafe { std::mem::transmute(body) };
        let task = NewTask::new(home, name, spawned_at, None);
        let finish = Finish(task.fill(Borrowed(body)));
        drive(&finish.0);
        finish.0.abandon(TaskError::Stopped);
        // SAFETY: the output of `Borrowed` is `()`.
        unsafe { finish.0.take_outcome::<()>() }
    };
    match outcome {
        Some(Ok(())) => Ok(output.take().expect("the body wrote its output before it ended")),
        Some(Err(error)) => Err(error),
        None => Err(TaskError::Stopped),
    }
}

pin_project_lite::pin_project! {
    /// A future on the stack of [`borrowing`], and the slot for its output.
    struct Body<'a, F: Future> {
        #[pin]
        future: Option<F>,
        output: &'a Cell<Option<F::Output>>,
    }
}

/// A future that can be dropped before the memory around it.
trait Clear: Future<Output = ()> {
    fn clear(self: Pin<&mut Self>);
}

impl<F: Future> Future for Body<'_, F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let Some(future) = this.future.as_pin_mut() else {
            return Poll::Ready(());
        };
        future.poll(cx).map(|output| this.output.set(Some(output)))
    }
}

impl<F: Future> Clear for Body<'_, F> {
    fn clear(self: Pin<&mut Self>) {
        self.project().future.set(None);
    }
}

/// The future of the task of [`borrowing`]. Its drop drops the future on the stack.
struct Borrowed(Pin<&'static mut dyn Clear>);

impl Future for Borrowed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.0.as_mut().clear();
    }
}

//! Runs a job's own code as the current job or batch, and turns its panics into results.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::broker::LocalFuture;
use crate::current::Current;
use crate::wire::failure::Failure;

/// The future of a job; its output is an error with the text if it panics, also in its destructor.
pub(crate) struct Body<T> {
    /// `None` once the job has ended.
    future: Option<LocalFuture<'static, T>>,
    current: Current,
}

impl<T> Body<T> {
    pub(crate) fn new(future: LocalFuture<'static, T>, current: Current) -> Self {
        Self { future: Some(future), current }
    }

    fn fenced<R>(
        &mut self,
        work: impl FnOnce(&mut Option<LocalFuture<'static, T>>) -> R,
    ) -> Result<R, String> {
        let future = &mut self.future;
        fence(self.current.clone(), || work(future))
    }
}

impl<T> Unpin for Body<T> {}

impl<T> Future for Body<T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.fenced(|future| {
            let ready =
                future.as_mut().expect("a job that has ended is not polled").as_mut().poll(cx);
            if ready.is_ready() {
                *future = None;
            }
            ready
        });
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

/// Drops an unfinished job, whose destructors may panic.
impl<T> Drop for Body<T> {
    fn drop(&mut self) {
        if self.future.is_some() {
            drop(self.fenced(|future| *future = None));
        }
    }
}

/// Runs code of a job; its panic is an error with the panic's text.
pub(crate) fn fence<R>(current: Current, work: impl FnOnce() -> R) -> Result<R, String> {
    current.run(|| catch_unwind(AssertUnwindSafe(work))).map_err(|panic| text_of(&*panic))
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a text")
        .into()
}

/// The failure for a job's panic.
pub(crate) fn panicked(text: String) -> Failure {
    let traceback = format!("the job panicked: {text}");
    Failure::new("Panic", "pikake.jobs", text).traced(traceback)
}

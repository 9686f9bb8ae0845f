//! hyper's executor: spawns tasks on the kernel.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use hyper::rt;
use pikake_traps::{Builder, try_current};

/// Starts hyper's background work as tasks of the current kernel.
///
/// HTTP/2 needs an executor: each stream is a task, which ends with its connection.
///
/// # Panics
///
/// If hyper spawns a task outside a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F: Future + 'static> rt::Executor<F> for Executor {
    #[track_caller]
    fn execute(&self, future: F) {
        Builder::new().spawn(work(future)).detach();
    }
}

/// A stream that waits is named; most end in their first step.
async fn work<F: Future>(future: F) {
    let mut future = pin!(future);
    let work = poll_fn(|cx| {
        let polled = future.as_mut().poll(cx);
        if let (Poll::Pending, Some(task)) = (&polled, try_current()) {
            task.task_ref().set_name("http stream");
        }
        polled
    });
    drop(work.await);
}

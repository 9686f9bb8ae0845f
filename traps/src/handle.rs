//! Reaching a kernel from any thread.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::door;
use crate::home::{Call, Home, Message};
use crate::interrupt::{Interrupted, Panic, TaskError};
use crate::local::Start;
use crate::names::KernelId;
use crate::reply::Reply;
use crate::seen::About;
use crate::task::{Task, spawn_at};
use crate::traps::foreign::{self, foreign_wait};

/// The kernel has ended, and takes no more requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelEnded;

impl fmt::Display for KernelEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel has ended")
    }
}

impl std::error::Error for KernelEnded {}

/// Reaches a kernel from any thread. Clone the handle freely.
///
/// A handle keeps neither the kernel nor its tasks alive.
#[doc(alias = "Handle")]
#[derive(Clone, Debug)]
pub struct KernelHandle {
    home: Arc<Home>,
}

impl KernelHandle {
    /// A handle to the kernel behind `home`.
    pub fn new(home: Arc<Home>) -> Self {
        Self { home }
    }

    /// A handle to the current kernel.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn current() -> Self {
        door::with(|local| Self::new(local.home().shared().clone()))
    }

    /// The id of the kernel.
    pub fn id(&self) -> KernelId {
        self.home.id()
    }

    /// Whether the kernel has ended.
    pub fn is_closed(&self) -> bool {
        self.home.is_closed()
    }

    /// Starts a task on the kernel's thread.
    ///
    /// The closure is sent to that thread and called in the task's first step, so the closure's
    /// future need not be `Send`. The task is detached; for a result see [`call`](Self::call). If
    /// the kernel ends first, the closure is dropped without being called.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`], with the closure dropped.
    #[track_caller]
    pub fn spawn<M, F>(&self, make: M) -> Result<(), KernelEnded>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let from = std::panic::Location::caller();
        self.call_there(Box::new(move || {
            let task: Task<()> = spawn_at(async move { make().await }, None, from, Start::Later);
            drop(task);
        }))
    }

    /// Calls a closure on the kernel's thread, inside the kernel and between two steps. A panic of
    /// the closure is logged. If the kernel ends first, the closure is dropped without being
    /// called.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`], with the closure dropped.
    pub fn call_there(&self, call: Call) -> Result<(), KernelEnded> {
        self.send(Message::Call(call))
    }

    /// Starts a task on the kernel's thread, from a task of another kernel (or the same), and waits
    /// for its result.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interrupted or dropped call loses the result only: the started
    /// task runs on, detached, and its result is dropped on its own thread.
    ///
    /// # Errors
    ///
    /// [`TaskError::Interrupted`]: the wait was interrupted. [`TaskError::Panicked`]: the started
    /// task panicked. [`TaskError::Stopped`]: the started task was dropped before it had a result,
    /// by a cancel or because its kernel has ended.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    #[track_caller]
    pub fn call<M, F>(
        &self,
        make: M,
    ) -> impl Future<Output = Result<F::Output, TaskError>> + use<M, F>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output: Send + 'static> + 'static,
    {
        let (reply, replied) = Reply::channel();
        let task = move || async move {
            let mut future = pin!(async move { make().await });
            let outcome =
                poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                    Ok(polled) => polled.map(Ok),
                    Err(panic) => Poll::Ready(Err(TaskError::Panicked(Panic::new(panic)))),
                });
            reply.send(outcome.await);
        };
        // A kernel that has ended drops the closure, and so the reply.
        let _ = self.spawn(task);
        let kernel = self.home.id();
        let about = move || About::new(format!("the result of a call to kernel {kernel}"));
        let waiting = foreign_wait(replied, &foreign::NAME, about, Location::caller());
        async move { waiting.await?.unwrap_or(Err(TaskError::Stopped)) }
    }

    /// Asks the main task of the current run to end, with a reason: its await returns
    /// [`Interrupted`]. The other tasks go on.
    ///
    /// A request between two runs interrupts the next run. A turn without a main task ignores the
    /// request.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`].
    pub fn interrupt(&self, reason: &str) -> Result<(), KernelEnded> {
        self.send(Message::Interrupt(Interrupted::cancelled(reason)))
    }

    /// Asks the kernel to step no further task and to return from `run`.
    ///
    /// The kernel's tasks stay as they are. A stop between two runs ends the next run.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`].
    pub fn stop(&self) -> Result<(), KernelEnded> {
        self.send(Message::Stop)
    }

    /// Asks the kernel to cancel all its tasks, newest first, the main task last. The kernel
    /// returns from `run` when the tasks have ended or the shutdown grace is over.
    ///
    /// # Errors
    ///
    /// [`KernelEnded`].
    pub fn shutdown(&self) -> Result<(), KernelEnded> {
        self.send(Message::Shutdown)
    }

    fn send(&self, message: Message) -> Result<(), KernelEnded> {
        self.home.send(message).map_err(|refused| {
            drop(refused);
            KernelEnded
        })
    }
}

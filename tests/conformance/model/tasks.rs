//! Tasks as programs see them.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::machine::{End, end_of, name_of, start, with};
use super::rules::{At, Event, Number};
use super::waits::Parked;
use super::{Interrupted, nanos};

/// Why joining a task gave no value.
pub(crate) enum TaskError {
    Cancelled(Interrupted),
    /// The joining task was interrupted, and not the joined one.
    Interrupted(Interrupted),
}

impl fmt::Debug for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled(why) => {
                f.debug_tuple("Cancelled").field(&format_args!("{why}")).finish()
            }
            Self::Interrupted(why) => why.fmt(f),
        }
    }
}

impl TaskError {
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_))
    }
}

/// A task, and the future of its outcome.
#[must_use = "a task that is not joined runs on detached"]
pub(crate) struct Task<T> {
    number: Number,
    output: Rc<RefCell<Option<T>>>,
    join: Parked,
}

/// Starts a task.
pub(crate) fn spawn<F: Future + 'static>(future: F) -> Task<F::Output> {
    named("", future)
}

/// Starts a task with a name.
pub(crate) fn named<F: Future + 'static>(name: &'static str, future: F) -> Task<F::Output> {
    begin(name, false, future)
}

/// Starts a task inside the current step, if it may.
pub(crate) fn spawn_eagerly<F: Future + 'static>(future: F) -> Task<F::Output> {
    begin("", true, future)
}

fn begin<F: Future + 'static>(name: &'static str, is_eager: bool, future: F) -> Task<F::Output> {
    let output = Rc::new(RefCell::new(None));
    let body = {
        let output = output.clone();
        async move {
            let given = future.await;
            output.replace(Some(given));
        }
    };
    let (number, refused) = start(name, is_eager, Box::pin(body));
    drop(refused);
    Task { number, output, join: Parked::default() }
}

fn request_cancel(task: Number, reason: &str, grace: Option<Duration>) {
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    with(|state| state.request_cancel(task, Interrupted::cancelled(reason), grace.map(nanos)));
}

impl<T> Task<T> {
    pub(crate) fn is_finished(&self) -> bool {
        end_of(self.number).is_some()
    }

    pub(crate) fn request_cancel(&self, reason: &str) {
        request_cancel(self.number, reason, None);
    }

    /// Asks the task to end and waits until it has.
    #[track_caller]
    pub(crate) fn cancel(&self) -> impl Future<Output = Result<(), Interrupted>> + use<T> {
        self.end_at(None, Location::caller())
    }

    /// As `cancel`, and drops the task after the grace.
    #[track_caller]
    pub(crate) fn cancel_within(
        &self,
        grace: Duration,
    ) -> impl Future<Output = Result<(), Interrupted>> + use<T> {
        self.end_at(Some(grace), Location::caller())
    }

    fn end_at(
        &self,
        grace: Option<Duration>,
        at: At,
    ) -> impl Future<Output = Result<(), Interrupted>> + use<T> {
        let (task, mut join) = (self.number, Parked::default());
        async move {
            request_cancel(task, "", grace);
            while end_of(task).is_none() {
                std::future::poll_fn(|cx| join.poll(|_| Event::EndOf(task), at, cx)).await?;
            }
            Ok(())
        }
    }

    pub(crate) fn abort(&self) {
        let why = Interrupted::cancelled(Some("aborted"));
        if !self.is_finished() {
            with(|state| state.doomed.push_back((self.number, why)));
        }
    }

    pub(crate) fn join(self) -> Self {
        self
    }

    pub(crate) fn detach(self) {}
}

// The output is not pinned.
impl<T> Unpin for Task<T> {}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskError>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, at) = (self.number, Location::caller());
        while self.join.is_parked() || end_of(task).is_none() {
            match self.join.poll(|_| Event::EndOf(task), at, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(why)) => return Poll::Ready(Err(TaskError::Interrupted(why))),
            }
        }
        let output = self.output.take();
        Poll::Ready(match end_of(task).expect("looked at above") {
            End::Returned => Ok(output.expect("neither a panic nor joined before")),
            End::Dropped(why) => Err(TaskError::Cancelled(why)),
        })
    }
}

/// The task that is stepped.
pub(crate) struct Current(Number);

pub(crate) fn current() -> Current {
    Current(with(|state| state.task_here()))
}

impl Current {
    pub(crate) fn name(&self) -> &'static str {
        name_of(self.0)
    }
    pub(crate) fn request_cancel(&self, reason: &str) {
        request_cancel(self.0, reason, None);
    }

    /// The number of waits since the task caught a cancel.
    pub(crate) fn waits_since_cancel(&self) -> Option<u64> {
        with(|state| state.waits_since(self.0))
    }
}

/// The number of waits since the first interruption that was swallowed.
pub(crate) fn swallowed() -> Option<u64> {
    with(|state| state.swallowed)
}

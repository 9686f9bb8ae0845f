//! A span of `tracing` for each task.
//!
//! The spans are entered and left by the observer's calls around a step, so a span's guard lives in
//! the observer in between. Subscribers are other people's code: none of them runs while the
//! observer's state is borrowed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use pikake_traps::{Exit, TaskId, TaskRef};
use tracing::Span;
use tracing::span::EnteredSpan;
use tracing::subscriber::NoSubscriber;

use crate::observe::Observer;

/// An observer that gives each task a span of `tracing`, which is entered for each of the task's
/// steps.
///
/// So an event inside a task, also one of a library, has the task as its context. The span is named
/// `task`, and its target is `pikake::task`. The level is ERROR, so a filter that shows an event of
/// the task shows the span as well, unless the filter turns the target off. The fields:
///
/// | field | holds |
/// | --- | --- |
/// | `id` | the number of the task in its kernel |
/// | `name` | the name of the task, if it has one |
/// | `kernel` | the number of the kernel |
/// | `parent` | the number of the task that spawned this one, if a task did |
/// | `spawned_at` | the place where the task was spawned |
///
/// A filter for parts of a program turns the target off: `RUST_LOG=my_app=debug` hides the spans,
/// and `RUST_LOG=my_app=debug,pikake::task=error` does not.
///
/// A task's span has no parent. Otherwise a long chain of tasks that spawn each other would be a
/// long chain of spans. The span begins when the task is spawned and ends with the task. A task
/// that was spawned before there was a subscriber gets its span at its next step.
///
/// A program with the feature `task-spans` and `#[pikake::main]` has this observer on all its
/// kernels.
///
/// # Examples
///
/// ```
/// use pikake::Kernel;
/// use pikake::kernel::TaskSpans;
///
/// let kernel = Kernel::builder().name("import").observer(TaskSpans::new()).build()?;
/// // With a subscriber that prints: `ERROR task{id=1 name="import" …}: the file is empty`.
/// kernel.run(async { tracing::error!("the file is empty") });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Default)]
pub struct TaskSpans {
    /// The spans of the tasks that are not being stepped.
    left: RefCell<HashMap<TaskId, Span>>,
    /// The span of the task that is being stepped.
    entered: RefCell<Option<(TaskId, EnteredSpan)>>,
}

impl TaskSpans {
    /// The target of the spans.
    pub const TARGET: &str = "pikake::task";

    /// An observer for one kernel.
    pub fn new() -> Self {
        Self::default()
    }

    fn span(task: &TaskRef) -> Span {
        tracing::error_span!(
            target: TaskSpans::TARGET,
            parent: None,
            "task",
            id = task.id().0,
            name = Some(task.name()).filter(|name| !name.is_empty()),
            kernel = %task.kernel(),
            parent = task.parent().map(|parent| parent.0),
            spawned_at = %task.spawned_at(),
        )
    }

    fn keep(&self, id: TaskId, span: Span) {
        if is_seen(&span) {
            self.left.borrow_mut().insert(id, span);
        }
    }

    fn leave(&self) {
        let entered = self.entered.borrow_mut().take();
        if let Some((id, entered)) = entered {
            self.keep(id, entered.exit());
        }
    }
}

/// Whether a subscriber has the span. A span without is made again at the task's next step: there
/// may be a subscriber by then. If another thread has a subscriber, a span of this one belongs to
/// none without being disabled.
fn is_seen(span: &Span) -> bool {
    span.with_subscriber(|(_, dispatch)| !dispatch.is::<NoSubscriber>()).unwrap_or(false)
}

impl Observer for TaskSpans {
    fn created(&self, task: &TaskRef) {
        self.keep(task.id(), Self::span(task));
    }

    fn stepping(&self, task: &TaskRef) {
        // The last step was not shown to its end if another observer panicked.
        self.leave();
        let known = self.left.borrow_mut().remove(&task.id());
        let span = known.unwrap_or_else(|| Self::span(task));
        if is_seen(&span) {
            let entered = span.entered();
            *self.entered.borrow_mut() = Some((task.id(), entered));
        }
    }

    fn stepped(&self, _: &TaskRef, _: Duration) {
        self.leave();
    }

    fn exited(&self, task: &TaskRef, _: Exit) {
        let span = self.left.borrow_mut().remove(&task.id());
        drop(span);
    }
}

impl fmt::Debug for TaskSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSpans")
            .field("tasks", &self.left.borrow().len())
            .finish_non_exhaustive()
    }
}

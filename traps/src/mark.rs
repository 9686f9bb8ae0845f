//! A task's mark: the note by which a lock names its holder, without a reference to the task.
//!
//! A mark is two numbers, read in two instructions, so that frequent locks and unlocks pay little
//! for listings. A listing makes the kernel search for the task.

use crate::door;
use crate::names::{KernelId, TaskId};

/// Names a task of this thread, without keeping the task alive.
///
/// # Examples
///
/// ```
/// use pikake::traps::TaskMark;
///
/// assert!(TaskMark::current().is_none(), "no task runs here");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskMark {
    kernel: KernelId,
    task: TaskId,
}

impl TaskMark {
    /// No task.
    pub const NONE: Self = Self { kernel: KernelId::NONE, task: TaskId(0) };

    /// The task whose future is being polled or dropped; [`NONE`](Self::NONE) outside of a task.
    #[inline]
    pub fn current() -> Self {
        let (kernel, task) = door::current_ids();
        Self { kernel, task }
    }

    /// Whether the mark names no task.
    pub fn is_none(self) -> bool {
        self.task == Self::NONE.task
    }

    /// The number that the kernel assigned to the task.
    #[inline]
    pub fn id(self) -> TaskId {
        self.task
    }

    /// The number of the task, if its kernel is the current one.
    pub fn id_here(self) -> Option<TaskId> {
        let is_here = !self.is_none() && door::current_kernel() == Some(self.kernel);
        is_here.then_some(self.task)
    }

    /// The number of the task, as `task 3`, with its name if it has one and has not ended.
    ///
    /// A kernel with more than some thousand tasks knows the names only of those that
    /// [`tasks_from`](crate::inspect::tasks_from) has shown since their spawn.
    pub fn label(self) -> String {
        let found =
            door::reach(self.kernel, |local| local.kernel().inspect()?.find_task(self.task));
        found.flatten().map_or_else(|| format!("task {}", self.task), |task| task.label())
    }
}

impl Default for TaskMark {
    fn default() -> Self {
        Self::NONE
    }
}

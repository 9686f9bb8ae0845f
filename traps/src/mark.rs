//! Which task it is, without keeping it: what a lock notes about its holder.
//!
//! A mark is two numbers, found in two instructions, since whoever locks and unlocks all the time should
//! not pay for somebody who looks; who looks has the kernel search for the task.

use crate::cell::reference::TaskRef;
use crate::door;
use crate::names::KernelId;
use crate::names::TaskId;

/// Names a task of this thread, and does not keep it.
///
/// # Examples
///
/// ```
/// use pikake_traps::TaskMark;
///
/// assert!(TaskMark::current().is_none(), "no task runs here");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskMark {
    kernel: KernelId,
    task: TaskId,
}

impl TaskMark {
    /// In the place of a task: there is none.
    pub const NONE: Self = Self { kernel: KernelId::NONE, task: TaskId(0) };

    /// The task whose future is being polled or dropped; [`NONE`](Self::NONE) outside of that.
    #[inline]
    pub fn current() -> Self {
        let (kernel, task) = door::polling();
        Self { kernel, task }
    }

    /// Whether it names no task.
    pub fn is_none(self) -> bool {
        self.task == Self::NONE.task
    }

    /// The number that its kernel gave to the task.
    #[inline]
    pub fn id(self) -> TaskId {
        self.task
    }

    /// The task, if it has not ended. The kernel looks at all of its tasks for that.
    pub fn find(self) -> Option<TaskRef> {
        door::reach(self.kernel, |local| local.kernel().find_task(self.task)).flatten()
    }
}

impl Default for TaskMark {
    fn default() -> Self {
        Self::NONE
    }
}

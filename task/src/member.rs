//! A member of a group, for those who spawned it.

use std::fmt;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskId, TaskRef};

/// A handle to a task of a group, without the task's outcome, which goes to the group.
#[doc(alias = "AbortHandle")]
#[derive(Clone)]
pub struct Member(pub(crate) TaskRef);

impl Member {
    /// The number that the kernel assigned to the task.
    pub fn id(&self) -> TaskId {
        self.0.id()
    }

    /// The task's name; empty for a task without a name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The place where the task was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.0.spawned_at()
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_ended()
    }

    /// Asks the task to end, with a reason, and does not wait.
    ///
    /// If the task then ends without a value, its group counts a failure, as for any cancel from
    /// outside.
    pub fn request_cancel(&self, reason: &str) {
        self.0.request_cancel(Interrupted::cancelled(reason));
    }

    /// Ends the task without another step: the kernel drops the task's future before the next step
    /// of any task. The group counts a failure.
    pub fn abort(&self) {
        self.0.request_abort(Interrupted::cancelled("aborted"));
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

//! The holder of a lock: its task, and the call that took the lock.
//!
//! Taking a lock stores three words. `Debug` looks the task up.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;

use pikake_traps::TaskMark;

/// The task that took a lock last. The lock knows whether the task still holds it.
#[derive(Default)]
pub(crate) struct Holder {
    task: Cell<TaskMark>,
    /// The call that took the lock. `None` if the lock was handed over and its new holder has not run since.
    place: Cell<Option<&'static Location<'static>>>,
}

impl Holder {
    pub(crate) const fn new() -> Self {
        Self { task: Cell::new(TaskMark::NONE), place: Cell::new(None) }
    }

    /// Stores the current task, if there is one.
    #[inline]
    pub(crate) fn set(&self, place: &'static Location<'static>) {
        self.place.set(Some(place));
        self.task.set(TaskMark::current());
    }

    /// Whether the current task took the lock last, and the lock was not handed over since.
    pub(crate) fn is_current_task(&self) -> bool {
        let task = self.task.get();
        self.place.get().is_some() && !task.is_none() && task == TaskMark::current()
    }

    /// Notes a hand-over to a waiter that has not run since.
    #[inline]
    pub(crate) fn clear(&self) {
        self.place.set(None);
    }
}

/// How `Debug` shows a holder that has not run since it got the lock.
pub(crate) const HANDED_OVER: &str = "handed over, not running yet";

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = self.place.get() else {
            return f.write_str(HANDED_OVER);
        };
        let mark = self.task.get();
        if mark.is_none() {
            f.write_str("a caller outside tasks")?;
        } else {
            write!(f, "task {}", mark.id())?;
        }
        if let Some(task) = mark.find().filter(|task| !task.name().is_empty()) {
            write!(f, " `{}`", task.name())?;
        }
        write!(f, " since {place}")
    }
}

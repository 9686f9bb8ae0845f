//! Who holds a lock: the task, and where it took it.
//!
//! Noted when the lock is taken, in three words; looked up when somebody looks.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;

use pikake_traps::TaskMark;

/// Who took a lock last. Whether they still have it, the lock knows.
#[derive(Default)]
pub(crate) struct Holder {
    task: Cell<TaskMark>,
    /// `None`: the lock was handed over, and whoever got it has not run since.
    place: Cell<Option<&'static Location<'static>>>,
}

impl Holder {
    pub(crate) const fn new() -> Self {
        Self { task: Cell::new(TaskMark::NONE), place: Cell::new(None) }
    }

    /// It is the current task, if there is one.
    #[inline]
    pub(crate) fn set(&self, place: &'static Location<'static>) {
        self.place.set(Some(place));
        self.task.set(TaskMark::current());
    }

    /// It is somebody who has not run since.
    /// Whether the current task took it last, and it was not handed over since.
    pub(crate) fn is_current_task(&self) -> bool {
        let task = self.task.get();
        self.place.get().is_some() && !task.is_none() && task == TaskMark::current()
    }

    #[inline]
    pub(crate) fn clear(&self) {
        self.place.set(None);
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = self.place.get() else {
            return f.write_str("the next in line, who has not run since");
        };
        let mark = self.task.get();
        if mark.is_none() {
            f.write_str("somebody outside a task")?;
        } else {
            write!(f, "task {}", mark.id())?;
        }
        if let Some(task) = mark.find()
            && !task.name().is_empty()
        {
            write!(f, " `{}`", task.name())?;
        }
        write!(f, " since {place}")
    }
}

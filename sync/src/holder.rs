//! Who holds a lock: the task, and where it took it.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;

use pikake_traps::{Current, try_current};

/// Who holds a lock, while it is held.
#[derive(Default)]
pub(crate) struct Holder {
    task: Cell<Option<Current>>,
    place: Cell<Option<&'static Location<'static>>>,
}

impl Holder {
    pub(crate) const fn new() -> Self {
        Self { task: Cell::new(None), place: Cell::new(None) }
    }

    /// It is the current task, if there is one.
    #[inline]
    pub(crate) fn set(&self, place: &'static Location<'static>) {
        self.place.set(Some(place));
        self.task.set(try_current());
    }

    /// It is nobody.
    #[inline]
    pub(crate) fn clear(&self) {
        self.place.set(None);
        self.task.set(None);
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let task = self.task.take();
        match (&task, self.place.get()) {
            (Some(task), _) => write!(f, "task {}", task.id())?,
            (None, Some(_)) => f.write_str("somebody outside a task")?,
            (None, None) => f.write_str("the next in line, who has not run since")?,
        }
        if let Some(name) = task.as_ref().map(Current::name).filter(|name| !name.is_empty()) {
            write!(f, " `{name}`")?;
        }
        if let Some(place) = self.place.get() {
            write!(f, " since {place}")?;
        }
        self.task.set(task);
        Ok(())
    }
}

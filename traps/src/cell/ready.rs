//! The ready list: tasks that may be stepped, linked through their headers.
//!
//! A task is in it at most once (I6): the flag `LISTED` says that it is, and owns the reference that
//! the list has. So making a task ready and taking it out cost no counting and no memory. A task that is
//! in it is not stepped, so that `QUEUED` is set for as long as `LISTED` is.

use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use super::Header;
use super::flags::Flags;
use super::reference::TaskRef;

/// Tasks that may be stepped, in the order in which they became ready.
#[derive(Default)]
pub struct ReadyList {
    first: Cell<Option<NonNull<Header>>>,
    last: Cell<Option<NonNull<Header>>>,
    length: Cell<usize>,
}

impl ReadyList {
    /// How many tasks are in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.length.get()
    }

    /// Whether no task is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// Puts a task at the end that is not `QUEUED`, and so in no list.
    #[inline(always)]
    pub(crate) fn push(&self, task: TaskRef) {
        task.flags().set(Flags::QUEUED | Flags::LISTED);
        task.own().next.set(None);
        let header = task.into_header();
        match self.last.replace(Some(header)) {
            Some(last) => {
                // SAFETY: the list owns a reference to each task in it; `next` belongs to the home
                // thread, which this is, since tasks and their list cannot leave it.
                let own = unsafe { &(*last.as_ptr()).own };
                own.next.set(Some(header));
            }
            None => self.first.set(Some(header)),
        }
        self.length.set(self.length.get() + 1);
    }

    /// Takes the first task out. It counts as ready until it is stepped.
    #[inline(always)]
    pub fn pop(&self) -> Option<TaskRef> {
        let header = self.first.get()?;
        // SAFETY: the reference is the one that the list owned.
        let task = unsafe { TaskRef::from_header(header) };
        task.flags().clear(Flags::LISTED);
        let next = task.own().next.get();
        self.first.set(next);
        if next.is_none() {
            self.last.set(None);
        }
        self.length.set(self.length.get() - 1);
        Some(task)
    }
}

impl Drop for ReadyList {
    fn drop(&mut self) {
        while let Some(task) = self.pop() {
            drop(task);
        }
    }
}

impl fmt::Debug for ReadyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyList").field("length", &self.len()).finish()
    }
}

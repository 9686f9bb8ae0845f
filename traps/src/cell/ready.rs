//! The ready list: tasks that may be stepped, linked through their headers.
//!
//! A task is in the list at most once (I6): the flag `LISTED` says so, and owns the list's
//! reference to the task. So a push and a pop cost no counting and no memory. A task in the list is
//! not stepped, so `QUEUED` is set for as long as `LISTED` is.

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
    /// The number of tasks in the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.length.get()
    }

    /// Whether the list has no task.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

    /// Appends a task that is not `QUEUED`, or is new, and so in no list.
    #[inline(always)]
    pub(crate) fn push(&self, task: TaskRef) {
        task.flags().set(Flags::QUEUED | Flags::LISTED);
        task.own().next.set(None);
        let header = task.into_header();
        match self.last.replace(Some(header)) {
            Some(last) => {
                // SAFETY: the list owns a reference to each of its tasks. `next` belongs to the
                // home thread, which tasks and their list cannot leave.
                let own = unsafe { &(*last.as_ptr()).own };
                own.next.set(Some(header));
            }
            None => self.first.set(Some(header)),
        }
        self.length.set(self.length.get() + 1);
    }

    /// Removes the first task, which counts as ready until its step.
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

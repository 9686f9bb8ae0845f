//! The tasks of a kernel that have not ended, each with the list of its joiners.

use std::collections::HashMap;

use pikake_traps::{TaskId, TaskRef, WaiterList};
use slab::Slab;

/// The number of entries that a page may look at, for each task that it may have: an entry without
/// a task takes a nanosecond.
const ENTRIES_PER_TASK: usize = 16;

/// The number of entries that the search for one task may look at: some microseconds. A listing
/// searches for the holders of the locks that its tasks wait for, between two steps.
const SEARCHED: usize = 2_048;

struct Entry {
    task: TaskRef,
    joiners: WaiterList,
}

/// The tasks that have not ended.
#[derive(Default)]
pub(crate) struct Tasks {
    entries: Slab<Entry>,
    last_id: u64,
    /// The entries of tasks that pages have shown, if there are too many for a search. Some of the
    /// tasks have ended since.
    shown: HashMap<TaskId, usize>,
}

impl Tasks {
    /// Adds a new task, and assigns its number.
    #[inline]
    pub(crate) fn add(&mut self, task: &TaskRef) {
        self.last_id += 1;
        task.set_id(TaskId(self.last_id));
        let index = self.entries.insert(Entry { task: task.clone(), joiners: WaiterList::EMPTY });
        task.set_index(u32::try_from(index).expect("fewer than 2^32 tasks"));
    }

    /// Removes a task, and returns the task with its joiners.
    #[inline]
    pub(crate) fn remove(&mut self, task: &TaskRef) -> Option<(TaskRef, WaiterList)> {
        let index = task.index() as usize;
        self.entries.get(index).filter(|entry| entry.task.is(task))?;
        let Entry { task, joiners } = self.entries.remove(index);
        Some((task, joiners))
    }

    /// The waiters that join a task; `None` if the task has ended.
    pub(crate) fn joiners(&mut self, task: &TaskRef) -> Option<&mut WaiterList> {
        let entry = self.entries.get_mut(task.index() as usize)?;
        entry.task.is(task).then_some(&mut entry.joiners)
    }

    /// The task with this number, if it has not ended. Among many tasks, only those that pages have
    /// shown are found.
    pub(crate) fn find(&self, id: TaskId) -> Option<TaskRef> {
        let found = match self.has_many() {
            true => self.entries.get(*self.shown.get(&id)?),
            false => self.entries.iter().map(|(_, entry)| entry).find(|it| it.task.id() == id),
        };
        found.filter(|entry| entry.task.id() == id).map(|entry| entry.task.clone())
    }

    /// Whether there are more entries than a search may look at.
    fn has_many(&self) -> bool {
        self.entries.capacity() > SEARCHED
    }

    /// Some tasks with their indexes from `first` on, and the index where the next page begins. A
    /// page may have no task.
    pub(crate) fn page(&mut self, first: u32, limit: usize) -> (Vec<TaskRef>, Option<u32>) {
        let limit = limit.max(1);
        let all = self.entries.capacity();
        let end = (first as usize).saturating_add(limit.saturating_mul(ENTRIES_PER_TASK)).min(all);
        // At once: a small block may be that of a closure from another thread, whose memory would
        // have to grow.
        let mut tasks = Vec::with_capacity(limit.min(self.entries.len()));
        let mut index = first as usize;
        while index < end && tasks.len() < limit {
            tasks.extend(self.entries.get(index).map(|entry| entry.task.clone()));
            index += 1;
        }
        self.note_shown(&tasks);
        (tasks, u32::try_from(index).ok().filter(|_| index < all))
    }

    /// Has [`find`](Self::find) find these tasks.
    fn note_shown(&mut self, tasks: &[TaskRef]) {
        if !self.has_many() {
            return;
        }
        if self.shown.len() > 2 * self.entries.len() {
            // Most of the tasks have ended.
            self.shown = HashMap::new();
        }
        self.shown.extend(tasks.iter().map(|task| (task.id(), task.index() as usize)));
    }

    /// The number of tasks that were added.
    pub(crate) fn spawned(&self) -> u64 {
        self.last_id
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// All tasks, the newest first.
    pub(crate) fn newest_first(&self) -> Vec<TaskRef> {
        let mut tasks: Vec<TaskRef> =
            self.entries.iter().map(|(_, entry)| entry.task.clone()).collect();
        tasks.sort_by_key(|task| std::cmp::Reverse(task.id()));
        tasks
    }
}

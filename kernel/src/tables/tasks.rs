//! The tasks of a kernel that have not ended, each with the list of its joiners.

use std::collections::HashMap;

use pikake_traps::{TaskId, TaskRef, WaiterList};
use slab::Slab;

/// The number of entries that a page may look at, for each task that it may have: an entry without a task takes a
/// nanosecond.
const ENTRIES_PER_TASK: usize = 16;

struct Entry {
    task: TaskRef,
    joiners: WaiterList,
}

/// The tasks that have not ended.
#[derive(Default)]
pub(crate) struct Tasks {
    entries: Slab<Entry>,
    last_id: u64,
    /// The entries of the tasks that had not ended when a search last looked at all tasks.
    index: HashMap<TaskId, usize>,
    /// The last task that was spawned before that. Tasks keep their entries, so `index` has all tasks up to this
    /// number that have not ended.
    indexed: u64,
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

    /// The task with this number, if it has not ended. For listings, which search for many.
    pub(crate) fn find(&mut self, id: TaskId) -> Option<TaskRef> {
        if id.0 > self.indexed && id.0 <= self.last_id {
            self.indexed = self.last_id;
            self.index = self.entries.iter().map(|(at, entry)| (entry.task.id(), at)).collect();
        }
        let found = &self.entries.get(*self.index.get(&id)?)?.task;
        (found.id() == id).then(|| found.clone())
    }

    /// Some tasks with their indexes from `first` on, and the index where the next page begins. A page may have no task.
    pub(crate) fn page(&self, first: u32, limit: usize) -> (Vec<TaskRef>, Option<u32>) {
        let limit = limit.max(1);
        let all = self.entries.capacity();
        let end = (first as usize).saturating_add(limit.saturating_mul(ENTRIES_PER_TASK)).min(all);
        let mut tasks = Vec::new();
        let mut index = first as usize;
        while index < end && tasks.len() < limit {
            tasks.extend(self.entries.get(index).map(|entry| entry.task.clone()));
            index += 1;
        }
        (tasks, u32::try_from(index).ok().filter(|_| index < all))
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

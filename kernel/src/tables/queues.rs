//! The waiters in wait queues, and those that join tasks: first-in, first-out lists.
//!
//! ```text
//!            (1)             (2)               (3)
//!   (none) ──────▶ waiting ──────▶ notified ──────▶ (none)
//!                     │                │
//!                     └────────────────┴── (4) ───▶ (none)
//! ```
//!
//! (1) [`Queues::park`]. (2) [`Queues::notify`] for a signal, [`Queues::serve`] for permits. (3)
//! [`Queues::rebind`] finds the entry notified. (4) [`Queues::remove`]: the machine passes a signal
//! that was not collected to the next waiter, and frees permits.
//!
//! The owner of a list stores its two ends: a [`WaitQueue`], or the table of tasks.

use std::mem;
use std::ptr;

use pikake_traps::{Collected, Local, TaskRef, WaitKey, WaitQueue, Waiter, WaiterList};
use slab::Slab;

/// The kind of a wait in a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Signal,
    /// A wait for this number of permits.
    Permits(usize),
}

struct Entry {
    waiter: Waiter,
    previous: u32,
    next: u32,
    state: State,
}

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The waiter is in its list.
    Waiting(Wanted),
    /// The waiter was signalled, and has left its list.
    Signalled,
    /// The waiter was granted permits of this queue, and has left its list. The address is only
    /// compared: a queue does not move while a future waits in it.
    Granted(*const WaitQueue),
}

impl State {
    fn is_notified(self) -> bool {
        !matches!(self, Self::Waiting(_))
    }
}

/// The waiters of a kernel that are in lists, or were notified there.
#[derive(Default)]
pub(crate) struct Queues {
    entries: Slab<Entry>,
    /// The entry that the last search for a granted waiter has found.
    last_found: usize,
}

fn index(key: WaitKey) -> usize {
    key.0 as usize
}

impl Queues {
    /// The number of waiters, including notified ones.
    pub(crate) fn wait_count(&self) -> usize {
        self.entries.len()
    }

    /// Puts a waiter at the end of a list.
    #[inline(always)]
    pub(crate) fn park(
        &mut self,
        list: &mut WaiterList,
        waiter: Waiter,
        wanted: Wanted,
    ) -> WaitKey {
        let previous = list.last;
        let entry =
            Entry { waiter, previous, next: WaiterList::NONE, state: State::Waiting(wanted) };
        let key = self.entries.insert(entry);
        let number = u32::try_from(key).expect("fewer than 2^32 waiters");
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = number,
            None => list.first = number,
        }
        list.last = number;
        WaitKey(key as u64)
    }

    /// Collects a notification, or binds the entry to a waiter. The caller drops the returned
    /// waiter when the table is not borrowed.
    #[inline(always)]
    pub(crate) fn rebind(&mut self, key: WaitKey, waiter: &Waiter) -> (Collected, Option<Waiter>) {
        let entry = &mut self.entries[index(key)];
        if entry.state.is_notified() {
            return (Collected::Answered, Some(self.entries.remove(index(key)).waiter));
        }
        let is_same = entry.waiter == *waiter;
        let before = || mem::replace(&mut entry.waiter, waiter.clone());
        (Collected::Pending, (!is_same).then(before))
    }

    /// Removes a waiter, also from its list unless it was notified, and returns whether it was
    /// notified. The caller drops the waiter when the table is not borrowed.
    pub(crate) fn remove(&mut self, key: WaitKey, list: &mut WaiterList) -> (Waiter, bool) {
        let Entry { waiter, previous, next, state } = self.entries.remove(index(key));
        let is_notified = state.is_notified();
        if !is_notified {
            self.unlink(list, previous, next);
        }
        (waiter, is_notified)
    }

    /// Notifies up to `count` waiters of a list that wait for a signal. Returns the number
    /// notified.
    #[inline]
    pub(crate) fn notify(&mut self, list: &mut WaiterList, count: usize, local: &Local) -> usize {
        let mut notified = 0;
        while notified < count {
            let first = self.entries.get(list.first as usize);
            let Some(Entry { state: State::Waiting(Wanted::Signal), .. }) = first else { break };
            self.notify_first(list, State::Signalled, local);
            notified += 1;
        }
        notified
    }

    #[inline(always)]
    fn notify_first(&mut self, list: &mut WaiterList, state: State, local: &Local) {
        let entry = &mut self.entries[list.first as usize];
        entry.state = state;
        local.notify(&entry.waiter);
        let next = entry.next;
        self.unlink(list, WaiterList::NONE, next);
    }

    /// Panics if a list has waiters of another kind.
    #[inline]
    pub(crate) fn assert_same_kind(&self, list: WaiterList, wanted: Wanted) {
        if let Some(first) = self.entries.get(list.first as usize) {
            let is_same = match first.state {
                State::Waiting(other) => mem::discriminant(&other) == mem::discriminant(&wanted),
                _ => true,
            };
            assert!(
                is_same,
                "a wait queue cannot serve waiters for signals and for permits at once: give each a queue"
            );
        }
    }

    /// Grants the free permits of a queue to its waiters, the first one first.
    #[inline]
    pub(crate) fn serve(&mut self, queue: &WaitQueue, local: &Local) {
        let (mut list, mut served) = (queue.waiters(), 0);
        while let Some(Entry { state: State::Waiting(Wanted::Permits(count)), .. }) =
            self.entries.get(list.first as usize)
        {
            if !queue.grant(*count) {
                break;
            }
            self.notify_first(&mut list, State::Granted(ptr::from_ref(queue)), local);
            served += 1;
        }
        queue.waiters_removed(served, list);
    }

    /// The task of a waiter that was granted permits of a queue and has not collected them, for
    /// listings.
    ///
    /// Looks at the waiters after those of the last search first: a listing shows the tasks in
    /// about this order.
    pub(crate) fn granted_to(&mut self, queue: &WaitQueue) -> Option<TaskRef> {
        if queue.granted() == 0 {
            return None;
        }
        let granted = State::Granted(ptr::from_ref(queue));
        let is_known = |entry: &Entry| entry.state == granted;
        let (before, after) = (0..self.last_found, self.last_found..self.entries.capacity());
        let mut all = after.chain(before);
        self.last_found = all.find(|index| self.entries.get(*index).is_some_and(is_known))?;
        Some(self.entries[self.last_found].waiter.task().clone())
    }

    /// Removes all waiters of a list. The caller drops the waiters when the table is not borrowed.
    pub(crate) fn take_all(&mut self, list: WaiterList) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        let mut at = list.first;
        while let Some(Entry { waiter, next, .. }) = self.entries.try_remove(at as usize) {
            waiters.push(waiter);
            at = next;
        }
        waiters
    }

    /// Links the neighbours of an entry that leaves its list.
    #[inline]
    fn unlink(&mut self, list: &mut WaiterList, previous: u32, next: u32) {
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => list.first = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(behind) => behind.previous = previous,
            None => list.last = previous,
        }
    }
}

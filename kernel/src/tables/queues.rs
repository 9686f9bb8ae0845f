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
//! [`Queues::rebind`] finds the entry notified. (4) [`Queues::remove`]: the machine passes a signal that was not
//! collected to the next waiter, and frees permits.
//!
//! The owner of a list stores its two ends: a [`WaitQueue`], or the table of tasks.

use std::mem;

use pikake_traps::{Collected, Local, WaitKey, WaitQueue, Waiter, WaiterList};
use slab::Slab;

/// The kind of a wait in a list.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    Signal,
    /// A wait for this number of permits.
    Permits(usize),
}

struct Entry {
    waiter: Waiter,
    previous: u32,
    next: u32,
    wanted: Wanted,
    /// The waiter was notified, and has left its list.
    is_notified: bool,
}

/// The waiters of a kernel that are in lists, or were notified there.
#[derive(Default)]
pub(crate) struct Queues {
    entries: Slab<Entry>,
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
        let entry = Entry { waiter, previous, next: WaiterList::NONE, wanted, is_notified: false };
        let key = self.entries.insert(entry);
        let number = u32::try_from(key).expect("fewer than 2^32 waiters");
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = number,
            None => list.first = number,
        }
        list.last = number;
        WaitKey(key as u64)
    }

    /// Collects a notification, or binds the entry to a waiter. The caller drops the returned waiter when the
    /// table is not borrowed.
    #[inline(always)]
    pub(crate) fn rebind(&mut self, key: WaitKey, waiter: &Waiter) -> (Collected, Option<Waiter>) {
        let entry = &mut self.entries[index(key)];
        if entry.is_notified {
            return (Collected::Answered, Some(self.entries.remove(index(key)).waiter));
        }
        let is_same = entry.waiter == *waiter;
        let before = || mem::replace(&mut entry.waiter, waiter.clone());
        (Collected::Pending, (!is_same).then(before))
    }

    /// Removes a waiter, also from its list unless it was notified, and returns whether it was notified. The
    /// caller drops the waiter when the table is not borrowed.
    pub(crate) fn remove(&mut self, key: WaitKey, list: &mut WaiterList) -> (Waiter, bool) {
        let Entry { waiter, previous, next, is_notified, .. } = self.entries.remove(index(key));
        if !is_notified {
            self.unlink(list, previous, next);
        }
        (waiter, is_notified)
    }

    /// Notifies up to `count` waiters of a list that wait for a signal. Returns the number notified.
    #[inline]
    pub(crate) fn notify(&mut self, list: &mut WaiterList, count: usize, local: &Local) -> usize {
        let mut notified = 0;
        while notified < count {
            let first = self.entries.get(list.first as usize);
            let Some(Entry { wanted: Wanted::Signal, .. }) = first else { break };
            self.notify_first(list, local);
            notified += 1;
        }
        notified
    }

    #[inline(always)]
    fn notify_first(&mut self, list: &mut WaiterList, local: &Local) {
        let entry = &mut self.entries[list.first as usize];
        entry.is_notified = true;
        local.notify(&entry.waiter);
        let next = entry.next;
        self.unlink(list, WaiterList::NONE, next);
    }

    /// Panics if a list has waiters of another kind.
    #[inline]
    pub(crate) fn assert_same_kind(&self, list: WaiterList, wanted: Wanted) {
        if let Some(first) = self.entries.get(list.first as usize) {
            let is_same = mem::discriminant(&first.wanted) == mem::discriminant(&wanted);
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
        while let Some(Entry { wanted: Wanted::Permits(count), .. }) =
            self.entries.get(list.first as usize)
        {
            if !queue.grant(*count) {
                break;
            }
            self.notify_first(&mut list, local);
            served += 1;
        }
        queue.waiters_removed(served, list);
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

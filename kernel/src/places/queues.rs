//! The ends of wait queues, and of the lists of those that join tasks: first in, first out.
//!
//! ```text
//!            (1)             (2)               (3)
//!   (none) ──────▶ waiting ──────▶ notified ──────▶ (none)
//!                     │                │
//!                     └────────────────┴── (4) ───▶ (none)
//! ```
//!
//! (1) [`Queues::park`]. (2) [`Queues::notify`]. (3) [`Queues::collect`] finds the entry notified.
//! (4) [`Queues::leave`].
//!
//! The owner of a list stores its two ends: a [`WaitQueue`], or the table of tasks.

use std::mem;
use std::ptr;

use pikake_traps::{Local, Parked, TaskRef, WaitKey, WaitQueue, Waiter, WaiterList};
use slab::Slab;

struct Entry {
    waiter: Waiter,
    previous: u32,
    next: u32,
    state: State,
}

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The waiter is in its list, and wants this number of permits; for a signal, zero.
    Waiting(usize),
    /// The waiter was notified, and has left its list: that of this queue, or of a task. The
    /// address is only compared: a queue does not move while a future waits in it.
    Notified(*const WaitQueue),
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

    /// Puts a waiter for permits, or for a signal, at the end of a list.
    #[inline(always)]
    pub(crate) fn park(&mut self, list: &mut WaiterList, waiter: Waiter, permits: usize) -> Parked {
        let previous = list.last;
        let entry =
            Entry { waiter, previous, next: WaiterList::NONE, state: State::Waiting(permits) };
        let key = self.entries.insert(entry);
        let number = u32::try_from(key).expect("fewer than 2^32 waiters");
        match self.entries.get_mut(previous as usize) {
            Some(before) => before.next = number,
            None => list.first = number,
        }
        list.last = number;
        Parked::Waits(WaitKey(key as u64))
    }

    /// Collects a notification, or binds the entry to a waiter. The caller drops the returned
    /// waiter when the table is not borrowed.
    #[inline(always)]
    pub(crate) fn collect(&mut self, key: WaitKey, waiter: &Waiter) -> (Parked, Option<Waiter>) {
        let entry = &mut self.entries[index(key)];
        if entry.state.is_notified() {
            return (Parked::Satisfied, Some(self.entries.remove(index(key)).waiter));
        }
        let is_same = entry.waiter == *waiter;
        let before = || mem::replace(&mut entry.waiter, waiter.clone());
        (Parked::Waits(key), (!is_same).then(before))
    }

    /// Removes a waiter, also from its list unless it was notified, and returns whether it was
    /// notified. The caller drops the waiter when the table is not borrowed.
    pub(crate) fn leave(&mut self, key: WaitKey, list: &mut WaiterList) -> (Waiter, bool) {
        let Entry { waiter, previous, next, state } = self.entries.remove(index(key));
        let is_notified = state.is_notified();
        if !is_notified {
            self.unlink(list, previous, next);
        }
        (waiter, is_notified)
    }

    /// Notifies up to `count` waiters of a list, the first one first, for as long as `grant` grants
    /// the permits that the next one wants. Returns the number notified. `queue` owns the list, if
    /// a queue does.
    #[inline(always)]
    pub(crate) fn notify(
        &mut self,
        list: &mut WaiterList,
        count: usize,
        queue: *const WaitQueue,
        grant: impl Fn(usize) -> bool,
        local: &Local,
    ) -> usize {
        let mut notified = 0;
        while notified < count {
            let Some(entry) = self.entries.get_mut(list.first as usize) else { break };
            match entry.state {
                State::Waiting(permits) if grant(permits) => {}
                State::Waiting(_) | State::Notified(_) => break,
            }
            entry.state = State::Notified(queue);
            local.notify(&entry.waiter);
            let next = entry.next;
            self.unlink(list, WaiterList::NONE, next);
            notified += 1;
        }
        notified
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
        let granted = State::Notified(ptr::from_ref(queue));
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

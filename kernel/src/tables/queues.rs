//! The waiters in wait queues, and those that join tasks: lists, the waiter that came first at the front.
//!
//! ```text
//!            (1)             (2)               (3)
//!   (none) ──────▶ waiting ──────▶ notified ──────▶ (none)
//!                     │                │
//!                     └────────────────┴── (4) ───▶ (none)
//! ```
//!
//! (1) [`Queues::park`], [`Queues::join`]. (2) [`Queues::notify`], [`Queues::notify_all`]. (3)
//! [`Queues::rebind`] finds the entry notified. (4) [`Queues::remove`]: if a wait queue has notified the
//! entry, the notification goes to the next waiter of that queue.

use pikake_traps::{Collected, Local, WaitKey, Waiter};
use slab::Slab;

/// The index that ends a list.
const NONE: u32 = u32::MAX;

/// The ends of a list of waiters.
#[derive(Clone, Copy)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE };

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// A wait queue.
struct Queue {
    list: List,
    length: usize,
    /// Distinguishes the queue from earlier queues with the same number.
    serial: u32,
}

/// Names a wait queue, also after the queue is gone.
#[derive(Clone, Copy)]
struct QueueRef {
    index: u32,
    serial: u32,
}

/// The place of a waiter.
#[derive(Clone, Copy)]
enum Place {
    /// In a wait queue.
    Queue(QueueRef),
    /// In the list of a task's joiners.
    Joiners,
    /// In no list: this queue has notified the waiter.
    NotifiedBy(QueueRef),
    /// In no list: the joined task has ended.
    Over,
    /// In no list: the queue is gone.
    Nowhere,
}

struct Entry {
    waiter: Waiter,
    previous: u32,
    next: u32,
    place: Place,
}

/// The waiters and the wait queues of a kernel.
#[derive(Default)]
pub(crate) struct Queues {
    entries: Slab<Entry>,
    queues: Slab<Queue>,
    last_serial: u32,
}

fn number(key: usize) -> u32 {
    u32::try_from(key).expect("fewer than 2^32 of a kind")
}

fn index(key: WaitKey) -> usize {
    key.0 as usize
}

impl Queues {
    /// Makes a wait queue, and returns its number.
    pub(crate) fn add_queue(&mut self) -> u32 {
        self.last_serial = self.last_serial.wrapping_add(1);
        let queue = Queue { list: List::EMPTY, length: 0, serial: self.last_serial };
        number(self.queues.insert(queue))
    }

    /// Ends a wait queue. Waiters that are still in the queue wait for ever.
    pub(crate) fn remove_queue(&mut self, queue: u32) {
        let Queue { list, .. } = self.queues.remove(queue as usize);
        let mut at = list.first;
        while let Some(entry) = self.entries.get_mut(at as usize) {
            entry.place = Place::Nowhere;
            at = entry.next;
        }
    }

    pub(crate) fn length(&self, queue: u32) -> usize {
        self.queues[queue as usize].length
    }

    /// The number of entries, those of notified waiters included.
    pub(crate) fn wait_count(&self) -> usize {
        self.entries.len()
    }

    /// Puts a waiter at the end of a wait queue.
    #[inline]
    pub(crate) fn park(&mut self, queue: u32, waiter: Waiter) -> WaitKey {
        let found = &mut self.queues[queue as usize];
        let place = Place::Queue(QueueRef { index: queue, serial: found.serial });
        found.length += 1;
        let key = add(&mut self.entries, &mut found.list, waiter, place);
        WaitKey(u64::from(key))
    }

    /// Puts a waiter at the end of a list of joiners.
    #[inline]
    pub(crate) fn join(&mut self, joiners: &mut List, waiter: Waiter) -> WaitKey {
        WaitKey(u64::from(add(&mut self.entries, joiners, waiter, Place::Joiners)))
    }

    /// Collects a notification, or binds the entry to a waiter.
    #[inline]
    pub(crate) fn rebind(&mut self, key: WaitKey, waiter: &Waiter) -> (Collected, Option<Waiter>) {
        let entry = &mut self.entries[index(key)];
        if let Place::NotifiedBy(_) | Place::Over = entry.place {
            return (Collected::Answered, Some(self.entries.remove(index(key)).waiter));
        }
        let is_same = entry.waiter == *waiter;
        let before = || std::mem::replace(&mut entry.waiter, waiter.clone());
        (Collected::Pending, (!is_same).then(before))
    }

    /// Takes a waiter out. `joiners` is the list that a waiter of a task's end may be in.
    pub(crate) fn remove(
        &mut self,
        key: WaitKey,
        joiners: Option<&mut List>,
        local: &Local,
    ) -> Waiter {
        let Entry { waiter, previous, next, place } = self.entries.remove(index(key));
        match place {
            Place::Queue(queue) => {
                let found = &mut self.queues[queue.index as usize];
                found.length -= 1;
                unlink(&mut self.entries, &mut found.list, previous, next);
            }
            Place::Joiners => {
                if let Some(joiners) = joiners {
                    unlink(&mut self.entries, joiners, previous, next);
                }
            }
            Place::NotifiedBy(queue) => {
                let found = self.queues.get(queue.index as usize);
                if found.is_some_and(|found| found.serial == queue.serial) {
                    self.notify(queue.index, 1, local);
                }
            }
            Place::Over | Place::Nowhere => {}
        }
        waiter
    }

    /// Notifies up to `count` waiters of a wait queue, and returns their number.
    #[inline]
    pub(crate) fn notify(&mut self, queue: u32, count: usize, local: &Local) -> usize {
        let Self { entries, queues, .. } = self;
        let found = &mut queues[queue as usize];
        let serial = found.serial;
        let mut notified = 0;
        while notified < count
            && let Some(entry) = entries.get_mut(found.list.first as usize)
        {
            entry.place = Place::NotifiedBy(QueueRef { index: queue, serial });
            local.notify(&entry.waiter);
            let next = entry.next;
            found.length -= 1;
            unlink(entries, &mut found.list, NONE, next);
            notified += 1;
        }
        notified
    }

    /// Notifies all joiners of a task.
    #[inline]
    pub(crate) fn notify_all(&mut self, joiners: List, local: &Local) {
        let mut at = joiners.first;
        while let Some(entry) = self.entries.get_mut(at as usize) {
            entry.place = Place::Over;
            local.notify(&entry.waiter);
            at = entry.next;
        }
    }
}

/// Adds an entry at the end of a list.
#[inline]
fn add(entries: &mut Slab<Entry>, list: &mut List, waiter: Waiter, place: Place) -> u32 {
    let previous = list.last;
    let key = number(entries.insert(Entry { waiter, previous, next: NONE, place }));
    match entries.get_mut(previous as usize) {
        Some(before) => before.next = key,
        None => list.first = key,
    }
    list.last = key;
    key
}

/// Links the neighbours of an entry that has left a list.
#[inline]
fn unlink(entries: &mut Slab<Entry>, list: &mut List, previous: u32, next: u32) {
    match entries.get_mut(previous as usize) {
        Some(before) => before.next = next,
        None => list.first = next,
    }
    match entries.get_mut(next as usize) {
        Some(after) => after.previous = previous,
        None => list.last = previous,
    }
}

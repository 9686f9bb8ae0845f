//! Pending deadlines, earliest first.
//!
//! Most timers never fire: a timeout is set, the operation completes, the timeout is removed. So
//! removal must be as cheap as insertion, and neither may allocate once the heap has grown to its
//! working size. The design is a plain binary heap of small entries beside a table of slots. An
//! entry has only the fields for the order (16 bytes, four to a cache line); its slot has the item.
//! Removal takes the item out of the slot at once. The dead entry stays in the heap until it comes
//! to the top. So that far deadlines do not pile up there, the heap prunes all dead entries once
//! they outnumber the live ones by more than [`PRUNE_SLACK`]. More than half of the visited entries
//! are then dead, so the cost per removal is constant.
//!
//! Most timers are gone before the kernel asks for the next one. So a new entry first enters a
//! plain list. The entry moves to the heap at a call of `next`, or when the earliest entry of the
//! list is due.
//!
//! The states of a slot:
//!
//! ```text
//!             1 insert               2 remove
//!     free ───────────────▶ live ───────────────▶ dead
//!      ▲ ▲                   │                     │
//!      │ └───────────────────┘                     │
//!      │      3 pop_due                            │
//!      └───────────────────────────────────────────┘
//!             4 next, pop_due or prune: its entry has left the heap
//! ```
//!
//! A slot is not free before its entry has left the heap, so no two entries share a slot.
//! `entry.rs` defines the order of entries and the staleness of keys.
//!
//! # Memory
//!
//! Entries and slots are kept for reuse. Their number never exceeds twice the greatest number of
//! timers that were live at once, plus [`PRUNE_SLACK`]. Only [`clear`](TimerHeap::clear) and
//! [`drain`](TimerHeap::drain) free the memory of the slots. An item leaves the heap when it is
//! removed or fires.

use std::collections::BinaryHeap;
use std::fmt;
use std::mem;

use crate::Ticks;
use crate::entry::{Entry, SlotId, TimerKey};

/// The number by which dead entries may exceed live ones before the heap is pruned.
///
/// Large enough that a heap of a few timers is not pruned at every other removal. Small enough
/// that the dead entries of an idle kernel fit in a page of memory (64 × 16 bytes).
pub const PRUNE_SLACK: usize = 64;

/// Timers, earliest first; first in, first out among equals; removable.
///
/// # Examples
///
/// ```
/// use pikake::time::{Ticks, TimerHeap};
///
/// let mut timers = TimerHeap::new();
/// let tea = timers.insert(Ticks::new(300), "tea");
/// timers.insert(Ticks::new(100), "eggs");
/// timers.insert(Ticks::new(200), "toast");
///
/// assert_eq!(timers.next(), Some(Ticks::new(100)));
/// assert_eq!(timers.pop_due(Ticks::new(150)), Some((Ticks::new(100), "eggs")));
/// assert_eq!(timers.pop_due(Ticks::new(150)), None, "the toast needs longer");
///
/// assert_eq!(timers.remove(tea), Some("tea"));
/// assert_eq!(timers.remove(tea), None, "the timer is gone");
/// assert_eq!(timers.len(), 1);
/// ```
pub struct TimerHeap<T> {
    /// The entries of live and dead slots, without the fresh ones.
    entries: BinaryHeap<Entry>,
    /// Entries that are not in the heap yet.
    fresh: Vec<Entry>,
    /// No fresh entry is due before this moment.
    fresh_from: Ticks,
    slots: Vec<Slot<T>>,
    /// The first of the free slots, which are chained.
    free: Option<SlotId>,
    /// The number of dead slots.
    dead: usize,
    /// The sequence number of the next timer.
    sequence: u32,
}

/// The slot of a timer. The states are those of the diagram above: a live slot has an item, a dead
/// one none, and a free one is in the chain.
struct Slot<T> {
    /// The moment of the slot's present or last timer.
    at: Ticks,
    /// The sequence number of that timer.
    sequence: u32,
    /// The next slot in the chain of free slots.
    next_free: Option<SlotId>,
    item: Option<T>,
}

impl<T> TimerHeap<T> {
    /// A heap without timers; allocates nothing.
    pub const fn new() -> TimerHeap<T> {
        TimerHeap {
            entries: BinaryHeap::new(),
            fresh: Vec::new(),
            fresh_from: Ticks::MAX,
            slots: Vec::new(),
            free: None,
            dead: 0,
            sequence: 0,
        }
    }

    /// Adds a timer that is due at `at`.
    ///
    /// A timer at [`Ticks::MAX`] fires like any other; for "never", insert no timer.
    ///
    /// # Panics
    ///
    /// If 2³⁰ slots are in use.
    #[inline]
    pub fn insert(&mut self, at: Ticks, item: T) -> TimerKey {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let slot = self.occupy(Slot { at, sequence, next_free: None, item: Some(item) });
        self.fresh.push(Entry { at, sequence, slot });
        self.fresh_from = self.fresh_from.min(at);
        TimerKey { slot, sequence }
    }

    /// Removes a timer and returns its item; `None` if the timer has fired or was removed before.
    #[inline]
    pub fn remove(&mut self, key: TimerKey) -> Option<T> {
        let slot = self.slots.get_mut(key.slot.index())?;
        if slot.sequence != key.sequence {
            return None;
        }
        let item = slot.item.take()?;
        self.dead += 1;
        self.prune_if_worthwhile();
        Some(item)
    }

    /// The item of a pending timer; `None` if the timer has fired or was removed.
    #[inline]
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot.index())?;
        slot.item.as_mut().filter(|_| slot.sequence == key.sequence)
    }

    /// The moment of a pending timer; `None` if the timer has fired or was removed.
    pub fn moment(&self, key: TimerKey) -> Option<Ticks> {
        let slot = self.slots.get(key.slot.index())?;
        (slot.sequence == key.sequence && slot.item.is_some()).then_some(slot.at)
    }

    /// The moment of the earliest timer.
    ///
    /// The call also drops dead entries that have come to the top.
    #[expect(clippy::should_implement_trait, reason = "the method is not that of an iterator")]
    #[inline]
    pub fn next(&mut self) -> Option<Ticks> {
        self.move_fresh();
        loop {
            let entry = *self.entries.peek()?;
            if self.dead == 0 || self.slots[entry.slot.index()].item.is_some() {
                return Some(entry.at);
            }
            self.entries.pop();
            self.vacate(entry.slot);
            self.dead -= 1;
        }
    }

    /// Whether a timer may be due when the clock shows `now`. `false`: no timer is due.
    ///
    /// Cheaper than [`next`](Self::next). A removed timer may count.
    #[inline]
    pub fn may_be_due(&self, now: Ticks) -> bool {
        self.fresh_from <= now || self.entries.peek().is_some_and(|entry| entry.at <= now)
    }

    /// Removes the earliest timer if it is due when the clock shows `now`.
    ///
    /// Repeated calls until `None` return all due timers, in order.
    #[inline]
    pub fn pop_due(&mut self, now: Ticks) -> Option<(Ticks, T)> {
        self.pop_due_entry(now).map(|(entry, item)| (entry.at, item))
    }

    /// As [`pop_due`](Self::pop_due), with the key of the timer.
    #[inline]
    pub fn pop_due_with_key(&mut self, now: Ticks) -> Option<(Ticks, TimerKey, T)> {
        let (Entry { at, slot, sequence }, item) = self.pop_due_entry(now)?;
        Some((at, TimerKey { slot, sequence }, item))
    }

    #[inline]
    fn pop_due_entry(&mut self, now: Ticks) -> Option<(Entry, T)> {
        if self.fresh_from <= now {
            self.move_fresh();
        }
        loop {
            let entry = *self.entries.peek()?;
            if entry.at > now {
                return None;
            }
            self.entries.pop();
            match self.vacate(entry.slot) {
                Some(item) => {
                    // With one live timer less, the dead entries may exceed the limit.
                    self.prune_if_worthwhile();
                    return Some((entry, item));
                }
                None => self.dead -= 1,
            }
        }
    }

    /// The number of pending timers.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len() + self.fresh.len() - self.dead
    }

    /// Whether no timer is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all timers at once, and returns their items in no particular order.
    ///
    /// The iterator owns the items, so that the caller can drop them when nothing is borrowed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.entries.clear();
        self.fresh.clear();
        self.fresh_from = Ticks::MAX;
        self.free = None;
        self.dead = 0;
        mem::take(&mut self.slots).into_iter().filter_map(|slot| slot.item)
    }

    /// Drops all timers.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Moves the fresh entries to the heap.
    fn move_fresh(&mut self) {
        self.fresh_from = Ticks::MAX;
        if self.fresh.is_empty() {
            return;
        }
        if self.dead > 0 {
            self.prune_fresh();
        }
        self.entries.extend(self.fresh.drain(..));
    }

    /// Puts a new occupant into a free slot.
    fn occupy(&mut self, occupant: Slot<T>) -> SlotId {
        if let Some(id) = self.free {
            let slot = &mut self.slots[id.index()];
            self.free = slot.next_free;
            *slot = occupant;
            return id;
        }
        self.slots.push(occupant);
        SlotId::last_of(self.slots.len()).expect("fewer than 2³⁰ timers at once")
    }

    /// Frees a slot whose entry has left the heap, and returns the item of a live one.
    fn vacate(&mut self, id: SlotId) -> Option<T> {
        let slot = &mut self.slots[id.index()];
        slot.next_free = self.free.replace(id);
        slot.item.take()
    }

    #[inline]
    fn prune_if_worthwhile(&mut self) {
        if self.dead > self.len() + PRUNE_SLACK {
            self.prune();
        }
    }

    /// Removes all dead entries.
    #[cold]
    fn prune(&mut self) {
        self.prune_fresh();
        if self.dead > 0 {
            let (slots, free) = (&mut self.slots, &mut self.free);
            self.entries.retain(|entry| keep_if_live(slots, free, entry));
            self.dead = 0;
        }
    }

    fn prune_fresh(&mut self) {
        let (slots, free) = (&mut self.slots, &mut self.free);
        let before = self.fresh.len();
        self.fresh.retain(|entry| keep_if_live(slots, free, entry));
        self.dead -= before - self.fresh.len();
    }
}

/// Frees the slot of a dead entry. Returns whether the entry's timer is live.
#[inline]
fn keep_if_live<T>(slots: &mut [Slot<T>], free: &mut Option<SlotId>, entry: &Entry) -> bool {
    let slot = &mut slots[entry.slot.index()];
    let is_live = slot.item.is_some();
    if !is_live {
        slot.next_free = free.replace(entry.slot);
    }
    is_live
}

impl<T> Default for TimerHeap<T> {
    /// The same as [`TimerHeap::new`].
    fn default() -> TimerHeap<T> {
        TimerHeap::new()
    }
}

impl<T> fmt::Debug for TimerHeap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerHeap")
            .field("live", &self.len())
            .field("dead", &self.dead)
            .field("slots", &self.slots.len())
            .finish_non_exhaustive()
    }
}

/// Methods for tests.
#[cfg(test)]
impl<T> TimerHeap<T> {
    /// A heap that has had `sequence` insertions before.
    pub(crate) fn with_sequence(sequence: u32) -> TimerHeap<T> {
        TimerHeap { sequence, ..TimerHeap::new() }
    }

    pub(crate) fn dead(&self) -> usize {
        self.dead
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }
}

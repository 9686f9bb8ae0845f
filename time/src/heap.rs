//! Pending deadlines, earliest first.
//!
//! Most timers never fire: a timeout is set, the operation completes, the timeout is taken back.
//! So removal must be as cheap as insertion, and neither may allocate once the heap has grown to
//! its working size. The idea is a plain binary heap of small entries beside a table of slots.
//! The entry has what ordering needs and nothing else (16 bytes, four to a cache line); the slot
//! has the item. Removal takes the item out of the slot at once and leaves the entry where it is,
//! to be dropped when it comes to the top. Lest far deadlines pile up there, all dead entries are
//! swept out as soon as they outnumber the live ones by more than [`PRUNE_SLACK`]. More than half
//! of what a sweep visits is then dead and gone afterwards, so it costs a fixed amount a removal.
//!
//! Most timers are gone before anybody asks which is next. So a new entry first lies in a plain list,
//! and goes into the heap when the next timer is asked for, or when the earliest of the list is due.
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
//! A slot is not free before its entry has left the heap, so every entry's slot is its own. What
//! orders the entries and what makes a key stale is in `entry.rs`.
//!
//! # Memory
//!
//! Entries and slots are kept for reuse. There are never more of them than twice the greatest
//! number of timers that were live at once, plus [`PRUNE_SLACK`]; only
//! [`clear`](TimerHeap::clear) and [`drain`](TimerHeap::drain) give the memory of the slots back.
//! The item is gone from the heap when it is removed or fires, never later.

use std::collections::BinaryHeap;
use std::fmt;
use std::mem;

use crate::Ticks;
use crate::entry::{Entry, SlotId, TimerKey};

/// By how many entries the dead may outnumber the live before they are swept out.
///
/// Large enough that a heap of a few timers is not swept at every other removal; small enough
/// that the dead entries of an idle kernel fit in a page of memory (64 × 16 bytes).
pub const PRUNE_SLACK: usize = 64;

/// Timers, earliest first; first in, first out among equals; removable.
///
/// # Examples
///
/// ```
/// use pikake_time::{Ticks, TimerHeap};
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
/// assert_eq!(timers.remove(tea), None, "it is gone");
/// assert_eq!(timers.len(), 1);
/// ```
pub struct TimerHeap<T> {
    /// One entry for each live slot and each dead one, but for the fresh ones.
    entries: BinaryHeap<Entry>,
    /// Entries that are not in the heap yet.
    fresh: Vec<Entry>,
    /// No fresh entry is due before.
    fresh_from: Ticks,
    slots: Vec<Slot<T>>,
    /// The first of the free slots, which are chained.
    free: Option<SlotId>,
    /// How many slots are dead.
    dead: usize,
    /// What the next timer gets.
    sequence: u32,
}

struct Slot<T> {
    /// Of the timer that has it or had it last.
    sequence: u32,
    state: State<T>,
}

enum State<T> {
    /// The timer is pending; its entry is in the heap.
    Live(T),
    /// The timer was removed; its entry is still in the heap.
    Dead,
    /// There is no entry; the next free slot.
    Free(Option<SlotId>),
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
    /// [`Ticks::MAX`] is as good as any other moment; whoever means "never" inserts nothing.
    ///
    /// # Panics
    ///
    /// If 2³⁰ slots are in use.
    #[inline]
    pub fn insert(&mut self, at: Ticks, item: T) -> TimerKey {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        let slot = self.occupy(Slot { sequence, state: State::Live(item) });
        self.fresh.push(Entry { at, sequence, slot });
        self.fresh_from = self.fresh_from.min(at);
        TimerKey { slot, sequence }
    }

    /// Takes a timer back and returns its item; `None` if it has fired or was removed before.
    #[inline]
    pub fn remove(&mut self, key: TimerKey) -> Option<T> {
        let slot = self.slots.get_mut(key.slot.index())?;
        if slot.sequence != key.sequence {
            return None;
        }
        match mem::replace(&mut slot.state, State::Dead) {
            State::Live(item) => {
                self.dead += 1;
                self.prune_if_worthwhile();
                Some(item)
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// The item of a timer that is pending; `None` if it has fired or was removed.
    #[inline]
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.slot.index())?;
        match &mut slot.state {
            State::Live(item) if slot.sequence == key.sequence => Some(item),
            _ => None,
        }
    }

    /// When the earliest timer is due.
    ///
    /// Not a reading only: it drops dead entries that have come to the top.
    #[expect(clippy::should_implement_trait, reason = "it is what comes next, not an iterator")]
    #[inline]
    pub fn next(&mut self) -> Option<Ticks> {
        self.settle();
        loop {
            let entry = *self.entries.peek()?;
            if self.dead == 0 || matches!(self.slots[entry.slot.index()].state, State::Live(_)) {
                return Some(entry.at);
            }
            self.entries.pop();
            self.vacate(entry.slot);
            self.dead -= 1;
        }
    }

    /// Whether a timer may be due when the clock shows `now`; if not, none is.
    ///
    /// Cheaper than [`next`](Self::next), and often as good. A timer that was removed may count.
    #[inline]
    pub fn may_be_due(&self, now: Ticks) -> bool {
        self.fresh_from <= now || self.entries.peek().is_some_and(|entry| entry.at <= now)
    }

    /// Takes the earliest timer out if it is due when the clock shows `now`.
    ///
    /// Called until it answers `None`, it gives all that are due, in order.
    #[inline]
    pub fn pop_due(&mut self, now: Ticks) -> Option<(Ticks, T)> {
        self.pop_due_entry(now).map(|(entry, item)| (entry.at, item))
    }

    /// As [`pop_due`](Self::pop_due), with the key that the timer had.
    #[inline]
    pub fn pop_due_with_key(&mut self, now: Ticks) -> Option<(TimerKey, T)> {
        let (Entry { slot, sequence, .. }, item) = self.pop_due_entry(now)?;
        Some((TimerKey { slot, sequence }, item))
    }

    #[inline]
    fn pop_due_entry(&mut self, now: Ticks) -> Option<(Entry, T)> {
        if self.fresh_from <= now {
            self.settle();
        }
        loop {
            let entry = *self.entries.peek()?;
            if entry.at > now {
                return None;
            }
            self.entries.pop();
            match self.vacate(entry.slot) {
                State::Live(item) => {
                    // One live timer less, so the dead may now be too many.
                    self.prune_if_worthwhile();
                    return Some((entry, item));
                }
                State::Dead => self.dead -= 1,
                State::Free(_) => unreachable!("the slot of an entry in the heap is not free"),
            }
        }
    }

    /// How many timers are pending.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len() + self.fresh.len() - self.dead
    }

    /// Whether no timer is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all timers out, in no particular order; the heap is empty at once.
    ///
    /// The iterator owns the items, so that they can be dropped when nothing is borrowed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.entries.clear();
        self.fresh.clear();
        self.fresh_from = Ticks::MAX;
        self.free = None;
        self.dead = 0;
        mem::take(&mut self.slots).into_iter().filter_map(|slot| match slot.state {
            State::Live(item) => Some(item),
            State::Dead | State::Free(_) => None,
        })
    }

    /// Drops all timers.
    pub fn clear(&mut self) {
        drop(self.drain());
    }

    /// Puts the fresh entries into the heap.
    fn settle(&mut self) {
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
            let State::Free(next) = slot.state else { unreachable!("the chain has free slots") };
            self.free = next;
            *slot = occupant;
            return id;
        }
        self.slots.push(occupant);
        SlotId::last_of(self.slots.len()).expect("fewer than 2³⁰ timers at once")
    }

    /// Frees a slot whose entry has left the heap, and returns what it was.
    fn vacate(&mut self, id: SlotId) -> State<T> {
        let freed = State::Free(self.free.replace(id));
        mem::replace(&mut self.slots[id.index()].state, freed)
    }

    #[inline]
    fn prune_if_worthwhile(&mut self) {
        if self.dead > self.len() + PRUNE_SLACK {
            self.prune();
        }
    }

    /// Sweeps all dead entries out.
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

/// Whether an entry's timer is live; if it is not, its slot is freed.
#[inline]
fn keep_if_live<T>(slots: &mut [Slot<T>], free: &mut Option<SlotId>, entry: &Entry) -> bool {
    let state = &mut slots[entry.slot.index()].state;
    let is_live = matches!(state, State::Live(_));
    if !is_live {
        *state = State::Free(free.replace(entry.slot));
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

/// What only tests may see and do.
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

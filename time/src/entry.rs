//! The entries of the timer heap, and the keys of timers.
//!
//! Every insertion takes the next of 2³² sequence numbers. The number breaks ties (among equal
//! ticks, first in is first out). As part of the key, the number distinguishes a timer from a later
//! one in the same slot. The numbers wrap around, so both uses have a bound. Order: two timers with
//! equal ticks fire in the order of their insertion if fewer than 2³¹ insertions lie between them.
//! Beyond that, their order is unspecified; the order of different deadlines never is. Staleness: a
//! key that was kept over exactly 2³² insertions, or a multiple, may name another timer that got
//! the same slot.

use std::cmp::Ordering;
use std::num::NonZeroU32;

use crate::Ticks;

/// Names one timer of one heap, also after the timer's end.
///
/// A key is eight bytes, also inside an `Option`. A key that outlives its timer is *stale* and
/// finds nothing. In another heap a key finds nothing or the wrong timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerKey {
    pub(crate) slot: SlotId,
    pub(crate) sequence: u32,
}

impl TimerKey {
    /// The key as a number below 2⁶², which [`from_bits`](Self::from_bits) takes.
    #[inline]
    pub fn to_bits(self) -> u64 {
        u64::from(self.slot.0.get()) << u32::BITS | u64::from(self.sequence)
    }

    /// The key of a number from [`to_bits`](Self::to_bits); `None` for a number that is none.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        let slot = SlotId(NonZeroU32::new((bits >> u32::BITS) as u32)?);
        Some(Self { slot, sequence: bits as u32 })
    }
}

/// The index of a slot, plus one, so that it is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(NonZeroU32);

/// The number of slots that a heap cannot reach: keys leave two bits of a word for other uses.
const SLOTS_LIMIT: u32 = 1 << 30;

impl SlotId {
    /// The last of `count` slots; `None` for no slots, and for more than a key can name.
    #[inline]
    pub(crate) fn last_of(count: usize) -> Option<SlotId> {
        let count = u32::try_from(count).ok().filter(|count| *count < SLOTS_LIMIT)?;
        NonZeroU32::new(count).map(SlotId)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// An entry of the heap. The entry that is due first is the greatest, as `BinaryHeap` needs.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) at: Ticks,
    pub(crate) sequence: u32,
    pub(crate) slot: SlotId,
}

const _: () = assert!(size_of::<Entry>() == 16, "four entries to a cache line");
const _: () = assert!(size_of::<Option<TimerKey>>() == 8, "a key is one register");

impl Ord for Entry {
    #[inline]
    fn cmp(&self, other: &Entry) -> Ordering {
        // A later insertion is a small positive distance away, also across the wrap-around.
        let ahead = other.sequence.wrapping_sub(self.sequence) as i32;
        other.at.cmp(&self.at).then(ahead.cmp(&0))
    }
}

impl PartialOrd for Entry {
    #[inline]
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    #[inline]
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

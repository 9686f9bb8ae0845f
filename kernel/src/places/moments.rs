//! Waits for a moment. A wait that has left the heap is over.

use std::mem;

use pikake_time::{Ticks, TimerHeap, TimerKey};
use pikake_traps::{Parked, WaitKey, Waiter};

/// The waits for a moment.
#[derive(Default)]
pub(crate) struct Moments(TimerHeap<Waiter>);

impl Moments {
    #[inline]
    pub(crate) fn park(&mut self, at: Ticks, waiter: Waiter) -> Parked {
        Parked::Waits(WaitKey(self.0.insert(at, waiter).to_bits()))
    }

    #[inline]
    pub(crate) fn collect(&mut self, key: WaitKey, waiter: &Waiter) -> (Parked, Option<Waiter>) {
        match TimerKey::from_bits(key.0).and_then(|timer| self.0.get_mut(timer)) {
            None => (Parked::Satisfied, None),
            Some(bound) if bound == waiter => (Parked::Waits(key), None),
            Some(bound) => (Parked::Waits(key), Some(mem::replace(bound, waiter.clone()))),
        }
    }

    #[inline]
    pub(crate) fn leave(&mut self, key: WaitKey) -> Option<Waiter> {
        self.0.remove(TimerKey::from_bits(key.0)?)
    }

    #[inline]
    pub(crate) fn may_be_due(&self, now: Ticks) -> bool {
        self.0.may_be_due(now)
    }

    /// Removes the next wait that is due, and returns its moment. The caller notifies its waiter.
    #[inline]
    pub(crate) fn next_due(&mut self, now: Ticks) -> Option<(Ticks, Waiter)> {
        self.0.pop_due(now)
    }

    pub(super) fn next(&mut self) -> Option<Ticks> {
        self.0.next()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

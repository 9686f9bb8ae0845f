//! Deadlines of scopes. A deadline that has passed stays here until its scope collects it, or
//! leaves.

use std::collections::HashMap;
use std::mem;

use pikake_time::{Ticks, TimerHeap, TimerKey};
use pikake_traps::{Local, Parked, Passed, WaitKey, Waiter};

/// The deadlines of scopes.
#[derive(Default)]
pub(crate) struct Deadlines {
    armed: TimerHeap<Waiter>,
    passed: HashMap<WaitKey, Passed>,
}

impl Deadlines {
    #[inline]
    pub(crate) fn park(&mut self, at: Ticks, waiter: Waiter) -> Parked {
        Parked::Waits(WaitKey(self.armed.insert(at, waiter).to_bits()))
    }

    pub(crate) fn collect(
        &mut self,
        key: WaitKey,
        waiter: &Waiter,
        passed: &mut Option<Passed>,
    ) -> (Parked, Option<Waiter>) {
        match TimerKey::from_bits(key.0).and_then(|timer| self.armed.get_mut(timer)) {
            None => {
                *passed = self.passed.remove(&key);
                (Parked::Satisfied, None)
            }
            Some(bound) if bound == waiter => (Parked::Waits(key), None),
            Some(bound) => (Parked::Waits(key), Some(mem::replace(bound, waiter.clone()))),
        }
    }

    #[inline]
    pub(crate) fn leave(&mut self, key: WaitKey, passed: &mut Option<Passed>) -> Option<Waiter> {
        let armed = TimerKey::from_bits(key.0).and_then(|timer| self.armed.remove(timer));
        if armed.is_none() {
            *passed = self.passed.remove(&key);
        }
        armed
    }

    #[inline]
    pub(crate) fn may_be_due(&self, now: Ticks) -> bool {
        self.armed.may_be_due(now)
    }

    /// Passes the deadlines that are due, and shows the moment of each.
    pub(crate) fn pass(&mut self, now: Ticks, local: &Local, show: impl Fn(Ticks)) {
        while let Some(due) = self.armed.next() {
            let Some((timer, waiter)) = self.armed.pop_due_with_key(now) else { return };
            show(due);
            let number = local.deadline_passed(&waiter);
            self.passed.insert(WaitKey(timer.to_bits()), Passed { number, at: now, waiter });
        }
    }

    pub(super) fn next(&mut self) -> Option<Ticks> {
        self.armed.next()
    }

    pub(super) fn len(&self) -> usize {
        self.armed.len()
    }
}

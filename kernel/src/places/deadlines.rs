//! Deadlines of scopes. A deadline that has passed stays here until its scope collects it, or
//! leaves.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;

use pikake_time::{Ticks, TimerHeap, TimerKey};
use pikake_traps::{Local, Parked, Passed, WaitKey, Waiter};

/// The deadlines of scopes.
#[derive(Default)]
pub(crate) struct Deadlines {
    armed: TimerHeap<Waiter>,
    passed: HashMap<WaitKey, Passed, BuildHasherDefault<KeyHasher>>,
}

/// Hashes a key by its product with a large odd number. No peer chooses keys.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(number) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> u64::BITS) as u64 ^ product as u64;
    }
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
        while let Some((due, timer, waiter)) = self.armed.pop_due_with_key(now) {
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

//! Timers: waits for a moment, and deadlines of scopes.
//!
//! Waits and deadlines are in two heaps. A turn ends all waits that are due before it passes a
//! deadline, so no timeout interrupts a wait that is satisfied. A wait that has left its heap is
//! over. A deadline that has passed stays in the table until its scope takes the deadline back.

use std::collections::HashMap;

use pikake_time::{Deadline, Ticks, TimerHeap, TimerKey};
use pikake_traps::{Collected, Disarmed, Local, WaitKey, Waiter};

/// The timers of a kernel.
#[derive(Default)]
pub(crate) struct Timers {
    waits: TimerHeap<Waiter>,
    deadlines: TimerHeap<Waiter>,
    passed: HashMap<TimerKey, Disarmed>,
}

impl Timers {
    /// Adds a wait for a moment.
    #[inline]
    pub(crate) fn wait(&mut self, at: Ticks, waiter: Waiter) -> WaitKey {
        WaitKey(self.waits.insert(at, waiter).to_bits())
    }

    /// Collects a wait that is over, or binds a pending wait to a waiter.
    #[inline]
    pub(crate) fn rebind(&mut self, key: WaitKey, waiter: &Waiter) -> (Collected, Option<Waiter>) {
        let bound = TimerKey::from_bits(key.0).and_then(|timer| self.waits.get_mut(timer));
        match bound {
            None => (Collected::Answered, None),
            Some(bound) if bound == waiter => (Collected::Pending, None),
            Some(bound) => (Collected::Pending, Some(std::mem::replace(bound, waiter.clone()))),
        }
    }

    /// The moment of a wait, for listings.
    pub(crate) fn due(&self, key: WaitKey) -> Option<Deadline> {
        self.waits.moment(TimerKey::from_bits(key.0)?).map(Deadline::at)
    }

    /// Withdraws a wait.
    #[inline]
    pub(crate) fn remove_wait(&mut self, key: WaitKey) -> Option<Waiter> {
        self.waits.remove(TimerKey::from_bits(key.0)?)
    }

    #[inline]
    pub(crate) fn arm(&mut self, deadline: Deadline, waiter: Waiter) -> TimerKey {
        self.deadlines.insert(deadline.ticks(), waiter)
    }

    pub(crate) fn has_passed(&self, timer: TimerKey) -> bool {
        self.passed.contains_key(&timer)
    }

    #[inline]
    pub(crate) fn disarm(&mut self, timer: TimerKey) -> Option<Disarmed> {
        match self.deadlines.remove(timer) {
            Some(waiter) => Some(Disarmed { waiter, passed: None }),
            None => self.passed.remove(&timer),
        }
    }

    /// Whether a wait or a deadline may be due.
    #[inline]
    pub(crate) fn may_be_due(&self, now: Ticks) -> bool {
        self.waits.may_be_due(now) || self.deadlines.may_be_due(now)
    }

    /// Removes the next wait that is due, and returns its moment. The caller notifies its waiter.
    #[inline]
    pub(crate) fn next_due_wait(&mut self, now: Ticks) -> Option<(Ticks, Waiter)> {
        self.waits.pop_due(now)
    }

    /// Whether a deadline may be due.
    pub(crate) fn may_deadlines_be_due(&self, now: Ticks) -> bool {
        self.deadlines.may_be_due(now)
    }

    /// Marks the deadlines that are due as passed, and shows the moment of each.
    pub(crate) fn pass_deadlines(&mut self, now: Ticks, local: &Local, show: impl Fn(Ticks)) {
        while let Some(due) = self.deadlines.next() {
            let Some((timer, waiter)) = self.deadlines.pop_due_with_key(now) else { return };
            show(due);
            let number = local.deadline_passed(&waiter);
            self.passed.insert(timer, Disarmed { waiter, passed: Some((number, now)) });
        }
    }

    /// The moment of the next timer.
    pub(crate) fn next(&mut self) -> Option<Deadline> {
        let (wait, deadline) = (self.waits.next(), self.deadlines.next());
        let next = match (wait, deadline) {
            (Some(wait), Some(deadline)) => Some(wait.min(deadline)),
            (wait, deadline) => wait.or(deadline),
        };
        next.map(Deadline::at)
    }

    /// The number of waits and deadlines that are not due yet.
    pub(crate) fn len(&self) -> usize {
        self.waits.len() + self.deadlines.len()
    }

    /// The number of waits.
    pub(crate) fn wait_count(&self) -> usize {
        self.waits.len()
    }
}

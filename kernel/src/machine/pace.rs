//! The pace of a kernel: after how many steps it reads the clock, and when it polls its driver
//! although tasks are ready.

use std::cell::Cell;
use std::time::Duration;

use pikake_time::{Clock, Ticks};
use pikake_traps::LATE;

use crate::builder::{POLL_EVERY, Settings};
use crate::machine::recent_max::RecentMax;

/// The number of steps between two readings of the clock, if nothing else reads the clock sooner.
///
/// A step takes tens of nanoseconds. At this number a reading adds about a tenth of that to each
/// step.
const STEPS_PER_READING: u64 = 16;

/// The time for which a kernel tells how late it was at most. Prometheus asks once a minute, or
/// more often, and so misses none.
const LATELY: Duration = Duration::from_secs(60);

pub(super) struct Pace {
    last_reading: Cell<Ticks>,
    /// The number of requests to time each step.
    times_wanted: Cell<u32>,
    /// The number of such requests of the kernel's own: an observer wants the times, or no watchdog
    /// finds long steps.
    times_wanted_always: u32,
    longest_step: Cell<u64>,
    long_step: u64,
    /// The number of polls of the driver.
    polls: Cell<u64>,
    /// The number of the last step before the last poll of the driver.
    polled_after: Cell<u64>,
    poll_every_steps: u64,
    /// The number of passes with ready tasks and offers since this kernel took one of its own.
    passes_with_offers: Cell<u64>,
    /// The moment of the next poll of the driver.
    poll_due: Cell<Ticks>,
    poll_every: u64,
    /// The moment of the last poll of the driver, or of the end of the last sleep, in a kernel with
    /// peers. [`Ticks::MAX`] before the first: a kernel that joins peers while it runs is not late
    /// by the time before.
    polled_at: Cell<Ticks>,
    /// The number of the step of the last task that was ready at an earlier poll.
    batch_ends: Cell<u64>,
    late: u64,
    /// The moment since which the tasks of the batch may have waited, in a kernel with peers;
    /// [`Ticks::MAX`] if the kernel has slept since.
    late_since: Cell<Ticks>,
    /// How late the kernel was at the end of its batches.
    late_max: RecentMax,
}

impl Pace {
    pub(super) fn new(clock: &impl Clock, settings: &Settings, always_times: bool) -> Self {
        let (rate, now) = (clock.rate(), clock.now());
        let poll_every = rate.ticks_ceil(POLL_EVERY);
        Self {
            last_reading: Cell::new(now),
            times_wanted: Cell::new(always_times.into()),
            times_wanted_always: always_times.into(),
            longest_step: Cell::new(0),
            polls: Cell::new(0),
            long_step: settings.long_step().map_or(u64::MAX, |length| rate.ticks_ceil(length)),
            polled_after: Cell::new(0),
            passes_with_offers: Cell::new(0),
            poll_every_steps: settings.poll_every_steps().into(),
            poll_due: Cell::new(now.saturating_add(poll_every)),
            poll_every,
            polled_at: Cell::new(Ticks::MAX),
            batch_ends: Cell::new(0),
            late: rate.ticks_ceil(LATE),
            late_since: Cell::new(Ticks::MAX),
            late_max: RecentMax::new(rate.ticks_ceil(LATELY)),
        }
    }

    #[inline]
    pub(super) fn times_steps(&self) -> bool {
        self.times_wanted.get() > 0
    }

    /// Begins or ends one request to time steps.
    pub(super) fn want_times(&self, is_wanted: bool) {
        let wanted = self.times_wanted.get();
        let least = self.times_wanted_always;
        let wanted = if is_wanted { wanted + 1 } else { wanted.saturating_sub(1).max(least) };
        self.times_wanted.set(wanted);
    }

    /// Notes the length of a step that was timed.
    pub(super) fn note_length(&self, ticks: u64) {
        self.longest_step.set(self.longest_step.get().max(ticks));
    }

    /// The length of the longest step that was timed.
    pub(super) fn longest_step(&self) -> u64 {
        self.longest_step.get()
    }

    /// The number of steps to make before the next reading of the clock. Where each step reads the
    /// clock, these are the steps of the tasks that are ready now.
    #[inline]
    pub(super) fn steps_at_once(&self, ready: impl FnOnce() -> usize) -> u64 {
        match self.times_steps() {
            true => ready() as u64,
            false => STEPS_PER_READING,
        }
    }

    #[inline]
    pub(super) fn note_reading(&self, now: Ticks) {
        self.last_reading.set(now);
    }

    #[inline]
    pub(super) fn last_reading(&self) -> Ticks {
        self.last_reading.get()
    }

    pub(super) fn is_long(&self, took: u64) -> bool {
        took >= self.long_step
    }

    /// The number of steps that may be made before the next poll of the driver.
    #[inline]
    pub(super) fn steps_until_poll(&self, last_step: u64) -> u64 {
        let since_poll = last_step - self.polled_after.get();
        self.poll_every_steps.saturating_sub(since_poll)
    }

    /// Whether the time for a poll of the driver has come, by the last reading of the clock.
    #[inline]
    pub(super) fn is_poll_due(&self) -> bool {
        self.last_reading.get() >= self.poll_due.get()
    }

    pub(super) fn note_poll(&self, last_step: u64) {
        self.polled_after.set(last_step);
        self.polls.set(self.polls.get() + 1);
        self.put_off_poll();
    }

    /// Counts a pass with ready tasks and offers. Returns whether the kernel begins one of its own.
    pub(super) fn is_own_offer_due(&self, is_poll_due: bool) -> bool {
        let passes = self.passes_with_offers.get() + 1;
        let is_due = is_poll_due || passes >= self.poll_every_steps;
        self.passes_with_offers.set(if is_due { 0 } else { passes });
        is_due
    }

    /// The number of polls of the driver.
    pub(super) fn polls(&self) -> u64 {
        self.polls.get()
    }

    /// Counts the time until the next poll of the driver from the last reading of the clock.
    #[inline]
    pub(super) fn put_off_poll(&self) {
        self.poll_due.set(self.last_reading.get().saturating_add(self.poll_every));
    }

    /// Notes that no task is ready, so that the next ones are a batch of their own.
    pub(super) fn end_batch(&self) {
        self.batch_ends.set(0);
    }

    /// Notes that the kernel has slept until now, or that its owner was away.
    pub(super) fn note_sleep(&self, now: Ticks) {
        self.end_batch();
        self.polled_at.set(now);
        self.late_since.set(Ticks::MAX);
    }

    /// How long the tasks that are ready may have waited, in ticks.
    pub(super) fn late(&self, now: Ticks) -> u64 {
        now.since(self.late_since.get())
    }

    /// How long the tasks that are ready may have waited, and the most of the last time, in ticks.
    pub(super) fn lateness(&self, now: Ticks) -> (u64, u64) {
        let late = self.late(now);
        (late, late.max(self.late_max.get(now)))
    }

    /// Notes a poll of the driver, after which this number of tasks is ready. If those that were
    /// ready at an earlier poll have been stepped, these are another batch, and may have waited
    /// since the poll before: their events may be as old. Returns whether that is so.
    pub(super) fn note_batch(&self, now: Ticks, last_step: u64, ready: u64) -> bool {
        self.late_max.note(now, self.late(now));
        let since = self.polled_at.replace(now);
        let is_next = last_step >= self.batch_ends.get();
        if is_next {
            self.batch_ends.set(last_step + ready);
            self.late_since.set(since);
        }
        is_next
    }

    /// The moment from which on the kernel is late with its batch.
    pub(super) fn late_from(&self) -> Ticks {
        self.late_since.get().saturating_add(self.late)
    }

    /// Whether the last poll was so long ago that an event since then may be late.
    pub(super) fn is_poll_late(&self, now: Ticks) -> bool {
        now.since(self.polled_at.get()) >= self.late
    }
}

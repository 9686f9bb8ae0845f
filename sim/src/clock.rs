//! The time of a host.
//!
//! The world has one virtual time, which jumps. A host's clock shows that, or a little more: a step
//! costs time, so while a host is stepped its clock runs ahead, and the world does not step it again
//! before it has caught up.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_time::{Clock, Deadline, Rate, Ticks};

/// The clock of a simulated host: one tick is one nanosecond, and only the world moves it.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Rc<Cell<u64>>);

impl SimClock {
    pub(crate) fn set(&self, now: u64) {
        self.0.set(self.0.get().max(now));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    pub(crate) fn advance(&self, length: Duration) {
        self.0.set(self.0.get().saturating_add(nanos(length)));
    }
}

impl Clock for SimClock {
    fn now(&self) -> Ticks {
        Ticks::new(self.0.get())
    }

    fn rate(&self) -> Rate {
        Rate::NANOS
    }

    fn idle(&self, _: Option<Deadline>) -> Option<Duration> {
        // The world waits, not the driver of one host.
        Some(Duration::ZERO)
    }
}

/// A length of time in ticks of virtual time; what is longer than five hundred years is as long as
/// that.
pub(crate) fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Virtual time as people read it.
pub(crate) fn shown(ticks: u64) -> Duration {
    Duration::from_nanos(ticks)
}

/// The wall clock of a host, which may be wrong and may be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// What it shows when virtual time is zero.
    pub(crate) start: SystemTime,
    /// By how much it is ahead; below zero, behind. Nanoseconds.
    pub(crate) offset: i64,
    /// By how much it goes too fast, in millionths.
    pub(crate) drift_ppm: i32,
}

const MILLION: i128 = 1_000_000;

impl WallClock {
    pub(crate) fn at(&self, now: u64) -> SystemTime {
        let drifted = i128::from(now) * i128::from(self.drift_ppm) / MILLION;
        let since = i128::from(now) + drifted + i128::from(self.offset);
        let length = |nanos: u128| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        match since >= 0 {
            true => self.start + length(since.unsigned_abs()),
            false => self.start - length(since.unsigned_abs()),
        }
    }
}

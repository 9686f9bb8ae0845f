//! Wall time, pinned to ticks.
//!
//! People and protocols need the wall clock; the scheduler must not use it. The wall clock is set
//! by hand, steps when the network corrects it, and stands still in a leap second. A timer that
//! followed it would do the same. So one relation, of a reading of the source clock to a reading of
//! the wall clock, converts ticks to wall time and back. Between two refreshes user time runs as
//! steadily as the ticks, also if the wall clock is changed. A refresh takes the relation anew.
//! User time then shifts by the change of the wall clock and by the accumulated drift. Timers are
//! ticks, and do not change.

use std::time::{Duration, SystemTime};

use crate::{Clock, Rate, Ticks};

/// The number of readings of the wall clock for one pin. The reading with the shortest bracket
/// counts, so three are enough if one is interrupted.
const PIN_READINGS: u32 = 3;

/// The relation between ticks and wall time.
///
/// # Examples
///
/// ```
/// use pikake::time::{Rate, Ticks, WallTime};
/// use std::time::{Duration, SystemTime};
///
/// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(43_200);
/// let wall = WallTime::pin_at(Ticks::new(500), noon);
/// let rate = Rate::from_hz(100);
/// let later = noon + Duration::from_secs(3);
/// assert_eq!(wall.at(Ticks::new(800), rate), later);
/// assert_eq!(wall.ticks_of(later, rate), Ticks::new(800));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallTime {
    /// A reading of the source clock.
    ticks: Ticks,
    /// The reading of the wall clock at the same moment.
    time: SystemTime,
}

impl WallTime {
    /// Reads both clocks, and pins the readings to each other.
    ///
    /// The two readings cannot be taken at the same moment. The error is at most half the time that
    /// the readings take, which is some tens of nanoseconds.
    pub fn pin(clock: &(impl Clock + ?Sized)) -> WallTime {
        let read = || {
            let before = clock.now();
            let time = SystemTime::now();
            let width = clock.now().since(before);
            (width, WallTime { ticks: before.saturating_add(width / 2), time })
        };
        let mut best = read();
        for _ in 1..PIN_READINGS {
            let next = read();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Pins a wall time of your choice, for tests and simulations.
    pub const fn pin_at(ticks: Ticks, time: SystemTime) -> WallTime {
        WallTime { ticks, time }
    }

    /// The wall time when the source clock shows `ticks`, rounded down to the nanosecond.
    ///
    /// # Panics
    ///
    /// If [`SystemTime`] cannot represent the time, which needs a clock slower than a few hertz: at
    /// 1 GHz all of [`Ticks`] is 584 years.
    pub fn at(&self, ticks: Ticks, rate: Rate) -> SystemTime {
        let time = if ticks >= self.ticks {
            self.time.checked_add(rate.duration_floor(ticks.since(self.ticks)))
        } else {
            self.time.checked_sub(rate.duration_ceil(self.ticks.since(ticks)))
        };
        time.expect("SystemTime covers every reading of a clock of some hertz and more")
    }

    /// The first tick at which the wall time is `time` or later, for a wait until then.
    ///
    /// The result saturates at both ends: a time before the source clock began is [`Ticks::ZERO`]
    /// (due already), a time beyond its end is [`Ticks::MAX`] (never). The result is a moment of
    /// the source clock, so a later step of the wall clock does not move it.
    pub fn ticks_of(&self, time: SystemTime, rate: Rate) -> Ticks {
        match time.duration_since(self.time) {
            Ok(ahead) => self.ticks.saturating_add(rate.ticks_ceil(ahead)),
            Err(error) => {
                let back: Duration = error.duration();
                Ticks::new(self.ticks.get().saturating_sub(rate.ticks_floor(back)))
            }
        }
    }

    /// Takes the relation anew, after which user time agrees with the wall clock again.
    pub fn refresh(&mut self, clock: &(impl Clock + ?Sized)) {
        *self = WallTime::pin(clock);
    }
}

//! Wall time, pinned to ticks.
//!
//! People and protocols want to know what o'clock it is; the scheduler must not. The wall clock is
//! set by hand, steps when the network corrects it, and stands still in a leap second; a timer
//! that followed it would do the same. So wall time is derived and never asked for twice: one
//! relation, "when the source clock showed this, the wall clock showed that", turns any reading
//! of the source clock into a wall time and back. Between two refreshes user time runs as steadily
//! as the ticks do, whatever happens to the wall clock. A refresh takes the relation anew: user
//! time shifts by what the wall clock was moved, and by the drift that has gathered; timers, being
//! ticks, do not notice.

use std::time::{Duration, SystemTime};

use crate::{Clock, Rate, Ticks};

/// How many times the wall clock is read for one pin; the reading with the least time around it
/// counts. Two spare ones are enough to outlive an interruption.
const PIN_READINGS: u32 = 3;

/// The relation between ticks and wall time.
///
/// # Examples
///
/// ```
/// use pikake_time::{Rate, Ticks, WallTime};
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
    /// What the source clock showed
    ticks: Ticks,
    /// when the wall clock showed this.
    time: SystemTime,
}

impl WallTime {
    /// Reads both clocks and pins what they show to each other.
    ///
    /// The two readings cannot be taken at the same moment; the relation is off by at most half
    /// the time that reading them takes, which is some tens of nanoseconds.
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
    /// If [`SystemTime`] cannot represent it, which takes a clock slower than a few hertz: at
    /// 1 GHz all of [`Ticks`] is 584 years.
    pub fn at(&self, ticks: Ticks, rate: Rate) -> SystemTime {
        let time = if ticks >= self.ticks {
            self.time.checked_add(rate.duration_floor(ticks.since(self.ticks)))
        } else {
            self.time.checked_sub(rate.duration_ceil(self.ticks.since(ticks)))
        };
        time.expect("SystemTime covers every reading of a clock of some hertz and more")
    }

    /// The first tick at which the wall shows `time` or later: what to wait for.
    ///
    /// Saturates at both ends: a time before the source clock began is [`Ticks::ZERO`] (due
    /// already), one beyond its end is [`Ticks::MAX`] (never). The answer is a moment of the source
    /// clock: a later step of the wall clock does not move it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ManualClock, TimerHeap};
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_step_of_the_wall_clock_shifts_user_time_and_moves_no_timer() {
        let clock = ManualClock::new();
        let mut timers = TimerHeap::new();
        let noon = SystemTime::UNIX_EPOCH + 12 * HOUR;
        let mut wall = WallTime::pin_at(clock.now(), noon);

        // A timer for one o'clock; then the wall clock is put forward by an hour.
        let one_o_clock = wall.ticks_of(noon + HOUR, clock.rate());
        timers.insert(one_o_clock, ());
        clock.advance(HOUR / 2);
        wall = WallTime::pin_at(clock.now(), wall.at(clock.now(), clock.rate()) + HOUR);

        assert_eq!(wall.at(clock.now(), clock.rate()), noon + HOUR + HOUR / 2);
        assert_eq!(timers.pop_due(clock.now()), None, "the watch says it is past one");
        clock.advance(HOUR / 2);
        assert_eq!(timers.pop_due(clock.now()), Some((one_o_clock, ())));
    }

    #[test]
    fn refresh_comes_back_to_the_wall_clock() {
        let clock = ManualClock::new();
        let wrong = SystemTime::now() + 24 * HOUR;
        let mut wall = WallTime::pin_at(clock.now(), wrong);
        clock.advance(HOUR);
        assert_eq!(wall.at(clock.now(), clock.rate()), wrong + HOUR);

        let before = SystemTime::now();
        wall.refresh(&clock);
        assert!(wall.at(clock.now(), clock.rate()) >= before);
        assert!(wall.at(clock.now(), clock.rate()) < wrong);
    }

    #[test]
    fn times_beyond_the_source_clock_saturate() {
        let noon = SystemTime::UNIX_EPOCH + 12 * HOUR;
        let wall = WallTime::pin_at(Ticks::new(10), noon);
        assert_eq!(wall.ticks_of(noon - HOUR, Rate::NANOS), Ticks::ZERO);
        let far = noon + Duration::from_secs(u64::MAX / 1_000_000_000 + 1);
        assert_eq!(wall.ticks_of(far, Rate::NANOS), Ticks::MAX);
    }

    proptest! {
        #[test]
        fn readings_round_down_and_waits_round_up(
            hz in 1_000u64..6_000_000_000,
            pinned in 0u64..1 << 50,
            asked in 0u64..1 << 50,
            offset in 0u64..1 << 50,
        ) {
            let rate = Rate::from_hz(hz);
            let wall = WallTime::pin_at(Ticks::new(pinned), SystemTime::UNIX_EPOCH + 9_000 * HOUR);

            let shown = wall.at(Ticks::new(asked), rate);
            prop_assert!(wall.ticks_of(shown, rate) <= Ticks::new(asked));

            let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(offset);
            let ticks = wall.ticks_of(time, rate);
            prop_assert!(wall.at(ticks, rate) >= time);
        }
    }
}

//! Moments and lengths: `Ticks`, `Deadline`, and the `Rate` that converts them to and from
//! `Duration`.
//!
//! A tick is one unit of a source clock: a TSC cycle, a nanosecond of the monotonic clock, a step
//! of a test. The scheduler compares and adds ticks, and needs no length of a tick. Only the edges
//! of the system (a `sleep` that comes in, a poll that goes out) need a [`Rate`].
//!
//! The conversions are exact, not approximated by a multiplier and a shift. A `Duration` keeps
//! seconds and nanoseconds separate, and so does the arithmetic here. Seconds are multiplied by the
//! frequency. The product of the nanoseconds, which are under 10⁹, and the frequency fits into 64
//! bits for any counter up to 18.4 GHz. The product is divided by the constant 10⁹, which compiles
//! to one more multiplication. So the hot direction ([`Rate::ticks_ceil`]) is three
//! multiplications, without 128-bit arithmetic and without an error. The other direction costs two
//! real divisions, once per blocking poll or reading.

use std::time::Duration;

/// Nanoseconds in a second.
pub(crate) const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A reading of a source clock.
///
/// Only readings of the same clock may be compared; the type does not keep clocks apart, because
/// a kernel has only one.
///
/// # Examples
///
/// ```
/// use pikake::time::Ticks;
///
/// let start = Ticks::new(100);
/// let end = start.saturating_add(20);
/// assert_eq!(end.since(start), 20);
/// assert_eq!(start.since(end), 0, "never negative");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(u64);

impl Ticks {
    /// The first moment of every clock.
    pub const ZERO: Ticks = Ticks(0);

    /// The last moment a clock can show; as a deadline it is [`Deadline::NEVER`].
    ///
    /// A counter of 5 GHz that starts at zero gets here after 116 years.
    pub const MAX: Ticks = Ticks(u64::MAX);

    /// Makes a reading out of a plain count.
    #[inline]
    pub const fn new(ticks: u64) -> Ticks {
        Ticks(ticks)
    }

    /// The plain count.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The moment `ticks` later, or [`Ticks::MAX`] where that lies beyond it.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, ticks: u64) -> Ticks {
        Ticks(self.0.saturating_add(ticks))
    }

    /// The number of ticks since `earlier`; zero if `earlier` is in fact later.
    ///
    /// Saturating, because two processors may show counts that are a few ticks apart.
    #[inline]
    pub const fn since(self, earlier: Ticks) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A moment on a source clock at which something is due.
///
/// The moment has come once the clock shows it or more. A length ("in five seconds") is a
/// [`Duration`]; [`Clock::after`](crate::Clock::after) makes a deadline out of one.
///
/// # Examples
///
/// ```
/// use pikake::time::{Deadline, Ticks};
///
/// let deadline = Deadline::at(Ticks::new(10));
/// assert!(!deadline.is_due(Ticks::new(9)));
/// assert!(deadline.is_due(Ticks::new(10)));
/// assert!(deadline < Deadline::NEVER);
/// assert!(!Deadline::NEVER.is_due(Ticks::MAX));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(Ticks);

impl Deadline {
    /// The deadline that never comes, not even at the end of the clock.
    ///
    /// `NEVER` is the greatest deadline, so the minimum of several deadlines needs no special case.
    pub const NEVER: Deadline = Deadline(Ticks::MAX);

    /// The deadline at a moment. The deadline at [`Ticks::MAX`] is [`Deadline::NEVER`].
    #[inline]
    pub const fn at(ticks: Ticks) -> Deadline {
        Deadline(ticks)
    }

    /// The moment.
    #[inline]
    pub const fn ticks(self) -> Ticks {
        self.0
    }

    /// Whether the moment has come when the clock shows `now`.
    #[inline]
    pub const fn is_due(self, now: Ticks) -> bool {
        self.0.0 <= now.0 && !self.is_never()
    }

    /// Whether this is [`Deadline::NEVER`].
    #[inline]
    pub const fn is_never(self) -> bool {
        self.0.0 == Ticks::MAX.0
    }
}

/// The ticks of a clock per second, which converts lengths to ticks and back.
///
/// Every conversion is exact up to the rounding in its name. Waits use
/// [`ticks_ceil`](Rate::ticks_ceil), readings use [`duration_floor`](Rate::duration_floor). A
/// result that is too great saturates.
///
/// # Examples
///
/// ```
/// use pikake::time::Rate;
/// use std::time::Duration;
///
/// let rate = Rate::from_hz(3); // a very slow clock: a third of a second per tick
/// assert_eq!(rate.ticks_ceil(Duration::from_millis(1_001)), 4);
/// assert_eq!(rate.duration_floor(4), Duration::from_nanos(1_333_333_333));
/// assert_eq!(rate.duration_ceil(4), Duration::from_nanos(1_333_333_334));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Ticks per second, never zero.
    hz: u64,
}

impl Rate {
    /// One tick is one nanosecond: the rate of the monotonic fallback and of the manual clock.
    pub const NANOS: Rate = Rate { hz: NANOS_PER_SEC };

    /// The rate of a clock that makes `hz` ticks in a second.
    ///
    /// # Panics
    ///
    /// If `hz` is zero: a clock that stands still has no rate.
    #[inline]
    pub const fn from_hz(hz: u64) -> Rate {
        assert!(hz != 0, "a clock of 0 Hz has no rate");
        Rate { hz }
    }

    /// Ticks per second.
    #[inline]
    pub const fn hz(self) -> u64 {
        self.hz
    }

    /// The least number of ticks that lasts at least `length`: for waits.
    #[inline]
    pub fn ticks_ceil(self, length: Duration) -> u64 {
        let nanos = u64::from(length.subsec_nanos());
        let part = match nanos.checked_mul(self.hz) {
            Some(product) => product.div_ceil(NANOS_PER_SEC),
            None => divide_wide(nanos, self.hz, NANOS_PER_SEC, u128::div_ceil),
        };
        length.as_secs().saturating_mul(self.hz).saturating_add(part)
    }

    /// The greatest number of ticks that lasts at most `length`: for moments in the past.
    #[inline]
    pub fn ticks_floor(self, length: Duration) -> u64 {
        let nanos = u64::from(length.subsec_nanos());
        let part = match nanos.checked_mul(self.hz) {
            Some(product) => product / NANOS_PER_SEC,
            None => divide_wide(nanos, self.hz, NANOS_PER_SEC, |product, by| product / by),
        };
        length.as_secs().saturating_mul(self.hz).saturating_add(part)
    }

    /// The length of `ticks` in whole nanoseconds, rounded down: for readings.
    #[inline]
    pub fn duration_floor(self, ticks: u64) -> Duration {
        let (secs, rest) = (ticks / self.hz, ticks % self.hz);
        let nanos = match rest.checked_mul(NANOS_PER_SEC) {
            Some(product) => product / self.hz,
            None => divide_wide(rest, NANOS_PER_SEC, self.hz, |product, by| product / by),
        };
        Duration::from_secs(secs) + Duration::from_nanos(nanos)
    }

    /// The length of `ticks` in whole nanoseconds, rounded up: for the limit of a blocking poll.
    #[inline]
    pub fn duration_ceil(self, ticks: u64) -> Duration {
        let (secs, rest) = (ticks / self.hz, ticks % self.hz);
        let nanos = match rest.checked_mul(NANOS_PER_SEC) {
            Some(product) => product.div_ceil(self.hz),
            None => divide_wide(rest, NANOS_PER_SEC, self.hz, u128::div_ceil),
        };
        // The sum cannot overflow: seconds reach u64::MAX only at 1 Hz, and there `rest` is zero.
        Duration::from_secs(secs) + Duration::from_nanos(nanos)
    }
}

/// `a * b / by` for products beyond 64 bits, as of counters faster than 18.4 GHz, which only tests
/// have. The quotient fits, since one of the factors is below the divisor.
#[cold]
fn divide_wide(a: u64, b: u64, by: u64, divide: fn(u128, u128) -> u128) -> u64 {
    let quotient = divide(u128::from(a) * u128::from(b), u128::from(by));
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rates of every magnitude, the real ones (1 GHz and a few) among them.
    fn rates() -> impl Strategy<Value = Rate> {
        prop_oneof![
            1u64..1_000,
            1_000u64..100_000_000,
            Just(NANOS_PER_SEC),
            500_000_000u64..6_000_000_000,
            18_000_000_000u64..19_000_000_000,
            1u64..=u64::MAX,
        ]
        .prop_map(Rate::from_hz)
    }

    fn lengths() -> impl Strategy<Value = Duration> {
        let secs = prop_oneof![0u64..2, 0u64..4_000, any::<u64>()];
        (secs, 0u32..1_000_000_000).prop_map(|(secs, nanos)| Duration::new(secs, nanos))
    }

    fn counts() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..10_000, 0u64..1 << 40, any::<u64>()]
    }

    /// `length * hz` in units of ticks · ns/s, or `None` where 128 bits do not hold it.
    fn product(length: Duration, rate: Rate) -> Option<u128> {
        length.as_nanos().checked_mul(u128::from(rate.hz()))
    }

    proptest! {
        #[test]
        fn ticks_are_the_exact_quotient_rounded(rate in rates(), length in lengths()) {
            let Some(exact) = product(length, rate) else {
                prop_assert_eq!(rate.ticks_ceil(length), u64::MAX);
                prop_assert_eq!(rate.ticks_floor(length), u64::MAX);
                return Ok(());
            };
            let by = u128::from(NANOS_PER_SEC);
            let saturated = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
            prop_assert_eq!(rate.ticks_ceil(length), saturated(exact.div_ceil(by)));
            prop_assert_eq!(rate.ticks_floor(length), saturated(exact / by));
        }

        #[test]
        fn durations_are_the_exact_quotient_rounded(rate in rates(), ticks in counts()) {
            let exact = u128::from(ticks) * u128::from(NANOS_PER_SEC);
            let by = u128::from(rate.hz());
            prop_assert_eq!(rate.duration_floor(ticks).as_nanos(), exact / by);
            prop_assert_eq!(rate.duration_ceil(ticks).as_nanos(), exact.div_ceil(by));
        }

        #[test]
        fn waits_round_up_to_the_next_tick(rate in rates(), length in lengths()) {
            let ticks = rate.ticks_ceil(length);
            prop_assume!(ticks < u64::MAX);
            prop_assert!(rate.duration_floor(ticks) >= length);
            if ticks > 0 {
                prop_assert!(rate.duration_floor(ticks - 1) < length);
            }
        }

        #[test]
        fn blocking_until_a_deadline_never_ends_early(rate in rates(), ticks in counts()) {
            prop_assert!(rate.ticks_floor(rate.duration_ceil(ticks)) >= ticks);
        }
    }

    #[test]
    fn conversions_saturate_at_both_ends() {
        assert_eq!(Rate::NANOS.ticks_ceil(Duration::ZERO), 0);
        assert_eq!(Rate::NANOS.ticks_ceil(Duration::MAX), u64::MAX);
        assert_eq!(Rate::from_hz(1).duration_ceil(u64::MAX), Duration::from_secs(u64::MAX));
        assert_eq!(Ticks::MAX.saturating_add(1), Ticks::MAX);
        assert!(Deadline::at(Ticks::MAX).is_never());
        assert!(Deadline::at(Ticks::ZERO).is_due(Ticks::ZERO));
    }
}

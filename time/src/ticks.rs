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

    /// This moment, or a later one that moments of about the same time share: at most `slack` ticks
    /// later, a multiple of the greatest power of two that permits this.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::time::Ticks;
    ///
    /// let [one, other] = [Ticks::new(1_030), Ticks::new(1_060)];
    /// assert_eq!(one.rounded_up_within(100), Ticks::new(1_088)); // 17 times 64
    /// assert_eq!(other.rounded_up_within(100), Ticks::new(1_088));
    /// assert_eq!(one.rounded_up_within(0), one);
    /// ```
    #[inline]
    #[must_use]
    pub const fn rounded_up_within(self, slack: u64) -> Ticks {
        let below_grid = (1 << slack.saturating_add(1).ilog2()) - 1;
        match self.0.checked_add(below_grid) {
            Some(end) => Ticks(end & !below_grid),
            None => self,
        }
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

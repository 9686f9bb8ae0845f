//! Moments of the kernel's clock, with the arithmetic of [`std::time::Instant`].

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};

use crate::door;

/// A moment of the kernel's clock, with the methods of [`std::time::Instant`].
///
/// The moment is virtual in a simulation and on a kernel with a manual clock. There,
/// `std::time::Instant` would show the time that the test itself takes.
///
/// Three types tell time. Programs need the first one, and the second one for waits:
///
/// | type | is | for |
/// | --- | --- | --- |
/// | `Instant` | a moment of the clock, which knows the clock's rate | measuring, and computing moments |
/// | [`Deadline`] | a moment at which a wait ends, or [never](Deadline::NEVER) | [`sleep_until`](crate::sleep_until), [`timeout_at`](crate::timeout_at), which also take an `Instant` |
/// | [`Ticks`] | a plain reading of the clock | kernels, clocks and drivers |
///
/// Moments of the real clock may be compared on all threads of a process. Moments of different
/// clocks, such as those of two simulations, have no meaning for each other. A length is at most a
/// tick of the clock longer than the exact one after an addition or subtraction, and shorter after
/// a difference of two moments.
///
/// # Examples
///
/// ```
/// use pikake::time::Instant;
/// use pikake::{sleep, sleep_until};
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let begin = Instant::now();
/// sleep(Duration::from_millis(20)).await?;
/// assert!(begin.elapsed() >= Duration::from_millis(20));
///
/// let end = begin + Duration::from_secs(1);
/// sleep_until(end).await?;
/// assert!(Instant::now() >= end);
/// # Ok::<_, pikake::Interrupted>(())
/// # })
/// # .unwrap();
/// ```
#[derive(Clone, Copy)]
pub struct Instant {
    ticks: Ticks,
    rate: Rate,
}

impl Instant {
    /// The current moment, by a fresh reading of the kernel's clock.
    ///
    /// # Panics
    ///
    /// Outside a kernel, as in a thread of [`run_in_thread`](crate::blocking). `std::time::Instant`
    /// works there.
    #[track_caller]
    pub fn now() -> Self {
        let (ticks, rate) = door::with(|local| (local.kernel().now(), local.kernel().rate()));
        Self { ticks, rate }
    }

    /// The reading of the clock.
    pub fn ticks(self) -> Ticks {
        self.ticks
    }

    /// The time since this moment; zero if the moment has not come.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().duration_since(self)
    }

    /// The time from `earlier` to this moment; zero if `earlier` is in fact later.
    #[must_use]
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.rate.duration_floor(self.ticks.since(earlier.ticks))
    }

    /// The time from `earlier` to this moment; zero if `earlier` is in fact later. The same as
    /// [`duration_since`](Self::duration_since), under the name that `std` has for it.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    /// The time from `earlier` to this moment; `None` if `earlier` is in fact later.
    #[must_use]
    pub fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        (self.ticks >= earlier.ticks).then(|| self.duration_since(earlier))
    }

    /// The moment `length` later; `None` if the clock never gets there.
    #[must_use]
    pub fn checked_add(self, length: Duration) -> Option<Self> {
        let ticks = self.ticks.get().checked_add(self.rate.ticks_ceil(length))?;
        // The last reading stands for "never".
        (ticks < Ticks::MAX.get()).then_some(Self { ticks: Ticks::new(ticks), rate: self.rate })
    }

    /// The moment `length` earlier; `None` if that lies before the clock's first reading.
    #[must_use]
    pub fn checked_sub(self, length: Duration) -> Option<Self> {
        let ticks = self.ticks.get().checked_sub(self.rate.ticks_ceil(length))?;
        Some(Self { ticks: Ticks::new(ticks), rate: self.rate })
    }
}

/// # Panics
///
/// If the clock never gets there. [`Instant::checked_add`] returns `None` instead.
impl Add<Duration> for Instant {
    type Output = Self;

    #[track_caller]
    fn add(self, length: Duration) -> Self {
        self.checked_add(length).expect("the clock never gets to a moment so far ahead")
    }
}

impl AddAssign<Duration> for Instant {
    #[track_caller]
    fn add_assign(&mut self, length: Duration) {
        *self = *self + length;
    }
}

/// # Panics
///
/// If the moment lies before the clock's first reading, which is zero in a simulation.
/// [`Instant::checked_sub`] returns `None` instead.
impl Sub<Duration> for Instant {
    type Output = Self;

    #[track_caller]
    fn sub(self, length: Duration) -> Self {
        self.checked_sub(length).expect("the moment lies before the first reading of the clock")
    }
}

impl SubAssign<Duration> for Instant {
    #[track_caller]
    fn sub_assign(&mut self, length: Duration) {
        *self = *self - length;
    }
}

/// [`Instant::duration_since`].
impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

impl PartialEq for Instant {
    fn eq(&self, other: &Self) -> bool {
        self.ticks == other.ticks
    }
}

impl Eq for Instant {}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instant {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ticks.cmp(&other.ticks)
    }
}

impl Hash for Instant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ticks.hash(state);
    }
}

/// The deadline at this moment.
impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self::at(instant.ticks)
    }
}

/// The time since the clock's first reading.
impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_first = self.rate.duration_floor(self.ticks.since(Ticks::ZERO));
        f.debug_tuple("Instant").field(&since_first).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64, hz: u64) -> Instant {
        Instant { ticks: Ticks::new(ticks), rate: Rate::from_hz(hz) }
    }

    /// Rates below, at and above a tick each nanosecond.
    const RATES: [u64; 4] = [3, 1_000, 1_000_000_000, 2_095_078_123];

    #[test]
    fn sums_are_undone_by_differences() {
        for hz in RATES {
            let begin = at(5 * hz, hz);
            for millis in [0, 1, 333, 1_000, 1_001, 4_999] {
                let length = Duration::from_millis(millis);
                assert_eq!((begin + length) - length, begin, "{hz} Hz");
                assert_eq!((begin - length) + length, begin, "{hz} Hz");
                // A length is rounded up to a tick, and no further.
                let measured = begin + length - begin;
                let tick = Rate::from_hz(hz).duration_ceil(1);
                assert!(measured >= length || hz > 1_000_000_000, "{hz} Hz");
                assert!(measured.abs_diff(length) <= tick, "{hz} Hz: {length:?}, {measured:?}");
            }
        }
    }

    #[test]
    fn differences_are_never_negative() {
        let (early, late) = (at(10, 1_000), at(15, 1_000));
        assert_eq!(late.duration_since(early), Duration::from_millis(5));
        assert_eq!(early.duration_since(late), Duration::ZERO);
        assert_eq!(early.saturating_duration_since(late), Duration::ZERO);
        assert_eq!(early.checked_duration_since(late), None);
        assert_eq!(late.checked_duration_since(early), Some(Duration::from_millis(5)));
        assert_eq!(late.checked_duration_since(late), Some(Duration::ZERO));
        assert!(early < late && early.max(late) == late);
    }

    #[test]
    fn moments_outside_of_the_clock_do_not_exist() {
        let moment = at(10, 1_000);
        assert_eq!(moment.checked_add(Duration::MAX), None);
        assert_eq!(moment.checked_sub(Duration::from_millis(11)), None);
        assert_eq!(moment.checked_sub(Duration::from_millis(10)), Some(at(0, 1_000)));
        // The last reading is the deadline that never comes.
        let last = at(u64::MAX - 1, 1_000);
        assert_eq!(last.checked_add(Duration::from_millis(1)), None);
        assert!(!Deadline::from(last).is_never());
    }

    #[test]
    fn a_moment_is_a_deadline() {
        let moment = at(10, 1_000);
        assert_eq!(Deadline::from(moment), Deadline::at(Ticks::new(10)));
        assert_eq!(format!("{moment:?}"), "Instant(10ms)");
    }

    #[test]
    fn a_moment_may_change_its_thread() {
        fn moves<T: Send + Sync + Copy + 'static>() {}
        moves::<Instant>();
    }

    #[test]
    #[should_panic(expected = "so far ahead")]
    fn a_sum_beyond_the_clock_panics() {
        let _ = at(0, 1_000) + Duration::MAX;
    }

    #[test]
    #[should_panic(expected = "needs a pikake kernel")]
    fn no_moment_outside_a_kernel() {
        let _ = Instant::now();
    }
}

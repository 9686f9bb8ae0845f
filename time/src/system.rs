//! The clock of the real machine, chosen once.
//!
//! A kernel reads its clock at every sleep, so the cheapest source that is good enough is chosen.
//! The best source is the processor's counter where it can be trusted; `tsc.rs` has the conditions,
//! the measurement and the limits. The fallback is the monotonic clock of the operating system, in
//! nanoseconds. Each reading branches on the choice, always the same way, which costs less than
//! generic code above.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::tsc::Counter;
use crate::{Clock, Deadline, Rate, Ticks};

/// The clock of the machine: the time-stamp counter where it is invariant, else `CLOCK_MONOTONIC`.
///
/// All clocks of a process with the same source show the same time and share one rate. So a second
/// clock costs almost nothing, and a deadline of one is valid for the other. Readings of different
/// sources cannot be compared.
///
/// The rate drifts against an unslewed `CLOCK_MONOTONIC` by at most
/// [`INITIAL_DRIFT_BOUND_PPM`](crate::INITIAL_DRIFT_BOUND_PPM). The bound is
/// [`REFINED_DRIFT_BOUND_PPM`](crate::REFINED_DRIFT_BOUND_PPM) after a refinement over
/// [`REFINED_BASELINE`](crate::REFINED_BASELINE) or longer.
///
/// # Examples
///
/// ```
/// use pikake::time::{Clock, SystemClock};
/// use std::time::Duration;
///
/// let clock = SystemClock::new();
/// let start = clock.now();
/// let left = clock.idle(Some(clock.after(Duration::from_secs(5)))).unwrap();
/// assert!(left <= Duration::from_secs(5));
/// assert!(clock.now() >= start);
/// ```
#[derive(Clone, Debug)]
pub struct SystemClock {
    source: Source,
}

/// The source of the ticks.
#[derive(Clone, Debug)]
enum Source {
    /// Cycles of the processor's counter.
    Counter(&'static Counter),
    /// Nanoseconds since this moment, which is the same in all of the process.
    Monotonic(Instant),
}

impl SystemClock {
    /// Chooses the best source there is.
    ///
    /// The first call in a process measures the counter, and sleeps for about 2 ms (up to 20 ms on
    /// a noisy machine). Later calls take a microsecond or two, and [refine](SystemClock::refine)
    /// the rate if the baseline has doubled since.
    pub fn new() -> SystemClock {
        match Counter::get() {
            Some(counter) => SystemClock { source: Source::Counter(counter) },
            None => SystemClock::monotonic(),
        }
    }

    /// The fallback, also where there is a better source: `CLOCK_MONOTONIC`, in nanoseconds.
    ///
    /// For machines that suspend, for virtual machines that emulate the counter badly, and for
    /// comparisons.
    pub fn monotonic() -> SystemClock {
        static EPOCH: OnceLock<Instant> = OnceLock::new();
        SystemClock { source: Source::Monotonic(*EPOCH.get_or_init(Instant::now)) }
    }

    /// Whether the ticks are cycles of the processor's time-stamp counter.
    pub fn is_tsc(&self) -> bool {
        matches!(self.source, Source::Counter(_))
    }

    /// Measures the rate again, over the whole time since the first measurement, and returns the
    /// rate in use.
    ///
    /// The longer the program runs, the smaller the error. All clocks of the process get the new
    /// rate. No deadline moves, and durations that are computed from old ticks change by the
    /// correction. A measurement that is no better than the one in use is ignored, and so is one
    /// that shows a step of the counter. The call takes about a microsecond. The monotonic source
    /// has nothing to refine.
    pub fn refine(&self) -> Rate {
        if let Source::Counter(counter) = self.source {
            counter.refine();
        }
        self.rate()
    }

    /// The measured bound on the error of the rate against `CLOCK_MONOTONIC`, in parts per billion;
    /// zero for the monotonic source.
    pub fn error_ppb(&self) -> u64 {
        match self.source {
            Source::Counter(counter) => counter.error_ppb(),
            Source::Monotonic(_) => 0,
        }
    }
}

impl Default for SystemClock {
    /// The same as [`SystemClock::new`].
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Ticks {
        match self.source {
            Source::Counter(counter) => Ticks::new(counter.read()),
            Source::Monotonic(epoch) => Ticks::new(Rate::NANOS.ticks_floor(epoch.elapsed())),
        }
    }

    #[inline]
    fn rate(&self) -> Rate {
        match self.source {
            Source::Counter(counter) => counter.rate(),
            Source::Monotonic(_) => Rate::NANOS,
        }
    }

    fn idle(&self, next: Option<Deadline>) -> Option<Duration> {
        let next = next.filter(|next| !next.is_never())?;
        Some(self.rate().duration_ceil(next.ticks().since(self.now())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{INITIAL_DRIFT_BOUND_PPM, REFINED_BASELINE, REFINED_DRIFT_BOUND_PPM};
    use std::thread;

    /// A reading of the clock and the monotonic time around it: the tightest of several, so that an
    /// interrupted one does not count as drift.
    fn tightest_bracket(clock: &SystemClock, epoch: Instant) -> (Ticks, f64) {
        let brackets = (0..50).map(|_| {
            let before = epoch.elapsed();
            let ticks = clock.now();
            let after = epoch.elapsed();
            (after - before, ticks, (before + after).as_nanos() as f64 / 2.0)
        });
        let (_, ticks, nanos) = brackets.min_by_key(|bracket| bracket.0).expect("not empty");
        (ticks, nanos)
    }

    /// The drift of the clock from `CLOCK_MONOTONIC` over `length` by the given rate, in ppm.
    fn drift_ppm(clock: &SystemClock, rate: Rate, length: Duration) -> f64 {
        let epoch = Instant::now();
        let (start, start_nanos) = tightest_bracket(clock, epoch);
        thread::sleep(length);
        let (end, end_nanos) = tightest_bracket(clock, epoch);
        let shown = rate.duration_floor(end.since(start)).as_nanos() as f64;
        let real = end_nanos - start_nanos;
        (shown - real).abs() / real * 1e6
    }

    /// The error of the comparison itself: brackets of a microsecond over 0.3 s.
    const COMPARISON_PPM: f64 = 4.0;

    /// Real time is the subject. The exact length of the sleeps does not matter.
    #[test]
    fn the_drift_is_within_its_bounds() {
        let clock = SystemClock::new();
        let begin = Instant::now();
        assert!(clock.error_ppb() <= INITIAL_DRIFT_BOUND_PPM * 1_000);
        let drift = drift_ppm(&clock, clock.rate(), Duration::from_millis(300));
        println!("initial: {drift:.3} ppm, bound {} ppb, {clock:?}", clock.error_ppb());
        assert!(drift <= INITIAL_DRIFT_BOUND_PPM as f64 + COMPARISON_PPM, "{drift} ppm");

        thread::sleep(REFINED_BASELINE.saturating_sub(begin.elapsed()));
        let rate = clock.refine();
        assert!(clock.error_ppb() <= REFINED_DRIFT_BOUND_PPM * 1_000);
        let drift = drift_ppm(&clock, rate, Duration::from_millis(300));
        println!("refined: {drift:.3} ppm, bound {} ppb", clock.error_ppb());
        assert!(drift <= REFINED_DRIFT_BOUND_PPM as f64 + COMPARISON_PPM, "{drift} ppm");
    }

    #[test]
    fn the_clocks_of_a_process_agree() {
        for (one, other) in [
            (SystemClock::new(), SystemClock::new()),
            (SystemClock::monotonic(), SystemClock::monotonic()),
        ] {
            assert_eq!(one.is_tsc(), other.is_tsc());
            let (first, second, third) = (one.now(), other.now(), one.now());
            assert!(first <= second && second <= third);
        }
        assert!(!SystemClock::monotonic().is_tsc());
        assert_eq!(SystemClock::monotonic().refine(), Rate::NANOS);
    }

    #[test]
    fn idle_blocks_until_the_deadline() {
        for clock in [SystemClock::new(), SystemClock::monotonic()] {
            assert_eq!(clock.idle(None), None);
            assert_eq!(clock.idle(Some(Deadline::NEVER)), None);
            assert_eq!(clock.idle(Some(Deadline::at(clock.now()))), Some(Duration::ZERO));
            let hour = Duration::from_secs(3_600);
            let left = clock.idle(Some(clock.after(hour))).expect("there is a timer");
            assert!(left <= hour + Duration::from_nanos(1) && left > hour / 2, "{left:?}");
            assert!(clock.after(Duration::MAX).is_never());
        }
    }
}

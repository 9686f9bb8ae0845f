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
    /// The first call in a process measures the counter, in about 0.2 ms (up to 20 ms on a noisy
    /// machine). Later calls [refine](SystemClock::refine) the rate if the baseline has doubled
    /// since, and so does each [`idle`](Clock::idle): a kernel that is about to block. That takes a
    /// microsecond or two.
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
        let now = self.now();
        if let Source::Counter(counter) = self.source {
            counter.refine_if_worthwhile(now.get());
        }
        let next = next.filter(|next| !next.is_never())?;
        Some(self.rate().duration_ceil(next.ticks().since(now)))
    }
}

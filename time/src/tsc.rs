//! The processor's time-stamp counter, and the length of its ticks.
//!
//! The time-stamp counter (TSC) of an x86-64 processor is read without entering the operating
//! system, in a third of the time of its monotonic clock. The counter is usable as a clock if it is
//! *invariant*: if it runs at one rate through all power and performance states. CPUID leaf
//! 8000_0007h, EDX bit 8, says so (Intel SDM vol. 3, "Invariant TSC"; AMD APM vol. 3,
//! `TscInvariant`). This does not prove that the counters of all cores agree. Linux checks them,
//! and removes `tsc` from its list of clock sources when they disagree, so this file also reads
//! that list where it exists. In all other cases, [`SystemClock`](crate::SystemClock) falls back to
//! the monotonic clock.
//!
//! The length of a tick is measured against the monotonic clock (`calibration.rs` has the method
//! and the argument for its error). The first baseline is short, because a program waits for it at
//! its start. Its first anchor is kept, so every later measurement has a longer baseline and a
//! smaller error. A clock in use measures again whenever the baseline has doubled, thirty times in
//! its first day. A measurement whose bound is worse than the one in use is dropped. So is a
//! measurement that disagrees by more than corrections of the system clock explain: the counter has
//! then stepped.
//!
//! On one machine (AMD EPYC guest under KVM, 2.6 GHz) a bracket is 30 ns wide. The first
//! measurement takes 0.13 ms, and the rate was mostly within 60 ppm, 126 ppm at worst in 30 trials.
//! After 3 ms the bound is 16 ppm, and the rate was within 5 ppm. Over 1 s the bound is 0.06 ppm,
//! and the rate was within 0.02 ppm. The two public bounds leave room for wider brackets.
//!
//! # Limits
//!
//! * The monotonic clock is itself disciplined: NTP may slew it by up to 500 ppm (`adjtimex(2)`),
//!   and no measured rate can predict a slew. The bounds hold against an unslewed clock.
//! * A suspended machine stops the monotonic clock. The machine's counter may run on, or start
//!   again at zero. In the second case, timers wait until the old count is reached again. Servers
//!   do not suspend; on machines that do, choose
//!   [`SystemClock::monotonic`](crate::SystemClock::monotonic).
//! * The counter is read without a fence: the processor may take the reading some nanoseconds
//!   before or after the instructions next to it.
//!
//! # Why not quanta
//!
//! The crate `quanta` (0.13) reads the same counter, has a mock clock, and is quick. Its start may
//! take up to 200 ms, but took 0.6 ms on that machine. `quanta` does not fit for three reasons. The
//! crate converts raw counts to durations, but no duration to counts, and the timer heap is keyed
//! on raw counts that a duration was rounded up to. The crate calibrates once, with an error of 0.7
//! ppm on that machine, which is good. But the program does not know the error, and a year does not
//! lower it. `quanta` trusts CPUID alone, and ignores the system's list.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::Rate;
use crate::calibration::{Anchor, is_plausible, rate_between};

/// The largest error of the rate of a fresh [`SystemClock`](crate::SystemClock), in parts per
/// million: 0.5 ms in every second. A clock in use has a smaller one after a fraction of a
/// millisecond.
///
/// Enforced: a counter that cannot be measured this well is not used. Two anchors that are good to
/// 50 ns reach this bound over a first baseline of 0.2 ms.
pub const INITIAL_DRIFT_BOUND_PPM: u64 = 500;

/// The largest error of the rate, in parts per million, after a refinement over at least
/// [`REFINED_BASELINE`]: 1 µs in every second.
///
/// The bound holds as long as an anchor is good to 500 ns, also if each reading needs a system
/// call. [`SystemClock::error_ppb`](crate::SystemClock::error_ppb) has the actual bound.
pub const REFINED_DRIFT_BOUND_PPM: u64 = 1;

/// The baseline from which on [`REFINED_DRIFT_BOUND_PPM`] holds.
pub const REFINED_BASELINE: Duration = Duration::from_secs(1);

/// The longest time for the first measurement to meet its bound, which it mostly does in a
/// hundredth. After that, the counter is not used.
const FIRST_BASELINE_LIMIT: Duration = Duration::from_millis(20);

/// The measurement is repeated once the baseline has grown by this factor. The error then halves.
const WORTHWHILE_GROWTH: u64 = 2;

/// Parts per billion in a part per million.
const PPB_PER_PPM: u64 = 1_000;

/// The measured counter of this process, for all threads and all clocks.
#[derive(Debug)]
pub(crate) struct Counter {
    /// The moment from which anchors count nanoseconds of the monotonic clock.
    epoch: Instant,
    /// The start of every baseline.
    first: Anchor,
    /// The rate in use, in ticks per second; never zero.
    hz: AtomicU64,
    /// The bound on the error of the rate in use. Locked during a measurement.
    error_ppb: Mutex<u64>,
    /// The count at which the next measurement is worthwhile.
    refine_at: AtomicU64,
}

impl Counter {
    /// The counter of this process, or `None` if it is not usable as a clock.
    ///
    /// The first call measures, and takes a fraction of a millisecond. A later call refines the
    /// rate if the baseline has grown enough, and takes at most two microseconds.
    pub(crate) fn get() -> Option<&'static Counter> {
        static COUNTER: OnceLock<Option<Counter>> = OnceLock::new();
        let counter = COUNTER.get_or_init(Counter::measure).as_ref()?;
        counter.refine_if_worthwhile(counter.read());
        Some(counter)
    }

    /// The count now.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        processor::read()
    }

    /// The rate in use.
    #[inline]
    pub(crate) fn rate(&self) -> Rate {
        // Relaxed, since no other data is published with the number.
        Rate::from_hz(self.hz.load(Ordering::Relaxed))
    }

    /// The bound on the error of the rate in use.
    pub(crate) fn error_ppb(&self) -> u64 {
        *self.error_ppb.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures the rate over the whole time since the first anchor and uses it if it is better.
    pub(crate) fn refine(&self) {
        let mut in_use = self.error_ppb.lock().unwrap_or_else(PoisonError::into_inner);
        let anchor = Anchor::take(self.epoch, processor::read);
        self.refine_at.store(next_measurement(self.first, anchor), Ordering::Relaxed);
        let Some((hz, error_ppb)) = rate_between(self.first, anchor) else { return };
        if error_ppb < *in_use && is_plausible(self.rate().hz(), hz) {
            self.hz.store(hz, Ordering::Relaxed);
            *in_use = error_ppb;
        }
    }

    /// [Refines](Self::refine) the rate if the baseline has grown enough by this count.
    #[inline]
    pub(crate) fn refine_if_worthwhile(&self, now: u64) {
        if now >= self.refine_at.load(Ordering::Relaxed) {
            self.refine();
        }
    }

    fn measure() -> Option<Counter> {
        if !processor::is_invariant() {
            return None;
        }
        let epoch = Instant::now();
        let first = Anchor::take(epoch, processor::read);
        // The system's answer takes a part of the time between the anchors.
        if !system_trusts_counter() {
            return None;
        }
        while epoch.elapsed() < FIRST_BASELINE_LIMIT {
            let anchor = Anchor::take(epoch, processor::read);
            let Some((hz, error_ppb)) = rate_between(first, anchor) else { continue };
            if error_ppb <= INITIAL_DRIFT_BOUND_PPM * PPB_PER_PPM {
                let (hz, error_ppb) = (AtomicU64::new(hz), Mutex::new(error_ppb));
                let refine_at = AtomicU64::new(next_measurement(first, anchor));
                return Some(Counter { epoch, first, hz, error_ppb, refine_at });
            }
        }
        None
    }
}

/// The count at which a measurement after the one of `last` is worthwhile.
fn next_measurement(first: Anchor, last: Anchor) -> u64 {
    let baseline = last.ticks.saturating_sub(first.ticks);
    first.ticks.saturating_add(baseline.saturating_mul(WORTHWHILE_GROWTH))
}

/// Whether the operating system lists the counter as a clock; `true` without a list.
fn system_trusts_counter() -> bool {
    const LIST: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    if cfg!(target_os = "linux") {
        std::fs::read_to_string(LIST).map_or(true, |list| lists_tsc(&list))
    } else {
        true
    }
}

/// Whether `tsc` itself is in a list of clock sources; `tsc-early` does not count.
fn lists_tsc(list: &str) -> bool {
    list.split_ascii_whitespace().any(|source| source == "tsc")
}

/// The processor's instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod processor {
    use std::arch::x86_64::{__cpuid, _rdtsc, CpuidResult};

    /// The CPUID leaf with the greatest extended leaf, in EAX.
    const GREATEST_EXTENDED_LEAF: u32 = 0x8000_0000;
    /// The CPUID leaf about power management.
    const POWER_MANAGEMENT_LEAF: u32 = 0x8000_0007;
    /// In EDX of that leaf.
    const INVARIANT_TSC_BIT: u32 = 1 << 8;

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: `_rdtsc` needs a processor that has the instruction, as all of x86-64 have, and
        // touches no memory. A system that forbids the instruction to user code (CR4.TSD) kills the
        // process, which is not undefined behaviour.
        unsafe { _rdtsc() }
    }

    pub(super) fn is_invariant() -> bool {
        cpuid(GREATEST_EXTENDED_LEAF).eax >= POWER_MANAGEMENT_LEAF
            && cpuid(POWER_MANAGEMENT_LEAF).edx & INVARIANT_TSC_BIT != 0
    }

    fn cpuid(leaf: u32) -> CpuidResult {
        // The oldest Rust that is supported has an unsafe function here, and newer ones a safe one.
        let instruction: unsafe fn(u32) -> CpuidResult = __cpuid;
        // SAFETY: `__cpuid` needs a processor that has the instruction, as all of x86-64 have, and
        // touches no memory.
        unsafe { instruction(leaf) }
    }
}

/// No readable counter, so [`Counter::measure`] returns before it reads.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod processor {
    #[inline]
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn is_invariant() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_entry_tsc_lists_the_counter() {
        assert!(lists_tsc("tsc kvm-clock \n"));
        assert!(!lists_tsc("kvm-clock tsc-early hyperv_clocksource_tsc_page acpi_pm\n"));
    }
}

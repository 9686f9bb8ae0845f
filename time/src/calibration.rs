//! The measurement of a counter's rate: anchors, baselines and the error of a rate.
//!
//! An *anchor* is one reading of the counter between two of the monotonic clock. Of several such
//! brackets the tightest counts, since an interruption can only widen a bracket. The error of an
//! anchor is at most half its width and the grain of the monotonic clock. Two anchors give a rate.
//! The sum of their errors over the *baseline*, the time between them, bounds the error of the
//! rate. So the bound is computed, and needs no statistics.

use std::time::Instant;

use crate::ticks::NANOS_PER_SEC;

/// The number of brackets from which an anchor is chosen: enough that one of them is not
/// interrupted. Together they take about a microsecond.
const BRACKETS: u32 = 16;

/// An upper bound on the step of the monotonic clock, in nanoseconds: a narrower bracket shows the
/// grain of the clock, not the quality of the reading. Windows counts in 100 ns; elsewhere steps of
/// 1 ns are usual, and 10 ns have been seen.
const CLOCK_GRAIN_NANOS: u64 = if cfg!(windows) { 100 } else { 10 };

/// A later measurement may disagree with the one in use by this much, in parts per million: twice
/// the most by which NTP slews. A greater difference is a step of the counter.
const PLAUSIBLE_CHANGE_PPM: u64 = 1_000;

/// Parts per million in the whole.
const PPM: u64 = 1_000_000;

/// Parts per billion in the whole.
const PPB: u64 = 1_000_000_000;

/// The counter and the monotonic clock at the same moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    pub(crate) ticks: u64,
    /// The time since the epoch.
    pub(crate) nanos: u64,
    /// The largest error of `nanos`, in either direction.
    pub(crate) error_nanos: u64,
}

impl Anchor {
    /// The tightest of some brackets around a reading of the counter.
    pub(crate) fn take(epoch: Instant, read: impl Fn() -> u64) -> Anchor {
        let bracket = || {
            let before = nanos_since(epoch);
            let ticks = read();
            let width = nanos_since(epoch).saturating_sub(before);
            Anchor {
                ticks,
                nanos: before + width / 2,
                error_nanos: width.div_ceil(2) + CLOCK_GRAIN_NANOS,
            }
        };
        let mut best = bracket();
        for _ in 1..BRACKETS {
            let next = bracket();
            if next.error_nanos < best.error_nanos {
                best = next;
            }
        }
        best
    }
}

/// Nanoseconds of the monotonic clock since `epoch`, for the first 584 years.
fn nanos_since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The rate of the counter between two anchors, and the bound on its error in parts per billion;
/// `None` if the counter has not moved forward.
pub(crate) fn rate_between(from: Anchor, to: Anchor) -> Option<(u64, u64)> {
    let ticks = to.ticks.checked_sub(from.ticks)?;
    let nanos = to.nanos.checked_sub(from.nanos)?;
    let hz = scaled(ticks, NANOS_PER_SEC, nanos).filter(|&hz| hz != 0)?;
    let error_ppb = scaled(from.error_nanos + to.error_nanos, PPB, nanos)?;
    Some((hz, error_ppb))
}

/// `count * unit / by`, rounded up, if it exists and fits.
fn scaled(count: u64, unit: u64, by: u64) -> Option<u64> {
    let product = u128::from(count) * u128::from(unit);
    (by != 0).then(|| product.div_ceil(u128::from(by)))?.try_into().ok()
}

/// Whether two measurements may be of a counter that has not stepped in between.
pub(crate) fn is_plausible(old_hz: u64, new_hz: u64) -> bool {
    let change = u128::from(old_hz.abs_diff(new_hz));
    change * u128::from(PPM) <= u128::from(old_hz) * u128::from(PLAUSIBLE_CHANGE_PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64, nanos: u64, error_nanos: u64) -> Anchor {
        Anchor { ticks, nanos, error_nanos }
    }

    #[test]
    fn a_rate_has_an_error_bound() {
        let (hz, error_ppb) = rate_between(at(1_000, 0, 10), at(6_001_000, 2_000_000, 15)).unwrap();
        assert_eq!(hz, 3_000_000_000);
        assert_eq!(error_ppb, 12_500, "25 ns in 2 ms");
    }

    #[test]
    fn a_stopped_or_reversed_counter_has_no_rate() {
        assert!(rate_between(at(5, 0, 1), at(5, 1_000, 1)).is_none());
        assert!(rate_between(at(5, 0, 1), at(4, 1_000, 1)).is_none());
        assert!(rate_between(at(5, 7, 1), at(9, 7, 1)).is_none());
    }

    #[test]
    fn a_step_of_the_counter_is_implausible() {
        assert!(is_plausible(2_000_000_000, 2_001_000_000), "500 ppm");
        assert!(!is_plausible(2_000_000_000, 2_003_000_000), "1500 ppm");
        assert!(!is_plausible(2_000_000_000, 1_000_000_000));
    }

    #[test]
    fn an_anchor_is_its_tightest_bracket() {
        let readings = std::cell::Cell::new(0);
        let anchor = Anchor::take(Instant::now(), || {
            readings.set(readings.get() + 1);
            readings.get()
        });
        assert_eq!(readings.get(), u64::from(BRACKETS));
        assert!((1..=u64::from(BRACKETS)).contains(&anchor.ticks));
        assert!(anchor.error_nanos >= CLOCK_GRAIN_NANOS, "no reading is perfect");
    }
}

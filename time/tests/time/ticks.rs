//! Conversions between lengths and ticks, against exact quotients.

use std::time::Duration;

use pikake::time::{Deadline, Rate, Ticks};
use proptest::prelude::*;

const NANOS_PER_SEC: u64 = 1_000_000_000;

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

proptest! {
    /// Moments of one slack are on a grid that those of a smaller slack share.
    #[test]
    fn a_rounded_moment_is_at_most_its_slack_late(at in 0u64..1 << 62, slack in 0u64..1 << 40) {
        prop_assert_eq!(Ticks::MAX.rounded_up_within(slack), Ticks::MAX);
        let at = Ticks::new(at);
        let rounded = at.rounded_up_within(slack);
        prop_assert!(rounded >= at && rounded.since(at) <= slack);
        prop_assert_eq!(rounded.rounded_up_within(slack), rounded);
        prop_assert!(at.rounded_up_within(slack / 3) <= rounded);
        prop_assert_eq!(at.rounded_up_within(slack / 3).rounded_up_within(slack), rounded);
    }
}

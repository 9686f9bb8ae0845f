//! The clock of the system: its drift, its agreement with others, and how long it idles.

use std::thread;
use std::time::{Duration, Instant};

use pikake::time::{
    Clock, Deadline, INITIAL_DRIFT_BOUND_PPM, REFINED_BASELINE, REFINED_DRIFT_BOUND_PPM, Rate,
    SystemClock, Ticks,
};

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

/// Real time is the subject: the baseline grows to fifty times the first one.
#[test]
fn a_clock_that_is_used_becomes_better() {
    let clock = SystemClock::new();
    let before = clock.error_ppb();
    thread::sleep(Duration::from_millis(10));
    assert_eq!(clock.idle(None), None);
    if clock.is_tsc() {
        let after = clock.error_ppb();
        assert!(after <= before && after < INITIAL_DRIFT_BOUND_PPM * 1_000 / 2, "{after} ppb");
    }
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

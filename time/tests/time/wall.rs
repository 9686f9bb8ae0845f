//! Wall time: steps of the wall clock, refreshes, and the rounding of its readings.

use std::time::{Duration, SystemTime};

use pikake::time::{Clock, ManualClock, Rate, Ticks, TimerHeap, Utc, WallTime};
use proptest::prelude::*;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_wall_clock_step_moves_no_timer() {
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
    assert_eq!(timers.pop_due(clock.now()), None, "the wall time is past one");
    clock.advance(HOUR / 2);
    assert_eq!(timers.pop_due(clock.now()), Some((one_o_clock, ())));
}

#[test]
fn refresh_returns_to_the_wall_clock() {
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

#[test]
fn times_are_in_utc() {
    let at = |seconds, micros| {
        let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
        format!("{:.6}", Utc(SystemTime::UNIX_EPOCH + since))
    };
    assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(at(68_169_599, 999_999), "1972-02-28T23:59:59.999999Z");
    assert_eq!(at(68_169_600, 0), "1972-02-29T00:00:00.000000Z");
    assert_eq!(at(951_868_799, 0), "2000-02-29T23:59:59.000000Z");
    assert_eq!(at(1_893_455_999, 1), "2029-12-31T23:59:59.000001Z");
    assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    assert_eq!(Utc(SystemTime::UNIX_EPOCH).to_string(), "1970-01-01T00:00:00Z");
}

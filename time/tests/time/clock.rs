//! Clocks that a test moves.

use std::time::Duration;

use pikake::time::{Clock, Deadline, ManualClock, Ticks};

#[test]
fn clones_share_the_time() {
    let clock = ManualClock::new();
    let other = clock.clone();
    clock.advance(Duration::from_micros(3));
    assert_eq!(other.now(), Ticks::new(3_000));
    other.set(Ticks::new(4_000));
    assert_eq!(clock.now(), Ticks::new(4_000));
}

#[test]
fn an_idle_manual_clock_waits_to_be_moved() {
    let clock = ManualClock::new();
    assert_eq!(clock.idle(None), None);
    assert_eq!(clock.idle(Some(Deadline::NEVER)), None);
    assert_eq!(clock.idle(Some(Deadline::at(Ticks::new(1)))), None);
    assert_eq!(clock.now(), Ticks::ZERO);
    assert_eq!(clock.idle(Some(Deadline::at(Ticks::ZERO))), Some(Duration::ZERO));
}

#[test]
fn an_idle_auto_clock_jumps_forward_only() {
    let clock = ManualClock::auto();
    assert_eq!(clock.idle(None), None);
    assert_eq!(clock.idle(Some(Deadline::NEVER)), None);
    assert_eq!(clock.now(), Ticks::ZERO);
    assert_eq!(clock.idle(Some(Deadline::at(Ticks::new(70)))), Some(Duration::ZERO));
    assert_eq!(clock.idle(Some(Deadline::at(Ticks::new(30)))), Some(Duration::ZERO));
    assert_eq!(clock.now(), Ticks::new(70));
}

#[test]
fn a_deadline_beyond_the_clock_is_never() {
    let clock = ManualClock::new();
    clock.set(Ticks::new(u64::MAX - 5));
    assert!(!clock.after(Duration::from_nanos(4)).is_never());
    assert!(clock.after(Duration::from_nanos(5)).is_never());
    assert!(clock.after(Duration::from_nanos(6)).is_never());
    clock.advance(Duration::MAX);
    assert_eq!(clock.now(), Ticks::MAX);
}

#[test]
#[should_panic(expected = "a clock does not go back")]
fn a_manual_clock_does_not_go_back() {
    let clock = ManualClock::new();
    clock.set(Ticks::new(2));
    clock.set(Ticks::new(1));
}

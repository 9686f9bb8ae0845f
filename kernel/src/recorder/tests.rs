//! The ring alone: what it keeps, and what a thread reads that reads while the kernel writes.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use pikake_time::{Rate, Ticks};
use pikake_traps::{TaskId, TrapKind, TrapName};

use super::{Code, EVENTS, KIND_SHIFT, Ring, What, pack_took};

static NAMES: [TrapName; 2] = [TrapName::new("one"), TrapName::new("other")];

fn kind(number: u64) -> TrapKind {
    TrapKind::of(&NAMES[number as usize % 2])
}

fn ring() -> Arc<Ring> {
    Ring::new(Ticks::new(1_000), Rate::NANOS)
}

/// Writes event `number`, whose parts all follow from the number.
fn push(ring: &Ring, places: &[&'static Location<'static>; 2], number: u64) {
    let kind = u64::from(kind(number).number()) << KIND_SHIFT;
    let what = Code::Stepped as u64 | kind | pack_took(Some(number));
    ring.push(TaskId(number), Ticks::new(1_000 + number), what, places[number as usize % 2]);
}

#[track_caller]
fn places() -> [&'static Location<'static>; 2] {
    let places = [Location::caller(), Location::caller()];
    [places[0], other_place()]
}

fn other_place() -> &'static Location<'static> {
    Location::caller()
}

/// The numbers of the events that are read. No event mixes two.
fn read(ring: &Ring, places: &[&'static Location<'static>; 2], limit: usize) -> Vec<u64> {
    let events = ring.read(limit).into_iter().map(|event| {
        let number = event.task.0;
        let length = Duration::from_nanos(number);
        let wait = Some((kind(number), places[number as usize % 2]));
        assert_eq!(event.what, What::Stepped { took: Some(length), wait });
        assert_eq!(event.at, length);
        number
    });
    events.collect()
}

#[cfg(not(pikake_shuttle))]
mod alone {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn ring_keeps_the_last_events() {
        let (ring, places) = (ring(), places());
        assert!(read(&ring, &places, usize::MAX).is_empty());
        let all = EVENTS as u64 - 1;
        for number in 0..all {
            push(&ring, &places, number);
        }
        assert_eq!(read(&ring, &places, usize::MAX), (0..all).collect::<Vec<_>>());
        assert_eq!(read(&ring, &places, 3), [all - 3, all - 2, all - 1]);
        for number in all..all + 5 {
            push(&ring, &places, number);
        }
        assert_eq!(read(&ring, &places, usize::MAX), (5..all + 5).collect::<Vec<_>>());
    }

    /// The longest lengths are cut, and change nothing else.
    #[test]
    fn lengths_are_cut_at_48_bits() {
        assert_eq!(pack_took(None), 0);
        assert_eq!(pack_took(Some(0)) >> 16, 1);
        assert_eq!(pack_took(Some((1 << 48) - 2)), pack_took(Some((1 << 50) + 5)));
        assert_eq!(pack_took(Some(1 << 50)) & 0xffff, 0);
    }

    #[test]
    fn reader_meets_no_mixed_events() {
        let (ring, places, is_over) = (ring(), places(), Arc::new(AtomicBool::new(false)));
        let reader = thread::spawn({
            let (ring, is_over) = (ring.clone(), is_over.clone());
            move || {
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let numbers = read(&ring, &places, usize::MAX);
                    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                    assert!(numbers.last().is_none_or(|newest| *newest >= last));
                    last = numbers.last().copied().unwrap_or(last);
                    assert!(read(&ring, &places, 3).len() <= 3);
                }
            }
        });
        for number in 0..300_000 {
            push(&ring, &places, number);
        }
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    }
}

#[cfg(pikake_shuttle)]
mod model {
    use shuttle::thread;

    use super::*;

    /// The number of schedules for each program.
    const SCHEDULES: usize = 3_000;

    #[test]
    fn reader_meets_no_mixed_events() {
        let program = || {
            let (ring, places) = (ring(), places());
            let reader = thread::spawn({
                let ring = ring.clone();
                move || {
                    for _ in 0..4 {
                        let numbers = read(&ring, &places, usize::MAX);
                        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
                    }
                }
            });
            for number in 0..4 * EVENTS as u64 {
                push(&ring, &places, number);
            }
            reader.join().unwrap();
            let last = 4 * EVENTS as u64;
            let kept: Vec<u64> = (last + 1 - EVENTS as u64..last).collect();
            assert_eq!(read(&ring, &places, usize::MAX), kept);
        };
        shuttle::check_random(program, SCHEDULES);
    }
}

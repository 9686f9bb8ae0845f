//! Intervals: the moments of their ticks.

use pikake::testing::Injector;
use pikake::time::{Instant, Interval, MissedTickBehavior, interval_at};
use pikake::{Task, TimedOut, interval, select, sleep, spawn, timeout_after, yield_now};

use crate::support::{ms, run};

/// Awaits ticks, works after each for a time, and gives for each tick when it was due and when it
/// came, both in milliseconds from `begin`.
async fn ticks(mut interval: Interval, begin: Instant, work: &[u64]) -> Vec<(u128, u128)> {
    let mut ticks = Vec::new();
    for &work in work {
        let due = interval.tick().await.unwrap();
        ticks.push(((due - begin).as_millis(), begin.elapsed().as_millis()));
        sleep(ms(work)).await.unwrap();
    }
    ticks
}

#[test]
fn the_first_tick_is_due_at_once() {
    run(async {
        let begin = Instant::now();
        let came = ticks(interval(ms(10)), begin, &[0, 3, 9, 0]).await;
        assert_eq!(came, [(0, 0), (10, 10), (20, 20), (30, 30)]);
    });
}

#[test]
fn the_first_tick_is_due_at_the_start() {
    run(async {
        let begin = Instant::now();
        let came = ticks(interval_at(begin + ms(25), ms(10)), begin, &[0, 0, 0]).await;
        assert_eq!(came, [(25, 25), (35, 35), (45, 45)]);
    });
}

/// The work after the second tick takes until two ticks are missed.
const LATE: [u64; 6] = [0, 35, 0, 0, 0, 0];

#[test]
fn missed_ticks_come_in_a_burst() {
    run(async {
        let begin = Instant::now();
        let came = ticks(interval(ms(10)), begin, &LATE).await;
        assert_eq!(came, [(0, 0), (10, 10), (20, 45), (30, 45), (40, 45), (50, 50)]);
    });
}

#[test]
fn missed_ticks_delay_the_later_ones() {
    run(async {
        let begin = Instant::now();
        let mut interval = interval(ms(10));
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let came = ticks(interval, begin, &LATE).await;
        assert_eq!(came, [(0, 0), (10, 10), (20, 45), (55, 55), (65, 65), (75, 75)]);
    });
}

#[test]
fn missed_ticks_are_left_out() {
    run(async {
        let begin = Instant::now();
        let mut interval = interval(ms(10));
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let came = ticks(interval, begin, &LATE).await;
        assert_eq!(came, [(0, 0), (10, 10), (20, 45), (50, 50), (60, 60), (70, 70)]);
    });
}

/// A tick that is late by less than a period is no missed one.
#[test]
fn short_delays_move_no_tick() {
    for missed in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
        run(async {
            let begin = Instant::now();
            let mut interval = interval(ms(10));
            interval.set_missed_tick_behavior(missed);
            assert_eq!(interval.missed_tick_behavior(), missed);
            let came = ticks(interval, begin, &[19, 0, 0]).await;
            assert_eq!(came, [(0, 0), (10, 19), (20, 20)], "{missed:?}");
        });
    }
}

#[test]
fn a_reset_begins_a_new_period() {
    run(async {
        let begin = Instant::now();
        let mut interval = interval(ms(10));
        assert_eq!(interval.period(), ms(10));
        interval.tick().await.unwrap();
        sleep(ms(4)).await.unwrap();
        interval.reset();
        let came = ticks(interval, begin, &[0, 0]).await;
        assert_eq!(came, [(14, 14), (24, 24)]);
    });
}

#[test]
fn many_ticks_do_not_drift() {
    run(async {
        let begin = Instant::now();
        let third = std::time::Duration::from_secs(1) / 3;
        let mut interval = interval(third);
        for number in 0..3_000 {
            assert_eq!(interval.tick().await.unwrap() - begin, third * number);
        }
    });
}

#[test]
fn an_interrupted_tick_comes_again() {
    run(async {
        let begin = Instant::now();
        let mut interval = interval(ms(10));
        interval.tick().await.unwrap();
        assert_eq!(timeout_after(ms(4), interval.tick()).await, Err(TimedOut));
        select! {
            tick = interval.tick() => panic!("{tick:?}"),
            slept = sleep(ms(4)) => slept.unwrap(),
        }
        let came = ticks(interval, begin, &[0, 0]).await;
        assert_eq!(came, [(10, 10), (20, 20)]);
    });
}

/// Ticks that are due already suspend seldom.
#[test]
fn a_burst_lets_others_run_and_is_interrupted() {
    run(async {
        let begin = Instant::now();
        sleep(ms(1)).await.unwrap();
        let task = spawn(async move {
            let mut interval = interval_at(begin, std::time::Duration::from_nanos(1));
            let mut count = 0;
            let told = loop {
                match interval.tick().await {
                    Ok(_) => count += 1,
                    Err(told) => break told,
                }
            };
            let tick = interval.tick().await.unwrap();
            assert_eq!(tick - begin, std::time::Duration::from_nanos(count));
            (told, count)
        });
        yield_now().await.unwrap();
        task.request_cancel("enough");
        let (told, count) = task.await.unwrap();
        assert!(count < 100_000, "{count} ticks in one step");
        assert_eq!(told.reason(), Some("enough"));
    });
}

#[test]
fn interruptions_lose_no_tick() {
    Injector::new().cleanup_limit(None).run(
        || async {
            let (begin, mut interval) = (Instant::now(), interval(ms(10)));
            let mut due = Vec::new();
            while due.len() < 4 {
                if let Ok(tick) = interval.tick().await {
                    due.push((tick - begin).as_millis());
                }
            }
            due
        },
        |run| assert_eq!(run.output.as_deref().expect("traps only"), [0, 10, 20, 30]),
    );
}

#[test]
fn a_period_beyond_the_clock_ticks_once() {
    run(async {
        let mut interval = interval(std::time::Duration::MAX);
        interval.tick().await.unwrap();
        let task: Task<_> = spawn(async move { interval.tick().await });
        sleep(ms(1_000_000)).await.unwrap();
        task.request_cancel("enough");
        assert!(task.await.unwrap().is_err());
    });
}

#[test]
#[should_panic(expected = "an interval needs a period that is longer than zero")]
fn a_period_of_zero_panics() {
    run(async { interval(ms(0)).reset() });
}

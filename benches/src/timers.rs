//! Workloads of time: deadlines that do not come to pass, and sleeps that do.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::figures::{Figures, Stopwatch, quantile};
use crate::runtime::{Lock, Runtime, wake_oneself};
use crate::scheduling::Step;

/// Far enough ahead that it never passes.
const FAR: Duration = Duration::from_secs(600);

/// The longest sleep, in microseconds.
const LONGEST_SLEEP: u64 = 200_000;

/// A deadline around something that suspends once.
pub struct Deadline<R>(PhantomData<R>);

impl<R: Runtime> Step for Deadline<R> {
    async fn step() -> u32 {
        R::in_time(FAR, R::yield_now()).await;
        1
    }
}

/// A deadline around something of another library that suspends once.
pub struct ForeignDeadline<R>(PhantomData<R>);

impl<R: Runtime> Step for ForeignDeadline<R> {
    async fn step() -> u32 {
        R::in_time(FAR, wake_oneself()).await;
        1
    }
}

/// Tasks that wait for a lock that is never released, until a deadline of 50 to 250 ms passes.
pub async fn timeout_expired<R: Runtime>(size: usize, rounds: usize) -> Figures {
    let lock = Rc::new(R::Lock::default());
    let held = lock.lock().await;
    let watch = Stopwatch::start();
    let waiters: Vec<_> = (0..size as u64)
        .map(|number| {
            let lock = lock.clone();
            R::spawn(async move {
                for round in 0..rounds as u64 {
                    let length = LONGEST_SLEEP / 4 + spread(number + round) % LONGEST_SLEEP;
                    let late = R::unless_late(Duration::from_micros(length), async {
                        drop(lock.lock().await);
                    });
                    assert!(late.await.is_none(), "nobody gives the lock back");
                }
            })
        })
        .collect();
    for waiter in waiters {
        R::join(waiter).await;
    }
    let figures = watch.per(size * rounds);
    drop(held);
    figures
}

/// Multiples of a large odd number are spread evenly, and not in order.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// Tasks that sleep for different times, all at once; how late they are.
pub async fn sleeps<R: Runtime>(size: usize, rounds: usize) -> Figures {
    let lateness = Rc::new(RefCell::new(Vec::with_capacity(size * rounds)));
    let watch = Stopwatch::start();
    let sleepers: Vec<_> = (0..size as u64)
        .map(|number| {
            let lateness = lateness.clone();
            R::spawn(async move {
                for round in 0..rounds as u64 {
                    let length = Duration::from_micros(spread(number + round) % LONGEST_SLEEP);
                    let due = Instant::now() + length;
                    R::sleep(length).await;
                    let late = Instant::now().saturating_duration_since(due);
                    lateness.borrow_mut().push(late.as_secs_f64() * 1e6);
                }
            })
        })
        .collect();
    for sleeper in sleepers {
        R::join(sleeper).await;
    }
    let mut figures = watch.per(size * rounds);
    figures.remove(0);
    let lateness = &mut *lateness.borrow_mut();
    figures.push(("late_p50_us", quantile(lateness, 0.50)));
    figures.push(("late_p99_us", quantile(lateness, 0.99)));
    figures
}

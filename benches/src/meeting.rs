//! Workloads of tasks that meet at a lock or a channel of their own runtime.

use std::cell::Cell;
use std::rc::Rc;

use crate::figures::{Figures, Stopwatch};
use crate::runtime::{Channel, Lock, Runtime};
use crate::scheduling::side_by_side;

/// How many messages there is room for where a channel is to be a buffer.
const ROOM: usize = 64;

/// One task takes a lock that nobody else wants, and gives it back.
pub async fn lock<R: Runtime>(rounds: usize) -> Figures {
    let lock = Rc::new(R::Lock::default());
    let watch = Stopwatch::start();
    side_by_side::<R, _>(1, || {
        let lock = lock.clone();
        async move {
            for _ in 0..rounds {
                drop(lock.lock().await);
            }
        }
    })
    .await;
    watch.per(rounds)
}

/// So many tasks take a lock in turns. All of them stand in line before the first gives it back;
/// with a lock that is handed over, each waits for all others every time.
pub async fn hand_over<R: Runtime>(size: usize, rounds: usize) -> Figures {
    let lock = Rc::new(R::Lock::default());
    let watch = Stopwatch::start();
    side_by_side::<R, _>(size, || {
        let lock = lock.clone();
        async move {
            let first = lock.lock().await;
            R::yield_now().await;
            drop(first);
            for _ in 1..rounds {
                drop(lock.lock().await);
            }
        }
    })
    .await;
    watch.per(size * rounds)
}

/// So many tasks take a lock in turns and keep it while others run. How often it went to somebody
/// else while one of them waited: at most, as a multiple of how many others there are, which is the
/// least that this can be.
pub async fn worst_wait<R: Runtime>(size: usize, rounds: usize) -> Figures {
    let lock = Rc::new(R::Lock::default());
    let (taken, worst) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    side_by_side::<R, _>(size, || {
        let (lock, taken, worst) = (lock.clone(), taken.clone(), worst.clone());
        async move {
            for _ in 0..rounds {
                let before = taken.get();
                let guard = lock.lock().await;
                worst.set(worst.get().max(taken.get() - before));
                taken.set(taken.get() + 1);
                R::yield_now().await;
                drop(guard);
            }
        }
    })
    .await;
    vec![("worst_wait", f64::from(worst.get()) / (size - 1) as f64)]
}

/// Pairs of tasks, one of which sends to the other, over a channel that is a buffer.
pub async fn messages<R: Runtime>(size: usize, rounds: usize) -> Figures {
    let watch = Stopwatch::start();
    side_by_side::<R, _>(size, || async move {
        let (mut sender, mut receiver) = R::Channel::new(ROOM);
        let sending = R::spawn(async move {
            for number in 0..rounds {
                R::Channel::send(&mut sender, number as u32).await;
            }
        });
        for number in 0..rounds {
            assert_eq!(R::Channel::receive(&mut receiver).await, number as u32);
        }
        R::join(sending).await;
    })
    .await;
    watch.per(size * rounds)
}

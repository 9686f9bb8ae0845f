//! The threads, locks and clock of helper threads and of the watchdog: the standard library's, or
//! the model checker's.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(not(pikake_shuttle))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, sleep},
    time::Instant,
};

#[cfg(pikake_shuttle)]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, sleep},
};

/// Waits for a notification, until `length` after `since`. Returns whether that moment has passed.
#[cfg(not(pikake_shuttle))]
pub(crate) fn wait_until<'a, T>(
    _mutex: &'a Mutex<T>,
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    since: Instant,
    length: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let left = length.saturating_sub(since.elapsed());
    let (guard, _) = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    (guard, since.elapsed() >= length)
}

/// Under the model checker there is no time: any length may have passed.
#[cfg(pikake_shuttle)]
#[derive(Clone, Copy)]
pub(crate) struct Instant;

#[cfg(pikake_shuttle)]
impl Instant {
    pub(crate) fn now() -> Self {
        Self
    }

    pub(crate) fn saturating_duration_since(self, _: Self) -> Duration {
        Duration::MAX
    }
}

/// Waits for a notification, or gives up by chance.
#[cfg(pikake_shuttle)]
pub(crate) fn wait_until<'a, T>(
    mutex: &'a Mutex<T>,
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    _since: Instant,
    length: Duration,
) -> (MutexGuard<'a, T>, bool) {
    use shuttle::rand::Rng;

    // A wait of the greatest length never gives up.
    if length < Duration::MAX && shuttle::rand::thread_rng().gen_bool(0.5) {
        drop(guard);
        shuttle::thread::yield_now();
        return (mutex.lock().unwrap_or_else(PoisonError::into_inner), true);
    }
    (condvar.wait(guard).unwrap_or_else(PoisonError::into_inner), false)
}

//! Locks and blocking waits on threads. Under the model checker, its own locks and threads replace
//! those of the standard library.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

#[cfg(not(pikake_shuttle))]
mod threads {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use std::sync::{Mutex, MutexGuard as Guard};
    pub(crate) use std::thread::{Thread, current, park, park_timeout, yield_now};
}

#[cfg(pikake_shuttle)]
mod threads {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard as Guard};
    pub(crate) use shuttle::thread::{Thread, current, park, yield_now};

    /// The model checker has no time.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        park();
    }
}

use threads::{AtomicBool, Ordering, Thread, current, park, park_timeout};
pub(crate) use threads::{Guard, Mutex, yield_now};

/// Takes the lock. No foreign code runs under it, so the state of a poisoned lock is intact.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> Guard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // After the first wake the thread is not parked any more.
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

impl Unpark {
    fn of_this_thread() -> (Arc<Self>, Waker) {
        let unpark = Arc::new(Self { thread: current(), is_woken: AtomicBool::new(false) });
        (unpark.clone(), Waker::from(unpark))
    }
}

#[cfg(not(pikake_shuttle))]
thread_local! {
    /// Reused by all waits of the thread. A late wake is a spurious wake of a later wait.
    static UNPARK: (Arc<Unpark>, Waker) = Unpark::of_this_thread();
}

/// Blocks the thread until the future is ready; `None` if it is not ready by `until`.
pub(crate) fn block_on<F: Future + Unpin>(
    future: &mut F,
    until: Option<Instant>,
) -> Option<F::Output> {
    #[cfg(not(pikake_shuttle))]
    let (unpark, waker) =
        UNPARK.try_with(Clone::clone).unwrap_or_else(|_| Unpark::of_this_thread());
    #[cfg(pikake_shuttle)]
    let (unpark, waker) = Unpark::of_this_thread();
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut cx) {
            return Some(output);
        }
        while !unpark.is_woken.swap(false, Ordering::SeqCst) {
            match until {
                None => park(),
                Some(until) => match until.checked_duration_since(Instant::now()) {
                    None => return None,
                    Some(left) => park_timeout(left),
                },
            }
        }
    }
}

//! What is used of threads: a lock, and waiting for a waker to be called. In a file of its own so
//! that a model checker can be put in its place.

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

    /// There is no time under the model checker.
    pub(crate) fn park_timeout(_: std::time::Duration) {
        park();
    }
}

use threads::{AtomicBool, Ordering, Thread, current, park, park_timeout};
pub(crate) use threads::{Guard, Mutex, yield_now};

/// Takes the lock. Nobody's code runs under it, so a poisoned one is whole all the same.
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
        // Once woken it is parked no more, so only the first has to do it.
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
    /// Who blocks often makes no new one each time. A wake that comes late is one for nothing.
    static UNPARK: (Arc<Unpark>, Waker) = Unpark::of_this_thread();
}

/// Blocks the thread until the future is ready; `None` if it is not by then.
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

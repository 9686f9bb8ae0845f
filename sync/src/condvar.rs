//! A condition variable: waiting for a change of a mutex's value.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::Poll;

use pikake_traps::{About, Interrupted, Queued, WaitQueue, park_at, shield};

use crate::mutex::MutexGuard;
use crate::name::Name;

/// A condition variable: waits for a change of a [`Mutex`](crate::Mutex)'s value.
///
/// A wait releases the lock and takes it again before it returns, also with an error. Waiters are
/// notified in order of arrival. A notification without a waiter has no effect.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use pikake::sync::{Condvar, Mutex};
/// use std::rc::Rc;
///
/// let shared = Rc::new((Mutex::new(0), Condvar::new()));
/// let counter = pikake::spawn({
///     let shared = shared.clone();
///     async move {
///         for _ in 0..10 {
///             *shared.0.lock().await? += 1;
///             shared.1.notify_all();
///         }
///         Ok::<_, pikake::Interrupted>(())
///     }
/// });
/// let count = shared.0.lock().await?;
/// let count = shared.1.wait_while(count, |count| *count < 10).await?;
/// assert_eq!(*count, 10);
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
#[derive(Default)]
pub struct Condvar {
    waiters: WaitQueue,
    name: Name,
}

impl Condvar {
    /// Creates a condition without waiters.
    pub const fn new() -> Self {
        Self { waiters: WaitQueue::new(), name: Name::NONE }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Releases the lock, waits for a notification, and takes the lock again.
    ///
    /// There are no spurious notifications, but the value may change again before the waiter has
    /// the lock: check the value, or use [`wait_while`](Self::wait_while).
    ///
    /// # Cancellation
    ///
    /// An interruption point until the notification. Afterwards, and after an interruption too, the
    /// future waits for the lock, which is not an interruption point: with a lock that is never
    /// released, it waits forever. A dropped future does not hold the lock, and its notification
    /// goes to the next waiter.
    ///
    /// # Errors
    ///
    /// [`WaitInterrupted`], with the lock.
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn wait<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
    ) -> impl Future<Output = Result<MutexGuard<'a, T>, WaitInterrupted<'a, T>>> {
        self.wait_at(guard, Location::caller())
    }

    async fn wait_at<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        place: &'static Location<'static>,
    ) -> Result<MutexGuard<'a, T>, WaitInterrupted<'a, T>> {
        let mutex = guard.mutex();
        let mut wait = park_at(self, place);
        // The wait begins before the lock is free, so no notification in between is missed.
        let begun = poll_fn(|cx| Poll::Ready(Pin::new(&mut wait).poll(cx))).await;
        drop(guard);
        let answer = match begun {
            Poll::Ready(answer) => answer,
            Poll::Pending => wait.await,
        };
        let notified = answer.map(|()| Notified(self));
        let guard = loop {
            if let Ok(guard) = shield(mutex.lock_at(place)).await {
                break guard;
            }
        };
        match notified {
            Ok(notified) => {
                std::mem::forget(notified);
                Ok(guard)
            }
            Err(interrupted) => Err(WaitInterrupted { guard, interrupted }),
        }
    }

    /// Waits as long as `condition` returns `true` for the mutex's value.
    ///
    /// # Cancellation
    ///
    /// As [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// [`WaitInterrupted`], with the lock.
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> impl Future<Output = Result<MutexGuard<'a, T>, WaitInterrupted<'a, T>>> {
        let place = Location::caller();
        async move {
            while condition(&mut guard) {
                guard = self.wait_at(guard, place).await?;
            }
            Ok(guard)
        }
    }

    /// Notifies up to `count` waiters, in order of arrival, and returns their number.
    pub fn notify(&self, count: usize) -> usize {
        self.waiters.wake(count)
    }

    /// Notifies all current waiters, and returns their number.
    pub fn notify_all(&self) -> usize {
        self.notify(usize::MAX)
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// A notification whose receiver does not have the lock yet. Its drop notifies the next waiter.
struct Notified<'a>(&'a Condvar);

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        self.0.notify(1);
    }
}

impl Queued for Condvar {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("condition{}", self.name))
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Condvar");
        self.name.show(&mut shown);
        shown.field("waiting", &self.waiting()).finish()
    }
}

/// A wait for a [`Condvar`] was interrupted before its notification. The error holds the lock.
#[non_exhaustive]
pub struct WaitInterrupted<'a, T: ?Sized> {
    /// The guard of the lock, which was taken again.
    pub guard: MutexGuard<'a, T>,
    /// The interruption.
    pub interrupted: Interrupted,
}

/// Releases the lock.
impl<T: ?Sized> From<WaitInterrupted<'_, T>> for Interrupted {
    fn from(error: WaitInterrupted<'_, T>) -> Self {
        error.interrupted
    }
}

impl<T: ?Sized> fmt::Display for WaitInterrupted<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waiting for a condition was cut short ({})", self.interrupted)
    }
}

impl<T: ?Sized> fmt::Debug for WaitInterrupted<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitInterrupted")
            .field("interrupted", &self.interrupted)
            .finish_non_exhaustive()
    }
}

impl<T: ?Sized> Error for WaitInterrupted<'_, T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.interrupted)
    }
}

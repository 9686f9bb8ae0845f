//! Waiting for a change of what a mutex guards.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::Poll;

use pikake_traps::{Interrupted, WaitQueue, shield};

use crate::mutex::MutexGuard;
use crate::name::Name;
use crate::signals::{Signals, signal};

/// Waiting for a change of what a [`Mutex`](crate::Mutex) guards.
///
/// Who waits gives the lock up meanwhile, and has it again afterwards, whatever it is told. Those
/// who wait are notified in the order in which they came. A notification that nobody waits for is
/// gone.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// use pikake_sync::{Condvar, Mutex};
/// use std::rc::Rc;
///
/// let shared = Rc::new((Mutex::new(0), Condvar::new()));
/// let counter = pikake_traps::spawn({
///     let shared = shared.clone();
///     async move {
///         for _ in 0..10 {
///             *shared.0.lock().await? += 1;
///             shared.1.notify_all();
///         }
///         Ok::<_, pikake_traps::Interrupted>(())
///     }
/// });
/// let count = shared.0.lock().await?;
/// let count = shared.1.wait_while(count, |count| *count < 10).await?;
/// assert_eq!(*count, 10);
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
#[derive(Default)]
pub struct Condvar {
    waiters: WaitQueue,
    name: Name,
}

impl Condvar {
    /// A condition that nobody waits for.
    pub const fn new() -> Self {
        Self { waiters: WaitQueue::new(), name: Name::NONE }
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Gives the lock up, waits to be notified, and waits for the lock.
    ///
    /// It is never notified for nothing; but what it waits for may have changed again before it has
    /// the lock, so look at it, or use [`wait_while`](Self::wait_while).
    ///
    /// # Cancellation
    ///
    /// An interruption point until it is notified. Then, and also when it is interrupted, it waits
    /// for the lock, which is not an interruption point: a lock that is never given back is waited
    /// for for ever. Dropped, it does not have the lock; a notification that it had got goes to the
    /// next.
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
        let mut wait = signal(self, place);
        // Begun before the lock is free, lest a notification in between be missed.
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

    /// Waits as long as `condition` holds of what the mutex guards; not at all if it does not.
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

    /// Lets up to so many go on, those that came first; tells how many there were.
    pub fn notify(&self, count: usize) -> usize {
        self.waiters.wake(count)
    }

    /// Lets all go on that wait now; tells how many there were.
    pub fn notify_all(&self) -> usize {
        self.notify(usize::MAX)
    }

    /// How many wait to be notified.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// A notification whose receiver does not have the lock yet. Dropped with it, it goes to the next.
struct Notified<'a>(&'a Condvar);

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        self.0.notify(1);
    }
}

impl Signals for Condvar {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> String {
        format!("condition{}", self.name)
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Condvar");
        self.name.show(&mut shown);
        shown.field("waiting", &self.waiting()).finish()
    }
}

/// A wait for a [`Condvar`] was interrupted before it was notified; the lock is there again.
#[non_exhaustive]
pub struct WaitInterrupted<'a, T: ?Sized> {
    /// The lock.
    pub guard: MutexGuard<'a, T>,
    /// Why.
    pub interrupted: Interrupted,
}

/// Gives the lock back.
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

//! A lock around a value, held by one task at a time.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::Interrupted;

use crate::error::TryLockError;
use crate::lock::{Lock, Locking};

/// A lock around a value, held by one task at a time.
///
/// Waiters get the lock in order of arrival: when a guard is dropped, the lock belongs to the first
/// waiter at once, and no later caller can take it before that waiter runs. Taking a free lock does
/// not suspend.
///
/// Tasks of one kernel run one at a time, so only a change that awaits in between needs a lock. For
/// state that is changed between two awaits see [`Local`](crate::Local).
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::Mutex;
///
/// let balance = Mutex::new(100);
/// {
///     let mut balance = balance.lock().await?;
///     *balance -= 10;
///     // … and awaits that must end before other tasks see the change.
/// }
/// assert_eq!(*balance.lock().await?, 90);
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
pub struct Mutex<T: ?Sized> {
    lock: Lock,
    value: RefCell<T>,
}

impl<T> Mutex<T> {
    /// Creates an unlocked lock. Listings show the place of the call, unless the lock has a name.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: RefCell::new(value) }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.lock.set_name(name);
        self
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    ///
    /// A task that holds the lock and waits for it again waits forever, unless another branch of
    /// the task (of a `join!`, say) releases the lock. A warning names both places: at once if the
    /// task waits for nothing else, otherwise after a second.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A dropped future stops waiting; a lock that was already
    /// granted to it goes to the next waiter.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]: the caller did not get the lock.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    #[inline]
    pub fn lock(&self) -> impl Future<Output = Result<MutexGuard<'_, T>, Interrupted>> {
        self.lock_at(Location::caller())
    }

    #[inline]
    pub(crate) fn lock_at(&self, place: &'static Location<'static>) -> Locked<'_, T> {
        Locked { mutex: self, locking: Locking::new(&self.lock, place) }
    }

    /// Takes the lock if it is free and has no waiters.
    ///
    /// # Errors
    ///
    /// [`TryLockError`]: the lock is held, or there are waiters.
    #[track_caller]
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        match self.lock.try_lock(Location::caller()) {
            true => Ok(self.guard()),
            false => Err(TryLockError),
        }
    }

    /// Whether the lock is held.
    pub fn is_locked(&self) -> bool {
        self.lock.is_held()
    }

    /// The number of tasks that wait for the lock.
    pub fn waiting(&self) -> usize {
        self.lock.waiting()
    }

    /// The value; `&mut self` rules out other holders.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { value: self.value.borrow_mut(), held: Held(self) }
    }
}

/// The future of [`Mutex::lock`].
pub(crate) struct Locked<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    locking: Locking<'a>,
}

impl<'a, T: ?Sized> Future for Locked<'a, T> {
    type Output = Result<MutexGuard<'a, T>, Interrupted>;

    #[track_caller]
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let locked = ready!(Pin::new(&mut self.locking).poll(cx));
        Poll::Ready(locked.map(|()| self.mutex.guard()))
    }
}

/// Access to a [`Mutex`]'s value. Its drop hands the lock to the next waiter.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped in this order: the value is free before the lock is handed over.
    value: RefMut<'a, T>,
    held: Held<'a, T>,
}

struct Held<'a, T: ?Sized>(&'a Mutex<T>);

impl<T: ?Sized> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// The lock of this guard.
    pub fn mutex(&self) -> &'a Mutex<T> {
        self.held.0
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Mutex");
        match self.value.try_borrow() {
            Ok(value) => shown.field("value", &&*value),
            Err(_) => shown.field("value", &format_args!("<locked>")),
        };
        self.lock.show(&mut shown);
        shown.finish()
    }
}

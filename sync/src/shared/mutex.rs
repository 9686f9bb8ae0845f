//! A mutex for threads and for tasks of any kernel.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::thread::{self, ThreadId};

use pikake_traps::{Interrupted, TaskMark};

use super::block::{self, Guard};
use super::wait::{TaskWait, Wait};
use super::waiters::{Shared, WaitKind, Waitable, Waiters, Wakers};
use crate::error::TryLockError;
use crate::holder::HANDED_OVER;

/// A mutex for threads and for tasks of any kernel.
///
/// As with [`sync::Mutex`](crate::Mutex), waiters get the lock in order of arrival, whether they
/// await or block. A panic of the holder does not poison the lock.
///
/// # Examples
///
/// ```
/// use pikake::sync::shared::Mutex;
/// use std::sync::Arc;
///
/// let sum = Arc::new(Mutex::new(0));
/// let threads: Vec<_> = (1..=4)
///     .map(|number| {
///         let sum = sum.clone();
///         std::thread::spawn(move || *sum.blocking_lock() += number)
///     })
///     .collect();
/// // Meanwhile a task may say `sum.lock().await?`.
/// for thread in threads {
///     thread.join().unwrap();
/// }
/// assert_eq!(*sum.blocking_lock(), 10);
/// ```
pub struct Mutex<T: ?Sized> {
    lock: Shared<Lock>,
    /// Locked by the holder of `lock` alone, so this lock is never contended.
    value: block::Mutex<T>,
}

#[derive(Debug)]
struct Lock {
    held: bool,
    /// `None` if the lock was handed over and its new holder has not run since.
    holder: Option<Holder>,
    waiters: Waiters<(), ()>,
}

impl Lock {
    fn note_holder(&mut self) {
        self.holder = Some(Holder { task: TaskMark::current(), thread: thread::current().id() });
    }
}

#[derive(Clone, Copy)]
struct Holder {
    task: TaskMark,
    thread: ThreadId,
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.task.is_none() {
            write!(f, "task {} in ", self.task.id())?;
        }
        write!(f, "{:?}", self.thread)
    }
}

impl Waitable for Lock {
    fn serve(&mut self, wakers: &mut Wakers) {
        if !self.held && self.waiters.grant(wakers, || ()).is_some() {
            self.held = true;
            self.holder = None;
        }
    }
}

struct Locking;

impl WaitKind<Lock> for Locking {
    type Request = ();
    type Grant = ();
    const NAME: &'static str = "mutex of several threads";

    fn waiters(lock: &mut Lock) -> &mut Waiters<(), ()> {
        &mut lock.waiters
    }

    fn try_now(lock: &mut Lock, (): ()) -> Result<(), ()> {
        if lock.held || !lock.waiters.is_empty() {
            return Err(());
        }
        lock.held = true;
        lock.note_holder();
        Ok(())
    }

    fn collected(lock: &mut Lock, (): &mut ()) {
        lock.note_holder();
    }

    fn give_back(lock: &mut Lock, (): ()) {
        lock.held = false;
    }
}

impl<T> Mutex<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        let lock = Shared::new(Lock { held: false, holder: None, waiters: Waiters::new() });
        Self { lock, value: block::Mutex::new(value) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock, as a task.
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
    pub fn lock(&self) -> impl Future<Output = Result<MutexGuard<'_, T>, Interrupted>> {
        let place = Location::caller();
        async move {
            let locked = TaskWait::<_, _, Locking>::new(&self.lock, (), place).await?;
            debug_assert!(locked.is_ok(), "a lock dismisses no waiter");
            Ok(self.guard())
        }
    }

    /// Takes the lock, blocking the thread until it is free.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_lock(&self) -> MutexGuard<'_, T> {
        Wait::<_, _, Locking>::new(&self.lock, ()).block(None);
        self.guard()
    }

    /// Takes the lock if it is free and has no waiters.
    ///
    /// # Errors
    ///
    /// [`TryLockError`]: the lock is held, or there are waiters.
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        let locked = Locking::try_now(&mut self.lock.lock(), ());
        locked.map(|_| self.guard()).map_err(|_| TryLockError)
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { value: block::lock(&self.value), _held: Held(&self.lock) }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Access to a [`Mutex`]'s value. Its drop hands the lock to the next waiter.
///
/// The guard stays on its thread.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped in this order: the value is free before the lock is handed over.
    value: Guard<'a, T>,
    _held: Held<'a>,
}

struct Held<'a>(&'a Shared<Lock>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.change(|lock| lock.held = false);
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
        (**self).fmt(f)
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, holder, waiting) = {
            let lock = self.lock.lock();
            (lock.held, lock.holder, lock.waiters.len())
        };
        let holder = holder.map_or_else(|| HANDED_OVER.to_owned(), |holder| format!("{holder:?}"));
        f.debug_struct("Mutex")
            .field("held_by", &held.then_some(format_args!("{holder}")))
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

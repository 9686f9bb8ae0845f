//! A lock that its holder may take again.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskId, current};

use crate::lock::{Lock, Locking};

/// A lock that its holder task may take again.
///
/// The lock is free again when all its guards are dropped. Since one task may have several guards,
/// they give shared access only; to change the value, use a [`Cell`] or a [`Local`](crate::Local).
///
/// The lock belongs to the task, not to a branch of it: the branches of a `join!` share it. A guard
/// that is moved to another task still belongs to the first task.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use pikake::sync::ReentrantMutex;
/// use std::cell::Cell;
///
/// async fn add(sum: &ReentrantMutex<Cell<u32>>, number: u32) -> Result<(), pikake::Interrupted> {
///     let sum = sum.lock().await?;
///     sum.set(sum.get() + number);
///     Ok(())
/// }
///
/// let sum = ReentrantMutex::new(Cell::new(0));
/// let all = sum.lock().await?;
/// add(&sum, 1).await?; // no other task gets the lock in between
/// add(&sum, 2).await?;
/// assert_eq!(all.get(), 3);
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
pub struct ReentrantMutex<T: ?Sized> {
    lock: Lock,
    owner: Cell<Option<TaskId>>,
    /// The number of guards.
    depth: Cell<usize>,
    value: T,
}

impl<T> ReentrantMutex<T> {
    /// Creates an unlocked lock. Listings show the place of the call, unless the lock has a name.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), owner: Cell::new(None), depth: Cell::new(0), value }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.lock.set_name(name);
        self
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T: Default> Default for ReentrantMutex<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> ReentrantMutex<T> {
    /// Waits for the lock, unless the current task already holds it.
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
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<ReentrantGuard<'_, T>, Interrupted>> {
        let place = Location::caller();
        async move {
            let task = current().id();
            if self.owner.get() != Some(task) {
                Locking::new(&self.lock, place).await?;
                self.owner.set(Some(task));
            }
            Ok(self.guard())
        }
    }

    /// Takes the lock if the current task already holds it, or if it is free and has no waiters.
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn try_lock(&self) -> Option<ReentrantGuard<'_, T>> {
        let task = current().id();
        if self.owner.get() != Some(task) {
            if !self.lock.try_lock(Location::caller()) {
                return None;
            }
            self.owner.set(Some(task));
        }
        Some(self.guard())
    }

    /// Whether the lock is held.
    pub fn is_locked(&self) -> bool {
        self.lock.is_held()
    }

    /// The task that holds the lock.
    pub fn owner(&self) -> Option<TaskId> {
        self.owner.get()
    }

    /// The number of tasks that wait for the lock.
    pub fn waiting(&self) -> usize {
        self.lock.waiting()
    }

    /// The value; `&mut self` rules out other holders.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    fn guard(&self) -> ReentrantGuard<'_, T> {
        self.depth.set(self.depth.get() + 1);
        ReentrantGuard(self)
    }
}

/// Shared access to a [`ReentrantMutex`]'s value. The drop of the last guard hands the lock to the
/// next waiter.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct ReentrantGuard<'a, T: ?Sized>(&'a ReentrantMutex<T>);

impl<T: ?Sized> Deref for ReentrantGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: ?Sized> Drop for ReentrantGuard<'_, T> {
    fn drop(&mut self) {
        let depth = self.0.depth.get() - 1;
        self.0.depth.set(depth);
        if depth == 0 {
            self.0.owner.set(None);
            self.0.lock.unlock();
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ReentrantGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> fmt::Debug for ReentrantMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ReentrantMutex");
        shown.field("depth", &self.depth.get());
        self.lock.show(&mut shown);
        shown.finish_non_exhaustive()
    }
}

//! A lock that its holder may take again.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::Location;

use pikake_traps::{Interrupted, TaskId, current};

use crate::lock::{Lock, Locking};

/// A lock that the task which holds it may take again.
///
/// It is free again when all its guards are dropped. Since one task may have several guards, they
/// give shared access only; put a [`Cell`] or a [`Local`](crate::Local) inside for more.
///
/// It belongs to the task, not to a branch of it: what is joined inside one task with `join!` holds
/// it together. A guard that is moved to another task remains the first one's.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// use pikake_sync::ReentrantMutex;
/// use std::cell::Cell;
///
/// async fn add(sum: &ReentrantMutex<Cell<u32>>, number: u32) -> Result<(), pikake_traps::Interrupted> {
///     let sum = sum.lock().await?;
///     sum.set(sum.get() + number);
///     Ok(())
/// }
///
/// let sum = ReentrantMutex::new(Cell::new(0));
/// let all = sum.lock().await?;
/// add(&sum, 1).await?; // nobody else comes in between
/// add(&sum, 2).await?;
/// assert_eq!(all.get(), 3);
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
#[derive(Default)]
pub struct ReentrantMutex<T: ?Sized> {
    lock: Lock,
    owner: Cell<Option<TaskId>>,
    /// How many guards there are.
    depth: Cell<usize>,
    value: T,
}

impl<T> ReentrantMutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), owner: Cell::new(None), depth: Cell::new(0), value }
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.lock.set_name(name);
        self
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T: ?Sized> ReentrantMutex<T> {
    /// Waits for the lock, unless the current task has it already.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Dropped, it leaves the line; if it had been given the
    /// lock and had not seen it yet, the lock goes to the next.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], without having got the lock.
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

    /// Takes the lock if the current task has it already, or nobody has it or waits for it.
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

    /// Whether somebody holds the lock.
    pub fn is_locked(&self) -> bool {
        self.lock.is_held()
    }

    /// The task that holds the lock, if one does.
    pub fn owner(&self) -> Option<TaskId> {
        self.owner.get()
    }

    /// How many wait for the lock.
    pub fn waiting(&self) -> usize {
        self.lock.waiting()
    }

    /// The value, which nobody else can have.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.value
    }

    fn guard(&self) -> ReentrantGuard<'_, T> {
        self.depth.set(self.depth.get() + 1);
        ReentrantGuard(self)
    }
}

/// A share in the right to a [`ReentrantMutex`]'s value. When the last one is dropped, the lock is
/// handed to the next in line.
#[must_use = "dropped at once, it gives the lock back at once"]
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

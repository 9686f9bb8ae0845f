//! A lock around a value that threads and tasks of any kernel share.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::thread::{self, ThreadId};

use pikake_traps::{Interrupted, TaskMark};

use super::block::{self, Guard};
use super::line::{Line, Shared, Side, State, Wakers};
use super::wait::{Trapped, Wait};

/// A lock around a value that threads and tasks of any kernel share.
///
/// As [`sync::Mutex`](crate::Mutex) it is given to those who wait in the order in which they came,
/// whether they await it or block on it. A panic of the one who holds it does not poison it.
///
/// # Examples
///
/// ```
/// use pikake_sync::shared::Mutex;
/// use std::sync::Arc;
///
/// let sum = Arc::new(Mutex::new(0));
/// let threads: Vec<_> = (1..=4)
///     .map(|number| {
///         let sum = sum.clone();
///         std::thread::spawn(move || *sum.lock_blocking() += number)
///     })
///     .collect();
/// // Meanwhile a task may say `sum.lock().await?`.
/// for thread in threads {
///     thread.join().unwrap();
/// }
/// assert_eq!(*sum.lock_blocking(), 10);
/// ```
pub struct Mutex<T: ?Sized> {
    lock: Shared<Lock>,
    /// Locked by whoever has the lock, and so never waited for.
    value: block::Mutex<T>,
}

#[derive(Debug)]
struct Lock {
    held: bool,
    /// Who has it; `None` if it was handed over and they have not run since.
    holder: Option<Holder>,
    line: Line<(), ()>,
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

impl State for Lock {
    fn serve(&mut self, wakers: &mut Wakers) {
        if !self.held && self.line.call(wakers, || ()).is_some() {
            self.held = true;
            self.holder = None;
        }
    }
}

struct Locking;

impl Side<Lock> for Locking {
    type Request = ();
    type Gets = ();

    fn line(lock: &mut Lock) -> &mut Line<(), ()> {
        &mut lock.line
    }

    fn now(lock: &mut Lock, (): ()) -> Result<(), ()> {
        if lock.held || !lock.line.is_empty() {
            return Err(());
        }
        lock.held = true;
        lock.note_holder();
        Ok(())
    }

    fn collected(lock: &mut Lock) {
        lock.note_holder();
    }

    fn give_back(lock: &mut Lock, (): ()) {
        lock.held = false;
    }
}

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub fn new(value: T) -> Self {
        let lock = Shared::new(Lock { held: false, holder: None, line: Line::new() });
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
    /// An interruption point while it waits. Dropped, it leaves the line; if it had been given the
    /// lock and had not seen it yet, the lock goes to the next.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], without having got the lock.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = Result<MutexGuard<'_, T>, Interrupted>> {
        let place = Location::caller();
        async move {
            let locked = Trapped::<_, _, Locking>::new(&self.lock, (), place).await?;
            debug_assert!(locked.is_ok(), "a lock sends nobody away");
            Ok(self.guard())
        }
    }

    /// Blocks the thread until it has the lock.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn lock_blocking(&self) -> MutexGuard<'_, T> {
        Wait::<_, _, Locking>::new(&self.lock, ()).block(None);
        self.guard()
    }

    /// Takes the lock if nobody holds it or waits for it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let locked = Locking::now(&mut self.lock.lock(), ());
        locked.is_ok().then(|| self.guard())
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

/// The right to a [`Mutex`]'s value. Dropped, it hands the lock to the next in line.
///
/// It stays on its thread.
#[must_use = "dropped at once, it gives the lock back at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped in this order: the value is free before the lock is somebody else's.
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
            (lock.held, lock.holder, lock.line.len())
        };
        let next = &format_args!("the next in line, who has not run since");
        let holder = holder.as_ref().map_or(next as &dyn fmt::Debug, |holder| holder);
        f.debug_struct("Mutex")
            .field("held_by", &held.then_some(holder))
            .field("waiting", &waiting)
            .finish_non_exhaustive()
    }
}

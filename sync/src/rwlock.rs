//! A lock around a value for many readers or one writer.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

use pikake_traps::locks::{LockName, WaitedLock};
use pikake_traps::{About, Interrupted, Queued, WaitQueue};

use crate::error::TryLockError;
use crate::holder::{Holder, report_own_lock};
use crate::name::show_name;
use crate::permits::{PermitRequest, take};

/// A lock around a value for many readers or one writer at a time.
///
/// Writers have priority: while one waits, no new reader gets the lock, and a writer hands it to
/// the next writer rather than to readers. Readers and writers each wait in order of arrival. An
/// endless stream of writers starves readers.
///
/// A task that reads must not wait for the lock again before it drops its guard: a write would wait
/// for that guard, and so would a read behind a waiting writer. A task that writes and waits for
/// the lock again is reported, as by [`Mutex::lock`](crate::Mutex::lock). Which tasks read is not
/// known.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::RwLock;
///
/// let routes = RwLock::new(vec!["/"]);
/// {
///     let (one, other) = (routes.read().await?, routes.read().await?);
///     assert_eq!(one.len() + other.len(), 2);
/// }
/// routes.write().await?.push("/about");
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
pub struct RwLock<T: ?Sized> {
    gate: Gate,
    value: RefCell<T>,
}

/// The lock without its value. `serve` creates the permits of the waiters that get the lock.
struct Gate {
    reading: Cell<usize>,
    writing: Cell<bool>,
    writer: Holder,
    readers: WaitQueue,
    writers: WaitQueue,
    name: LockName,
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock. Listings show the place of the call, unless the lock has a name.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        let gate = Gate {
            reading: Cell::new(0),
            writing: Cell::new(false),
            writer: Holder::new(),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            name: LockName::here(),
        };
        Self { gate, value: RefCell::new(value) }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.gate.name = LockName::Named(name);
        self
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: Default> Default for RwLock<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no task writes or waits to write.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]: the caller did not get the lock.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = Result<RwLockReadGuard<'_, T>, Interrupted>> {
        let place = Location::caller();
        async move {
            if !self.gate.try_read() {
                self.gate.report_if_own(place);
                take(ReadRequest(&self.gate), place).await?;
            }
            Ok(self.read_guard())
        }
    }

    /// Waits until no task reads or writes.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A wait that is interrupted or dropped releases the
    /// readers that waited because of it. A lock that was already granted to the future goes to the
    /// next waiter.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]: the caller did not get the lock.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = Result<RwLockWriteGuard<'_, T>, Interrupted>> {
        let place = Location::caller();
        async move {
            if !self.gate.try_write() {
                self.gate.report_if_own(place);
                take(WriteRequest(&self.gate), place).await?;
            }
            Ok(self.write_guard(place))
        }
    }

    /// Takes the lock for reading, if no task writes or waits to write.
    ///
    /// # Errors
    ///
    /// [`TryLockError`]: a task writes or waits to write.
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        match self.gate.try_read() {
            true => Ok(self.read_guard()),
            false => Err(TryLockError),
        }
    }

    /// Takes the lock for writing, if it is free and has no waiters.
    ///
    /// # Errors
    ///
    /// [`TryLockError`]: a task reads or writes, or there are waiters.
    #[track_caller]
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        let place = Location::caller();
        match self.gate.try_write() {
            true => Ok(self.write_guard(place)),
            false => Err(TryLockError),
        }
    }

    /// The number of readers.
    pub fn reading(&self) -> usize {
        self.gate.reading.get()
    }

    /// Whether a task holds the lock for writing.
    pub fn is_writing(&self) -> bool {
        self.gate.writing.get()
    }

    /// The number of waiters, to read or to write.
    pub fn waiting(&self) -> usize {
        self.gate.readers.len() + self.gate.writers.len()
    }

    /// The value; `&mut self` rules out other holders.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn read_guard(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { value: self.value.borrow(), _reads: Reads(&self.gate) }
    }

    fn write_guard(&self, place: &'static Location<'static>) -> RwLockWriteGuard<'_, T> {
        self.gate.writer.set(place);
        RwLockWriteGuard { value: self.value.borrow_mut(), _writes: Writes(&self.gate) }
    }
}

impl Gate {
    fn try_read(&self) -> bool {
        let may = !self.writing.get() && self.writers.is_empty();
        if !may {
            return self.recover() && self.try_read();
        }
        self.reading.set(self.reading.get() + 1);
        true
    }

    fn try_write(&self) -> bool {
        let is_free = !self.writing.get() && self.reading.get() == 0;
        let may = is_free && self.writers.is_empty() && self.readers.is_empty();
        if !may {
            return self.recover() && self.try_write();
        }
        self.writing.set(true);
        true
    }

    fn read_unlock(&self) {
        self.reading.set(self.reading.get() - 1);
        self.serve();
    }

    fn write_unlock(&self) {
        self.writing.set(false);
        self.serve();
    }

    /// Takes back locks that were granted in an ended kernel. Returns whether there were any.
    #[cold]
    fn recover(&self) -> bool {
        self.writers.recover();
        self.readers.recover();
        let has_recovered = self.writers.free() + self.readers.free() > 0;
        if has_recovered {
            self.serve();
        }
        has_recovered
    }

    /// Grants the lock, if it is free, to the first writer or else to all waiting readers.
    fn serve(&self) {
        self.take_back();
        if self.reading.get() == 0 && !self.writing.get() && !self.writers.is_empty() {
            self.writing.set(true);
            self.writer.clear();
            self.writers.give(1);
        }
        if !self.writing.get() && self.writers.is_empty() {
            let waiting = self.readers.len();
            self.reading.set(self.reading.get() + waiting);
            self.readers.give(waiting);
        }
    }

    /// Reports a wait of the task that writes. Which tasks read is not known.
    fn report_if_own(&self, awaited_at: &'static Location<'static>) {
        if self.writing.get() && self.writer.is_current_task() {
            report_own_lock(self.about().into(), awaited_at);
        }
    }

    fn waited(&self, is_exclusive: bool) -> WaitedLock {
        WaitedLock {
            address: std::ptr::from_ref(self).addr(),
            kind: "reader-writer lock",
            name: self.name,
            holder: self.writer.holding().filter(|_| self.writing.get()),
            is_exclusive,
            is_handed_over: self.writing.get() && self.writer.holding().is_none(),
            waiters: self.readers.len() + self.writers.len(),
        }
    }

    fn about(&self) -> About {
        let lock = format!("reader-writer lock{}", self.name);
        match self.writing.get() {
            true => self.writer.about(&lock, "written", &self.writers),
            false => About::new(format!("{lock}, read by {}", self.reading.get())),
        }
    }

    /// Takes back the permits of waiters that left without collecting them.
    fn take_back(&self) {
        if self.writers.reclaim() > 0 {
            self.writing.set(false);
        }
        self.reading.set(self.reading.get() - self.readers.reclaim());
    }
}

/// A request to read.
#[derive(Clone)]
struct ReadRequest<'a>(&'a Gate);

impl PermitRequest for ReadRequest<'_> {
    fn lock(&self) -> Option<WaitedLock> {
        Some(self.0.waited(false))
    }
}

impl Queued for ReadRequest<'_> {
    fn queue(&self) -> &WaitQueue {
        &self.0.readers
    }

    fn about(&self) -> About {
        self.0.about()
    }

    fn left(&self) {
        self.queue().recover();
        self.0.serve();
    }
}

/// A request to write.
#[derive(Clone)]
struct WriteRequest<'a>(&'a Gate);

impl PermitRequest for WriteRequest<'_> {
    fn lock(&self) -> Option<WaitedLock> {
        Some(self.0.waited(true))
    }
}

impl Queued for WriteRequest<'_> {
    fn queue(&self) -> &WaitQueue {
        &self.0.writers
    }

    fn about(&self) -> About {
        self.0.about()
    }

    fn left(&self) {
        self.queue().recover();
        self.0.serve();
    }
}

/// Shared access to an [`RwLock`]'s value.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // Dropped in this order: the value is free before the lock is handed over.
    value: Ref<'a, T>,
    _reads: Reads<'a>,
}

/// Exclusive access to an [`RwLock`]'s value.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    value: RefMut<'a, T>,
    _writes: Writes<'a>,
}

struct Reads<'a>(&'a Gate);

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.0.read_unlock();
    }
}

struct Writes<'a>(&'a Gate);

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        self.0.write_unlock();
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RwLock");
        match self.value.try_borrow() {
            Ok(value) => shown.field("value", &&*value),
            Err(_) => shown.field("value", &format_args!("<locked>")),
        };
        let Gate { reading, writing, writer, readers, writers, name } = &self.gate;
        show_name(*name, &mut shown);
        shown
            .field("reading", &reading.get())
            .field("written_by", &writing.get().then_some(writer))
            .field("waiting_to_read", &readers.len())
            .field("waiting_to_write", &writers.len())
            .finish()
    }
}

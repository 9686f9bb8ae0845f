//! A counting semaphore.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use pikake_traps::locks::{LockName, WaitedLock};
use pikake_traps::{About, Interrupted, Queued, WaitQueue};

use crate::name::show_name;
use crate::permits::{PermitRequest, take};

/// A counting semaphore: a number of permits, of which tasks take some at a time.
///
/// Waiters are served in order of arrival: a large request at the head of the queue collects free
/// permits until it has enough, and smaller requests behind it wait. Taking free permits without
/// waiters does not suspend.
///
/// Permits need not return by way of their taker. [`SemaphorePermit::forget`] removes permits, and
/// [`add_permits`](Self::add_permits) adds permits. A [bounded](Self::bounded) semaphore refuses to
/// hold more permits than it began with.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::Semaphore;
///
/// let connections = Semaphore::new(10);
/// {
///     let _one = connections.acquire().await?;
///     let _three = connections.acquire_many(3).await?;
///     assert_eq!(connections.available_permits(), 6);
/// }
/// assert_eq!(connections.available_permits(), 10);
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
pub struct Semaphore {
    permits: WaitQueue,
    /// The number of permits, free or taken.
    total: Cell<usize>,
    bound: usize,
    name: LockName,
}

impl Semaphore {
    /// Creates a semaphore with `permits` permits and no upper bound.
    #[track_caller]
    pub const fn new(permits: usize) -> Self {
        Self::with_bound(permits, usize::MAX)
    }

    /// Creates a semaphore with `permits` permits, and with that number as upper bound.
    #[track_caller]
    pub const fn bounded(permits: usize) -> Self {
        Self::with_bound(permits, permits)
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = LockName::Named(name);
        self
    }

    #[track_caller]
    const fn with_bound(permits: usize, bound: usize) -> Self {
        Self {
            permits: WaitQueue::with_permits(permits),
            total: Cell::new(permits),
            bound,
            name: LockName::here(),
        }
    }

    /// Waits for a permit, and takes it.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A dropped future stops waiting; a permit that was already
    /// granted to it goes to the next waiter.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]: the caller got no permit. There is no other error, since a semaphore cannot
    /// be closed.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel, or if the bound is zero.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit<'_>, Interrupted>> {
        self.acquire_many(1)
    }

    /// Waits for `count` permits, and takes them all at once.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point, and takes no part of the permits. A dropped future stops
    /// waiting; permits that were already granted to it go to the next waiter.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]: the caller got no permits.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel, or if `count` exceeds the bound.
    #[track_caller]
    pub fn acquire_many(
        &self,
        count: usize,
    ) -> impl Future<Output = Result<SemaphorePermit<'_>, Interrupted>> {
        let place = Location::caller();
        self.check(count);
        async move {
            take(Request { semaphore: self, count }, place).await?;
            Ok(SemaphorePermit { semaphore: self, count })
        }
    }

    /// Takes a permit, if one is free and there are no waiters.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError`]: there is none, or there are waiters.
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes `count` permits, if they are free and there are no waiters.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError`]: there are not so many, or there are waiters.
    pub fn try_acquire_many(&self, count: usize) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        match self.take(count) {
            true => Ok(SemaphorePermit { semaphore: self, count }),
            false => Err(TryAcquireError),
        }
    }

    /// As [`acquire`](Self::acquire), with a permit that owns a share of the semaphore, so that it
    /// can move into another task.
    ///
    /// # Cancellation
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Panics
    ///
    /// As [`acquire`](Self::acquire).
    #[track_caller]
    pub fn acquire_owned(
        self: Rc<Self>,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, Interrupted>> {
        self.acquire_many_owned(1)
    }

    /// As [`acquire_many`](Self::acquire_many), with permits that own a share of the semaphore.
    ///
    /// # Cancellation
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Panics
    ///
    /// As [`acquire_many`](Self::acquire_many).
    #[track_caller]
    pub fn acquire_many_owned(
        self: Rc<Self>,
        count: usize,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, Interrupted>> {
        let place = Location::caller();
        self.check(count);
        async move {
            take(Request { semaphore: &self, count }, place).await?;
            Ok(OwnedSemaphorePermit { semaphore: self, count })
        }
    }

    /// As [`try_acquire`](Self::try_acquire), with a permit that owns a share of the semaphore.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError`]: there is none, or there are waiters.
    pub fn try_acquire_owned(self: Rc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        match self.take(1) {
            true => Ok(OwnedSemaphorePermit { semaphore: self, count: 1 }),
            false => Err(TryAcquireError),
        }
    }

    #[track_caller]
    fn check(&self, count: usize) {
        assert!(
            count <= self.bound,
            "{count} permits were asked for, and there are never more than {}",
            self.bound
        );
    }

    /// Adds `count` permits, and grants them to waiters.
    ///
    /// # Errors
    ///
    /// [`TooMany`]: free and taken permits would exceed the bound. No permit is added.
    pub fn add_permits(&self, count: usize) -> Result<(), TooMany> {
        match self.total.get().checked_add(count) {
            Some(total) if total <= self.bound => {
                self.total.set(total);
                self.permits.give(count);
                Ok(())
            }
            _ => Err(TooMany { count, bound: self.bound }),
        }
    }

    fn take(&self, count: usize) -> bool {
        self.permits.try_take(count) || {
            self.permits.recover();
            self.permits.try_take(count)
        }
    }

    /// The number of free permits.
    pub fn available_permits(&self) -> usize {
        self.permits.free()
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.permits.len()
    }
}

/// A request for permits.
#[derive(Clone)]
struct Request<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl PermitRequest for Request<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn lock(&self) -> Option<WaitedLock> {
        Some(WaitedLock {
            address: std::ptr::from_ref(self.semaphore).addr(),
            kind: "semaphore",
            name: self.semaphore.name,
            holder: None,
            is_exclusive: false,
            is_handed_over: false,
            waiters: self.semaphore.permits.len(),
        })
    }
}

impl Queued for Request<'_> {
    fn queue(&self) -> &WaitQueue {
        &self.semaphore.permits
    }

    fn about(&self) -> About {
        let Semaphore { name, total, .. } = self.semaphore;
        let free = self.semaphore.available_permits();
        About::new(format!("{} of semaphore{name}, {free} of {} free", self.count, total.get()))
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Semaphore");
        show_name(self.name, &mut shown);
        let free = self.available_permits();
        shown.field("available", &free).field("held", &(self.total.get() - free));
        if self.bound < usize::MAX {
            shown.field("bound", &self.bound);
        }
        shown.field("waiting", &self.waiting()).finish()
    }
}

/// Permits of a [`Semaphore`]. Their drop hands them to the next waiter.
#[must_use = "permits that are dropped at once are released at once"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

/// Permits of a [`Semaphore`], of which they own a share. Their drop hands them to the next waiter.
#[must_use = "permits that are dropped at once are released at once"]
pub struct OwnedSemaphorePermit {
    semaphore: Rc<Semaphore>,
    count: usize,
}

macro_rules! permit {
    ($name:ident, $type:ty) => {
        impl $type {
            /// The number of permits.
            pub fn num_permits(&self) -> usize {
                self.count
            }

            /// Removes the permits from the semaphore: they are not released.
            pub fn forget(mut self) {
                let total = &self.semaphore.total;
                total.set(total.get() - self.count);
                self.count = 0;
            }
        }

        impl Drop for $type {
            fn drop(&mut self) {
                if self.count > 0 {
                    self.semaphore.permits.give(self.count);
                }
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("count", &self.count).finish()
            }
        }
    };
}

permit!(SemaphorePermit, SemaphorePermit<'_>);
permit!(OwnedSemaphorePermit, OwnedSemaphorePermit);

/// A semaphore has not the permits that were asked for, or others wait for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TryAcquireError;

impl fmt::Display for TryAcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the semaphore has no such permits now")
    }
}

impl Error for TryAcquireError {}

/// The permits released into a [`Semaphore`] would exceed its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TooMany {
    /// The number of released permits.
    pub count: usize,
    /// The bound of the semaphore.
    pub bound: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, bound } = self;
        write!(
            f,
            "{count} permits were released into a semaphore that would then have more than \
             {bound}: release only permits that were acquired and forgotten, once each"
        )
    }
}

impl Error for TooMany {}

//! A number of permits, of which tasks take some at a time.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{Interrupted, WaitQueue};

use crate::name::Name;
use crate::permits::{Permits, take};

/// A number of permits, of which tasks take some at a time.
///
/// Those who wait are served in the order in which they came, whatever they ask for: a large
/// request at the head of the line keeps what comes free until it has enough, and small ones behind
/// it wait. Permits that are there when nobody waits are taken without suspending.
///
/// Permits need not come back from the one who took them. [`Permit::forget`] takes them out of
/// circulation, and [`release`](Self::release) brings new ones in. A semaphore that is
/// [bounded](Self::bounded) refuses those that were never taken out.
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_sync::Semaphore;
///
/// let connections = Semaphore::new(10);
/// {
///     let _three = connections.acquire(3).await?;
///     assert_eq!(connections.available(), 7);
/// }
/// assert_eq!(connections.available(), 10);
/// # Ok::<_, pikake_traps::Interrupted>(()) }).unwrap();
/// ```
pub struct Semaphore {
    permits: WaitQueue,
    /// How many there are, free or not.
    total: Cell<usize>,
    bound: usize,
    name: Name,
}

impl Semaphore {
    /// A semaphore with so many permits, to which any number may be added.
    pub const fn new(permits: usize) -> Self {
        Self::made(permits, usize::MAX)
    }

    /// A semaphore with so many permits, of which there can never be more.
    pub const fn bounded(permits: usize) -> Self {
        Self::made(permits, permits)
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    const fn made(permits: usize, bound: usize) -> Self {
        Self {
            permits: WaitQueue::with_permits(permits),
            total: Cell::new(permits),
            bound,
            name: Name::NONE,
        }
    }

    /// Waits for so many permits, and takes them all at once.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Nothing is taken until everything is. Dropped, it
    /// leaves the line; permits that it had been given and had not seen yet go to the next.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], without having got any.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel. When it asks a bounded semaphore for more
    /// than there can be.
    #[track_caller]
    pub fn acquire(&self, count: usize) -> impl Future<Output = Result<Permit<'_>, Interrupted>> {
        let place = Location::caller();
        assert!(
            count <= self.bound,
            "{count} permits were asked for, and there are never more than {}",
            self.bound
        );
        async move {
            take(Request { semaphore: self, count }, place).await?;
            Ok(Permit { semaphore: self, count })
        }
    }

    /// Takes so many permits if they are there and nobody waits.
    pub fn try_acquire(&self, count: usize) -> Option<Permit<'_>> {
        self.take(count).then(|| Permit { semaphore: self, count })
    }

    /// Adds so many permits, and gives them to those who wait.
    ///
    /// # Errors
    ///
    /// [`TooMany`], and nothing is added: the bound would be exceeded by what is there and what is
    /// held as [`Permit`]s.
    pub fn release(&self, count: usize) -> Result<(), TooMany> {
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

    /// How many permits could be taken if nobody waited.
    pub fn available(&self) -> usize {
        self.permits.free()
    }

    /// How many wait, whatever they ask for.
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

impl Permits for Request<'_> {
    fn queue(&self) -> &WaitQueue {
        &self.semaphore.permits
    }

    fn count(&self) -> usize {
        self.count
    }

    fn about(&self) -> String {
        let Semaphore { name, total, .. } = self.semaphore;
        let free = self.semaphore.available();
        format!("{} of semaphore{name}, {free} of {} free", self.count, total.get())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Semaphore");
        self.name.show(&mut shown);
        let free = self.available();
        shown.field("available", &free).field("held", &(self.total.get() - free));
        if self.bound < usize::MAX {
            shown.field("bound", &self.bound);
        }
        shown.field("waiting", &self.waiting()).finish()
    }
}

/// Permits of a [`Semaphore`]. Dropped, they go to the next in line.
#[must_use = "dropped at once, it gives the permits back at once"]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Permit<'_> {
    /// How many it stands for.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Takes the permits out of circulation: they do not come back by themselves.
    pub fn forget(mut self) {
        let total = &self.semaphore.total;
        total.set(total.get() - self.count);
        self.count = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.semaphore.permits.give(self.count);
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("count", &self.count).finish()
    }
}

/// A [`Semaphore`] was to get more permits than it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TooMany {
    /// How many were to be added.
    pub count: usize,
    /// How many there can be.
    pub bound: usize,
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, bound } = self;
        write!(
            f,
            "{count} permits were released into a semaphore that would then have more than \
             {bound}: release what was acquired and forgotten, once"
        )
    }
}

impl Error for TooMany {}

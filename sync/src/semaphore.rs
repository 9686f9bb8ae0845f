//! A number of permits, of which tasks take some at a time.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::Interrupted;

use crate::line::{Line, Serve};
use crate::line_turn::Turn;

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
    available: Cell<usize>,
    /// How many are out as [`Permit`]s, or given to somebody in line who has not run since.
    held: Cell<usize>,
    bound: usize,
    line: Line<usize>,
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

    const fn made(permits: usize, bound: usize) -> Self {
        Self { available: Cell::new(permits), held: Cell::new(0), bound, line: Line::new() }
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
            if !self.take(count) {
                Turn::new(Request { semaphore: self, count }, count, place).await?;
            }
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
        let there = self.available.get() + self.held.get();
        match there.checked_add(count) {
            Some(sum) if sum <= self.bound => {
                self.add(count);
                Ok(())
            }
            _ => Err(TooMany { count, bound: self.bound }),
        }
    }

    /// How many permits could be taken if nobody waited.
    pub fn available(&self) -> usize {
        self.available.get()
    }

    /// How many wait, whatever they ask for.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    fn take(&self, count: usize) -> bool {
        if self.available.get() < count || !self.line.is_empty() {
            return false;
        }
        self.move_out(count);
        true
    }

    fn move_out(&self, count: usize) {
        self.available.set(self.available.get() - count);
        self.held.set(self.held.get() + count);
    }

    fn add(&self, count: usize) {
        self.available.set(self.available.get() + count);
        if !self.line.is_empty() {
            self.serve();
        }
    }

    fn serve(&self) {
        while let Some(mut next) = self.line.call_if(|count| *count <= self.available.get()) {
            self.move_out(next.take());
            next.wake();
        }
    }
}

/// Somebody who waits for permits.
struct Request<'a> {
    semaphore: &'a Semaphore,
    count: usize,
}

impl Serve for Request<'_> {
    type Brings = usize;

    fn line(&self) -> &Line<usize> {
        &self.semaphore.line
    }

    fn serve(&self) {
        self.semaphore.serve();
    }

    fn give_back(&self) {
        drop(Permit { semaphore: self.semaphore, count: self.count });
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Semaphore");
        shown.field("available", &self.available.get()).field("held", &self.held.get());
        if self.bound < usize::MAX {
            shown.field("bound", &self.bound);
        }
        shown.field("waiting", &self.line.len()).finish()
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
        let held = &self.semaphore.held;
        held.set(held.get() - self.count);
        self.count = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            let held = &self.semaphore.held;
            held.set(held.get() - self.count);
            self.semaphore.add(self.count);
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

//! A count of running operations; tasks wait until it is zero.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{About, Interrupted, Queued, WaitQueue, park_at};

use crate::name::Name;

/// A count of running operations; tasks wait until it is zero.
///
/// The begin of an operation counts [up](Self::up), its end counts [down](Self::down); neither
/// waits. A count of zero releases all waiters, also if it is counted up again before they run.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::WaitGroup;
///
/// let requests = WaitGroup::new();
/// {
///     let _request = requests.enter(); // its drop counts down, also on a panic
///     assert_eq!(requests.count(), 1);
/// }
/// requests.wait().await?;
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
#[derive(Default)]
pub struct WaitGroup {
    count: Cell<usize>,
    /// How often the count became zero.
    zeros: Cell<u64>,
    waiters: WaitQueue,
    name: Name,
}

impl WaitGroup {
    /// Creates a count of zero.
    pub const fn new() -> Self {
        Self {
            count: Cell::new(0),
            zeros: Cell::new(0),
            waiters: WaitQueue::new(),
            name: Name::NONE,
        }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Increases the count.
    ///
    /// # Panics
    ///
    /// If the count would exceed `usize::MAX`.
    pub fn up(&self, by: usize) {
        let count = self.count.get().checked_add(by);
        self.count.set(count.expect("a wait group counts up to `usize::MAX`"));
    }

    /// Decreases the count, and releases all waiters if it is then zero.
    ///
    /// # Errors
    ///
    /// [`BelowZero`]: the count is smaller than `by`, and stays as it is.
    pub fn down(&self, by: usize) -> Result<(), BelowZero> {
        let count = self.count.get();
        let left = count.checked_sub(by).ok_or(BelowZero { count, by })?;
        self.count.set(left);
        if left == 0 && by > 0 {
            self.zeros.set(self.zeros.get() + 1);
            self.waiters.wake(usize::MAX);
        }
        Ok(())
    }

    /// Counts up by one, until the returned guard is dropped.
    ///
    /// # Panics
    ///
    /// As [`up`](Self::up).
    pub fn enter(&self) -> Entered<'_> {
        self.up(1);
        Entered(self)
    }

    /// The count.
    pub fn count(&self) -> usize {
        self.count.get()
    }

    /// Waits until the count is zero. Returns at once if it is.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before the count was zero.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let place = Location::caller();
        async move {
            let before = self.zeros.get();
            while self.count.get() > 0 && self.zeros.get() == before {
                park_at(self, place).await?;
            }
            Ok(())
        }
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

impl Queued for WaitGroup {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("wait group{} at {}", self.name, self.count()))
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WaitGroup");
        self.name.show(&mut shown);
        shown.field("count", &self.count()).field("waiting", &self.waiting()).finish()
    }
}

/// One operation of a [`WaitGroup`]. Its drop counts down.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once counts down at once"]
pub struct Entered<'a>(&'a WaitGroup);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // The count is zero already if `down` was called too often. A drop cannot report that.
        let _ = self.0.down(1);
    }
}

/// A [`WaitGroup`] was counted down below zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BelowZero {
    /// The count.
    pub count: usize,
    /// The number to count down by.
    pub by: usize,
}

impl fmt::Display for BelowZero {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, by } = self;
        write!(
            f,
            "a wait group at {count} was counted down by {by}: count down once for each count up"
        )
    }
}

impl Error for BelowZero {}

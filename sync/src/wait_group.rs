//! A count that tasks wait for to be zero.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{Interrupted, WaitQueue};

use crate::name::Name;
use crate::signals::{Signals, signal};

/// A count that tasks wait for to be zero: a semaphore the other way round.
///
/// Whoever begins something counts it [up](Self::up), whoever ends it counts it [down](Self::down),
/// and neither ever waits. Everybody who waits goes on when the count is zero, also if it has been
/// counted up again before they run.
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_sync::WaitGroup;
///
/// let requests = WaitGroup::new();
/// {
///     let _request = requests.enter(); // counted down when it is dropped, however that comes
///     assert_eq!(requests.count(), 1);
/// }
/// requests.wait().await?;
/// # Ok::<_, pikake_traps::Interrupted>(()) }).unwrap();
/// ```
#[derive(Default)]
pub struct WaitGroup {
    count: Cell<usize>,
    /// How often the count has become zero.
    zeros: Cell<u64>,
    waiters: WaitQueue,
    name: Name,
}

impl WaitGroup {
    /// A count of zero.
    pub const fn new() -> Self {
        Self {
            count: Cell::new(0),
            zeros: Cell::new(0),
            waiters: WaitQueue::new(),
            name: Name::NONE,
        }
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Counts up by so many.
    ///
    /// # Panics
    ///
    /// When there are more than can be counted.
    pub fn up(&self, by: usize) {
        let count = self.count.get().checked_add(by);
        self.count.set(count.expect("a wait group counts no further than `usize::MAX`"));
    }

    /// Counts down by so many, and lets all go on that wait if it is zero then.
    ///
    /// # Errors
    ///
    /// [`BelowZero`], and nothing is counted: it was not up so far.
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

    /// Counts up by one until what it returns is dropped.
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

    /// Waits until the count is zero; not at all if it is.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before it was zero.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let place = Location::caller();
        async move {
            let before = self.zeros.get();
            while self.count.get() > 0 && self.zeros.get() == before {
                signal(self, place).await?;
            }
            Ok(())
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

impl Signals for WaitGroup {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> String {
        format!("wait group{} at {}", self.name, self.count())
    }
}

impl fmt::Debug for WaitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("WaitGroup");
        self.name.show(&mut shown);
        shown.field("count", &self.count()).field("waiting", &self.waiting()).finish()
    }
}

/// One that is counted in a [`WaitGroup`], until it is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it counts down at once"]
pub struct Entered<'a>(&'a WaitGroup);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // It may have been counted down already by somebody who counts wrong; they were not told,
        // and this is not the place to.
        let _ = self.0.down(1);
    }
}

/// A [`WaitGroup`] was to be counted down further than it had been counted up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BelowZero {
    /// What the count was.
    pub count: usize,
    /// By how much it was to be counted down.
    pub by: usize,
}

impl fmt::Display for BelowZero {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, by } = self;
        write!(
            f,
            "a wait group at {count} was counted down by {by}: count down what was counted up, once"
        )
    }
}

impl Error for BelowZero {}

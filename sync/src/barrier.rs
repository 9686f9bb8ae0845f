//! A barrier, at which tasks wait for each other.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{About, Interrupted, Queued, WaitQueue, park_at};

use crate::name::Name;

/// A reusable barrier, at which a fixed number of tasks wait for each other.
///
/// The last task to arrive releases all of them. A task that is interrupted before that no longer
/// counts, and another has to arrive instead.
///
/// # Examples
///
/// ```
/// # async fn step(round: u32) {}
/// # async fn example() {
/// use pikake::sync::Barrier;
/// use std::rc::Rc;
///
/// let barrier = Rc::new(Barrier::new(3));
/// for _ in 0..3 {
///     let barrier = barrier.clone();
///     let worker = pikake::spawn(async move {
///         for round in 0..10 {
///             step(round).await;
///             barrier.wait().await?; // until all have done this round
///         }
///         Ok::<_, pikake::Interrupted>(())
///     });
///     worker.detach();
/// }
/// # }
/// # pikake::sim::example(example());
/// ```
pub struct Barrier {
    size: usize,
    /// How often the barrier released its waiters.
    rounds: Cell<u64>,
    waiters: WaitQueue,
    name: Name,
}

impl Barrier {
    /// Creates a barrier for `size` tasks; zero and one are the same.
    pub const fn new(size: usize) -> Self {
        Self { size, rounds: Cell::new(0), waiters: WaitQueue::new(), name: Name::NONE }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Waits until all tasks have arrived. The last of them is the [leader](BarrierWaitResult).
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A wait that is interrupted or dropped before the release
    /// no longer counts.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before all tasks had arrived.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<BarrierWaitResult, Interrupted>> {
        let place = Location::caller();
        async move {
            let round = self.rounds.get();
            // An interrupted task leaves the wait queue at once, so the length counts waiters only.
            while self.waiters.len() + 1 < self.size {
                park_at(self, place).await?;
                if self.rounds.get() != round {
                    return Ok(BarrierWaitResult(false));
                }
            }
            self.rounds.set(round + 1);
            self.waiters.wake(usize::MAX);
            Ok(BarrierWaitResult(true))
        }
    }

    /// The number of tasks that the barrier waits for.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

/// The result of [`Barrier::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Whether this task is the one that came last.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Queued for Barrier {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("barrier{}, {} of {} wait", self.name, self.waiting(), self.size))
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Barrier");
        self.name.show(&mut shown);
        shown.field("size", &self.size).field("waiting", &self.waiting()).finish()
    }
}

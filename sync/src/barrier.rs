//! A place where tasks wait for each other.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{Interrupted, WaitQueue};

use crate::name::Name;
use crate::signals::{Signals, signal};

/// A place where so many tasks wait for each other, again and again.
///
/// The one that completes the number lets all go on. Who is interrupted before that does not count
/// any more, and another has to come in its place.
///
/// # Examples
///
/// ```
/// # async fn step(round: u32) {}
/// # async fn example() {
/// use pikake_sync::Barrier;
/// use std::rc::Rc;
///
/// let barrier = Rc::new(Barrier::new(3));
/// for _ in 0..3 {
///     let barrier = barrier.clone();
///     let worker = pikake_traps::spawn(async move {
///         for round in 0..10 {
///             step(round).await;
///             barrier.wait().await?; // until all have done this round
///         }
///         Ok::<_, pikake_traps::Interrupted>(())
///     });
///     worker.detach();
/// }
/// # }
/// # pikake_sim::example(example());
/// ```
pub struct Barrier {
    size: usize,
    /// How often it has let all go on.
    rounds: Cell<u64>,
    waiters: WaitQueue,
    name: Name,
}

impl Barrier {
    /// A barrier for so many; none and one are the same.
    pub const fn new(size: usize) -> Self {
        Self { size, rounds: Cell::new(0), waiters: WaitQueue::new(), name: Name::NONE }
    }

    /// The same with a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Waits until all are here. `true` for one of them, the one that came last.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Interrupted or dropped before all were here, it does
    /// not count.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before all were here.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<bool, Interrupted>> {
        let place = Location::caller();
        async move {
            let round = self.rounds.get();
            // Who is interrupted is out of the wait queue at once, so this counts nobody else.
            while self.waiters.len() + 1 < self.size {
                signal(self, place).await?;
                if self.rounds.get() != round {
                    return Ok(false);
                }
            }
            self.rounds.set(round + 1);
            self.waiters.wake(usize::MAX);
            Ok(true)
        }
    }

    /// For how many it is.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

impl Signals for Barrier {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> String {
        format!("barrier{}, {} of {} wait", self.name, self.waiting(), self.size)
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Barrier");
        self.name.show(&mut shown);
        shown.field("size", &self.size).field("waiting", &self.waiting()).finish()
    }
}

//! A flag that tasks wait for.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{About, Interrupted, Queued, WaitQueue, park_at};

use crate::name::Name;

/// A flag that tasks wait for.
///
/// [`set`](Self::set) releases all waiters, also if the flag is cleared again before they run.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake::TaskError> {
/// use pikake::sync::Event;
/// use std::rc::Rc;
///
/// let ready = Rc::new(Event::new());
/// let server = pikake::spawn({
///     let ready = ready.clone();
///     async move { ready.wait().await }
/// });
/// ready.set();
/// server.await??;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
#[derive(Default)]
pub struct Event {
    is_set: Cell<bool>,
    /// How often the flag was set.
    count: Cell<u64>,
    waiters: WaitQueue,
    name: Name,
}

impl Event {
    /// Creates an event that is not set.
    pub const fn new() -> Self {
        Self {
            is_set: Cell::new(false),
            count: Cell::new(0),
            waiters: WaitQueue::new(),
            name: Name::NONE,
        }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Whether the event is set.
    pub fn is_set(&self) -> bool {
        self.is_set.get()
    }

    /// Sets the event, and releases all waiters.
    pub fn set(&self) {
        if !self.is_set.replace(true) {
            self.count.set(self.count.get() + 1);
            self.waiters.wake(usize::MAX);
        }
    }

    /// Clears the event: later waits last until it is set again.
    pub fn clear(&self) {
        self.is_set.set(false);
    }

    /// Waits until the event is set. Returns at once if it is.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before the event was set.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let place = Location::caller();
        async move {
            let before = self.count.get();
            while !self.is_set.get() && self.count.get() == before {
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

impl Queued for Event {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("event{}", self.name))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Event");
        self.name.show(&mut shown);
        shown.field("is_set", &self.is_set()).field("waiting", &self.waiting()).finish()
    }
}

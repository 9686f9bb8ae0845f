//! A value that one task sets once and others wait for.

use std::cell::OnceCell;
use std::fmt;
use std::future::Future;
use std::panic::Location;

use pikake_traps::{About, Interrupted, Queued, WaitQueue, park_at};

use crate::name::Name;

/// A value that is set once, for any number of waiters.
///
/// A promise cannot be closed: if the value is never set, its waiters wait forever. For a single
/// waiter that gets an error once the sender is gone, use [`oneshot`](crate::oneshot).
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sync::Promise;
///
/// let port = Promise::new();
/// port.set(8080).unwrap();
/// assert_eq!(*port.wait().await?, 8080);
/// assert_eq!(port.set(9090), Err(9090));
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
#[doc(alias = "SetOnce")]
#[derive(Default)]
pub struct Promise<T> {
    value: OnceCell<T>,
    waiters: WaitQueue,
    name: Name,
}

impl<T> Promise<T> {
    /// Creates a promise without a value.
    pub const fn new() -> Self {
        Self { value: OnceCell::new(), waiters: WaitQueue::new(), name: Name::NONE }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Sets the value, and releases all waiters.
    ///
    /// # Errors
    ///
    /// The given value, if the promise already has one.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)?;
        self.waiters.wake(usize::MAX);
        Ok(())
    }

    /// The value, if it has been set.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Whether the value has been set.
    #[doc(alias = "initialized")]
    pub fn is_set(&self) -> bool {
        self.get().is_some()
    }

    /// The value, if it has been set.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Waits for the value.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before the value was set.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<&T, Interrupted>> {
        let place = Location::caller();
        async move {
            loop {
                if let Some(value) = self.get() {
                    return Ok(value);
                }
                park_at(self, place).await?;
            }
        }
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

impl<T> Queued for Promise<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("promise{}", self.name))
    }
}

impl<T: fmt::Debug> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Promise");
        self.name.show(&mut shown);
        shown.field("value", &self.get()).field("waiting", &self.waiting()).finish()
    }
}

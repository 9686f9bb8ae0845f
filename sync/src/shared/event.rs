//! A flag that threads and tasks of any kernel wait for.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_traps::Interrupted;

use super::wait::{TaskWait, Wait};
use super::waiters::{Shared, WaitKind, Waitable, Waiters, Wakers};

/// A flag that threads and tasks of any kernel wait for.
///
/// [`set`](Self::set) releases all waiters, also if the flag is cleared again before they run.
///
/// # Examples
///
/// ```
/// use pikake::sync::shared::Event;
/// use std::sync::Arc;
///
/// let ready = Arc::new(Event::new());
/// let thread = std::thread::spawn({
///     let ready = ready.clone();
///     move || ready.blocking_wait()
/// });
/// // A task would say `ready.wait().await?`.
/// ready.set();
/// thread.join().unwrap();
/// ```
pub struct Event(Shared<Flag>);

#[derive(Debug)]
struct Flag {
    is_set: bool,
    waiters: Waiters<(), ()>,
}

impl Waitable for Flag {
    fn serve(&mut self, wakers: &mut Wakers) {
        while self.is_set && self.waiters.grant(wakers, || ()).is_some() {}
    }
}

struct Waiting;

impl WaitKind<Flag> for Waiting {
    type Request = ();
    type Grant = ();
    const NAME: &'static str = "event of several threads";

    fn waiters(flag: &mut Flag) -> &mut Waiters<(), ()> {
        &mut flag.waiters
    }

    fn try_now(flag: &mut Flag, (): ()) -> Result<(), ()> {
        if flag.is_set { Ok(()) } else { Err(()) }
    }

    fn give_back(_: &mut Flag, (): ()) {}
}

impl Event {
    /// Creates an event that is not set.
    pub fn new() -> Self {
        Self(Shared::new(Flag { is_set: false, waiters: Waiters::new() }))
    }

    /// Whether the event is set.
    pub fn is_set(&self) -> bool {
        self.0.lock().is_set
    }

    /// Sets the event, and releases all waiters.
    pub fn set(&self) {
        self.0.change(|flag| flag.is_set = true);
    }

    /// Clears the event: later waits last until it is set again.
    pub fn clear(&self) {
        self.0.lock().is_set = false;
    }

    /// Waits, as a task, until the event is set. Returns at once if it is.
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
        let wait = TaskWait::<_, _, Waiting>::new(&self.0, (), Location::caller());
        async move { wait.await.map(|_| ()) }
    }

    /// Blocks the thread until the event is set.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_wait(&self) {
        Wait::<_, _, Waiting>::new(&self.0, ()).block(None);
    }

    /// Blocks the thread until the event is set, at most `length`. Returns whether it was set.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_wait_timeout(&self, length: Duration) -> bool {
        let until = Instant::now().checked_add(length);
        Wait::<_, _, Waiting>::new(&self.0, ()).block(until).is_some()
    }
}

impl Default for Event {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_set, waiting) = {
            let flag = self.0.lock();
            (flag.is_set, flag.waiters.len())
        };
        f.debug_struct("Event").field("is_set", &is_set).field("waiting", &waiting).finish()
    }
}

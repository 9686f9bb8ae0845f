//! A flag that threads and tasks of any kernel wait for.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_traps::Interrupted;

use super::line::{Line, Shared, Side, State, Wakers};
use super::wait::{Trapped, Wait};

/// A flag that threads and tasks of any kernel wait for.
///
/// [`set`](Self::set) lets everybody go on who waits, also if the flag is cleared again before they
/// run.
///
/// # Examples
///
/// ```
/// use pikake_sync::shared::Event;
/// use std::sync::Arc;
///
/// let ready = Arc::new(Event::new());
/// let thread = std::thread::spawn({
///     let ready = ready.clone();
///     move || ready.wait_blocking()
/// });
/// // A task would say `ready.wait().await?`.
/// ready.set();
/// thread.join().unwrap();
/// ```
pub struct Event(Shared<Flag>);

#[derive(Debug)]
struct Flag {
    is_set: bool,
    line: Line<(), ()>,
}

impl State for Flag {
    fn serve(&mut self, wakers: &mut Wakers) {
        while self.is_set && self.line.call(wakers, || ()).is_some() {}
    }
}

struct Waiting;

impl Side<Flag> for Waiting {
    type Request = ();
    type Gets = ();

    fn line(flag: &mut Flag) -> &mut Line<(), ()> {
        &mut flag.line
    }

    fn now(flag: &mut Flag, (): ()) -> Result<(), ()> {
        if flag.is_set { Ok(()) } else { Err(()) }
    }

    fn give_back(_: &mut Flag, (): ()) {}
}

impl Event {
    /// An event that is not set.
    pub fn new() -> Self {
        Self(Shared::new(Flag { is_set: false, line: Line::new() }))
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.lock().is_set
    }

    /// Sets it, and lets all go on that wait.
    pub fn set(&self) {
        self.0.change(|flag| flag.is_set = true);
    }

    /// Clears it: from now on, who waits has to wait until it is set again.
    pub fn clear(&self) {
        self.0.lock().is_set = false;
    }

    /// Waits until it is set, as a task; not at all if it is.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before it was set.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn wait(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let wait = Trapped::<_, _, Waiting>::new(&self.0, (), Location::caller());
        async move { wait.await.map(|_| ()) }
    }

    /// Blocks the thread until it is set.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn wait_blocking(&self) {
        Wait::<_, _, Waiting>::new(&self.0, ()).block(None);
    }

    /// Blocks the thread until it is set, or so long; tells whether it was set.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn wait_blocking_timeout(&self, length: Duration) -> bool {
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
            (flag.is_set, flag.line.len())
        };
        f.debug_struct("Event").field("is_set", &is_set).field("waiting", &waiting).finish()
    }
}

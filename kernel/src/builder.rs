//! Building a kernel: what can be set, and which parts can be exchanged.

use std::any::TypeId;
use std::fmt;
use std::io;
use std::time::Duration;

use pikake_time::{Clock, SystemClock};
use pikake_traps::Home;

use crate::driver::Driver;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::mio_driver::MioDriver;
use crate::observe::{Observer, Tracer};
use crate::pick::{Fifo, Pick};
use crate::settings::Settings;

/// Builds a [`Kernel`].
///
/// # Examples
///
/// ```
/// use pikake_kernel::Kernel;
/// use std::time::Duration;
///
/// let kernel = Kernel::builder().long_step(Some(Duration::from_millis(50))).build()?;
/// # drop(kernel);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder<C = SystemClock, P = Fifo> {
    settings: Settings,
    clock: C,
    pick: P,
    observers: Vec<Box<dyn Observer>>,
}

impl<C, P> fmt::Debug for Builder<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            settings: Settings::default(),
            clock: SystemClock::new(),
            pick: Fifo,
            observers: Vec::new(),
        }
    }
}

impl<C: Clock + 'static, P: Pick + 'static> Builder<C, P> {
    /// Another clock, as a [`ManualClock`](pikake_time::ManualClock) for tests.
    pub fn clock<C2: Clock + 'static>(self, clock: C2) -> Builder<C2, P> {
        let Self { settings, pick, observers, clock: _ } = self;
        Builder { settings, clock, pick, observers }
    }

    /// Another ready queue.
    pub fn pick<P2: Pick + 'static>(self, pick: P2) -> Builder<C, P2> {
        let Self { settings, clock, observers, pick: _ } = self;
        Builder { settings, clock, pick, observers }
    }

    /// The name of the kernel's main tasks; without it, `main`.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Adds an observer.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// How many attempts on sockets a task may make in one step
    /// ([`ATTEMPTS_PER_STEP`](crate::ATTEMPTS_PER_STEP)); at least one.
    pub fn attempts_per_step(mut self, attempts: u32) -> Self {
        self.settings.attempts_per_step = attempts.max(1);
        self
    }

    /// How many waits of a task may be answered at once in one step
    /// ([`ANSWERS_PER_STEP`](crate::ANSWERS_PER_STEP)).
    pub fn answers_per_step(mut self, answers: u32) -> Self {
        self.settings.answers_per_step = answers;
        self
    }

    /// After how many steps the driver is polled, and a turn ends, although tasks are ready
    /// ([`POLL_EVERY_STEPS`](crate::POLL_EVERY_STEPS)); at least one.
    pub fn poll_every_steps(mut self, steps: u32) -> Self {
        self.settings.poll_every_steps = steps.max(1);
        self
    }

    /// From which length on a step is reported ([`LONG_STEP`](crate::LONG_STEP)); `None`: never.
    pub fn long_step(mut self, length: Option<Duration>) -> Self {
        self.settings.long_step = length;
        self
    }

    /// How long cleanup may wait on foreign futures alone
    /// ([`FOREIGN_GRACE`](crate::FOREIGN_GRACE)).
    pub fn foreign_grace(mut self, grace: Duration) -> Self {
        self.settings.foreign_grace = grace;
        self
    }

    /// From which length on cleanup is reported ([`SLOW_CLEANUP`](crate::SLOW_CLEANUP)).
    pub fn slow_cleanup(mut self, length: Duration) -> Self {
        self.settings.slow_cleanup = length;
        self
    }

    /// How long tasks may clean up at shutdown ([`SHUTDOWN_GRACE`](crate::SHUTDOWN_GRACE)).
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.settings.shutdown_grace = grace;
        self
    }

    /// How many closures may run on helper threads at the same time
    /// ([`HELPER_THREADS`](crate::HELPER_THREADS)); at least one. Name lookups are among them.
    pub fn helper_threads(mut self, limit: usize) -> Self {
        self.settings.helper_threads = limit.max(1);
        self
    }

    /// How long a helper thread that has nothing to do waits for more before it ends
    /// ([`HELPER_IDLE_EXIT`](crate::HELPER_IDLE_EXIT)).
    pub fn helper_idle_exit(mut self, length: Duration) -> Self {
        self.settings.helper_idle_exit = length;
        self
    }

    /// Builds the kernel, on the system's sockets.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn build(mut self) -> io::Result<Kernel<C, P>> {
        self.settings.is_watched = TypeId::of::<C>() == TypeId::of::<SystemClock>();
        Ok(self.build_on(MioDriver::new()?))
    }

    /// Builds the kernel on another driver.
    pub fn build_on<D: Driver + 'static>(mut self, mut driver: D) -> Kernel<C, P, D> {
        driver.limit_threads(self.settings.helper_threads, self.settings.helper_idle_exit);
        if Tracer::is_wanted() {
            self.observers.push(Box::new(Tracer));
        }
        let home = Home::open(driver.waker());
        let Self { settings, clock, pick, observers } = self;
        Kernel::of(Machine::new(home, driver, clock, pick, settings, observers))
    }
}

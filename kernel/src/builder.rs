//! Building a kernel: the settings, their defaults and the reasons for these.

use std::fmt;
use std::time::Duration;

use pikake_time::{Clock, Rate, SystemClock};
use pikake_traps::{Graces, Peers, Quotas};

use crate::driver::Driver;
use crate::helpers::{HELPER_IDLE_EXIT, HELPER_THREADS};
use crate::observe::{Observer, Tracer, observers_of_new_kernel};
use crate::pick::{Fifo, Pick};

/// The number of attempts on sockets that a task may make in one step.
///
/// The kernel defers the next attempt to the task's next step. The number is large enough for a
/// request and its answers, and small enough that a busy peer's task does not delay the others.
pub const ATTEMPTS_PER_STEP: u32 = 32;

/// The number of a task's waits that the kernel answers at once in one step.
///
/// The kernel defers the next wait to the task's next step.
pub const ANSWERS_PER_STEP: u32 = 128;

/// While tasks are ready, the kernel polls the driver at least once in this number of steps.
pub const POLL_EVERY_STEPS: u32 = 64;

/// While tasks are ready, the kernel polls the driver at least once in this time.
///
/// A step that takes longer delays the poll.
pub const POLL_EVERY: Duration = Duration::from_micros(200);

/// The kernel reports a step that takes this long.
pub const LONG_STEP: Duration = Duration::from_millis(200);

/// The time that all tasks together have for cleanup at a shutdown.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The time that the cleanup of an interrupted body may wait on foreign futures alone.
///
/// A kernel cannot interrupt a foreign future, so it drops the body after this time.
pub const FOREIGN_GRACE: Duration = Duration::from_secs(1);

/// The kernel reports cleanup after an interruption that takes this long.
pub const SLOW_CLEANUP: Duration = Duration::from_secs(1);

/// Timers that are due within this time of each other cost one wait. The system allows itself the
/// same for other sleeps (the default of `PR_SET_TIMERSLACK`).
pub const TIMER_SLACK: Duration = Duration::from_micros(50);

/// The settings that the kernel reads after its builder is gone.
#[derive(Debug)]
pub(crate) struct Settings {
    main_name: Box<str>,
    attempts_per_step: u32,
    answers_per_step: u32,
    poll_every_steps: u32,
    long_step: Option<Duration>,
    shutdown_grace: Duration,
    foreign_grace: Duration,
    slow_cleanup: Duration,
    cleanup_limit: Option<Duration>,
    helper_threads: usize,
    helper_idle_exit: Duration,
    peers: Option<Peers>,
    timer_slack: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            main_name: "main".into(),
            attempts_per_step: ATTEMPTS_PER_STEP,
            answers_per_step: ANSWERS_PER_STEP,
            poll_every_steps: POLL_EVERY_STEPS,
            long_step: Some(LONG_STEP),
            shutdown_grace: SHUTDOWN_GRACE,
            foreign_grace: FOREIGN_GRACE,
            slow_cleanup: SLOW_CLEANUP,
            cleanup_limit: None,
            helper_threads: HELPER_THREADS,
            helper_idle_exit: HELPER_IDLE_EXIT,
            peers: None,
            timer_slack: TIMER_SLACK,
        }
    }
}

impl Settings {
    pub(crate) fn main_name(&self) -> &str {
        &self.main_name
    }

    pub(crate) fn quotas(&self) -> Quotas {
        Quotas { attempts: self.attempts_per_step, answers: self.answers_per_step }
    }

    pub(crate) fn graces(&self, rate: Rate) -> Graces {
        Graces {
            foreign: rate.ticks_ceil(self.foreign_grace),
            report: rate.ticks_ceil(self.slow_cleanup),
            cleanup_limit: self.cleanup_limit.map(|limit| rate.ticks_ceil(limit)),
        }
    }

    /// Whether the kernel stops when a task has swallowed an interruption.
    pub(crate) fn stops_if_swallowed(&self) -> bool {
        self.cleanup_limit.is_some()
    }

    pub(crate) fn poll_every_steps(&self) -> u32 {
        self.poll_every_steps
    }

    pub(crate) fn long_step(&self) -> Option<Duration> {
        self.long_step
    }

    pub(crate) fn shutdown_grace(&self) -> Duration {
        self.shutdown_grace
    }

    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    pub(crate) fn set_up(&self, driver: &mut impl Driver) {
        driver.limit_threads(self.helper_threads, self.helper_idle_exit);
        driver.set_timer_slack(self.timer_slack);
    }
}

/// Builds a [`Kernel`](crate::Kernel).
///
/// # Examples
///
/// ```
/// use pikake::Kernel;
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
    /// Replaces the clock, as by a [`ManualClock`](pikake_time::ManualClock) for tests.
    pub fn clock<C2: Clock + 'static>(self, clock: C2) -> Builder<C2, P> {
        let Self { settings, pick, observers, clock: _ } = self;
        Builder { settings, clock, pick, observers }
    }

    /// Replaces the ready queue.
    pub fn pick<P2: Pick + 'static>(self, pick: P2) -> Builder<C, P2> {
        let Self { settings, clock, observers, pick: _ } = self;
        Builder { settings, clock, pick, observers }
    }

    /// Sets the name of the kernel's main tasks. The default is `main`.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.settings.main_name = name.into();
        self
    }

    /// Adds an observer.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Sets the number of attempts on sockets that a task may make in one step, at least one.
    ///
    /// The default is [`ATTEMPTS_PER_STEP`].
    pub fn attempts_per_step(mut self, attempts: u32) -> Self {
        self.settings.attempts_per_step = attempts.max(1);
        self
    }

    /// Sets the number of a task's waits that the kernel answers at once in one step.
    ///
    /// The default is [`ANSWERS_PER_STEP`].
    pub fn answers_per_step(mut self, answers: u32) -> Self {
        self.settings.answers_per_step = answers;
        self
    }

    /// Sets the number of steps, at least one, after which the kernel polls the driver although
    /// tasks are ready.
    ///
    /// The default is [`POLL_EVERY_STEPS`]. A turn makes at most this number of steps.
    #[doc(alias = "event_interval")]
    pub fn poll_every_steps(mut self, steps: u32) -> Self {
        self.settings.poll_every_steps = steps.max(1);
        self
    }

    /// Sets the length from which on the kernel reports a step. With `None` the kernel reports no
    /// step.
    ///
    /// The default is [`LONG_STEP`]. A report has the first 48 bytes of the name of the task, if it
    /// has one.
    pub fn long_step(mut self, length: Option<Duration>) -> Self {
        self.settings.long_step = length;
        self
    }

    /// Sets the time that cleanup may wait on foreign futures alone.
    ///
    /// The default is [`FOREIGN_GRACE`].
    pub fn foreign_grace(mut self, grace: Duration) -> Self {
        self.settings.foreign_grace = grace;
        self
    }

    /// Sets the length from which on the kernel reports cleanup.
    ///
    /// The default is [`SLOW_CLEANUP`].
    pub fn slow_cleanup(mut self, length: Duration) -> Self {
        self.settings.slow_cleanup = length;
        self
    }

    /// Makes it a failure that a task [swallows](pikake_traps::Swallowed) an interruption: the
    /// kernel stops, and [`run`](crate::Kernel::run) panics with the task and both places. So does
    /// a task that goes on for longer than the limit after it caught an interruption, unless it is
    /// inside a shield then; [`Duration::MAX`] is no limit.
    ///
    /// The default is `None`. For tests: `#[pikake::test]` has no limit, and the simulator one of
    /// virtual time. The owner of a kernel that is [turned](crate::Kernel::turn) asks
    /// [`Kernel::swallowed`](crate::Kernel::swallowed).
    ///
    /// # Examples
    ///
    /// ```should_panic
    /// use pikake::{Kernel, sleep, spawn, yield_now};
    /// use std::time::Duration;
    ///
    /// let kernel = Kernel::builder().cleanup_limit(Some(Duration::MAX)).build().unwrap();
    /// kernel.run(async {
    ///     let task = spawn(async {
    ///         loop {
    ///             if let Err(error) = sleep(Duration::from_secs(1)).await {
    ///                 println!("log and continue: {error}");
    ///             }
    ///         }
    ///     });
    ///     yield_now().await.unwrap();
    ///     task.cancel().await.unwrap(); // never returns, in a kernel without this setting
    /// });
    /// ```
    pub fn cleanup_limit(mut self, limit: Option<Duration>) -> Self {
        self.settings.cleanup_limit = limit;
        self
    }

    /// Sets the time that tasks have for cleanup at a shutdown.
    ///
    /// The default is [`SHUTDOWN_GRACE`].
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.settings.shutdown_grace = grace;
        self
    }

    /// Sets the number of closures, at least one, that may run on helper threads at the same time.
    ///
    /// The default is [`HELPER_THREADS`]. Name lookups are among these closures.
    #[doc(alias = "max_blocking_threads")]
    pub fn helper_threads(mut self, limit: usize) -> Self {
        self.settings.helper_threads = limit.max(1);
        self
    }

    /// Sets the time after which an idle helper thread ends.
    ///
    /// The default is [`HELPER_IDLE_EXIT`].
    #[doc(alias = "thread_keep_alive")]
    pub fn helper_idle_exit(mut self, length: Duration) -> Self {
        self.settings.helper_idle_exit = length;
        self
    }

    /// Sets the kernels that this one belongs to. The kernel joins them when it is built.
    ///
    /// [`other_kernels`](crate::other_kernels) in a task of the kernel returns the others. Without
    /// this call the kernel has no peers.
    pub fn peers(mut self, peers: &Peers) -> Self {
        self.settings.peers = Some(peers.clone());
        self
    }

    /// Sets how late a timer may fire so that others fire in the same wake-up.
    ///
    /// The default is [`TIMER_SLACK`]. With a millisecond or more, an idle kernel counts whole
    /// milliseconds, and needs half of the system calls for a timer. Timers fire in the order of
    /// their moments, never early. [`turn`](crate::Kernel::turn) may exceed its limit by the slack.
    /// A kernel with virtual time has none. For single waits there is
    /// [`with_timer_slack`](pikake_traps::with_timer_slack).
    pub fn timer_slack(mut self, slack: Duration) -> Self {
        self.settings.timer_slack = slack;
        self
    }

    pub(crate) fn into_parts(self) -> (Settings, C, P, Vec<Box<dyn Observer>>) {
        let Self { settings, clock, pick, mut observers } = self;
        observers.extend(observers_of_new_kernel());
        if Tracer::is_wanted() {
            observers.push(Box::new(Tracer));
        }
        (settings, clock, pick, observers)
    }
}

//! What can be set about a kernel, and what it is when it is not set.

use std::time::Duration;

/// Attempts on sockets that a task may make in one step. The next one is treated as if it would
/// block, and the task waits for its next step. Large enough for a request and its answers, small
/// enough that a task whose peer never pauses does not hold up the others.
pub const ATTEMPTS_PER_STEP: u32 = 32;

/// Waits of a task that may be answered at once in one step; the next one waits for the next step.
pub const ANSWERS_PER_STEP: u32 = 128;

/// While tasks are ready, the driver is polled at least once in so many steps.
pub const POLL_EVERY_STEPS: u32 = 64;

/// While tasks are ready, the driver is polled at least this often (but for a step that takes
/// longer).
pub const POLL_EVERY: Duration = Duration::from_micros(200);

/// A step that takes so long is reported.
pub const LONG_STEP: Duration = Duration::from_millis(200);

/// How long tasks may clean up when their kernel is shut down, all together.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// How long a body that was told of an interruption may then wait on foreign futures alone, which
/// nobody can tell that they are in the way.
pub const FOREIGN_GRACE: Duration = Duration::from_secs(1);

/// Cleanup after an interruption that takes so long is reported.
pub const SLOW_CLEANUP: Duration = Duration::from_secs(1);

/// Closures that may run on helper threads at the same time; more wait their turn. As many as Curio
/// allows.
pub const HELPER_THREADS: usize = 64;

/// How long a helper thread that has nothing to do waits for more before it ends.
pub const HELPER_IDLE_EXIT: Duration = Duration::from_secs(10);

/// What can be set about a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The name of the main tasks.
    pub(crate) name: Box<str>,
    pub(crate) attempts_per_step: u32,
    pub(crate) answers_per_step: u32,
    pub(crate) poll_every_steps: u32,
    pub(crate) poll_every: Duration,
    pub(crate) long_step: Option<Duration>,
    pub(crate) shutdown_grace: Duration,
    pub(crate) foreign_grace: Duration,
    pub(crate) slow_cleanup: Duration,
    pub(crate) helper_threads: usize,
    pub(crate) helper_idle_exit: Duration,
    /// A watchdog sees to long steps; it counts real time.
    pub(crate) is_watched: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "main".into(),
            attempts_per_step: ATTEMPTS_PER_STEP,
            answers_per_step: ANSWERS_PER_STEP,
            poll_every_steps: POLL_EVERY_STEPS,
            poll_every: POLL_EVERY,
            long_step: Some(LONG_STEP),
            shutdown_grace: SHUTDOWN_GRACE,
            foreign_grace: FOREIGN_GRACE,
            slow_cleanup: SLOW_CLEANUP,
            helper_threads: HELPER_THREADS,
            helper_idle_exit: HELPER_IDLE_EXIT,
            is_watched: false,
        }
    }
}

//! Interrupts a program at each of its suspensions, one per run.
//!
//! | for | use |
//! | --- | --- |
//! | a program that waits on its own kernel only | [`interrupt_everywhere`] |
//! | a program with sockets or threads | [`Injector`], with [`patience`](Injector::patience) |
//! | the interruption of a run, and the numbers of runs | [`Run`], [`Report`] |
//!
//! An interruption is an error that any await may return, so each suspension is a failure path.
//! [`interrupt_everywhere`] tests all of them: it runs the program once to find its suspensions,
//! and then repeatedly, each time in a fresh kernel with one interruption, and checks every run.
//!
//! ```
//! use pikake::sleep;
//! use pikake::testing::interrupt_everywhere;
//! use std::cell::Cell;
//! use std::rc::Rc;
//! use std::time::Duration;
//!
//! const NETWORK_DELAY: Duration = Duration::from_millis(5);
//!
//! /// Moves money from one account to the other, or changes nothing.
//! async fn transfer(from: &Cell<i32>, to: &Cell<i32>) -> Result<(), pikake::Interrupted> {
//!     sleep(NETWORK_DELAY).await?;
//!     from.set(from.get() - 10);
//!     if let Err(interrupted) = sleep(NETWORK_DELAY).await {
//!         sleep(NETWORK_DELAY).await?; // the same cause does not interrupt the rollback
//!         from.set(from.get() + 10);
//!         return Err(interrupted);
//!     }
//!     to.set(to.get() + 10);
//!     Ok(())
//! }
//!
//! let report = interrupt_everywhere(
//!     || async {
//!         let (from, to) = (Cell::new(100), Cell::new(0));
//!         let done = transfer(&from, &to).await;
//!         (done.is_ok(), from.get(), to.get())
//!     },
//!     |run| {
//!         let (done, from, to) = run.output.expect("the program waits on traps only");
//!         assert_eq!((from, to), if done { (90, 10) } else { (100, 0) });
//!     },
//! );
//! assert_eq!(report.suspensions, 2);
//! ```
//!
//! A failed check names the interruption:
//!
//! ```text
//! with a cancel while it waited in suspension 2 of 2, `sleep` at src/bank.rs:14:34:
//! assertion `left == right` failed …
//! ```
//!
//! # Interruptions
//!
//! *The task under test* is the main task: the future that the program creates. Each of its
//! suspensions, that is, each of its traps that is parked, gets
//!
//! * a cancel while it waits: the wait is interrupted;
//! * a cancel when it has its answer, before the next step: the answer counts, and the next wait
//!   is interrupted;
//! * an expiry of a scope around the whole program, at every instant at which the task began to
//!   wait or went on.
//!
//! So each run has exactly one cause. The path that a program takes after an interruption is not
//! interrupted itself.
//!
//! # Checks
//!
//! The closure checks the program's own invariant. Each run also checks that no task
//! [swallows](pikake_traps::Swallowed) an interruption, and the kernel: the program ends; all
//! tasks end after a cancel; and at the end, no socket is open, no wait outstanding and
//! no timer set. The program must not keep sockets in its captured variables.
//!
//! # Time
//!
//! Time is virtual, and advances by one nanosecond when the task under test begins to wait, so each
//! wait has an instant of its own. By default, time jumps as soon as no task is ready, for programs
//! that wait on their own kernel only. A program that uses sockets, helper threads or other threads
//! needs an [`Injector`] with [`patience`](Injector::patience), under which time jumps only after
//! an idle time.
//!
//! Suspensions are identified by their number, so the program should suspend at the same places in
//! each run. Otherwise some runs are not interrupted; [`Report::missed`] counts them.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use pikake_kernel::{Kernel, SHUTDOWN_GRACE};
use pikake_time::Clock;
use pikake_traps::{TaskError, TrapKind, timed};

use crate::checks::CLEANUP_LIMIT;

use self::probe::{Plan, Probe, TestClock, Watching};

mod probe;

/// Runs a program with an interruption at each of its suspensions in turn, and checks each run.
///
/// `program` creates the future of each run. `check` is called when the run is over and all its
/// tasks have ended; it gets the output of the future, and panics if the run is wrong. The first
/// run is not interrupted. The [module](self) documents the interruptions and the other checks.
///
/// # Examples
///
/// See the [module](self).
///
/// # Panics
///
/// If a check fails, with the place of the interruption; inside a running kernel on the same
/// thread; if the process is out of descriptors.
#[track_caller]
pub fn interrupt_everywhere<F: Future>(
    program: impl FnMut() -> F,
    check: impl FnMut(&Run<F::Output>),
) -> Report {
    Injector::new().run(program, check)
}

/// [`interrupt_everywhere`] with settings.
///
/// # Examples
///
/// ```
/// use pikake::net::{UnixStream, interruption};
/// use pikake::testing::Injector;
/// use std::time::Duration;
///
/// let report = Injector::new().patience(Duration::from_millis(1)).run(
///     || async {
///         let (one, other) = UnixStream::pair().unwrap();
///         pikake::spawn(async move { other.write_all(b"hello").await }).detach();
///         let mut buffer = [0; 5];
///         match one.read_exact(&mut buffer).await {
///             Ok(()) => buffer.len(),
///             Err(error) => error.read,
///         }
///     },
///     |run| assert!([Some(0), Some(5)].contains(&run.output)),
/// );
/// assert_eq!(report.suspensions, 1);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "an injector does nothing until `run` is called"]
pub struct Injector {
    patience: Duration,
    cleanup_limit: Option<Duration>,
}

impl Default for Injector {
    fn default() -> Self {
        Self { patience: Duration::ZERO, cleanup_limit: Some(CLEANUP_LIMIT) }
    }
}

impl Injector {
    /// Creates an injector for programs without outside waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the real time to wait for outside events before time jumps to the next timer, for
    /// programs that use sockets, helper threads or other threads.
    ///
    /// A millisecond suffices for sockets whose other end is in the same kernel, twenty for helper
    /// threads and for other processes that answer at once.
    pub fn patience(mut self, length: Duration) -> Self {
        self.patience = length;
        self
    }

    /// Sets the virtual time for which a task may go on after it caught an interruption: 30 seconds
    /// by default, and any length in a program with [`patience`](Self::patience), where time jumps.
    /// With `None`, an interruption that a task [swallows](pikake_traps::Swallowed) is no failure
    /// at all.
    pub fn cleanup_limit(mut self, limit: Option<Duration>) -> Self {
        self.cleanup_limit = limit;
        self
    }

    /// Runs the program and checks it. See [`interrupt_everywhere`].
    ///
    /// # Panics
    ///
    /// As [`interrupt_everywhere`].
    #[track_caller]
    pub fn run<F: Future>(
        self,
        mut program: impl FnMut() -> F,
        mut check: impl FnMut(&Run<F::Output>),
    ) -> Report {
        let first = self.once(Plan::Nothing, None, &mut program, &mut check);
        let suspensions = first.suspensions();
        let steps = 2..=first.steps();
        let instants = first.instants();
        let waiting = (1..=suspensions).map(Plan::CancelWhileWaiting);
        let going_on = steps.map(Plan::CancelGoingOn);
        let expired = instants.into_iter().map(Plan::Expire);
        let mut report = Report { suspensions, cancels: 0, timeouts: 0, missed: 0 };
        for plan in waiting.chain(going_on).chain(expired) {
            let run = self.once(plan, Some(suspensions), &mut program, &mut check);
            match plan {
                _ if !run.has_injected() => report.missed += 1,
                Plan::Expire(_) => report.timeouts += 1,
                _ => report.cancels += 1,
            }
        }
        report
    }

    /// One run: the program, the end of its tasks, the checks.
    #[track_caller]
    fn once<F: Future>(
        self,
        plan: Plan,
        suspensions: Option<usize>,
        program: &mut impl FnMut() -> F,
        check: &mut impl FnMut(&Run<F::Output>),
    ) -> Rc<Probe> {
        let clock = TestClock::new(self.patience);
        let probe = Rc::new(Probe::new(plan, clock.clone()));
        // While the program waits for the outside, time jumps to the end of any limit.
        let cleanup_limit = match self.patience.is_zero() {
            true => self.cleanup_limit,
            false => self.cleanup_limit.map(|_| Duration::MAX),
        };
        let kernel = Kernel::builder()
            .clock(clock.clone())
            .observer(Watching(probe.clone()))
            .cleanup_limit(cleanup_limit)
            .build()
            .unwrap_or_else(|error| panic!("the kernel could not be created: {error}"));
        clock.set_kernel(kernel.handle());
        let expiry = match plan {
            Plan::Expire(instant) => Duration::from_nanos(instant.get()),
            _ => Duration::MAX,
        };
        let ran = kernel.try_run(async { timed(expiry, program()).await });
        let expired = ran.as_ref().is_ok_and(|timed| timed.expired);
        if matches!(plan, Plan::Expire(_)) && expired {
            probe.inject();
        }
        let interruption = probe.interruption(suspensions);
        let fail = |what: &str| -> ! {
            match &interruption {
                Some(interruption) => panic!("with {interruption}:\n{what}"),
                None => panic!("in a run that was not interrupted:\n{what}"),
            }
        };
        let check_swallowed = || {
            let swallowed = kernel.swallowed().filter(|_| self.cleanup_limit.is_some());
            if let Some(swallowed) = swallowed {
                fail(&swallowed.to_string());
            }
        };
        check_swallowed();
        let output = match ran {
            Ok(timed) => timed.output,
            Err(TaskError::Panicked(panic)) => fail(text(&*panic.into_payload())),
            Err(TaskError::Stopped) => fail(&format!("the program does not end: {}", clock.why())),
            Err(_) => None,
        };
        let ended = end_tasks(&kernel, &clock);
        check_swallowed();
        if let Err(tasks) = ended {
            fail(&format!("tasks that were asked to end, and do not: {tasks}"));
        }
        let run = Run { output, interruption: interruption.clone() };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&run))) {
            fail(text(&*panic));
        }
        drop(run);
        let sockets = kernel.socket_count();
        if sockets > 0 {
            fail(&format!("sockets that are still open: {sockets}"));
        }
        let waits = kernel.wait_count();
        if waits > 0 {
            fail(&format!("waits that were never answered or withdrawn: {waits}"));
        }
        kernel.shutdown();
        match kernel.turn(Some(Duration::ZERO)) {
            Ok(turn) if turn.next_deadline.is_none() => {}
            Ok(_) => fail("a timer that is still set"),
            Err(error) => fail(&format!("the kernel cannot be turned any more: {error}")),
        }
        probe
    }
}

/// Cancels all tasks and waits for their end, as a shutdown does. The error is the number of tasks
/// that do not end.
fn end_tasks(kernel: &Kernel<TestClock>, clock: &TestClock) -> Result<(), usize> {
    let grace = clock.after(SHUTDOWN_GRACE);
    if kernel.task_count() > 0 {
        kernel.handle().shutdown().expect("the kernel has not ended");
    }
    while kernel.task_count() > 0 {
        if grace.is_due(clock.now()) || kernel.turn(None).is_err() {
            return Err(kernel.task_count());
        }
    }
    Ok(())
}

/// The text of a panic.
fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

/// The result of one run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Run<T> {
    /// The output of the program. `None` if it was dropped, since it waited on foreign futures
    /// alone when it was interrupted.
    pub output: Option<T>,
    /// The interruption; `None` in the first run.
    pub interruption: Option<Interruption>,
}

/// The interruption of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Interruption {
    /// The kind.
    pub kind: Kind,
    /// The number of the suspension, counted from one.
    pub suspension: usize,
    /// The number of suspensions in the first run.
    pub suspensions: usize,
    /// The trap of the suspension.
    pub trap: TrapKind,
    /// The place of its await.
    pub place: &'static Location<'static>,
}

/// The kinds of interruption.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A cancel while the task waited.
    CancelWhileWaiting,
    /// A cancel when the wait had its answer, before the task's next step.
    CancelGoingOn,
    /// The deadline of a scope around the program, at an instant at which the task began to wait or
    /// went on.
    Timeout,
}

impl Kind {
    /// Whether this is one of the two cancels.
    pub fn is_cancel(self) -> bool {
        matches!(self, Self::CancelWhileWaiting | Self::CancelGoingOn)
    }
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, suspension, suspensions, trap, place } = self;
        let what = match kind {
            Kind::CancelWhileWaiting => "a cancel while it waited in",
            Kind::CancelGoingOn => "a cancel as it went on after",
            Kind::Timeout => "a timeout at",
        };
        write!(f, "{what} suspension {suspension} of {suspensions}, `{trap}` at {place}")
    }
}

/// The numbers of injected interruptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The suspensions of the task under test in the run without interruption.
    pub suspensions: usize,
    /// The runs with a cancel.
    pub cancels: usize,
    /// The runs with a timeout.
    pub timeouts: usize,
    /// The runs whose interruption did not happen: the program took another path, or had ended
    /// before.
    pub missed: usize,
}

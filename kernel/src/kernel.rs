//! A kernel as its owner sees it: build it, run it, shut it down.

pub(crate) mod embedding;

use std::any::TypeId;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{Location, resume_unwind};
use std::rc::Rc;

use pikake_time::{Clock, SystemClock};
use pikake_traps::door::{self, NestedRun, Registration};
use pikake_traps::trigger::{Kind, fire};
use pikake_traps::{
    Home, Interrupted, KernelHandle, Swallowed, TaskError, TaskRef, TrapHandler, borrowing,
};

use crate::builder::Builder;
use crate::driver::{Driver, HelperThreads};
use crate::machine::{Machine, Waiting};
use crate::mio_driver::MioDriver;
use crate::pick::{Fifo, Pick};

/// Executes the traps of the tasks of one thread.
///
/// A kernel stays on the thread it was built on. A kernel may be run again and again; between two
/// runs its other tasks are not stepped. The drop of a kernel drops its tasks without cleanup; call
/// [`shutdown`](Self::shutdown) first to let them clean up.
///
/// # Examples
///
/// ```
/// use pikake::Kernel;
///
/// let kernel = Kernel::new()?;
/// let name = String::from("world");
/// assert_eq!(kernel.run(async { format!("hello {name}") }), "hello world");
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias("Runtime", "LocalRuntime"))]
pub struct Kernel<C = SystemClock, P = Fifo, D = MioDriver>
where
    C: Clock + 'static,
    P: Pick + 'static,
    D: Driver + 'static,
{
    machine: Rc<Machine<D, C, P>>,
    /// The machine, in the type that the door takes.
    handler: Rc<dyn TrapHandler>,
    _registration: Registration,
}

impl Kernel {
    /// A kernel on the system's sockets and clock, with default settings.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }

    /// A builder of a kernel with other settings.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<C: Clock + 'static, P: Pick + 'static> Builder<C, P> {
    /// Builds the kernel on the system's sockets.
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    pub fn build(self) -> io::Result<Kernel<C, P>> {
        let is_real_time = TypeId::of::<C>() == TypeId::of::<SystemClock>();
        Ok(Kernel::assemble(self, MioDriver::new()?, is_real_time))
    }

    /// Builds the kernel on another driver.
    pub fn build_on<D: Driver + 'static>(self, driver: D) -> Kernel<C, P, D> {
        Kernel::assemble(self, driver, false)
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Kernel<C, P, D> {
    fn assemble(builder: Builder<C, P>, mut driver: D, is_real_time: bool) -> Self {
        let (settings, clock, pick, observers) = builder.into_parts();
        settings.set_up(&mut driver);
        let home = Home::open(driver.waker());
        let machine = Machine::new(home, driver, clock, pick, settings, observers, is_real_time);
        let machine = Rc::new(machine);
        machine.owner_left();
        let handler: Rc<dyn TrapHandler> = machine.clone();
        let registration = door::register(handler.clone());
        Self { machine, handler, _registration: registration }
    }

    /// Runs a future as the main task until it ends, and all other tasks beside it.
    ///
    /// The future may borrow from the caller. The other tasks stay when the main task has ended
    /// and go on in the next run.
    ///
    /// # Panics
    ///
    /// With the main task's panic. When the kernel was stopped, or the main task cancelled, before
    /// it returned. When a task has swallowed an interruption, if the kernel has a
    /// [`cleanup_limit`](Builder::cleanup_limit). Inside a running kernel on the same thread. When
    /// the system's readiness queue fails.
    #[doc(alias = "block_on")]
    #[track_caller]
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        match self.try_run(future) {
            Ok(output) => {
                // By the step in which the main task has ended, say.
                self.assert_none_swallowed();
                output
            }
            Err(TaskError::Panicked(panic)) => resume_unwind(panic.into_payload()),
            Err(error) => {
                self.assert_none_swallowed();
                panic!("the main task gave no value: {error}")
            }
        }
    }

    /// Panics if a task has swallowed an interruption, and that stops the kernel.
    #[track_caller]
    pub(crate) fn assert_none_swallowed(&self) {
        if let Some(swallowed) = self.swallowed().filter(|_| self.machine.stops_if_swallowed()) {
            panic!("{swallowed}");
        }
    }

    /// The first interruption that a task of the kernel has swallowed, if one has. In a kernel with
    /// a [`cleanup_limit`](Builder::cleanup_limit) it is the reason of the stop.
    pub fn swallowed(&self) -> Option<&Swallowed> {
        self.machine.local().swallowed()
    }

    /// Runs a future as the main task until it ends, and returns an error if the future gives no
    /// value.
    ///
    /// # Errors
    ///
    /// The main task panicked or was cancelled, or the kernel was stopped before the main task
    /// ended. The future has been dropped.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread. When the system's readiness queue fails.
    #[track_caller]
    pub fn try_run<F: Future>(&self, future: F) -> Result<F::Output, TaskError> {
        let place = Location::caller();
        let machine = &self.machine;
        let run = || {
            let name = Some(machine.main_name().into());
            let outcome =
                borrowing(future, machine.home(), name, place, |main| self.run_main(main));
            if machine.is_shutting_down() && !machine.is_closed() {
                self.close();
            }
            outcome
        };
        match self.enter(run) {
            Ok(outcome) => outcome,
            Err(nested) => panic!("{nested}"),
        }
    }

    /// Runs the kernel until its main task has ended.
    fn run_main(&self, main: &TaskRef) {
        let machine = &self.machine;
        let _run = Run { machine, main };
        if machine.begin_main(main) {
            self.run_until(&|| main.is_ended());
        }
    }

    /// Turns until `is_done` holds or, once a shutdown has begun, until the shutdown is over.
    fn run_until(&self, is_done: &dyn Fn() -> bool) {
        let machine = &self.machine;
        let is_over = || match machine.is_shutting_down() {
            true => machine.is_shut_down(),
            false => is_done(),
        };
        if let Err(error) = machine.run_until(&is_over) {
            panic!("the system's readiness queue failed: {error}");
        }
    }

    /// Calls a closure inside the kernel, between its steps: tasks that the closure spawns are this
    /// kernel's.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::Kernel;
    ///
    /// let kernel = Kernel::new()?;
    /// let task = kernel.enter(|| pikake::spawn(async { 6 * 7 }))?;
    /// assert_eq!(kernel.run(task).unwrap(), 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NestedRun`]: the thread is inside a kernel already.
    pub fn enter<R>(&self, inside: impl FnOnce() -> R) -> Result<R, NestedRun> {
        door::enter(&self.handler, || {
            let _visit = Visit::begin(&self.machine);
            inside()
        })
    }

    /// The tasks that have not ended, the oldest first.
    pub fn tasks(&self) -> Vec<TaskRef> {
        let mut tasks = self.machine.newest_first();
        tasks.reverse();
        tasks
    }

    /// The waits of the tasks that are not ready, in no order.
    ///
    /// The list has all waits that were polled with a combinator's waker. Of a task's other waits
    /// the list has the last one, or all after [`inspect`](Self::inspect). A task that is not ready
    /// and has no wait in the list waits on a foreign future.
    pub fn waits(&self) -> Vec<Waiting> {
        self.machine.waits()
    }

    /// Schedules one more poll of every task and sub-wait, so that [`waits`](Self::waits) shows all
    /// waits, and [the thing](Waiting::about) that each wait is for.
    ///
    /// The list is complete after the next turn.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread.
    #[track_caller]
    pub fn inspect(&self) {
        let inspected = self.enter(|| self.tasks().iter().for_each(TaskRef::inspect));
        if let Err(nested) = inspected {
            panic!("{nested}");
        }
    }

    /// A handle for other threads.
    pub fn handle(&self) -> KernelHandle {
        KernelHandle::new(self.machine.home().shared().clone())
    }

    /// The kernel's clock.
    pub fn clock(&self) -> &C {
        self.machine.clock()
    }

    /// The number of tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.machine.task_count()
    }

    /// The number of waits that have an entry in a table of the kernel, in all tasks together.
    ///
    /// Such waits are sleeps, waits in queues, waits for tasks and waits for sockets. Yields and
    /// waits for foreign futures have no entry.
    pub fn wait_count(&self) -> usize {
        self.machine.wait_count()
    }

    /// The number of open sockets.
    pub fn socket_count(&self) -> usize {
        self.machine.socket_count()
    }

    /// The state of the kernel's helper threads.
    pub fn threads(&self) -> HelperThreads {
        self.machine.driver().threads()
    }

    /// Ends the kernel: asks every task to end, the newest first, and lets them clean up.
    ///
    /// After the shutdown grace the kernel drops the tasks that are left, the newest first. From
    /// then on nothing runs in this kernel; a later `run` reports that its main task was cancelled.
    /// The kernel does not wait for helper threads: a closure that was started runs to its end, and
    /// others are dropped. A second shutdown does nothing.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread.
    #[track_caller]
    pub fn shutdown(&self) {
        let machine = &self.machine;
        let end = || {
            if machine.is_closed() {
                return;
            }
            machine.take_stop();
            machine.begin_shutdown();
            self.run_until(&|| false);
            self.close();
        };
        if let Err(nested) = self.enter(end) {
            panic!("{nested}");
        }
    }

    /// Drops the tasks that are left at the end of a shutdown, and reports them.
    fn close(&self) {
        let dropped = self.machine.drop_all();
        if !dropped.is_empty() {
            let tasks: Vec<String> = dropped.iter().map(|task| format!("{task:?}")).collect();
            fire(Kind::LateShutdown, || {
                let count = match dropped.len() {
                    1 => "1 task".to_owned(),
                    count => format!("{count} tasks"),
                };
                format!("{count} had not ended within the grace: {}", tasks.join(", "))
            });
            tracing::warn!(
                count = dropped.len(),
                tasks = tasks.join(", "),
                "shutdown dropped tasks that had not ended within its grace"
            );
        }
    }
}

/// The time for which the owner is inside the kernel: in a run, a turn, a shutdown or
/// [`Kernel::enter`].
///
/// The drop announces that the owner leaves the kernel, also on unwind.
struct Visit<'a, C: Clock + 'static, P: Pick + 'static, D: Driver + 'static>(&'a Machine<D, C, P>);

impl<'a, C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Visit<'a, C, P, D> {
    fn begin(machine: &'a Machine<D, C, P>) -> Self {
        machine.owner_is_back();
        Self(machine)
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Visit<'_, C, P, D> {
    fn drop(&mut self) {
        self.0.owner_left();
    }
}

/// A main task while its kernel runs. The drop ends the task, also on unwind.
struct Run<'a, C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> {
    machine: &'a Machine<D, C, P>,
    main: &'a TaskRef,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Run<'_, C, P, D> {
    fn drop(&mut self) {
        let stopped = self.machine.take_stop();
        let outcome = match self.machine.is_shutting_down() && !stopped {
            true => TaskError::Cancelled(Interrupted::cancelled("the shutdown's grace was over")),
            false => TaskError::Stopped,
        };
        self.machine.end_main(self.main, outcome);
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Kernel<C, P, D> {
    fn drop(&mut self) {
        let machine = &self.machine;
        let end = || {
            if !machine.is_closed() {
                machine.drop_all();
            }
        };
        // A kernel cannot be entered inside another kernel's task. Its tasks end nevertheless.
        if self.enter(end).is_err() {
            end();
        }
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> fmt::Debug for Kernel<C, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("id", &self.machine.home().id())
            .field("tasks", &self.task_count())
            .field("sockets", &self.socket_count())
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

//! A kernel as its owner sees it: build it, run it, shut it down. Turning it is in `turns.rs`.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::rc::Rc;

use pikake_time::{Clock, SystemClock};
use pikake_traps::door::{self, NestedRun, Registration};
use pikake_traps::{
    Home, Interrupted, KernelHandle, TaskError, TaskRef, TrapHandler, TrapKind, borrowing,
};

use crate::builder::Builder;
use crate::driver::Driver;
use crate::helpers::HelperThreads;
use crate::machine::Machine;
use crate::mio_driver::MioDriver;
use crate::pick::{Fifo, Pick};

/// Executes the traps of the tasks of one thread.
///
/// A kernel stays on the thread it was built on. It may be run again and again; between two runs
/// its other tasks stand still. Dropping it drops its tasks where they stand; call
/// [`shutdown`](Self::shutdown) first to let them clean up.
///
/// # Examples
///
/// ```
/// use pikake_kernel::Kernel;
///
/// let kernel = Kernel::new()?;
/// let name = String::from("world");
/// assert_eq!(kernel.run(async { format!("hello {name}") }), "hello world");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Kernel<C = SystemClock, P = Fifo, D = MioDriver>
where
    C: Clock + 'static,
    P: Pick + 'static,
    D: Driver + 'static,
{
    pub(crate) machine: Rc<Machine<D, C, P>>,
    pub(crate) handler: Rc<dyn TrapHandler>,
    _registration: Registration,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Kernel<C, P, D> {
    pub(crate) fn of(machine: Machine<D, C, P>) -> Self {
        let machine = Rc::new(machine);
        let handler: Rc<dyn TrapHandler> = machine.clone();
        let registration = door::register(handler.clone());
        Self { machine, handler, _registration: registration }
    }
}

/// A wait of a task that is outstanding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The task it was polled by last.
    pub task: TaskRef,
    /// The trap.
    pub trap: TrapKind,
    /// Where that is awaited.
    pub place: &'static Location<'static>,
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

    /// A kernel with other settings.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Kernel<C, P, D> {
    /// Runs a future as the main task until it ends, and everything else beside it.
    ///
    /// The future may borrow from the caller. The other tasks stay when the main task has ended
    /// and go on in the next run.
    ///
    /// # Panics
    ///
    /// With the main task's panic. When the kernel was stopped, or the main task cancelled, before
    /// it returned. Inside a running kernel on the same thread. When the system's readiness queue
    /// fails.
    #[track_caller]
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        match self.try_run(future) {
            Ok(output) => output,
            Err(TaskError::Panicked(panic)) => std::panic::resume_unwind(panic.into_payload()),
            Err(error) => panic!("the main task gave no value: {error}"),
        }
    }

    /// Runs a future as the main task until it ends, and reports why if it gives no value.
    ///
    /// # Errors
    ///
    /// The main task panicked or was cancelled, or the kernel was stopped before it ended; the
    /// future has been dropped.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread. When the system's readiness queue fails.
    #[track_caller]
    pub fn try_run<F: Future>(&self, future: F) -> Result<F::Output, TaskError> {
        let place = Location::caller();
        let machine = &self.machine;
        let run = || {
            let name = Some(machine.settings.name.clone());
            let outcome = borrowing(future, machine.home(), name, place, |main| {
                let run = Run { machine, main };
                if machine.spawn(main) {
                    machine.set_main(Some(main));
                    self.run_until(|| main.is_ended());
                } else {
                    let why = Interrupted::cancelled("the kernel has been shut down");
                    main.abandon(TaskError::Cancelled(why));
                }
                drop(run);
            });
            if machine.is_shutting_down() && !machine.home().is_closed() {
                report(&machine.drop_all());
            }
            outcome
        };
        match door::enter(&self.handler, run) {
            Ok(outcome) => outcome,
            Err(nested) => panic!("{nested}"),
        }
    }

    /// Turns until that is done or, once a shutdown has begun, until that is over.
    fn run_until(&self, is_done: impl Fn() -> bool) {
        let machine = &self.machine;
        let is_over = || match machine.is_shutting_down() {
            true => self.is_shut_down(),
            false => is_done(),
        };
        if let Err(error) = machine.run_until(is_over) {
            panic!("the system's readiness queue failed: {error}");
        }
    }

    /// Calls a closure inside the kernel, between its steps, so that what it spawns is this kernel's.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake_kernel::Kernel;
    ///
    /// let kernel = Kernel::new()?;
    /// let task = kernel.enter(|| pikake_traps::spawn(async { 6 * 7 }))?;
    /// assert_eq!(kernel.run(task).unwrap(), 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NestedRun`]: the thread is inside a kernel already.
    pub fn enter<R>(&self, inside: impl FnOnce() -> R) -> Result<R, NestedRun> {
        let result = door::enter(&self.handler, inside)?;
        if self.machine.has_work() {
            // A foreign loop that watches the kernel's descriptor is to see that there is work.
            self.machine.home().nudge();
        }
        Ok(result)
    }

    /// The tasks that have not ended, the oldest first.
    pub fn tasks(&self) -> Vec<TaskRef> {
        let mut tasks = self.machine.newest_first();
        tasks.reverse();
        tasks
    }

    /// The waits of the tasks that are not ready, in no order: of each task those that were polled by a
    /// combinator's waker, and, of those polled with the task's own, the last one. A task of which none is
    /// shown waits on a foreign future. After [`inspect`](Self::inspect), all.
    pub fn waits(&self) -> Vec<Waiting> {
        self.machine.waits()
    }

    /// Has every task that there is now polled once more, and its waits kept from then on: after the next turn,
    /// [`waits`](Self::waits) shows all of them.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread.
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
        &self.machine.clock
    }

    /// How many tasks have not ended.
    pub fn task_count(&self) -> usize {
        self.machine.task_count()
    }

    /// How many waits have an entry in a table of the kernel, in all tasks together: sleeps, waits in
    /// queues and for tasks, waits for sockets. Not yields, nor waits for foreign futures.
    pub fn wait_count(&self) -> usize {
        self.machine.wait_count()
    }

    /// How many sockets are open.
    pub fn socket_count(&self) -> usize {
        self.machine.sockets.borrow().len()
    }

    /// What the kernel's helper threads are doing.
    pub fn threads(&self) -> HelperThreads {
        self.machine.driver.borrow().threads()
    }

    /// Ends the kernel: asks every task to end, the newest first, lets them clean up for as long
    /// as the shutdown grace, then drops what is left, the newest first.
    ///
    /// Afterwards nothing runs in this kernel any more; a later `run` reports that its main task
    /// was cancelled. Helper threads are not waited for: a closure that was started runs on to its
    /// end, one that was not is dropped. Shutting down twice does nothing.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread.
    pub fn shutdown(&self) {
        let machine = &self.machine;
        let end = || {
            if machine.home().is_closed() {
                return;
            }
            machine.take_stop();
            machine.begin_shutdown();
            self.run_until(|| false);
            report(&machine.drop_all());
        };
        if let Err(nested) = door::enter(&self.handler, end) {
            panic!("{nested}");
        }
    }
}

/// A main task while its kernel runs: whatever ends the run, the kernel forgets it.
struct Run<'a, C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> {
    machine: &'a Machine<D, C, P>,
    main: &'a TaskRef,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Run<'_, C, P, D> {
    fn drop(&mut self) {
        self.machine.set_main(None);
        let stopped = self.machine.take_stop();
        let outcome = match self.machine.is_shutting_down() && !stopped {
            true => TaskError::Cancelled(Interrupted::cancelled("the shutdown's grace was over")),
            false => TaskError::Stopped,
        };
        self.machine.end(self.main, outcome);
    }
}

fn report(dropped: &[TaskRef]) {
    if !dropped.is_empty() {
        let tasks: Vec<String> = dropped.iter().map(|task| format!("{task:?}")).collect();
        tracing::warn!(
            count = dropped.len(),
            tasks = tasks.join(", "),
            "shutdown dropped tasks that had not ended within its grace"
        );
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Kernel<C, P, D> {
    fn drop(&mut self) {
        let machine = &self.machine;
        let end = || {
            if !machine.home().is_closed() {
                machine.drop_all();
            }
        };
        // Inside another kernel's task there is no entering this one; its tasks end all the same.
        if door::enter(&self.handler, end).is_err() {
            end();
        }
    }
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> fmt::Debug for Kernel<C, P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home: &Home = self.machine.home();
        f.debug_struct("Kernel")
            .field("id", &home.id())
            .field("tasks", &self.task_count())
            .field("sockets", &self.socket_count())
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

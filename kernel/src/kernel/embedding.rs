//! A kernel inside a loop that is not its own, one turn at a time.
//!
//! [`Kernel::run`] has a loop of its own and keeps the thread. A program with another loop, as of a
//! user interface or of a simulated world, turns the kernel from there.

use std::future::Future;
use std::io;
#[cfg(not(mio_unsupported_force_poll_poll))]
use std::os::fd::{AsRawFd, RawFd};
use std::panic::Location;
use std::time::Duration;

use pikake_time::{Clock, Deadline};
use pikake_traps::{TaskError, TaskRef, borrowing};

use super::Kernel;
use crate::driver::Driver;
#[cfg(not(mio_unsupported_force_poll_poll))]
use crate::mio_driver::MioDriver;
use crate::pick::Pick;

/// The state of a kernel after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Tasks are ready: turn again without waiting.
    pub is_ready: bool,
    /// A handle asked the kernel to stop
    /// ([`KernelHandle::stop`](pikake_traps::KernelHandle::stop)), so the turn stepped no further
    /// task.
    pub is_stopped: bool,
    /// The moment of the next timer, of the end of a shutdown's grace, or from which on the kernel
    /// begins work that it has offered to others, if there is one.
    pub next_deadline: Option<Deadline>,
    /// The time for which the caller may do something else, unless the kernel's descriptor becomes
    /// readable before. `None` is without limit.
    pub may_wait: Option<Duration>,
    /// The number of tasks that have not ended.
    pub tasks: usize,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Kernel<C, P, D> {
    /// Makes one pass: delivers wakes, fires timers, makes a few steps of ready tasks, and polls
    /// the driver.
    ///
    /// If no task is ready, the driver blocks for at most `limit` (`None`: without limit). The
    /// driver does not block when the main task of [`try_run_by`](Self::try_run_by) has ended.
    ///
    /// A program with a loop of its own turns the kernel with a limit of zero. The program does so
    /// whenever the kernel's descriptor (`AsRawFd`) is readable, and after [`Turn::may_wait`] at
    /// the latest. A [`run`](Self::run) between two turns may set timers, so the program turns the
    /// kernel once after it.
    ///
    /// # Errors
    ///
    /// The system's readiness queue failed, or the thread is inside a kernel already
    /// ([`NestedRun`](pikake_traps::door::NestedRun) inside).
    pub fn turn(&self, limit: Option<Duration>) -> io::Result<Turn> {
        let machine = &self.machine;
        let turned = self.enter(|| machine.turn_once(limit));
        turned.unwrap_or_else(|nested| Err(io::Error::other(nested)))?;
        let is_stopped = machine.take_stop();
        let is_ready = machine.has_work();
        let next_deadline = machine.next_deadline();
        let may_wait = match is_ready {
            true => Some(Duration::ZERO),
            false => machine.clock().idle(next_deadline),
        };
        Ok(Turn { is_ready, is_stopped, next_deadline, may_wait, tasks: machine.task_count() })
    }

    /// Makes a future the main task, and leaves the turns to the caller.
    ///
    /// `drive` is called outside of the kernel with the main task, and [turns](Self::turn) the
    /// kernel until that task has ended. If `drive` returns before, the future is dropped. So a
    /// future that borrows can be the main task of a kernel that is one of many on its thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::Kernel;
    ///
    /// let kernel = Kernel::new()?;
    /// let name = String::from("world");
    /// let greeting = kernel.try_run_by(async { format!("hello {name}") }, |main| {
    ///     while !main.is_ended() {
    ///         kernel.turn(None).expect("the system's readiness queue works");
    ///     }
    /// });
    /// assert_eq!(greeting.unwrap(), "hello world");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The main task panicked or was cancelled, or `drive` returned before the main task had ended.
    ///
    /// # Panics
    ///
    /// Inside a running kernel on the same thread; when `drive` does.
    #[track_caller]
    pub fn try_run_by<F: Future>(
        &self,
        future: F,
        drive: impl FnOnce(&TaskRef),
    ) -> Result<F::Output, TaskError> {
        let place = Location::caller();
        let machine = &self.machine;
        let name = Some(machine.main_name().into());
        borrowing(future, machine.home(), name, place, |main| {
            let _driven = Driven { kernel: self, main };
            match self.enter(|| machine.begin_main(main)) {
                Ok(true) => drive(main),
                Ok(false) => {}
                Err(nested) => panic!("{nested}"),
            }
        })
    }

    /// Whether a shutdown that a handle [asked for](pikake_traps::KernelHandle::shutdown) has
    /// nothing left to wait for: all tasks have ended, or the grace is over.
    ///
    /// An owner turns the kernel until then, and calls [`shutdown`](Self::shutdown) to drop the
    /// tasks that are left.
    pub fn is_shut_down(&self) -> bool {
        self.machine.is_shut_down()
    }
}

/// A main task while the owner turns its kernel. The drop ends the task, also on unwind.
struct Driven<'a, C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> {
    kernel: &'a Kernel<C, P, D>,
    main: &'a TaskRef,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Driven<'_, C, P, D> {
    fn drop(&mut self) {
        let end = || self.kernel.machine.end_main(self.main, TaskError::Stopped);
        // Inside another kernel the task has not begun, and there is nothing to end.
        let _ = self.kernel.enter(end);
    }
}

/// Readable when the kernel has work and is neither run nor turned, so that a foreign loop can
/// watch the descriptor.
///
/// Work is a ready task, a message of another thread, an event of a socket, or work that was
/// offered between two turns. Timers do not show; see [`Turn::may_wait`].
#[cfg(not(mio_unsupported_force_poll_poll))]
impl<C: Clock + 'static, P: Pick + 'static> AsRawFd for Kernel<C, P, MioDriver> {
    fn as_raw_fd(&self) -> RawFd {
        self.machine.driver().as_raw_fd()
    }
}

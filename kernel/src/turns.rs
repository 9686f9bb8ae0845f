//! A kernel that is turned by somebody else's loop, one pass at a time.
//!
//! [`Kernel::run`] has a loop of its own and keeps the thread. Whoever has another one, as a user
//! interface or a simulated world, turns the kernel from there.

use std::future::Future;
use std::io;
#[cfg(not(mio_unsupported_force_poll_poll))]
use std::os::fd::{AsRawFd, RawFd};
use std::panic::Location;
use std::time::Duration;

use pikake_time::{Clock, Deadline};
use pikake_traps::door::{self, NestedRun};
use pikake_traps::{Interrupted, TaskError, TaskRef, TrapHandler, borrowing};

use crate::driver::Driver;
use crate::kernel::Kernel;
#[cfg(not(mio_unsupported_force_poll_poll))]
use crate::mio_driver::MioDriver;
use crate::pick::Pick;

/// What a turn left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Tasks are ready: turn again without waiting.
    pub is_ready: bool,
    /// Somebody asked the kernel to stop ([`KernelHandle::stop`](pikake_traps::KernelHandle::stop)): no further task was stepped.
    pub is_stopped: bool,
    /// When the next timer is due, if there is one.
    pub next_deadline: Option<Deadline>,
    /// How long the caller may do something else, if nothing happens on the kernel's descriptor:
    /// `None` is without limit.
    pub may_wait: Option<Duration>,
    /// How many tasks have not ended.
    pub tasks: usize,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Kernel<C, P, D> {
    /// Makes one pass: delivers wakes, fires timers, makes a few steps of ready tasks, and polls the
    /// driver, blocking at most `limit` if nothing is ready then (`None`: without limit). It does not
    /// block when the main task of [`try_run_by`](Self::try_run_by) has ended.
    ///
    /// So a program with a loop of its own drives a kernel: turn it with a limit of zero whenever
    /// its descriptor (`AsRawFd`) is readable, and after [`Turn::may_wait`] at the latest.
    ///
    /// # Errors
    ///
    /// The system's readiness queue failed, or the thread is inside a kernel already
    /// ([`NestedRun`] inside).
    pub fn turn(&self, limit: Option<Duration>) -> io::Result<Turn> {
        let home = self.machine.home();
        home.wake_up();
        let turned = door::enter(&self.handler, || {
            self.machine.pulse.is_back();
            let turned = self.machine.turn(limit, || false);
            self.machine.pulse.sleeps();
            turned
        });
        turned.unwrap_or_else(|nested: NestedRun| Err(io::Error::other(nested)))?;
        let is_stopped = self.machine.take_stop();
        // From here on a wake must show on the descriptor, until the next turn.
        let is_ready = self.machine.has_work() || !home.fall_asleep();
        let next_deadline = self.machine.next_deadline();
        let may_wait = match is_ready {
            true => Some(Duration::ZERO),
            false => self.machine.clock.idle(next_deadline),
        };
        Ok(Turn { is_ready, is_stopped, next_deadline, may_wait, tasks: self.machine.task_count() })
    }

    /// Makes a future the main task and leaves the turns to the caller; reports why if it gives no
    /// value.
    ///
    /// `drive` is called outside of the kernel with the main task, and [turns](Self::turn) the kernel
    /// until that has ended. If it comes back before, the future is dropped. So a future that borrows
    /// can be the main task of a kernel that is one of many on its thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake_kernel::Kernel;
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
    /// The main task panicked or was cancelled, or `drive` came back before it had ended.
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
        let name = Some(machine.settings.name.clone());
        borrowing(future, machine.home(), name, place, |main| {
            let driven = Driven { kernel: self, main };
            let begin = || {
                let is_taken = machine.spawn(main);
                if is_taken {
                    machine.set_main(Some(main));
                }
                is_taken
            };
            match self.enter(begin) {
                Ok(true) => drive(main),
                Ok(false) => {
                    let why = Interrupted::cancelled("the kernel has been shut down");
                    main.abandon(TaskError::Cancelled(why));
                }
                Err(nested) => panic!("{nested}"),
            }
            drop(driven);
        })
    }

    /// Whether a shutdown that somebody [asked for](pikake_traps::KernelHandle::shutdown) has nothing more to wait
    /// for: all tasks have ended, or the grace is over.
    ///
    /// Who turns the kernel by itself goes on until then, and calls [`shutdown`](Self::shutdown),
    /// which drops what is left.
    pub fn is_shut_down(&self) -> bool {
        self.machine.is_shut_down()
    }
}

/// A main task whose kernel is turned by somebody else: whatever ends that, the kernel forgets it.
struct Driven<'a, C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> {
    kernel: &'a Kernel<C, P, D>,
    main: &'a TaskRef,
}

impl<C: Clock + 'static, P: Pick + 'static, D: Driver + 'static> Drop for Driven<'_, C, P, D> {
    fn drop(&mut self) {
        let machine = &self.kernel.machine;
        let end = || {
            machine.set_main(None);
            machine.end(self.main, TaskError::Stopped);
        };
        // Inside another kernel it was not begun, and there is nothing to end.
        let _ = self.kernel.enter(end);
    }
}

/// Readable when there is something for the kernel to do, so that a foreign loop can watch it.
#[cfg(not(mio_unsupported_force_poll_poll))]
impl<C: Clock + 'static, P: Pick + 'static> AsRawFd for Kernel<C, P, MioDriver> {
    fn as_raw_fd(&self) -> RawFd {
        self.machine.driver.borrow().as_raw_fd()
    }
}

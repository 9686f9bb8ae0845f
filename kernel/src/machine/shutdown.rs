//! The shutdown of a kernel: it asks all tasks to end, and drops those that have not ended in time.

use pikake_time::{Clock, Deadline};
use pikake_traps::{Interrupted, TaskError, TaskRef, catch_and_log};

use crate::driver::Driver;
use crate::machine::{Machine, Phase};
use crate::pick::Pick;

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Asks every task to end, the newest first and the main task last. The kernel takes no new
    /// task from now on.
    pub(crate) fn begin_shutdown(&self) {
        if !matches!(self.phase.get(), Phase::Open) {
            return;
        }
        self.phase.set(Phase::Closing(self.clock.after(self.settings.shutdown_grace())));
        let main = self.main();
        let others = self.newest_first().into_iter().filter(|task| Some(task) != main.as_ref());
        for task in others.chain(main.iter().cloned()) {
            task.request_cancel(Interrupted::cancelled("the kernel is being shut down"));
        }
    }

    /// Whether a shutdown has begun, also if it is over.
    pub(crate) fn is_shutting_down(&self) -> bool {
        !matches!(self.phase.get(), Phase::Open)
    }

    /// Whether a shutdown has nothing left to wait for, or is over.
    pub(crate) fn is_shut_down(&self) -> bool {
        match self.phase.get() {
            Phase::Closing(until) => self.task_count() == 0 || until.is_due(self.clock.now()),
            Phase::Open => false,
            Phase::Closed => true,
        }
    }

    /// Whether the kernel has ended.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase.get(), Phase::Closed)
    }

    /// Drops every task, the newest first, and closes everything. Returns the tasks.
    pub(crate) fn drop_all(&self) -> Vec<TaskRef> {
        self.phase.set(Phase::Closing(Deadline::at(self.pace.last_reading())));
        let dropped = self.newest_first();
        for task in &dropped {
            let reason = Interrupted::cancelled("dropped when the kernel was shut down");
            self.end(task, TaskError::Cancelled(reason));
        }
        while self.pick.pop(self.local.ready()).is_some() {}
        for message in self.home().close() {
            catch_and_log("a message to a kernel that has ended", || drop(message));
        }
        self.phase.set(Phase::Closed);
        let sockets = self.sockets.borrow_mut().clear();
        drop(sockets);
        dropped
    }
}

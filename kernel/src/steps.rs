//! A task's steps and its end; and the end of all of them, when the kernel is shut down.

use pikake_time::Clock;
use pikake_traps::{Exit, Interrupted, TaskError, TaskRef, quietly};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Steps a task that was taken out of the ready queue.
    #[inline(always)]
    pub(crate) fn step(&self, task: TaskRef) {
        if task.is_ended() {
            return;
        }
        let left = if self.times_steps() {
            self.step_timed(task)
        } else {
            self.pulse.step_begins(self.local.step_number(), task.id().0, task.spawned_at());
            let left = self.local.step(task);
            self.pulse.step_is_over();
            left
        };
        if let Some(task) = left {
            self.end_or_forget(&task);
        }
    }

    /// A task has ended, or cannot be told that it is to end.
    #[inline(never)]
    fn end_or_forget(&self, task: &TaskRef) {
        match self.local.is_lost(task) {
            Some(why) => self.end(task, TaskError::Cancelled(why)),
            None => self.forget(task),
        }
    }

    /// Steps a task, times it, and tells observers.
    #[inline(never)]
    fn step_timed(&self, task: TaskRef) -> Option<TaskRef> {
        self.local.before_step(&task, || {
            self.observe_all(|observer| observer.stepping(&task));
        });
        let left = self.local.step(task.clone());
        let took = self.time_since_reading();
        if self.is_poll_due() {
            self.local.call_attention();
        }
        if self.is_long(took) && !self.is_watched() {
            tracing::warn!(
                task = task.id().0,
                name = task.name(),
                spawned_at = %task.spawned_at(),
                took = ?self.clock.rate().duration_floor(took),
                "a step took long: the kernel's other tasks had to wait"
            );
        }
        if !self.observers.is_empty() {
            let took = self.clock.rate().duration_floor(took);
            self.observe_all(|observer| observer.stepped(&task, took));
        }
        left
    }

    /// Forgets a task that has ended, and notifies those who wait for that.
    #[inline]
    fn forget(&self, task: &TaskRef) {
        let removed = self.tasks.borrow_mut().remove(task);
        if let Some((_, joiners)) = &removed
            && !joiners.is_empty()
        {
            self.queues.borrow_mut().notify_all(*joiners, &self.local);
            self.local.call_wakers();
        }
        if self.is_main(task) {
            self.main_has_ended();
        }
        if !self.observers.is_empty() || !task.name().is_empty() {
            self.announce_end(task);
        }
        drop(removed);
    }

    /// Drops a task's future, with the task current, and forgets the task. Between steps.
    pub(crate) fn end(&self, task: &TaskRef, outcome: TaskError) {
        if !task.is_ended() {
            task.abandon(outcome);
            self.forget(task);
        }
    }

    /// Drops the tasks that are not to be stepped any more.
    #[inline]
    pub(crate) fn drop_aborted(&self) {
        loop {
            let aborted = self.aborted.borrow_mut().pop_front();
            let Some((task, why)) = aborted else { return };
            self.end(&task, TaskError::Cancelled(why));
            // The next step is not to be blamed for what that took.
            self.read_clock();
        }
    }

    /// Asks every task to end, the newest first and the main task last, and takes no new one from
    /// now on.
    pub(crate) fn begin_shutdown(&self) {
        if self.closing.replace(true) {
            return;
        }
        self.grace.set(Some(self.clock.after(self.settings.shutdown_grace)));
        let main = self.main();
        let others = self.newest_first().into_iter().filter(|task| Some(task) != main.as_ref());
        for task in others.chain(main.iter().cloned()) {
            task.request_cancel(Interrupted::cancelled("the kernel is being shut down"));
        }
    }

    /// Whether a shutdown has begun, and has nothing more to wait for.
    pub(crate) fn is_shut_down(&self) -> bool {
        let Some(grace) = self.grace.get() else { return false };
        self.task_count() == 0 || grace.is_due(self.clock.now())
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.closing.get()
    }

    pub(crate) fn newest_first(&self) -> Vec<TaskRef> {
        self.tasks.borrow().newest_first()
    }

    /// Drops every task, the newest first, and closes everything. Gives back those dropped.
    pub(crate) fn drop_all(&self) -> Vec<TaskRef> {
        self.closing.set(true);
        let dropped = self.newest_first();
        for task in &dropped {
            let reason = Interrupted::cancelled("dropped when the kernel was shut down");
            self.end(task, TaskError::Cancelled(reason));
        }
        loop {
            let stale = self.pick.pop(self.local.ready());
            if stale.is_none() {
                break;
            }
        }
        for message in self.home().close() {
            quietly("what was sent to a kernel that ended", || drop(message));
        }
        self.grace.set(None);
        let sockets = self.sockets.borrow_mut().clear();
        drop(sockets);
        dropped
    }

    /// Tells observers of a new task, and the watchdog its name.
    #[inline(never)]
    pub(crate) fn announce(&self, task: &TaskRef) {
        if self.is_watched() && !task.name().is_empty() {
            self.pulse.add_name(task.id().0, task.name());
        }
        if !self.observers.is_empty() {
            task.set_observed();
            self.observe_all(|observer| observer.created(task));
        }
    }

    /// Tells observers of a task's end, and the watchdog that its name is used no more.
    #[inline(never)]
    fn announce_end(&self, task: &TaskRef) {
        if self.is_watched() && !task.name().is_empty() {
            self.pulse.remove_name(task.id().0);
        }
        let exit = task.exit().unwrap_or(Exit::Dropped);
        self.observe_all(|observer| observer.exited(task, exit));
    }
}

//! A task's steps and its end; and the end of all of them, when the kernel is shut down.

use pikake_time::Clock;
use pikake_traps::{Exit, Flag, Interrupted, Light, TaskError, TaskRef, TrapHandler, quietly};

use crate::driver::Driver;
use crate::machine::{Machine, task_owner, wake_all};
use crate::pick::Pick;

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Polls a task whose step has begun ([`Book::next_step`]), and ends the step.
    #[inline(always)]
    pub(crate) fn step(&self, task: TaskRef) {
        if task.is_ended() {
            self.book.borrow_mut().stepping = None;
            return;
        }
        self.answers_left.set(self.settings.answers_per_step);
        self.net.attempts_left.set(self.settings.attempts_per_step);
        if !self.observers.is_empty() {
            self.observe_stepping(&task);
        }
        let ended = task.poll();
        let ledger = task.ledger();
        // Before anybody's code runs that may interrupt the task: those that have passed are no more.
        if !ledger.is(Flag::Again) && ledger.light.get() == Light::Parked {
            ledger.light.set(Light::Free);
        }
        self.after_step(&task);
        if ended {
            return self.exit(task);
        }
        if ledger.is(Flag::Troubled) && self.is_lost(&task) {
            return;
        }
        if ledger.clear(Flag::Again) {
            self.book.borrow_mut().make_ready(task);
        }
    }

    #[inline(always)]
    fn after_step(&self, task: &TaskRef) {
        let before = self.last_reading.get();
        let now = self.clock.now();
        self.last_reading.set(now);
        self.steps_since_poll.set(self.steps_since_poll.get() + 1);
        self.answers_left.set(u32::MAX);
        self.net.attempts_left.set(u32::MAX);
        let is_over = self.book.borrow_mut().end_step();
        if !is_over || self.net.has_closed() {
            self.tidy_up();
        }
        let took = now.since(before);
        if took >= self.long_step {
            self.report_long(task, took);
        }
        if !self.observers.is_empty() {
            self.observe_stepped(task, took);
        }
    }

    #[inline(never)]
    fn observe_stepping(&self, task: &TaskRef) {
        self.observe(|observer| observer.stepping(task));
    }

    #[inline(never)]
    fn observe_stepped(&self, task: &TaskRef, took: u64) {
        let took = self.clock.rate().duration_floor(took);
        self.observe(|observer| observer.stepped(task, took));
    }

    /// Does what a step has left to do.
    #[cold]
    fn tidy_up(&self) {
        let after_step = {
            let mut book = self.book.borrow_mut();
            if !book.branch.is_empty() {
                book.release_branch();
            }
            book.stepping = None;
            std::mem::take(&mut book.after_step)
        };
        wake_all(after_step);
        self.flush();
        self.answer_closed();
    }

    #[cold]
    fn report_long(&self, task: &TaskRef, took: u64) {
        let took = self.clock.rate().duration_floor(took);
        tracing::warn!(
            task = task.id().0,
            name = task.name(),
            spawned_at = %task.spawned_at(),
            ?took,
            "a step took long: the kernel's other tasks had to wait"
        );
    }

    /// Whether nobody can tell the task of its interruption; then it is dropped.
    #[cold]
    fn is_lost(&self, task: &TaskRef) -> bool {
        let is_lost = {
            let mut book = self.book.borrow_mut();
            if book.is_untroubled(task) {
                task.ledger().clear(Flag::Troubled);
                self.allow_light_yields(task);
                return false;
            }
            let is_woken = task.ledger().is(Flag::Queued) || task.ledger().is(Flag::Again);
            book.is_to_be_dropped(task_owner(task), is_woken, self.last_reading.get())
        };
        if is_lost {
            let reason = self.book.borrow_mut().reason_of(task);
            let reason = reason.unwrap_or_else(|| Interrupted::cancelled(""));
            self.end(task, TaskError::Cancelled(reason));
        }
        is_lost
    }

    /// Forgets a task that has ended, and lets its joiners go on.
    fn exit(&self, task: TaskRef) {
        let entry = {
            let mut book = self.book.borrow_mut();
            let entry = book.remove_task(&task);
            if let Some(joiners) = task.joiners().index_in(self.home.id()) {
                book.wake_queue(joiners, usize::MAX);
            }
            entry
        };
        self.flush();
        if !self.observers.is_empty() {
            let exit = task.exit().unwrap_or(Exit::Dropped);
            self.observe(|observer| observer.exited(&task, exit));
        }
        drop(entry);
    }

    /// Drops a task's future, with the task current, and forgets the task. Between steps.
    pub(crate) fn end(&self, task: &TaskRef, outcome: TaskError) {
        if task.is_ended() {
            return;
        }
        {
            let mut book = self.book.borrow_mut();
            book.scope = None;
            book.stepping = Some(task.ledger().index.get());
        }
        // What its destructors park does not mix with what it had parked.
        task.ledger().light.set(Light::Off);
        task.abandon(outcome);
        self.book.borrow_mut().stepping = None;
        self.exit(task.clone());
    }

    /// Drops the tasks that are not to be stepped any more. Tells whether there were any.
    pub(crate) fn drop_doomed(&self) -> bool {
        let mut found = false;
        loop {
            let doomed = self.book.borrow_mut().doomed.pop_front();
            let Some(doomed) = doomed else { return found };
            found = true;
            self.end(&doomed.0, TaskError::Cancelled(doomed.1));
            // The next step is not to be blamed for what that took.
            self.last_reading.set(self.clock.now());
        }
    }

    /// Asks every task to end, the newest first and the main task last, and takes no new one from
    /// now on.
    pub(crate) fn begin_shutdown(&self) {
        if self.closing.replace(true) {
            return;
        }
        self.grace.set(Some(self.clock.after(self.settings.shutdown_grace)));
        let main = self.main.borrow().clone();
        let is_main = |task: &TaskRef| main.as_ref().is_some_and(|main| main.is(task));
        let others = self.newest_first().into_iter().filter(|task| !is_main(task));
        for task in others.chain(main.iter().cloned()) {
            self.cancel(&task, Interrupted::cancelled("the kernel is being shut down"));
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

    /// Asks the main task of the current run to end, if there is one.
    pub(crate) fn interrupt_main(&self, reason: Interrupted) {
        let main = self.main.borrow().clone();
        if let Some(main) = main {
            self.cancel(&main, reason);
        }
    }

    /// Whether there is a main task, and it has ended.
    pub(crate) fn is_main_over(&self) -> bool {
        self.main.borrow().as_ref().is_some_and(TaskRef::is_ended)
    }

    /// Names the main task of a run, or that it is over.
    pub(crate) fn set_main(&self, main: Option<&TaskRef>) {
        let before = self.main.replace(main.cloned());
        drop(before);
    }

    pub(crate) fn newest_first(&self) -> Vec<TaskRef> {
        let book = self.book.borrow();
        let mut tasks: Vec<TaskRef> =
            book.tasks.iter().map(|(_, entry)| entry.task.clone()).collect();
        drop(book);
        tasks.sort_by_key(|task| std::cmp::Reverse(task.id()));
        tasks
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
            let stale = self.book.borrow_mut().ready.pop();
            if stale.is_none() {
                break;
            }
        }
        for message in self.home.close() {
            quietly("what was sent to a kernel that ended", || drop(message));
        }
        self.grace.set(None);
        self.net.clear();
        dropped
    }
}

//! The steps of a task, and its end.

use std::ptr;

use pikake_time::Clock;
use pikake_traps::{Exit, TaskError, TaskRef, WaiterList};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::recorder::Recorder;

/// What the machine does beside each step of a pass.
#[derive(Clone, Copy)]
pub(super) enum Beside<'a> {
    Nothing,
    /// The recorder notes the step.
    Records(&'a Recorder),
    /// The machine reads the clock after the step, and shows the step to observers and to the
    /// recorder.
    Times,
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Shows a new task to observers and to the recorder.
    #[inline(never)]
    pub(super) fn announce(&self, task: &TaskRef) {
        if let Some(recorder) = self.recorder.get() {
            recorder.spawned(task, self.pace.last_reading());
        }
        if !self.observers.is_empty() {
            task.set_observed();
            self.observe_all(|observer| observer.created(task));
        }
    }

    /// Steps a task that was taken out of the ready queue, with what the recorder or observers add
    /// to a step.
    #[inline(always)]
    pub(super) fn step(&self, task: TaskRef, beside: Beside<'_>) {
        if task.is_ended_or_named() {
            if task.is_ended() {
                return;
            }
            self.pulse.show_name(task.id().0, task.name());
        }
        let left = match beside {
            Beside::Nothing => self.step_and_show(task, |_| ()),
            Beside::Records(recorder) => {
                let at = self.pace.last_reading();
                self.step_and_show(task, |task| recorder.stepped(task, at, None))
            }
            Beside::Times => self.step_timed(task),
        };
        if let Some(task) = left {
            self.end_or_forget(&task);
        }
    }

    /// Steps a task, shows the step to the watchdog, and then the task to `show`.
    #[inline(always)]
    fn step_and_show(&self, task: TaskRef, show: impl FnOnce(&TaskRef)) -> Option<TaskRef> {
        self.pulse.step_begins(self.local.step_number(), task.id().0, task.spawned_at());
        let left = self.local.step_and_show(task, show);
        self.pulse.step_is_over();
        left
    }

    /// Steps a task, takes the time, and shows both to observers and to the recorder.
    #[inline(never)]
    fn step_timed(&self, task: TaskRef) -> Option<TaskRef> {
        let is_observed = !self.observers.is_empty();
        if is_observed {
            self.local.report_wakes();
            self.local.before_step(&task, || {
                self.observe_all(|observer| observer.stepping(&task));
            });
        }
        let left = self.step_and_show(task.clone(), |_| ());
        if is_observed {
            self.local.report_wakes();
        }
        let before = self.pace.last_reading();
        let now = self.read_clock();
        let ticks = now.since(before);
        self.pace.note_length(ticks);
        let took = || self.clock.rate().duration_floor(ticks);
        if self.pace.is_poll_due() {
            self.local.call_attention();
        }
        if self.pace.is_long(ticks) && !self.is_watched() {
            tracing::warn!(
                task = task.id().0,
                name = task.name(),
                spawned_at = %task.spawned_at(),
                took = ?took(),
                "a step took long: the kernel's other tasks had to wait"
            );
        }
        if let Some(recorder) = self.recorder.get() {
            recorder.stepped(&task, now, Some(ticks));
        }
        self.observe_all(|observer| observer.stepped(&task, took()));
        left
    }

    /// Forgets a task that has ended, or ends one that waits on foreign futures alone and was asked
    /// to end.
    #[inline(never)]
    fn end_or_forget(&self, task: &TaskRef) {
        match self.local.drop_reason(task) {
            Some(why) => self.end(task, TaskError::Cancelled(why)),
            None => self.forget(task),
        }
    }

    /// Drops a task's future, with the task current, and forgets the task. Between steps.
    pub(super) fn end(&self, task: &TaskRef, outcome: TaskError) {
        if !task.is_ended() {
            task.abandon(outcome);
            if let Some(recorder) = self.recorder.get() {
                recorder.ended(task, Exit::Dropped, self.pace.last_reading(), None);
            }
            self.forget(task);
        }
    }

    /// Drops the tasks that were aborted.
    #[inline]
    pub(super) fn drop_aborted(&self) {
        loop {
            let aborted = self.aborted.borrow_mut().pop_front();
            let Some((task, why)) = aborted else { return };
            self.end(&task, TaskError::Cancelled(why));
            // The time of this drop does not count as the next step's.
            self.read_clock();
        }
    }

    /// Forgets a task that has ended, and notifies the tasks that join it.
    #[inline]
    fn forget(&self, task: &TaskRef) {
        let mut removed = self.tasks.borrow_mut().remove(task);
        match &mut removed {
            Some((_, joiners)) if *joiners != WaiterList::EMPTY => {
                let mut queues = self.queues.borrow_mut();
                queues.notify(joiners, usize::MAX, ptr::null(), |_| true, &self.local);
                drop(queues);
                self.local.call_wakers();
            }
            Some(_) | None => {}
        }
        if self.is_main(task) {
            self.main_has_ended.set(true);
            self.local.call_attention();
        }
        if !self.observers.is_empty() {
            self.announce_end(task);
        }
        drop(removed);
    }

    /// Shows a task's end to observers.
    #[inline(never)]
    fn announce_end(&self, task: &TaskRef) {
        let exit = task.exit().unwrap_or(Exit::Dropped);
        self.observe_all(|observer| observer.exited(task, exit));
    }
}

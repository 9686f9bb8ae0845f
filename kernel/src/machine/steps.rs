//! The steps of a task, and its end.

use std::ptr;

use pikake_time::Clock;
use pikake_traps::{Interrupted, TaskError, TaskRef, TrapHandler, WaiterList};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::machine::show::Showing;
use crate::pick::Pick;

/// Does something when it is dropped.
struct OnUnwind<F: Fn()>(F);

impl<F: Fn()> Drop for OnUnwind<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Steps a task that was taken out of the ready queue, and shows the step.
    #[inline(always)]
    pub(super) fn step(&self, task: TaskRef, showing: Showing<'_>) {
        if task.is_ended_or_named() {
            if task.is_ended() {
                return;
            }
            self.show_name(&task);
        }
        if let Some(task) = self.step_and_show(task, showing) {
            self.end_or_forget(&task);
        }
    }

    /// Whether a new task that asks for it makes its first step inside the current one.
    pub(super) fn begins_at_once(&self) -> bool {
        self.local.may_begin_at_once()
            // An abort promises the drop before the next step of any task.
            && self.aborted.borrow().is_empty()
            && self.pick.begins_at_once()
    }

    /// Makes the first step of a task inside the current step, and shows it.
    pub(super) fn step_inside(&self, task: &TaskRef) {
        let ended = OnUnwind(|| {
            // An observer has panicked, and its panic is that of the task around.
            if task.is_ended() {
                self.forget(task);
            } else if task.is_ready() {
                // Perhaps before the step, and then the task is in no list.
                let why = Interrupted::cancelled("an observer has panicked");
                self.abort(task, TaskError::Cancelled(why));
            }
        });
        let left = self.step_inside_and_show(task.clone());
        std::mem::forget(ended);
        if let Some(task) = left {
            self.end_or_forget(&task);
        }
    }

    /// Forgets a task that has ended, or ends one that waits on foreign futures alone and was asked
    /// to end.
    #[inline(never)]
    fn end_or_forget(&self, task: &TaskRef) {
        let is_aborted = |(aborted, _): &(TaskRef, TaskError)| aborted.id() == task.id();
        match self.local.drop_reason(task) {
            // The task ends before the next step, with the outcome of its abort.
            Some(_) if self.aborted.borrow().iter().any(is_aborted) => {}
            Some(why) => self.end(task, TaskError::Cancelled(why)),
            None => self.forget(task),
        }
    }

    /// Drops a task's future, with the task current, and forgets the task. Between steps.
    pub(super) fn end(&self, task: &TaskRef, outcome: TaskError) {
        if !task.is_ended() {
            task.abandon(outcome);
            self.show_drop(task);
            self.forget(task);
        }
    }

    /// Drops the tasks that were aborted.
    #[inline]
    pub(super) fn drop_aborted(&self) {
        loop {
            let aborted = self.aborted.borrow_mut().pop_front();
            let Some((task, outcome)) = aborted else { return };
            self.end(&task, outcome);
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
            self.show_end(task);
        }
        drop(removed);
    }
}

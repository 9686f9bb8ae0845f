//! Steps: the poll, or the drop, of a task's future with the task as the current one.

use std::ptr::{self, NonNull};
use std::task::Context;

use super::Local;
use crate::catch::catch_and_log;
use crate::cause::Cause;
use crate::cause::rules::apply_rules_after_step;
use crate::cell::Header;
use crate::cell::flags::{Exit, Flags};
use crate::cell::reference::TaskRef;
use crate::door;
use crate::interrupt::{Interrupted, TaskError};
use crate::scope::Frame;

impl Local {
    /// Steps a task that was taken out of the ready list and has not ended. Returns the task if it
    /// has ended, or if the kernel must drop it ([`drop_reason`](Self::drop_reason)).
    ///
    /// # Panics
    ///
    /// Inside a step of the same task.
    #[inline(always)]
    pub fn step(&self, task: TaskRef) -> Option<TaskRef> {
        self.step_and_show(task, |_| ())
    }

    /// As [`step`](Self::step), and shows the task after the poll.
    ///
    /// # Panics
    ///
    /// Inside a step of the same task.
    #[inline(always)]
    pub fn step_and_show(&self, task: TaskRef, show: impl FnOnce(&TaskRef)) -> Option<TaskRef> {
        self.step.set(self.step.get() + 1);
        self.step_began.set(self.moment.get());
        self.refill();
        if task.is_watched() {
            self.watch(&task);
        }
        let exit = {
            let _stepping = Stepping::begin(self, &task);
            let waker = task.borrowed_waker();
            let exit = task.poll(&mut Context::from_waker(&waker));
            if let Some(exit) = exit {
                task.flags().set_exit(exit);
                end_alarm_and_locals(&task);
            }
            exit
        };
        show(&task);
        if self.attention.get() {
            self.end_step();
        }
        if exit.is_some() {
            return Some(task);
        }
        if task.flags().has(Flags::AGAIN | Flags::CAUSE) {
            return self.after_step(task);
        }
        None
    }

    /// Does `work` with a task as the current one, right before the task's step. For the kernel's
    /// observers.
    pub fn before_step(&self, task: &TaskRef, work: impl FnOnce()) {
        task.flags().set(Flags::STEPPED);
        let _current = CurrentGuard::set(self, task);
        work();
    }

    /// The reason to drop a task that [`step`](Self::step) returned; `None` if the task has ended.
    /// The kernel must drop a task that was asked to end and waits on foreign futures alone: they
    /// cannot be interrupted.
    pub fn drop_reason(&self, task: &TaskRef) -> Option<Interrupted> {
        if task.is_ended() { None } else { task.cause().map(Cause::why) }
    }

    /// Starts to count the waits and wakes of the current task.
    #[inline(never)]
    pub(crate) fn watch(&self, task: &TaskRef) {
        self.wakes.set(0);
        self.pending.borrow_mut().clear();
        self.branch.set(None);
        if task.flags().has(Flags::INSPECTED) {
            task.begin_inspected_step();
        }
    }

    #[cold]
    fn end_step(&self) {
        let after_step = std::mem::take(&mut *self.after_step.borrow_mut());
        for waker in after_step {
            catch_and_log("a combinator's waker", || waker.wake());
        }
        self.call_collected_wakers();
    }

    #[inline(always)]
    fn after_step(&self, task: TaskRef) -> Option<TaskRef> {
        if task.flags().has(Flags::CAUSE) && apply_rules_after_step(self, &task) {
            return Some(task);
        }
        let flags = task.flags();
        if flags.has(Flags::AGAIN) {
            flags.clear(Flags::AGAIN);
            if flags.has(Flags::QUEUED | Flags::ENDED | Flags::OBSERVED) {
                self.make_watched_ready(&task);
            } else {
                self.ready.push(task);
            }
        }
        None
    }
}

/// A step of a task. The drop ends the step.
struct Stepping<'a> {
    local: &'a Local,
    task: &'a TaskRef,
}

impl<'a> Stepping<'a> {
    #[inline(always)]
    fn begin(local: &'a Local, task: &'a TaskRef) -> Self {
        task.flags().begin_step();
        local.task.set(Some(task.address()));
        Self { local, task }
    }
}

impl Drop for Stepping<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.task.flags().clear(Flags::BUSY);
        self.local.task.set(None);
        self.local.scope.set(ptr::null());
    }
}

/// Makes a task the current one, outside of all scopes, until the guard is dropped.
struct CurrentGuard<'a> {
    local: &'a Local,
    task: Option<NonNull<Header>>,
    scope: *const Frame,
}

impl<'a> CurrentGuard<'a> {
    #[inline(always)]
    fn set(local: &'a Local, task: &TaskRef) -> Self {
        let scope = local.scope.replace(ptr::null());
        Self { local, task: local.task.replace(Some(task.address())), scope }
    }
}

impl Drop for CurrentGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.local.task.set(self.task);
        self.local.scope.set(self.scope);
    }
}

/// Ends the alarm of a task's cause, and drops the task locals, with the task current.
#[inline]
fn end_alarm_and_locals(task: &TaskRef) {
    if let Some(cause) = task.cause() {
        door::reach(task.kernel(), |local| cause.end_alarm(local));
    }
    task.end_locals();
}

impl TaskRef {
    /// Drops the task's future unfinished; a join returns `outcome`.
    ///
    /// For the kernel. A task that has ended keeps its outcome.
    ///
    /// # Panics
    ///
    /// When called from inside the same task's poll.
    pub fn abandon(&self, outcome: TaskError) {
        if self.is_ended() {
            return;
        }
        // Asserted before the task counts as ended: a panic must not leave an ended task with a
        // future.
        self.assert_idle();
        self.flags().set_exit(Exit::Dropped);
        while_current(self, || {
            self.drop_future(outcome);
            end_alarm_and_locals(self);
        });
    }

    /// Ends the task without another step. See [`Task::abort`](crate::Task::abort).
    pub fn request_abort(&self, reason: Interrupted) {
        door::reach(self.kernel(), |local| local.kernel().abort(self, reason));
    }
}

/// Does `work`, with a task as the current one if the thread is inside the task's kernel.
fn while_current(task: &TaskRef, work: impl FnOnce()) {
    let mut work = Some(work);
    door::try_with(|local| {
        if local.id != task.kernel() {
            return;
        }
        if let Some(work) = work.take() {
            let _current = CurrentGuard::set(local, task);
            work();
        }
    });
    if let Some(work) = work {
        work();
    }
}

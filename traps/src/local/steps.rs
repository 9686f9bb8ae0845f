//! Steps: the poll, or the drop, of a task's future with the task as the current one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use super::Local;
use crate::cause::Cause;
use crate::cause::rules::apply_rules_after_step;
use crate::cell::flags::{Exit, Flags};
use crate::cell::reference::TaskRef;
use crate::door;
use crate::interrupt::{Interrupted, TaskError};
use crate::seen::SeenWait;
use crate::step::{Quotas, Step};

/// The number of steps that may go on, one inside the other. A task that would begin at once inside
/// the last one begins later: each such step is on the thread's stack.
const STEPS_AT_ONCE: usize = 8;

impl Local {
    /// Steps a task that was taken out of the ready list and has not ended. Returns the task if it
    /// has ended, or if the kernel must drop it ([`drop_reason`](Self::drop_reason)).
    ///
    /// The step may be inside a step of another task, which goes on afterwards with what is left of
    /// its quotas.
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
        self.step_with(task, show, |_| ())
    }

    /// As [`step`](Self::step), and shows the task after the step if the task has ended, or is not
    /// ready again.
    ///
    /// # Panics
    ///
    /// Inside a step of the same task.
    #[inline(always)]
    pub fn step_and_show_stop(
        &self,
        task: TaskRef,
        show: impl FnOnce(&TaskRef),
    ) -> Option<TaskRef> {
        self.step_with(task, |_| (), show)
    }

    #[inline(always)]
    fn step_with(
        &self,
        task: TaskRef,
        show: impl FnOnce(&TaskRef),
        show_stop: impl FnOnce(&TaskRef),
    ) -> Option<TaskRef> {
        match self.step.is_going_on() {
            true => self.step_inside(task, show, show_stop),
            false => self.step_alone(task, self.quotas, show, show_stop),
        }
    }

    /// Whether a step may be made inside the current one: there is one, the steps that go on are
    /// few, and the thread does not unwind. The drop of a task between two steps is no step.
    pub fn may_begin_at_once(&self) -> bool {
        (1..STEPS_AT_ONCE).contains(&self.step.depth()) && !thread::panicking()
    }

    /// Does `inner` with the current step set aside.
    fn set_aside<R>(&self, inner: impl FnOnce() -> R) -> R {
        // What is polled within is polled at a moment of its own.
        self.moments.next();
        self.step.set_aside(|| {
            self.step.wakers_before.set(self.wakers.after_step());
            inner()
        })
    }

    /// Makes a step inside another one.
    #[inline(never)]
    fn step_inside(
        &self,
        task: TaskRef,
        show: impl FnOnce(&TaskRef),
        show_stop: impl FnOnce(&TaskRef),
    ) -> Option<TaskRef> {
        self.share_quotas(|left| self.step_alone(task, left, show, show_stop))
    }

    /// Does `inner` with the current step, if there is one, set aside. Both have what it has left
    /// of its quotas.
    fn share_quotas<R>(&self, inner: impl FnOnce(Quotas) -> R) -> R {
        if !self.step.is_going_on() {
            return self.set_aside(|| inner(self.quotas));
        }
        let left = self.step.left();
        let (result, left) = self.set_aside(|| (inner(left), self.step.left()));
        self.step.set_left(left);
        result
    }

    /// Makes a step where none goes on.
    #[inline(always)]
    fn step_alone(
        &self,
        task: TaskRef,
        quotas: Quotas,
        show: impl FnOnce(&TaskRef),
        show_stop: impl FnOnce(&TaskRef),
    ) -> Option<TaskRef> {
        let number = self.steps.get() + 1;
        self.steps.set(number);
        let exit = {
            let _stepping = Stepping::begin(self, &task, number, quotas);
            let waker = task.borrowed_waker();
            let exit = task.poll(&mut Context::from_waker(&waker));
            if let Some(exit) = exit {
                task.flags().set_exit(exit);
                end_alarm_and_locals(&task);
            }
            exit
        };
        // A cause that comes up from now on is for the next step, for which the task is ready.
        let is_flagged = task.flags().has(Flags::CAUSE) && task.cause().is_some();
        show(&task);
        if self.needs_attention() {
            self.end_step();
        }
        if exit.is_some() {
            show_stop(&task);
            return Some(task);
        }
        if is_flagged && apply_rules_after_step(self, &task) {
            return Some(task);
        }
        if task.flags().has(Flags::AGAIN) {
            self.make_ready_again(task);
            return None;
        }
        show_stop(&task);
        None
    }

    #[inline(always)]
    fn make_ready_again(&self, task: TaskRef) {
        let flags = task.flags();
        flags.clear(Flags::AGAIN);
        if flags.has(Flags::QUEUED | Flags::ENDED | Flags::OBSERVED) {
            self.make_watched_ready(&task);
        } else {
            self.ready.push(task);
        }
    }

    /// See [`TaskRef::poll_ahead`].
    #[inline]
    fn poll_ahead<F: Future + ?Sized>(
        &self,
        task: &TaskRef,
        future: Pin<&mut F>,
    ) -> Poll<F::Output> {
        let Some(around) = self.step.polled_task() else { return Poll::Pending };
        let is_taken = task.flags().has(Flags::BUSY | Flags::ENDED | Flags::CAUSE);
        if is_taken || around.flags().has(Flags::CAUSE) || thread::panicking() {
            return Poll::Pending;
        }
        // The poll is a part of the task's next step: a cancel from now on is an interruption.
        task.flags().set(Flags::STEPPED);
        let number = self.step.number();
        self.share_quotas(|left| {
            self.step.begin_ahead(task, number, self.moments.last(), left);
            future.poll(&mut Context::from_waker(Waker::noop()))
        })
    }

    /// Has a combinator poll a wait again that was polled ahead, and so is parked nowhere.
    #[cold]
    pub(crate) fn poll_again_after_ahead(&self, waker: &Waker) {
        if !waker.will_wake(Waker::noop()) {
            self.wakers.add_after_step(waker.clone());
        }
    }

    /// Does `work` with a task as the current one, outside of all scopes.
    fn while_current(&self, task: &TaskRef, work: impl FnOnce()) {
        struct Ending<'a>(&'a Step);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }

        self.share_quotas(|left| {
            self.step.begin_aside(task, self.steps.get(), self.moments.last(), left);
            let _ending = Ending(&self.step);
            work();
        });
    }

    /// Does `work` with a task as the current one, right before the task's step. For the kernel's
    /// observers.
    pub fn before_step(&self, task: &TaskRef, work: impl FnOnce()) {
        task.flags().set(Flags::STEPPED);
        self.while_current(task, work);
    }

    /// The reason to drop a task that [`step`](Self::step) returned; `None` if the task has ended.
    /// The kernel must drop a task that was asked to end and waits on foreign futures alone: they
    /// cannot be interrupted.
    pub fn drop_reason(&self, task: &TaskRef) -> Option<Interrupted> {
        if task.is_ended() { None } else { task.cause().map(Cause::why) }
    }

    /// Counts the waits and wakes of the step of a task that is watched.
    #[inline(never)]
    fn watch(&self, task: &TaskRef) {
        self.step.watch();
        if task.flags().has(Flags::INSPECTED) {
            task.begin_inspected_step();
        }
    }

    #[cold]
    fn end_step(&self) {
        let before = self.step.wakers_before.get();
        // A waker may make a step, which must not change what this one has counted.
        self.set_aside(|| {
            self.wakers.call_after_step(before);
            self.call_collected_wakers();
        });
    }

    /// The task whose future is being polled or dropped; `None` between steps.
    pub fn current(&self) -> Option<TaskRef> {
        self.step.task().map(|task| TaskRef::clone(&task))
    }

    /// The number of the last step.
    #[inline(always)]
    pub fn step_number(&self) -> u64 {
        self.steps.get()
    }

    /// Notes a pending poll of a wait or a shield of the current task, with the task's own waker.
    /// Returns the moment of the poll.
    #[inline(always)]
    pub(crate) fn note_pending(&self, task: &TaskRef) -> u64 {
        if !task.is_watched() {
            return self.moments.last();
        }
        let moment = self.moments.next();
        self.step.note_pending(moment);
        moment
    }

    /// Spends one of the attempts that the current task may make in this step; `false`: none is
    /// left. Outside of steps, where an attempt delays no task, there is no limit.
    #[inline(always)]
    pub fn take_attempt(&self) -> bool {
        !self.step.is_going_on() || self.step.take_attempt()
    }

    /// Spends one of the answers that the current task may get at once in this step; `false`: none
    /// is left. Outside of steps there is no limit.
    #[inline(always)]
    pub fn take_answer(&self) -> bool {
        !self.step.is_going_on() || self.step.take_answer()
    }

    /// Shows every pending wait that was polled with a combinator's waker.
    pub fn each_sub_wait(&self, show: impl FnMut(&TaskRef, SeenWait)) {
        self.sub_waits.each(show);
    }
}

/// A step of a task. The drop ends the step.
struct Stepping<'a> {
    local: &'a Local,
    task: &'a TaskRef,
}

impl<'a> Stepping<'a> {
    #[inline(always)]
    fn begin(local: &'a Local, task: &'a TaskRef, number: u64, quotas: Quotas) -> Self {
        task.flags().begin_step();
        if task.is_watched() {
            local.watch(task);
        }
        local.step.begin(task, number, local.moments.last(), quotas);
        Self { local, task }
    }
}

impl Drop for Stepping<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.task.flags().clear(Flags::BUSY);
        self.local.step.end();
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

    /// Polls a future up to its first wait, ahead of the task's step and inside the current one.
    /// `Pending`: the future has come to a wait, or was not polled. The task must then go on with
    /// it: the future is for this task, whether or not it was polled here.
    ///
    /// For work that only might have to wait, and that one task does again and again: where it does
    /// not wait, it costs no step. The poll is a part of the task's next step:
    ///
    /// * The task is the current one, with its number, name and locals, and in none of the scopes
    ///   around. So neither an interruption nor a deadline of the task around reaches the future.
    /// * No trap is executed that is polled by the waker of this poll, or by that of a combinator
    ///   inside: it returns `Pending`, and begins in the step of the task that goes on
    ///   with the future. A scope is opened, and its deadline counts from here.
    /// * The waker of the poll does nothing. A foreign future that keeps it gets the task's own at
    ///   its next poll. The wakers of combinators inside are called after the current step, for the
    ///   waits that did not begin.
    /// * A panic of the future is the caller's.
    ///
    /// The future is not polled outside of steps, in the drop of a task by its kernel, while the
    /// thread unwinds, if this task has ended, is being polled or was asked to end, and if the
    /// current task was asked to end, or one of its deadlines has passed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::{current, sleep, spawn};
    /// use std::cell::Cell;
    /// use std::pin::Pin;
    /// use std::rc::Rc;
    /// use std::time::Duration;
    ///
    /// type Work = Pin<Box<dyn Future<Output = ()>>>;
    ///
    /// # pikake::run(async {
    /// let given = Rc::new(Cell::new(None::<Work>));
    /// let taken = given.clone();
    /// let task = spawn(async move { taken.take().expect("given before the first step").await });
    /// let id = task.id();
    ///
    /// let mut work: Work = Box::pin(async move {
    ///     assert_eq!(current().id(), id); // inside the call of `poll_ahead`
    ///     sleep(Duration::from_millis(1)).await.unwrap();
    ///     assert_eq!(current().id(), id); // in a step of the task
    /// });
    /// assert!(task.task_ref().poll_ahead(work.as_mut()).is_pending());
    /// given.set(Some(work));
    /// task.await.unwrap();
    /// # });
    /// ```
    #[inline]
    pub fn poll_ahead<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let polled = door::try_with(|local| match local.id() == self.kernel() {
            true => local.poll_ahead(self, future),
            false => Poll::Pending,
        });
        polled.unwrap_or(Poll::Pending)
    }

    /// Ends the task without another step. See [`Task::abort`](crate::Task::abort).
    pub fn request_abort(&self, reason: Interrupted) {
        // Its work must not begin elsewhere meanwhile.
        self.ends_unbegun();
        let outcome = TaskError::Cancelled(reason);
        door::reach(self.kernel(), |local| local.kernel().abort(self, outcome));
    }
}

/// Does `work`, with a task as the current one if the thread is inside the task's kernel.
fn while_current(task: &TaskRef, work: impl FnOnce()) {
    let mut work = Some(work);
    door::try_with(|local| {
        if local.id() != task.kernel() {
            return;
        }
        if let Some(work) = work.take() {
            local.while_current(task, work);
        }
    });
    if let Some(work) = work {
        work();
    }
}

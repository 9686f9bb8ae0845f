//! The current step: the task that is being polled or dropped, and all that belongs to that poll.
//!
//! A [`Step`] is one value. A step inside another one sets the outer one aside, on the stack of the
//! code that makes the inner step, and the guard puts it back, also on unwind. So the inner step
//! changes nothing of the outer one, but what is counted for the outer task meanwhile.

use std::cell::{Cell, RefCell};
use std::iter::successors;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::cause::Branch;
use crate::cell::Header;
use crate::cell::reference::TaskRef;
use crate::scope::Frame;

/// Marks a moment in [`Step::pending`]: the wait that was polled then is over.
const OVER: u64 = 1 << 63;

/// The limits of a step. The steps inside it have what it has left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quotas {
    /// Attempts on sockets.
    pub attempts: u32,
    /// Waits that are answered at once.
    pub answers: u32,
}

/// A step of a task. Between two steps, the last one, without a task.
#[derive(Default)]
pub(crate) struct Step {
    /// The task whose future is being polled or dropped.
    task: Cell<Option<NonNull<Header>>>,
    /// The innermost scope that is being polled.
    scope: Cell<Option<NonNull<Frame>>>,
    /// Whether the kernel has taken the task to poll it.
    is_poll: Cell<bool>,
    number: Cell<u64>,
    /// The last moment before the step began.
    began: Cell<u64>,
    left: Cell<Quotas>,
    /// The number of wakes of the task; counted only for a watched task.
    wakes: Cell<u32>,
    /// The moments of the pending polls of waits and shields with the task's own waker. A moment is
    /// marked [`OVER`] when its wait ends. Kept only for a watched task.
    pending: RefCell<Vec<u64>>,
    pub(crate) branch: Cell<Option<Branch>>,
    /// Whether a future is being polled ahead of its task's step, so that no trap is executed.
    is_ahead: Cell<bool>,
    /// The number of wakers to call after a step that were there before.
    pub(crate) wakers_before: Cell<usize>,
    /// The step that was set aside for this one.
    around: Cell<Option<NonNull<Step>>>,
}

impl Step {
    /// The task, as an uncounted reference, which must not outlive the step.
    #[inline(always)]
    pub(crate) fn task(&self) -> Option<ManuallyDrop<TaskRef>> {
        let task = self.task.get()?;
        // SAFETY: the code that set the pointer holds a reference to the task until it resets the
        // pointer, on every path, on this thread. The reference made here is not counted, and not
        // dropped.
        Some(ManuallyDrop::new(unsafe { TaskRef::from_header(task) }))
    }

    /// Whether a task is being polled or dropped.
    #[inline(always)]
    pub(crate) fn is_going_on(&self) -> bool {
        self.task.get().is_some()
    }

    /// Begins a step of a task with these quotas, where none goes on. `moment` is the last one.
    #[inline(always)]
    pub(crate) fn begin(&self, task: &TaskRef, number: u64, moment: u64, quotas: Quotas) {
        self.number.set(number);
        self.began.set(moment);
        self.left.set(quotas);
        self.is_poll.set(true);
        self.task.set(Some(task.address()));
    }

    /// Begins the drop of a task, or a look at one, where no step goes on. It has the number of the
    /// last step.
    pub(crate) fn begin_aside(&self, task: &TaskRef, number: u64, moment: u64, quotas: Quotas) {
        self.begin(task, number, moment, quotas);
        self.is_poll.set(false);
    }

    /// Begins a poll ahead of a task's step, where no step goes on. It has the number of the step
    /// around.
    #[inline(always)]
    pub(crate) fn begin_ahead(&self, task: &TaskRef, number: u64, moment: u64, quotas: Quotas) {
        self.begin(task, number, moment, quotas);
        self.is_ahead.set(true);
    }

    /// Ends the step. What was counted stays until the next one begins.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.task.set(None);
        self.scope.set(None);
    }

    /// Does `inner` with the step set aside.
    pub(crate) fn set_aside<R>(&self, inner: impl FnOnce() -> R) -> R {
        struct Aside<'a>(&'a Step, Step);
        impl Drop for Aside<'_> {
            fn drop(&mut self) {
                self.0.swap(&self.1);
            }
        }

        let aside = Aside(self, Self::default());
        self.swap(&aside.1);
        self.around.set(Some(NonNull::from(&aside.1)));
        inner()
    }

    fn swap(&self, other: &Self) {
        self.task.swap(&other.task);
        self.scope.swap(&other.scope);
        self.is_poll.swap(&other.is_poll);
        self.number.swap(&other.number);
        self.wakers_before.swap(&other.wakers_before);
        self.began.swap(&other.began);
        self.left.swap(&other.left);
        self.wakes.swap(&other.wakes);
        self.pending.swap(&other.pending);
        self.branch.swap(&other.branch);
        self.is_ahead.swap(&other.is_ahead);
        self.around.swap(&other.around);
    }

    /// The task of the step, if it is being polled.
    #[inline(always)]
    pub(crate) fn polled_task(&self) -> Option<ManuallyDrop<TaskRef>> {
        if self.is_poll.get() { self.task() } else { None }
    }

    /// Whether the current poll is ahead of its task's step.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_ahead.get()
    }

    /// This step, and those that were set aside for it, the innermost first.
    fn stack(&self) -> impl Iterator<Item = &Self> {
        successors(Some(self), |step| {
            // SAFETY: a step that was set aside is on the stack of `set_aside` until the inner step
            // has ended and `around` is reset. It does not move, and is only shared.
            step.around.get().map(|step| unsafe { step.as_ref() })
        })
    }

    /// The step of a task, if the task is being polled or dropped.
    pub(crate) fn of(&self, task: &TaskRef) -> Option<&Self> {
        self.stack().find(|step| step.task.get() == Some(task.address()))
    }

    /// The number of polls that go on, one inside the other.
    pub(crate) fn depth(&self) -> usize {
        self.stack().filter(|step| step.is_going_on() && step.is_poll.get()).count()
    }

    /// What is left of the quotas.
    pub(crate) fn left(&self) -> Quotas {
        self.left.get()
    }

    /// Sets what is left of the quotas.
    pub(crate) fn set_left(&self, left: Quotas) {
        self.left.set(left);
    }

    /// The number of the step.
    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        self.number.get()
    }

    /// The last moment before the step began.
    pub(crate) fn began(&self) -> u64 {
        self.began.get()
    }

    /// The innermost scope that is being polled.
    pub(crate) fn innermost(&self) -> Option<&Frame> {
        // SAFETY: a frame is in the chain for the length of its poll only, during which its future
        // lends it out. The returned borrow cannot outlive that of `self`, and code that is polled
        // inside of the scope borrows the step for less than that poll.
        self.scope.get().map(|scope| unsafe { scope.as_ref() })
    }

    /// Sets the innermost scope to a frame that is being polled, and returns the previous one.
    #[inline(always)]
    pub(crate) fn replace_scope(&self, scope: Option<NonNull<Frame>>) -> Option<NonNull<Frame>> {
        self.scope.replace(scope)
    }

    /// Spends one of the attempts that the task may make in this step; `false`: none is left.
    #[inline(always)]
    pub(crate) fn take_attempt(&self) -> bool {
        let left = self.left.get();
        self.left.set(Quotas { attempts: left.attempts.saturating_sub(1), ..left });
        left.attempts > 0
    }

    /// Spends one of the answers that the task may get at once in this step; `false`: none is left.
    #[inline(always)]
    pub(crate) fn take_answer(&self) -> bool {
        let left = self.left.get();
        self.left.set(Quotas { answers: left.answers.saturating_sub(1), ..left });
        left.answers > 0
    }

    /// Begins the notes about a task that is watched at the beginning of its step.
    pub(crate) fn watch(&self) {
        self.wakes.set(0);
        self.watch_from_now();
    }

    /// Begins the notes about a task that becomes watched within its step. The count of wakes goes
    /// on, since the cause for which the task is watched wakes it.
    pub(crate) fn watch_from_now(&self) {
        self.pending.borrow_mut().clear();
        self.branch.set(None);
    }

    /// Counts a wake of the task.
    pub(crate) fn count_wake(&self) {
        self.wakes.set(self.wakes.get() + 1);
    }

    #[inline(always)]
    pub(crate) fn wakes(&self) -> u32 {
        self.wakes.get()
    }

    pub(crate) fn note_pending(&self, moment: u64) {
        self.pending.borrow_mut().push(moment);
    }

    /// Marks the wait whose last poll was at this moment, in whichever step that was: it is over,
    /// dropped, or polled again.
    pub(crate) fn forget_pending(&self, moment: u64) {
        for step in self.stack() {
            let mut pending = step.pending.borrow_mut();
            if let Ok(index) = pending.binary_search_by_key(&moment, |noted| *noted & !OVER) {
                pending[index] |= OVER;
            }
        }
    }

    /// Whether the wait or shield that was polled at this moment of the step is pending.
    pub(crate) fn is_pending(&self, moment: u64) -> bool {
        let pending = self.pending.borrow();
        let found = pending.binary_search_by_key(&moment, |noted| *noted & !OVER);
        found.is_ok_and(|index| pending[index] & OVER == 0)
    }

    /// Whether a wait or a shield that was polled after this moment is pending.
    pub(crate) fn has_pending_since(&self, moment: u64) -> bool {
        let mut pending = self.pending.borrow_mut();
        while pending.last().is_some_and(|noted| noted & OVER != 0) {
            pending.pop();
        }
        pending.last().is_some_and(|noted| *noted > moment)
    }
}

/// The counter of moments: a scope was opened, a cause came up, or, in a watched task, a poll of a
/// wait was pending.
#[derive(Default)]
pub(crate) struct Moments(Cell<u64>);

impl Moments {
    /// Counts one more moment, and returns its number.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        let moment = self.0.get() + 1;
        self.0.set(moment);
        moment
    }

    /// The number of the last moment.
    #[inline(always)]
    pub(crate) fn last(&self) -> u64 {
        self.0.get()
    }
}

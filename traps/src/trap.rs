//! Traps as typed values, and the one future that hands them over.
//!
//! [`kernel_trap`] is the only future of pikake's own that returns `Pending` (I2). Every other
//! wait, in this crate and above, awaits it. A [`Trap`] is a [`Wait`] with the type of its answer,
//! so a sleep cannot be answered like a read.
//!
//! A poll takes one of two ways. With the task's own waker, in a task that is not watched, the poll
//! begins or collects the wait, and does nothing else. Otherwise [`poll_watched`] does the same out
//! of line, and also handles other wakers, causes and observers.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use pikake_time::Deadline;

use crate::cause::{Branch, Query};
use crate::cell::flags::Flags;
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::interrupt::Interrupted;
use crate::local::Local;
use crate::names::{KernelId, TaskId, TrapKind, WaitKey};
use crate::seen::{About, SeenThing};
use crate::sub_waits::{NodeKind, Under};
use crate::wait::{Begun, Collected, Until, Wait, WaitEvent, Waiter};

/// A request of a task to its kernel that may have to wait.
pub trait Trap {
    /// The output of the trap's future.
    type Answer;

    /// The slot for a result of the kernel: `()` if the kernel only ends the wait, or an
    /// [`Outcome`](crate::Outcome).
    type Given: Default;

    /// The wait for the kernel: always the same one.
    fn wait<'a>(&'a mut self, given: &'a mut Self::Given) -> Wait<'a>;

    /// Turns the kernel's result into the trap's answer.
    fn answer(&mut self, result: Result<Self::Given, Interrupted>) -> Self::Answer;

    /// The thing that the trap waits for, such as a lock or a task, for listings. Called at a
    /// pending poll of an [inspected](crate::TaskRef::inspect) task.
    fn about(&self) -> Option<About> {
        None
    }

    /// Called when the drop or the interruption of a waiting trap has withdrawn the wait. Permits
    /// that were granted to the wait are free again; if the kernel has ended since, they still
    /// count as granted ([`WaitQueue::recover`](crate::WaitQueue::recover)).
    fn left(&mut self) {}
}

/// Hands a trap to the kernel that runs the current task, and waits for the answer.
///
/// The kernel executes the trap on the first poll, for the task that polls. Another task of the
/// same kernel may have made the future.
///
/// # Examples
///
/// ```
/// use pikake::Interrupted;
/// use pikake::traps::{SleepTrap, Until, kernel_trap};
/// use std::time::Duration;
///
/// async fn nap() -> Result<(), Interrupted> {
///     kernel_trap(SleepTrap::new(Until::After(Duration::from_millis(5)))).await
/// }
/// # pikake::sim::example(nap()).unwrap();
/// ```
///
/// # Cancellation
///
/// The drop of a waiting trap withdraws it, without an effect. The documentation of each trap says
/// how interruption affects it.
///
/// # Panics
///
/// When polled outside a kernel, outside a task, in another kernel than before, or again after the
/// answer.
#[track_caller]
#[inline]
pub fn kernel_trap<T: Trap>(trap: T) -> KernelTrap<T> {
    kernel_trap_at(trap, Location::caller())
}

/// [`kernel_trap`], reported as awaited at `place`.
#[inline]
pub fn kernel_trap_at<T: Trap>(trap: T, place: &'static Location<'static>) -> KernelTrap<T> {
    KernelTrap {
        trap,
        state: State {
            kernel: KernelId::NONE,
            sub_wait: SubWait::NONE,
            task: TaskId(0),
            key: Key::NEVER,
            stamp: 0,
            place,
        },
        _home: PhantomData,
    }
}

/// The future of [`kernel_trap`].
///
/// The future cannot leave its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(pikake::yield_now());
/// ```
#[must_use = "a trap does nothing until it is awaited"]
pub struct KernelTrap<T: Trap> {
    trap: T,
    state: State,
    /// The future belongs to its kernel's thread, where the drop withdraws the wait.
    _home: PhantomData<*const ()>,
}

/// The state of a trap.
struct State {
    /// The kernel where the trap waits; [`KernelId::NONE`] if new, [`KernelId::FINISHED`] if
    /// answered.
    kernel: KernelId,
    /// The trap's node, if its last poll had another waker than the task's own.
    sub_wait: SubWait,
    /// The task of the last poll.
    task: TaskId,
    key: Key,
    /// The moment of the last pending poll.
    stamp: u64,
    place: &'static Location<'static>,
}

/// The end of a wait: an entry in one of the kernel's tables, the next step, or neither.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u64);

impl Key {
    /// Marks a wait for the task's next step.
    const STEP: u64 = 1 << 63;
    /// No event that the kernel knows ends the wait.
    const NEVER: Self = Self(u64::MAX);

    /// A wait for the task's next step: the current step's number, and the task's count of steps,
    /// each without its high bits.
    #[inline(always)]
    fn step(local: &Local, task: &TaskRef) -> Self {
        let steps = u64::from(task.flags().steps()) << 32;
        Self(Self::STEP | steps | u64::from(local.step_number() as u32))
    }

    #[inline(always)]
    fn is_step(self) -> bool {
        self.0 & Self::STEP != 0 && self != Self::NEVER
    }

    /// Whether the wait began in the current step.
    #[inline(always)]
    fn is_this_step(self, local: &Local) -> bool {
        self.0 as u32 == local.step_number() as u32
    }

    /// Whether the wait began in the task's step before the current one.
    fn is_last_step_of(self, task: &TaskRef) -> bool {
        let steps = (self.0 >> 32) as u32 & 0x3fff;
        steps.wrapping_add(1) & 0x3fff == task.flags().steps()
    }

    #[inline(always)]
    fn as_entry(self) -> Option<WaitKey> {
        (self.0 < WaitKey::LIMIT).then_some(WaitKey(self.0))
    }
}

/// The result of beginning or collecting a wait.
#[derive(Clone, Copy)]
enum Progress {
    Answered,
    Pending(Key),
}

impl Progress {
    #[inline(always)]
    fn of(begun: Begun, local: &Local, task: &TaskRef) -> Self {
        match begun {
            Begun::Answered => Self::Answered,
            Begun::Entry(WaitKey(key)) => Self::Pending(Key(key)),
            Begun::NextStep => Self::Pending(Key::step(local, task)),
            Begun::Never => Self::Pending(Key::NEVER),
        }
    }
}

/// Begins a wait.
#[inline(always)]
fn begin(wait: Wait<'_>, local: &Local, waiter: &Waiter) -> Progress {
    match wait {
        Wait::Yield => Progress::Pending(Key::step(local, waiter.task())),
        Wait::Foreign(_) => Progress::Pending(Key::NEVER),
        Wait::Join(joined) if joined.is_ended() => match local.take_answer() {
            true => Progress::Answered,
            false => Progress::Pending(Key::step(local, waiter.task())),
        },
        wait => Progress::of(local.kernel().begin(wait, waiter), local, waiter.task()),
    }
}

/// Collects the answer of a wait that has begun.
#[inline(always)]
fn collect(wait: Wait<'_>, key: Key, local: &Local, waiter: &Waiter) -> Progress {
    match (wait, key.is_step()) {
        (_, true) if key.is_this_step(local) => Progress::Pending(key),
        (Wait::Yield, _) | (Wait::Sleep(_), true) => Progress::Answered,
        // The kernel had deferred the wait to this step.
        (wait, true) => begin(wait, local, waiter),
        (wait, false) => match key.as_entry() {
            None => Progress::Pending(key),
            Some(entry) => match local.kernel().collect(wait, entry, waiter) {
                Collected::Answered => Progress::Answered,
                Collected::Pending => Progress::Pending(key),
                Collected::Entry(WaitKey(key)) => Progress::Pending(Key(key)),
                Collected::NextStep => Progress::Pending(Key::step(local, waiter.task())),
            },
        },
    }
}

impl<T: Trap> KernelTrap<T> {
    /// The trap.
    #[inline]
    pub fn trap(&self) -> &T {
        &self.trap
    }

    /// Sets the place that is reported for the wait, if the wait has not begun.
    pub(crate) fn set_place(&mut self, place: &'static Location<'static>) {
        if self.state.kernel == KernelId::NONE {
            self.state.place = place;
        }
    }

    /// Withdraws a waiting trap, so that the next poll executes the trap anew.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.is_waiting() {
            withdraw(&mut self.trap, &mut self.state);
        }
        self.state.kernel = KernelId::NONE;
    }

    /// Ends a foreign trap whose future is ready, as a wait that was satisfied.
    #[inline]
    pub(crate) fn finish_satisfied(&mut self) {
        if self.is_waiting() {
            self.end_satisfied();
        }
        self.state.kernel = KernelId::NONE;
    }

    #[inline(never)]
    fn end_satisfied(&mut self) {
        let kind = self.trap.wait(&mut T::Given::default()).kind();
        door::try_with_task(|local, task| {
            if task.flags().has(Flags::CAUSE) {
                local.set_branch(self.state.branch(task));
            }
            if task.flags().has(Flags::OBSERVED) {
                let event = WaitEvent::Over { interrupted: false };
                local.kernel().observe(task, kind, event);
            }
            if task.flags().has(Flags::INSPECTED) {
                task.note_move();
            }
        });
        withdraw(&mut self.trap, &mut self.state);
    }

    #[inline]
    fn is_waiting(&self) -> bool {
        self.state.kernel != KernelId::NONE && self.state.kernel != KernelId::FINISHED
    }
}

/// Withdraws a waiting trap.
#[inline(never)]
fn withdraw<T: Trap>(trap: &mut T, state: &mut State) {
    door::reach(state.kernel, |local| {
        local.forget_pending(state.stamp);
        if let Some(key) = state.key.as_entry() {
            local.kernel().withdraw(trap.wait(&mut T::Given::default()), key);
        }
        state.free_sub_wait(local);
    });
    trap.left();
}

impl State {
    /// The branch that the wait leaves behind; `None` if another task polled the wait last.
    fn branch(&self, task: &TaskRef) -> Option<Branch> {
        (self.task == task.id()).then_some(Branch::of(self.stamp))
    }

    fn free_sub_wait(&mut self, local: &Local) {
        let node = std::mem::replace(&mut self.sub_wait, SubWait::NONE);
        if !node.is_none() {
            local.sub_waits().free(node);
        }
    }
}

/// Panics because a trap was polled where it cannot be executed.
#[cold]
#[inline(never)]
#[track_caller]
fn panic_misplaced(kind: TrapKind, state: &State) -> ! {
    let State { kernel, place, .. } = *state;
    let what = format!("the trap `{kind}` (at {place})");
    match door::current_kernel() {
        None => door::panic_outside_kernel(&what),
        _ if kernel == KernelId::FINISHED => {
            panic!("{what} was polled after it had answered")
        }
        Some(other) if kernel != KernelId::NONE && kernel != other => panic!(
            "{what} waits in kernel {kernel} and was polled in kernel \
             {other}: a future that has started to wait stays with its kernel"
        ),
        Some(_) => door::panic_outside_task(&what),
    }
}

// The trap is never pinned.
impl<T: Trap> Unpin for KernelTrap<T> {}

impl<T: Trap> Future for KernelTrap<T> {
    type Output = T::Answer;

    // A misplaced poll panics at the line of the `await`.
    #[track_caller]
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Answer> {
        let Self { trap, state, .. } = &mut *self;
        let polled = door::try_with_task(|local, task| {
            let mut given = T::Given::default();
            if state.kernel != KernelId::NONE && state.kernel != local.id() {
                return None;
            }
            if task.is_watched() || !task.owns(cx.waker()) || !state.sub_wait.is_none() {
                let polled = poll_watched(trap, &mut given, state, local, task, cx);
                return Some(polled.map(|result| trap.answer(result.map(|()| given))));
            }
            let waiter = &*Waiter::uncounted(task);
            let wait = trap.wait(&mut given);
            let kind = wait.kind();
            let progress = if state.kernel == KernelId::NONE {
                begin(wait, local, waiter)
            } else {
                collect(wait, state.key, local, waiter)
            };
            let key = match progress {
                Progress::Answered => {
                    state.kernel = KernelId::FINISHED;
                    return Some(Poll::Ready(trap.answer(Ok(given))));
                }
                Progress::Pending(key) => key,
            };
            state.kernel = local.id();
            state.task = task.id();
            state.key = key;
            state.stamp = local.moment();
            if key.is_step() {
                local.make_ready_after_step(task);
            }
            task.set_wait(kind, state.place);
            Some(Poll::Pending)
        });
        match polled.flatten() {
            Some(polled) => polled,
            None => panic_misplaced(trap.wait(&mut T::Given::default()).kind(), state),
        }
    }
}

/// Whether a wait for the next step is satisfied there, rather than begun anew.
fn ends_with_step(kind: TrapKind) -> bool {
    matches!(kind, TrapKind::Yield | TrapKind::Sleep)
}

/// Polls a trap with a combinator's waker, or in a task that is watched.
#[inline(never)]
fn poll_watched<T: Trap>(
    trap: &mut T,
    given: &mut T::Given,
    state: &mut State,
    local: &Local,
    task: &TaskRef,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Interrupted>> {
    let kind = trap.wait(given).kind();
    let is_new = state.kernel == KernelId::NONE;
    let is_interruptible = kind != TrapKind::Elapse;
    let is_flagged = task.flags().has(Flags::CAUSE);
    if is_interruptible && !is_new {
        local.set_branch(None);
        local.forget_pending(state.stamp);
    }

    let is_sub_wait = !task.owns(cx.waker());
    if is_sub_wait {
        let under = local.enclosing(task);
        let kind = NodeKind::Wait(kind, state.place);
        let waker = Some(cx.waker());
        state.sub_wait = local.sub_waits().bind(state.sub_wait, under, task, waker, kind);
        if is_new {
            // If the kernel panics, the drop frees the node.
            (state.kernel, state.key) = (local.id(), Key::NEVER);
        }
    }
    let sub_wait = if is_sub_wait { state.sub_wait } else { SubWait::NONE };
    let waiter = Waiter::new(task, sub_wait);
    let progress = match is_new {
        true => begin(trap.wait(given), local, &waiter),
        false => collect(trap.wait(given), state.key, local, &waiter),
    };
    if !is_sub_wait {
        state.free_sub_wait(local);
    }

    let branch = if is_new { local.branch() } else { state.branch(task) };
    let query = Query::new(branch);
    let answer = match progress {
        Progress::Answered => {
            // A wait for the next step returns a cause that came up before that step began.
            let may_return_cause = !is_new
                && is_flagged
                && ends_with_step(kind)
                && state.key.is_step()
                && state.task == task.id()
                && state.key.is_last_step_of(task);
            let due = match may_return_cause {
                true => local.collect_due(task, &query.before(local.step_began())),
                false => None,
            };
            if due.is_none() && is_interruptible && is_flagged && !is_new {
                local.set_branch(branch);
            }
            Some(due.map_or(Ok(()), Err))
        }
        Progress::Pending(key) => {
            state.key = key;
            let due =
                if is_interruptible && is_flagged { local.collect_due(task, &query) } else { None };
            if due.is_some() {
                if let Some(entry) = key.as_entry() {
                    local.kernel().withdraw(trap.wait(given), entry);
                    trap.left();
                }
            }
            due.map(Err)
        }
    };
    if (is_new || answer.is_some()) && task.flags().has(Flags::INSPECTED) {
        task.note_move();
    }
    if let Some(answer) = answer {
        state.kernel = KernelId::FINISHED;
        state.free_sub_wait(local);
        if !is_new && task.flags().has(Flags::OBSERVED) {
            let event = WaitEvent::Over { interrupted: answer.is_err() };
            local.kernel().observe(task, kind, event);
        }
        return Poll::Ready(answer);
    }

    state.kernel = local.id();
    state.task = task.id();
    let sub_wait_waker = match state.key.is_step() {
        true => local.sub_waits().take_waker(state.sub_wait),
        false => None,
    };
    state.stamp = match is_interruptible && (!is_sub_wait || sub_wait_waker.is_some()) {
        true => local.note_pending(task),
        // A new moment: `forget_pending` with a stamp of another wait would mark that wait.
        false => local.next_moment(),
    };
    if is_interruptible {
        local.set_branch(None);
    }
    match sub_wait_waker {
        Some(waker) => local.call_after_step(waker),
        None if state.key.is_step() => local.make_ready_after_step(task),
        None => {}
    }
    if !is_sub_wait {
        task.set_wait(kind, state.place);
    }
    if task.flags().has(Flags::INSPECTED) {
        let about = match trap.wait(given) {
            Wait::Sleep(until) | Wait::Elapse(until) => {
                about_moment(local, until, is_new, state.key)
            }
            _ => trap.about(),
        };
        let seen = (about, SeenThing::of(&trap.wait(given)));
        local.note_seen(task, is_sub_wait.then_some(state.sub_wait), (kind, state.place), seen);
    }
    if is_new && task.flags().has(Flags::OBSERVED) {
        local.kernel().observe(task, kind, WaitEvent::Begins(state.place));
    }
    Poll::Pending
}

/// The description of a wait for a moment.
fn about_moment(local: &Local, until: Until, is_new: bool, key: Key) -> Option<About> {
    let kernel = local.kernel();
    let at = match until {
        Until::At(at) => at,
        Until::After(length) if is_new => {
            Deadline::at(kernel.now().saturating_add(kernel.rate().ticks_ceil(length)))
        }
        Until::After(_) if key == Key::NEVER => Deadline::NEVER,
        Until::After(_) if key.is_step() => Deadline::at(kernel.now()),
        Until::After(_) => kernel.due(key.as_entry()?)?,
    };
    if at.is_never() {
        return Some(About::new("timer that never fires"));
    }
    let left = kernel.rate().duration_ceil(at.ticks().since(kernel.now()));
    Some(About::new(match left.is_zero() {
        true => "timer, due".to_owned(),
        false => format!("timer, {left:?} left"),
    }))
}

impl Local {
    /// The owner around a sub-wait that the current task polls now.
    fn enclosing(&self, task: &TaskRef) -> Under {
        match self.innermost() {
            Some(scope) => Under::Scope(scope.node(self, task)),
            None => Under::Task,
        }
    }
}

impl<T: Trap> Drop for KernelTrap<T> {
    #[inline]
    fn drop(&mut self) {
        if self.is_waiting() {
            withdraw(&mut self.trap, &mut self.state);
        }
    }
}

impl<T: Trap + fmt::Debug> fmt::Debug for KernelTrap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state.kernel {
            KernelId::NONE => "new",
            KernelId::FINISHED => "finished",
            _ => "waiting",
        };
        f.debug_struct("KernelTrap").field("trap", &self.trap).field("state", &state).finish()
    }
}

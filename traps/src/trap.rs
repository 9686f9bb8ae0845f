//! Traps as typed values, and the one future that hands them over.
//!
//! [`kernel_trap`] is the only future of pikake's own that returns `Pending` (I2). Every other
//! wait, in this crate and above, awaits it. A [`Trap`] is the typed face of a [`Wait`]: it knows
//! what its answer looks like, so that a sleep cannot be answered like a read.
//!
//! A poll takes one of two ways. If it comes with the task's own waker, and the task is not watched,
//! the wait is begun or collected and nothing else happens. Otherwise the same is done out of line
//! ([`poll_watched`]), with what is asked besides: which waker, is a cause due, does an observer look.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::cause::{Asked, Branch};
use crate::cell::flags::Flags;
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::interrupt::Interrupted;
use crate::local::Local;
use crate::names::{KernelId, SeenWait, TaskId, TrapKind, WaitKey};
use crate::sub_waits::{Under, What};
use crate::wait::{Begun, Collected, Wait, WaitEvent, Waiter};

/// Something a task asks of its kernel and may have to wait for.
pub trait Trap {
    /// What awaiting the trap gives.
    type Answer;

    /// Where the kernel puts what it gives besides having waited: `()` for nothing, or an
    /// [`Outcome`](crate::Outcome).
    type Given: Default;

    /// What the kernel is handed: always the same wait.
    fn wait<'a>(&'a mut self, given: &'a mut Self::Given) -> Wait<'a>;

    /// Turns what the kernel gave into the trap's answer.
    fn answer(&mut self, result: Result<Self::Given, Interrupted>) -> Self::Answer;

    /// What it waits for, in words for a listing: which lock, which task. Asked when somebody
    /// [looks](crate::TaskRef::inspect), at a poll that is pending.
    fn about(&self) -> Option<String> {
        None
    }

    /// Called when the trap was taken back while it waited: its future was dropped or interrupted. What was
    /// granted to the wait is free again; a kernel that has ended since cannot tell what that was
    /// ([`WaitQueue::recover`](crate::WaitQueue::recover)).
    fn left(&mut self) {}
}

/// Hands a trap to the kernel that runs the current task, and waits for the answer.
///
/// The trap is executed on the first poll. A future that was made in one task and is polled in
/// another one of the same kernel acts for the one that polls it.
///
/// # Examples
///
/// ```
/// use pikake_traps::{Interrupted, SleepTrap, Until, kernel_trap};
/// use std::time::Duration;
///
/// async fn nap() -> Result<(), Interrupted> {
///     kernel_trap(SleepTrap::new(Until::After(Duration::from_millis(5)))).await
/// }
/// # pikake_sim::example(nap()).unwrap();
/// ```
///
/// # Cancellation
///
/// Dropped while it waits, the trap is taken back: it has no effect any more. What a trap does
/// about interruption is said in its own specification.
///
/// # Panics
///
/// When polled outside a kernel, outside a task, in another kernel than before, or again after it
/// gave its answer.
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
/// It cannot leave its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(pikake_traps::yield_now());
/// ```
#[must_use = "a trap does nothing until it is awaited"]
pub struct KernelTrap<T: Trap> {
    trap: T,
    state: State,
    /// It belongs to its kernel's thread, where it must be dropped to be taken back.
    _home: PhantomData<*const ()>,
}

/// How far a trap is, apart from what it is.
struct State {
    /// The kernel where it waits; none: it is new; or it has answered.
    kernel: KernelId,
    /// Its node, if it was polled last with another waker than the task's own.
    sub_wait: SubWait,
    /// The task that polled it last.
    task: TaskId,
    key: Key,
    /// The moment of its last pending poll.
    stamp: u64,
    place: &'static Location<'static>,
}

/// What ends a wait: an entry in one of the kernel's tables, or something that needs none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u64);

impl Key {
    /// The step after this one.
    const STEP: u64 = 1 << 63;
    /// Nothing that the kernel knows.
    const NEVER: Self = Self(u64::MAX);

    /// The step after this one: the step's number, and how often the task was stepped, each as far as
    /// there is room.
    #[inline(always)]
    fn step(local: &Local, task: &TaskRef) -> Self {
        let steps = u64::from(task.flags().steps()) << 32;
        Self(Self::STEP | steps | u64::from(local.step_number() as u32))
    }

    #[inline(always)]
    fn is_step(self) -> bool {
        self.0 & Self::STEP != 0 && self != Self::NEVER
    }

    /// Whether it began in the current step.
    #[inline(always)]
    fn is_this_step(self, local: &Local) -> bool {
        self.0 as u32 == local.step_number() as u32
    }

    /// Whether it began in the last step before the current one of the task that polls it.
    fn is_last_step_of(self, task: &TaskRef) -> bool {
        let steps = (self.0 >> 32) as u32 & 0x3fff;
        steps.wrapping_add(1) & 0x3fff == task.flags().steps()
    }

    /// The entry.
    #[inline(always)]
    fn as_entry(self) -> Option<WaitKey> {
        (self.0 < WaitKey::LIMIT).then_some(WaitKey(self.0))
    }
}

/// What a wait came to when it was asked.
#[derive(Clone, Copy)]
enum Asking {
    Answered,
    Pending(Key),
}

impl Asking {
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

/// Asks for the first time.
#[inline(always)]
fn begin(wait: Wait<'_>, local: &Local, waiter: &Waiter) -> Asking {
    match wait {
        Wait::Yield => Asking::Pending(Key::step(local, waiter.task())),
        Wait::Foreign(_) => Asking::Pending(Key::NEVER),
        Wait::Join(joined) if joined.is_ended() => match local.take_answer() {
            true => Asking::Answered,
            false => Asking::Pending(Key::step(local, waiter.task())),
        },
        wait => Asking::of(local.kernel().begin(wait, waiter), local, waiter.task()),
    }
}

/// Asks again.
#[inline(always)]
fn ask(wait: Wait<'_>, key: Key, local: &Local, waiter: &Waiter) -> Asking {
    match (wait, key.is_step()) {
        (_, true) if key.is_this_step(local) => Asking::Pending(key),
        (Wait::Yield, _) | (Wait::Sleep(_), true) => Asking::Answered,
        // It was put off, and is begun now.
        (wait, true) => begin(wait, local, waiter),
        (wait, false) => match key.as_entry() {
            None => Asking::Pending(key),
            Some(entry) => match local.kernel().collect(wait, entry, waiter) {
                Collected::Answered => Asking::Answered,
                Collected::Pending => Asking::Pending(key),
                Collected::Entry(WaitKey(key)) => Asking::Pending(Key(key)),
                Collected::NextStep => Asking::Pending(Key::step(local, waiter.task())),
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

    /// Has the wait reported as awaited there, if it has not begun.
    pub(crate) fn await_at(&mut self, place: &'static Location<'static>) {
        if self.state.kernel == KernelId::NONE {
            self.state.place = place;
        }
    }

    /// Takes the trap back if it waits, so that the next poll executes it anew.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.is_waiting() {
            withdraw(&mut self.trap, &mut self.state);
        }
        self.state.kernel = KernelId::NONE;
    }

    /// What a foreign trap stands for is there: takes it back, as a wait that was satisfied.
    #[inline]
    pub(crate) fn satisfied(&mut self) {
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
        });
        withdraw(&mut self.trap, &mut self.state);
    }

    #[inline]
    fn is_waiting(&self) -> bool {
        self.state.kernel != KernelId::NONE && self.state.kernel != KernelId::FINISHED
    }
}

/// Takes back a trap that waits.
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
    /// What the wait leaves to the branch that goes on; nothing if another task polled it last.
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
fn out_of_place(kind: TrapKind, state: &State) -> ! {
    let State { kernel, place, .. } = *state;
    match door::current_kernel() {
        None => door::outside(&format!("the trap `{kind}`"), place),
        _ if kernel == KernelId::FINISHED => {
            panic!("the trap `{kind}` (at {place}) was polled after it had answered")
        }
        Some(other) if kernel != KernelId::NONE && kernel != other => panic!(
            "the trap `{kind}` (at {place}) waits in kernel {kernel} and was polled in kernel \
             {other}: a future that has started to wait stays with its kernel"
        ),
        Some(_) => door::outside_a_task(kind, place),
    }
}

// The trap is only ever used by reference and by value, never pinned.
impl<T: Trap> Unpin for KernelTrap<T> {}

impl<T: Trap> Future for KernelTrap<T> {
    type Output = T::Answer;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Answer> {
        let Self { trap, state, .. } = &mut *self;
        let polled = door::try_with_task(|local, task| {
            let mut given = T::Given::default();
            if task.is_watched() || !task.owns(cx.waker()) || !state.sub_wait.is_none() {
                let polled = poll_watched(trap, &mut given, state, local, task, cx);
                return polled.map(|result| trap.answer(result.map(|()| given)));
            }
            let waiter = &*Waiter::lent(task);
            let wait = trap.wait(&mut given);
            let kind = wait.kind();
            let asking = if state.kernel == KernelId::NONE {
                begin(wait, local, waiter)
            } else if state.kernel == local.id() {
                ask(wait, state.key, local, waiter)
            } else {
                out_of_place(kind, state)
            };
            let key = match asking {
                Asking::Answered => {
                    state.kernel = KernelId::FINISHED;
                    return Poll::Ready(trap.answer(Ok(given)));
                }
                Asking::Pending(key) => key,
            };
            state.kernel = local.id();
            state.task = task.id();
            state.key = key;
            state.stamp = local.moment();
            if key.is_step() {
                local.ask_again(task);
            }
            task.set_wait(kind, state.place);
            Poll::Pending
        });
        match polled {
            Some(polled) => polled,
            None => out_of_place(trap.wait(&mut T::Given::default()).kind(), state),
        }
    }
}

/// Whether a wait that waits for the next step is over in that step.
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
    if !is_new && state.kernel != local.id() {
        out_of_place(kind, state);
    }
    // An uninterruptible wait takes no part in the rules of interruption.
    let is_told = kind != TrapKind::Elapse;
    let is_flagged = task.flags().has(Flags::CAUSE);
    if is_told && !is_new {
        local.set_branch(None);
        local.forget_pending(state.stamp);
    }

    let is_sub_wait = !task.owns(cx.waker());
    if is_sub_wait {
        let under = local.around(task);
        let what = What::Wait(kind, state.place);
        let waker = Some(cx.waker());
        state.sub_wait = local.sub_waits().bind(state.sub_wait, under, task, waker, what);
        if is_new {
            // So that the node is freed should the kernel panic.
            (state.kernel, state.key) = (local.id(), Key::NEVER);
        }
    }
    let sub_wait = if is_sub_wait { state.sub_wait } else { SubWait::NONE };
    let waiter = Waiter::new(task, sub_wait);
    let asking = match is_new {
        true => begin(trap.wait(given), local, &waiter),
        false => ask(trap.wait(given), state.key, local, &waiter),
    };
    if !is_sub_wait {
        state.free_sub_wait(local);
    }

    let branch = if is_new { local.branch() } else { state.branch(task) };
    let asked = Asked::new(branch);
    let answer = match asking {
        Asking::Answered => {
            // A wait for the next step is told of what came up before that began.
            let is_told_now = !is_new
                && is_flagged
                && ends_with_step(kind)
                && state.key.is_step()
                && state.task == task.id()
                && state.key.is_last_step_of(task);
            let due = match is_told_now {
                true => local.due(task, &asked.before(local.step_began())),
                false => None,
            };
            if due.is_none() && is_told && is_flagged && !is_new {
                local.set_branch(branch);
            }
            Some(due.map_or(Ok(()), Err))
        }
        Asking::Pending(key) => {
            state.key = key;
            let due = if is_told && is_flagged { local.due(task, &asked) } else { None };
            if due.is_some()
                && let Some(entry) = key.as_entry()
            {
                local.kernel().withdraw(trap.wait(given), entry);
                trap.left();
            }
            due.map(Err)
        }
    };
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
    state.stamp = match is_told && (!is_sub_wait || sub_wait_waker.is_some()) {
        true => local.note_pending(task),
        // No other wait's, which would be taken for this one.
        false => local.next_moment(),
    };
    if is_told {
        local.set_branch(None);
    }
    match sub_wait_waker {
        Some(waker) => local.call_after_step(waker),
        None if state.key.is_step() => local.ask_again(task),
        None => {}
    }
    if !is_sub_wait {
        task.set_wait(kind, state.place);
    }
    if task.flags().has(Flags::INSPECTED) {
        let about = trap.about().map(String::into_boxed_str);
        match is_sub_wait {
            true => local.sub_waits().set_about(state.sub_wait, about),
            false => task.note_seen(SeenWait { trap: kind, place: state.place, about }),
        }
    }
    if is_new && task.flags().has(Flags::OBSERVED) {
        local.kernel().observe(task, kind, WaitEvent::Begins(state.place));
    }
    Poll::Pending
}

impl Local {
    /// Under what a sub-wait of the current task is that is polled now.
    fn around(&self, task: &TaskRef) -> Under {
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

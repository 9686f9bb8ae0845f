//! Traps as typed values, and the one future that hands them over.
//!
//! [`kernel_trap`] is the only future of pikake's own that returns `Pending` (I2). Every other
//! wait, in this crate and above, awaits it. A [`Trap`] is the rule for one or two places to wait
//! at, with the type of its answer. The files of the folder `traps/` have a trap each.
//!
//! A poll advances the trap: begins it, or collects its answer ([`advance`]). In a task that is not
//! watched, and with the task's own waker, it does nothing else. What a watched poll does before
//! and after ([`poll_watched`]) is the table of `TRAPS.md`.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pikake_time::{Deadline, Rate, Ticks};

use crate::cause::caught::Noted;
use crate::cause::{Branch, Query};
use crate::cell::flags::Flags;
use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::SubWait;
use crate::door;
use crate::interrupt::Interrupted;
use crate::kind::TrapKind;
use crate::local::{Local, TrapHandler};
use crate::names::{KernelId, TaskId, WaitKey};
use crate::seen::About;
use crate::sub_waits::{NodeKind, Under};
use crate::wait::{Parked, Until, WaitEvent, WaitPlace, Waiter};

/// A request of a task to its kernel that may have to wait.
///
/// # Examples
///
/// `docs/primitive.md` and `examples/read_at_least` define a trap that waits for a socket or a
/// moment, whichever comes first.
pub trait Trap {
    /// The output of the trap's future.
    type Answer: CarriesInterruption;

    /// The trap's entries, one for each place that it may wait at: [`OneEntry`] for nearly all. A
    /// trap without an entry cannot wait for the next step.
    type Entries: Entries;

    /// The trap's kind: always the same one.
    fn kind(&mut self) -> TrapKind;

    /// Executes the trap at its first poll, and again in the step after one in which it was
    /// [`Deferred`](Progress::Deferred). The entries are [`NONE`](Entry::NONE).
    ///
    /// A trap of several places may answer, or be deferred, while it is parked: it is then
    /// [left](Self::leave) everywhere. A trap of one place that is parked must
    /// [wait](Progress::Waits).
    fn begin(
        &mut self,
        entries: &mut Self::Entries,
        cx: &TrapContext<'_>,
    ) -> Progress<Self::Answer>;

    /// Collects the answer at a later poll. Each entry that the trap keeps must be
    /// [collected](TrapContext::collect), which binds it to this poll.
    fn collect(
        &mut self,
        entries: &mut Self::Entries,
        cx: &TrapContext<'_>,
    ) -> Progress<Self::Answer>;

    /// Leaves the places of a trap that was dropped or interrupted, or is satisfied at another
    /// place: calls [`Entry::leave`] for each entry.
    fn leave(&mut self, entries: &mut Self::Entries, kernel: &dyn TrapHandler);

    /// Called after [`leave`](Self::leave), or in place of it if the kernel has ended; perhaps more
    /// than once.
    fn left(&mut self) {}

    /// Whether the trap accepts a connection, which a task that was interrupted should not do.
    fn is_accepting(&mut self) -> bool {
        false
    }

    /// The thing that the trap waits for, such as a lock or a task, for listings. Called at a
    /// pending poll of an [inspected](crate::TaskRef::inspect) task.
    fn about(&self) -> Option<About> {
        None
    }
}

/// An answer that can be an interruption; `()` for the traps of an
/// [uninterruptible](crate::TrapName::uninterruptible) kind.
pub trait CarriesInterruption {
    /// The answer of a trap that was interrupted.
    fn interrupted(why: Interrupted) -> Self;
}

impl<T, E: From<Interrupted>> CarriesInterruption for Result<T, E> {
    #[inline]
    fn interrupted(why: Interrupted) -> Self {
        Err(why.into())
    }
}

impl CarriesInterruption for () {
    fn interrupted(_: Interrupted) {
        unreachable!("a kind of trap whose answer is `()` is uninterruptible")
    }
}

/// How far a poll of a trap has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress<T> {
    /// The trap has its answer.
    Answered(T),
    /// The trap waits at its places.
    Waits,
    /// The trap waits for the task's next step, which always has its answer: a cause that came up
    /// before that step interrupts it, and later ones do not.
    NextStep,
    /// The task has spent its quota for this step. The trap begins anew in the next one.
    Deferred,
}

impl<T> Progress<T> {
    /// Maps the answer.
    #[inline(always)]
    pub fn map<U>(self, answer: impl FnOnce(T) -> U) -> Progress<U> {
        match self {
            Self::Answered(given) => Progress::Answered(answer(given)),
            Self::Waits => Progress::Waits,
            Self::NextStep => Progress::NextStep,
            Self::Deferred => Progress::Deferred,
        }
    }
}

/// The poll of a trap: the kernel, and the waiter of the poll.
#[derive(Debug)]
pub struct TrapContext<'a> {
    local: &'a Local,
    waiter: &'a Waiter,
}

impl TrapContext<'_> {
    /// Waits at a place, unless the wait is satisfied at once. [`Ticks::MAX`] never comes, and
    /// needs no entry.
    ///
    /// # Panics
    ///
    /// When a queue is part of another kernel, or has waiters of the other kind.
    #[inline(always)]
    pub fn park(&self, entry: &mut Entry, place: WaitPlace<'_>) -> Progress<()> {
        match &place {
            WaitPlace::Queue(queue, permits) => queue.join(self.local.id(), permits.is_some()),
            WaitPlace::Moment(Ticks::MAX) => return Progress::Waits,
            WaitPlace::Moment(_)
            | WaitPlace::Deadline(..)
            | WaitPlace::Socket(..)
            | WaitPlace::End(_) => {}
        }
        entry.keep(self.local.kernel().park(place, self.waiter))
    }

    /// Finds out whether the wait of an entry is satisfied, and binds the entry to this poll if it
    /// is not. An entry that was never parked waits for ever.
    #[inline(always)]
    pub fn collect(&self, entry: &mut Entry, place: WaitPlace<'_>) -> Progress<()> {
        match entry.key() {
            Some(key) => entry.keep(self.local.kernel().collect(place, key, self.waiter)),
            None => Progress::Waits,
        }
    }

    /// The moment that ends a wait, which is stored in `until`; `None` if that moment has come.
    #[inline]
    pub fn moment(&self, until: &mut Until) -> Option<Ticks> {
        let at = match *until {
            Until::After(length) if length.is_zero() => return None,
            Until::After(length) => self.now().saturating_add(self.rate().ticks_ceil(length)),
            Until::At(deadline) if deadline.is_due(self.now()) => return None,
            Until::At(deadline) => deadline.ticks(),
        };
        *until = Until::At(Deadline::at(at));
        Some(at)
    }

    /// A fresh reading of the kernel's clock.
    #[inline]
    pub fn now(&self) -> Ticks {
        self.local.kernel().now()
    }

    /// The rate of the kernel's clock.
    #[inline]
    pub fn rate(&self) -> Rate {
        self.local.kernel().rate()
    }

    /// Spends one of the answers that the task may get at once in this step; `false`: none is left,
    /// and the trap is [`Deferred`](Progress::Deferred).
    #[inline(always)]
    pub fn take_answer(&self) -> bool {
        self.local.take_answer()
    }

    /// Answers without a wait, unless the task has spent its quota for this step.
    #[inline(always)]
    pub fn answer<T>(&self, answer: T) -> Progress<T> {
        if self.take_answer() { Progress::Answered(answer) } else { Progress::Deferred }
    }

    /// The kernel.
    #[inline(always)]
    pub fn kernel(&self) -> KernelId {
        self.local.id()
    }
}

/// An entry of a trap in a table of the kernel, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u64);

impl Entry {
    /// No entry.
    pub const NONE: Self = Self(u64::MAX);

    /// Marks, in place of a trap's first entry, a wait for the task's next step.
    const STEP: u64 = 1 << 63;
    /// Marks a wait for the next step that begins anew there.
    const DEFERRED: u64 = 1 << 62;

    /// A wait for the task's next step: the number of the current step, and the task's count of
    /// steps, each without its high bits.
    #[inline(always)]
    fn step(mark: u64, local: &Local, task: &TaskRef) -> Self {
        let steps = u64::from(task.flags().steps()) << 32;
        Self(Self::STEP | mark | steps | u64::from(local.step.number() as u32))
    }

    #[inline(always)]
    fn is_step(self) -> bool {
        self.0 & Self::STEP != 0 && self != Self::NONE
    }

    #[inline(always)]
    fn is_deferred(self) -> bool {
        self.0 & Self::DEFERRED != 0
    }

    /// Whether the wait for the next step began in the current step.
    #[inline(always)]
    fn is_this_step(self, local: &Local) -> bool {
        self.0 as u32 == local.step.number() as u32
    }

    /// Whether the wait for the next step began in the task's step before the current one.
    fn is_last_step_of(self, task: &TaskRef) -> bool {
        ((self.0 >> 32) as u32).wrapping_add(1) & Flags::MOST_STEPS == task.flags().steps()
    }

    /// The entry's key; `None` if there is no entry.
    #[inline(always)]
    pub fn key(self) -> Option<WaitKey> {
        (self.0 < WaitKey::LIMIT).then_some(WaitKey(self.0))
    }

    #[inline(always)]
    fn keep(&mut self, parked: Parked) -> Progress<()> {
        *self = match parked {
            Parked::Waits(WaitKey(key)) => Self(key),
            _ => Self::NONE,
        };
        match parked {
            Parked::Satisfied => Progress::Answered(()),
            Parked::Waits(_) | Parked::Never => Progress::Waits,
            Parked::Deferred => Progress::Deferred,
        }
    }

    /// Leaves the entry's place, if there is an entry. Returns whether the entry had been notified,
    /// and nobody had collected that.
    pub fn leave(&mut self, kernel: &dyn TrapHandler, place: WaitPlace<'_>) -> bool {
        let key = std::mem::replace(self, Self::NONE).key();
        key.is_some_and(|key| kernel.leave(place, key))
    }
}

/// The entries of a trap that waits at one place.
pub type OneEntry = [Entry; 1];

/// The entries of a trap: an array.
pub trait Entries: Copy {
    /// No entry.
    const NONE: Self;

    /// Whether there may be several.
    const ARE_SEVERAL: bool;

    /// The first entry, if the trap has places.
    fn first(&self) -> Entry;

    /// Sets the first entry, if the trap has places.
    fn set_first(&mut self, entry: Entry);
}

impl<const N: usize> Entries for [Entry; N] {
    const NONE: Self = [Entry::NONE; N];
    const ARE_SEVERAL: bool = N > 1;

    #[inline(always)]
    fn first(&self) -> Entry {
        self.as_slice().first().copied().unwrap_or(Entry::NONE)
    }

    #[inline(always)]
    fn set_first(&mut self, entry: Entry) {
        if let Some(first) = self.first_mut() {
            *first = entry;
        }
    }
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
        entries: T::Entries::NONE,
        state: State {
            kernel: KernelId::NONE,
            sub_wait: SubWait::NONE,
            task: TaskId(0),
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
    entries: T::Entries,
    state: State,
    /// The future belongs to its kernel's thread, where the drop withdraws the wait.
    _home: PhantomData<*const ()>,
}

/// The state of a trap, apart from its entries.
struct State {
    /// The kernel where the trap waits; [`KernelId::NONE`] if new, [`KernelId::FINISHED`] if
    /// answered.
    kernel: KernelId,
    /// The trap's node, if its last poll had another waker than the task's own.
    sub_wait: SubWait,
    /// The task of the last poll.
    task: TaskId,
    /// The moment of the last pending poll.
    stamp: u64,
    place: &'static Location<'static>,
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

    /// Leaves a waiting trap, so that the next poll executes the trap anew.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.is_waiting() {
            self.leave();
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
        let kind = self.trap.kind();
        door::try_with_task(|local, task| {
            if task.flags().has(Flags::CAUSE) {
                local.step.branch.set(self.state.branch(task));
            }
            if task.flags().has(Flags::OBSERVED) {
                let event = WaitEvent::Over { interrupted: false };
                local.kernel().observe(task, kind, event);
            }
            if task.flags().has(Flags::INSPECTED) {
                task.note_move();
            }
        });
        self.leave();
    }

    #[inline]
    fn is_waiting(&self) -> bool {
        self.state.kernel != KernelId::NONE && self.state.kernel != KernelId::FINISHED
    }

    /// Leaves a waiting trap.
    #[inline(never)]
    fn leave(&mut self) {
        let Self { trap, entries, state, .. } = self;
        door::reach(state.kernel, |local| {
            local.step.forget_pending(state.stamp);
            trap.leave(entries, local.kernel());
            state.free_sub_wait(local);
        });
        *entries = T::Entries::NONE;
        trap.left();
    }
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
        let Self { trap, entries, state, .. } = &mut *self;
        let is_new = state.kernel == KernelId::NONE;
        let is_here = door::try_with_task(|local, _| is_new || state.kernel == local.id());
        if is_here != Some(true) {
            panic_misplaced(trap.kind(), state);
        }
        let polled = door::try_with_task(|local, task| {
            // The first wait of a kind is polled below, too: the kind gets its number there.
            let is_known = trap.kind().number_if_any() != 0;
            let is_plain = !task.is_watched() && state.sub_wait.is_none() && is_known;
            if !is_plain || !task.owns(cx.waker()) {
                return poll_watched(trap, entries, state, local, task, cx.waker());
            }
            let waiter = Waiter::uncounted(task, SubWait::NONE);
            let context = TrapContext { local, waiter: &waiter };
            let progress = advance(trap, entries, is_new, &context);
            match progress {
                Progress::Answered(answer) => {
                    state.kernel = KernelId::FINISHED;
                    return Poll::Ready(answer);
                }
                Progress::Waits => {}
                Progress::NextStep | Progress::Deferred => local.make_ready_after_step(task),
            }
            state.kernel = local.id();
            state.task = task.id();
            state.stamp = local.moments.last();
            task.set_wait(trap.kind(), state.place);
            Poll::Pending
        });
        // The task is there, as was just seen.
        polled.unwrap_or(Poll::Pending)
    }
}

/// Begins a trap, or collects its answer.
#[inline(always)]
fn advance<T: Trap>(
    trap: &mut T,
    entries: &mut T::Entries,
    is_new: bool,
    cx: &TrapContext<'_>,
) -> Progress<T::Answer> {
    let mark = entries.first();
    let begins = if is_new {
        true
    } else if !mark.is_step() {
        false
    } else if mark.is_this_step(cx.local) {
        return if mark.is_deferred() { Progress::Deferred } else { Progress::NextStep };
    } else {
        *entries = T::Entries::NONE;
        mark.is_deferred()
    };
    let progress = match T::Entries::ARE_SEVERAL {
        true => advance_several(trap, entries, begins, cx),
        false if begins => trap.begin(entries, cx),
        false => trap.collect(entries, cx),
    };
    debug_assert!(
        matches!(progress, Progress::Waits) || entries.first().key().is_none(),
        "a trap that is parked waits"
    );
    let task = cx.waiter.task();
    match progress {
        Progress::NextStep => entries.set_first(Entry::step(0, cx.local, task)),
        Progress::Deferred => entries.set_first(Entry::step(Entry::DEFERRED, cx.local, task)),
        Progress::Answered(_) | Progress::Waits => {}
    }
    progress
}

/// Begins a trap of several places, or collects its answer, and leaves the places unless the trap
/// waits, also when it panics.
fn advance_several<T: Trap>(
    trap: &mut T,
    entries: &mut T::Entries,
    begins: bool,
    cx: &TrapContext<'_>,
) -> Progress<T::Answer> {
    struct Leave<'a, T: Trap>(&'a mut T, &'a mut T::Entries, &'a dyn TrapHandler);
    impl<T: Trap> Drop for Leave<'_, T> {
        fn drop(&mut self) {
            self.0.leave(self.1, self.2);
            self.0.left();
        }
    }

    let leave = Leave(trap, entries, cx.local.kernel());
    let progress = match begins {
        true => leave.0.begin(leave.1, cx),
        false => leave.0.collect(leave.1, cx),
    };
    if let Progress::Waits = progress {
        std::mem::forget(leave);
    }
    progress
}

/// Polls a trap with a combinator's waker, or in a task that is watched: advances it, and gives the
/// answer, or the cause that is due, or waits.
#[cold]
#[inline(never)]
fn poll_watched<T: Trap>(
    trap: &mut T,
    entries: &mut T::Entries,
    state: &mut State,
    local: &Local,
    task: &TaskRef,
    waker: &Waker,
) -> Poll<T::Answer> {
    if local.step.is_ahead() {
        local.poll_again_after_ahead(waker);
        return Poll::Pending;
    }
    let kind = trap.kind();
    kind.number();
    let is_new = state.kernel == KernelId::NONE;
    let node = state.begin_watched(kind, local, task, waker);
    let mark = entries.first();
    let waiter = Waiter::uncounted(task, node);
    let context = TrapContext { local, waiter: &waiter };
    let progress = advance(trap, entries, is_new, &context);
    if node.is_none() {
        state.free_sub_wait(local);
    }
    let is_for_step = matches!(progress, Progress::NextStep | Progress::Deferred);
    let answer = match progress {
        Progress::Answered(answer) => Some(answer),
        Progress::Waits | Progress::NextStep | Progress::Deferred => None,
    };
    let due = match kind.is_interruptible() && task.flags().has(Flags::CAUSE) {
        true => state.due(is_new, answer.is_some().then_some(mark), local, task),
        false => None,
    };
    let interrupted = due.is_some();
    let is_caught = !interrupted && kind.is_interruptible() && task.flags().has(Flags::CAUSE);
    let is = Noted { new: is_new, accepting: is_caught && trap.is_accepting() };
    let answer = match due {
        Some(why) => {
            if answer.is_none() {
                trap.leave(entries, local.kernel());
                trap.left();
            }
            Some(T::Answer::interrupted(why))
        }
        None => answer,
    };
    if (is_new || answer.is_some()) && task.flags().has(Flags::INSPECTED) {
        task.note_move();
    }
    let is_observed = task.flags().has(Flags::OBSERVED);
    if let Some(answer) = answer {
        state.kernel = KernelId::FINISHED;
        state.free_sub_wait(local);
        if is_new && is.accepting {
            local.note_wait(task, (kind, state.place), is, local.moments.last());
        }
        if !is_new && is_observed {
            local.kernel().observe(task, kind, WaitEvent::Over { interrupted });
        }
        return Poll::Ready(answer);
    }
    state.wait(is_for_step, kind, node, local, task);
    if is_caught {
        local.note_wait(task, (kind, state.place), is, state.stamp);
    }
    if task.flags().has(Flags::INSPECTED) {
        let node = (!node.is_none()).then_some(node);
        local.note_seen(task, node, (kind, state.place), trap.about());
    }
    if is_new && is_observed {
        local.kernel().observe(task, kind, WaitEvent::Begins(state.place));
    }
    Poll::Pending
}

impl State {
    /// Begins a watched poll: the wait's last pending poll is over, and a sub-wait is bound to the
    /// waker. Returns the node of the sub-wait.
    #[cold]
    #[inline(never)]
    fn begin_watched(
        &mut self,
        kind: TrapKind,
        local: &Local,
        task: &TaskRef,
        waker: &Waker,
    ) -> SubWait {
        if kind.is_interruptible() && self.kernel != KernelId::NONE {
            local.step.branch.set(None);
            local.step.forget_pending(self.stamp);
        }
        if task.owns(waker) {
            return SubWait::NONE;
        }
        let under = local.enclosing(task);
        let kind = NodeKind::Wait(kind, self.place);
        self.sub_wait = local.sub_waits().bind(self.sub_wait, under, task, Some(waker), kind);
        // If the kernel panics, the drop frees the node.
        self.kernel = local.id();
        self.sub_wait
    }

    /// The cause that is due to the wait, which must return it. `satisfied` has the wait's first
    /// entry before the poll, if the wait is satisfied.
    fn due(
        &self,
        is_new: bool,
        satisfied: Option<Entry>,
        local: &Local,
        task: &TaskRef,
    ) -> Option<Interrupted> {
        let branch = if is_new { local.step.branch.get() } else { self.branch(task) };
        let query = Query::new(branch);
        let Some(mark) = satisfied else { return local.collect_due(task, &query, self.place) };
        // A wait for the next step returns a cause that came up before that step began.
        let may_return_cause = mark.is_step()
            && !mark.is_deferred()
            && self.task == task.id()
            && mark.is_last_step_of(task);
        let due = match may_return_cause {
            true => local.collect_due(task, &query.before(local.step.began()), self.place),
            false => None,
        };
        if due.is_none() && !is_new {
            local.step.branch.set(branch);
        }
        due
    }

    /// Notes a pending poll of a watched wait.
    fn wait(
        &mut self,
        is_for_step: bool,
        kind: TrapKind,
        node: SubWait,
        local: &Local,
        task: &TaskRef,
    ) {
        let is_interruptible = kind.is_interruptible();
        let is_sub_wait = !node.is_none();
        self.kernel = local.id();
        self.task = task.id();
        let waker = match is_for_step {
            true => local.sub_waits().take_waker(self.sub_wait),
            false => None,
        };
        self.stamp = match is_interruptible && (!is_sub_wait || waker.is_some()) {
            true => local.note_pending(task),
            // A new moment: `forget_pending` with a stamp of another wait would mark that wait.
            false => local.moments.next(),
        };
        if is_interruptible {
            local.step.branch.set(None);
        }
        match waker {
            Some(waker) => local.wakers.add_after_step(waker),
            None if is_for_step => local.make_ready_after_step(task),
            None => {}
        }
        if !is_sub_wait {
            task.set_wait(kind, self.place);
        }
    }
}

impl Local {
    /// The owner around a sub-wait that the current task polls now.
    fn enclosing(&self, task: &TaskRef) -> Under {
        match self.step.innermost() {
            Some(scope) => Under::Scope(scope.node(self, task)),
            None => Under::Task,
        }
    }
}

impl<T: Trap> Drop for KernelTrap<T> {
    #[inline]
    fn drop(&mut self) {
        if self.is_waiting() {
            self.leave();
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

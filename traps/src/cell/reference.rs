//! A counted reference to a task, for kernels, table entries and handles.
//!
//! A `TaskRef` cannot leave the home thread. `cell.rs` says which thread may use which part of a
//! cell, and how references are counted.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Context;

use super::flags::{Exit, Flags};
use super::locals::LocalKey;
use super::sub_wait::List;
use super::{
    Cold, Header, INSPECTED_STEPS, Own, Seen, Shared, Withdraw, allocate, end_local_side, fill,
};
use crate::cause::Cause;
use crate::home::LocalHome;
use crate::interrupt::TaskError;
use crate::kind::TrapKind;
use crate::names::{KernelId, TaskId};
use crate::seen::{SeenScope, SeenWait};

/// A counted reference to a task, for its home thread.
///
/// Kernels keep such references to their tasks, and so does a [`Task`](crate::Task).
#[repr(transparent)]
pub struct TaskRef {
    header: NonNull<Header>,
    /// The count is not atomic, so the reference must not leave its thread.
    _home: PhantomData<*const ()>,
}

/// A task's cell without its future, which is then moved once: it may be large.
#[must_use = "the cell is lost unless it is filled"]
pub(crate) struct NewTask<F> {
    header: NonNull<Header>,
    future: PhantomData<F>,
}

impl<F: Future + 'static> NewTask<F> {
    #[inline(always)]
    pub(crate) fn new(
        home: &LocalHome,
        name: Option<Box<str>>,
        spawned_at: &'static Location<'static>,
        parent: Option<TaskId>,
    ) -> Self {
        let header = allocate::<F>(home, name, spawned_at, parent);
        Self { header, future: PhantomData }
    }

    /// The task. The caller then passes it to the kernel behind the home.
    #[inline(always)]
    pub(crate) fn fill(self, future: F) -> TaskRef {
        // SAFETY: `new` has allocated the cell for this type, and `self` is used up.
        unsafe { fill(self.header, future) };
        TaskRef { header: self.header, _home: PhantomData }
    }
}

impl TaskRef {
    /// A task by the pointer in a waker, if the task has not ended. The reference is not counted,
    /// and not dropped.
    ///
    /// # Safety
    ///
    /// This is the home thread, and the cell lives for as long as the reference is used.
    #[inline(always)]
    pub(crate) unsafe fn live_from_header(header: NonNull<Header>) -> Option<ManuallyDrop<Self>> {
        // SAFETY: the caller's promise.
        let flags = unsafe { &(*header.as_ptr()).own.flags };
        // The local count of a task that has not ended is not zero.
        (!flags.has(Flags::ENDED)).then(|| ManuallyDrop::new(Self { header, _home: PhantomData }))
    }

    /// Turns the pointer from [`into_header`](Self::into_header) back into a reference.
    ///
    /// # Safety
    ///
    /// `into_header` returned the pointer, on this thread, and this is the only call for it.
    #[inline(always)]
    pub(crate) unsafe fn from_header(header: NonNull<Header>) -> Self {
        Self { header, _home: PhantomData }
    }

    /// Turns the reference into a pointer, which keeps the count.
    #[inline(always)]
    pub(crate) fn into_header(self) -> NonNull<Header> {
        ManuallyDrop::new(self).header
    }

    /// An uncounted copy of the reference, which must not outlive `self`, and is not dropped.
    #[inline(always)]
    pub(crate) fn uncounted(&self) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self { header: self.header, _home: PhantomData })
    }

    /// The pointer to the cell, for comparisons.
    #[inline(always)]
    pub(crate) fn address(&self) -> NonNull<Header> {
        self.header
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: a `TaskRef` is counted, so the cell lives. All references to a header are shared,
        // and the fields that change are cells or atomics.
        unsafe { self.header.as_ref() }
    }

    #[inline(always)]
    pub(super) fn own(&self) -> &Own {
        &self.header().own
    }

    #[inline(always)]
    fn shared(&self) -> &Shared {
        &self.header().shared
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> &Flags {
        &self.own().flags
    }

    /// The cold part, which is made at the first use.
    #[inline]
    fn cold(&self) -> &Cold {
        self.own().cold.get_or_init(Box::default)
    }

    /// The cold part, if the task has one.
    #[inline]
    fn cold_if_any(&self) -> Option<&Cold> {
        self.own().cold.get().map(Box::as_ref)
    }

    /// Notes that the task offers its work.
    pub(crate) fn set_offer(&self, offer: Rc<dyn Withdraw>) {
        let is_first = self.cold().offer.set(offer).is_ok();
        debug_assert!(is_first, "a task offers its work once");
    }

    /// Whether the task is dropped when it is asked to end: nothing of it has begun. Its work is
    /// then withdrawn.
    pub(crate) fn ends_unbegun(&self) -> bool {
        let offer = self.cold_if_any().and_then(|cold| cold.offer.get());
        !self.was_stepped() && offer.is_none_or(|offer| offer.withdraw())
    }

    /// Whether the task waits until its work is taken.
    pub(crate) fn offers_work(&self) -> bool {
        let is_free = |cold: &Cold| cold.offer.get().is_some_and(|offer| offer.is_free());
        !self.was_stepped() && !self.is_ready() && self.cold_if_any().is_some_and(is_free)
    }

    /// The request to end, once there was one.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.cold_if_any()?.cause.get().map(Box::as_ref)
    }

    /// Notes the first request to end.
    pub(crate) fn set_cause(&self, cause: Cause) {
        let is_first = self.cold().cause.set(Box::new(cause)).is_ok();
        debug_assert!(is_first, "a task is asked to end once");
    }

    /// Flags the task: one more cause of the task, or of its scopes, is live.
    pub(crate) fn count_cause(&self) {
        let causes = &self.cold().causes;
        causes.set(causes.get() + 1);
        self.flags().set(Flags::CAUSE);
    }

    /// Notes that a cause of one of the task's scopes is gone.
    pub(crate) fn discount_cause(&self) {
        let causes = &self.cold().causes;
        causes.set(causes.get() - 1);
        if causes.get() == 0 {
            self.flags().clear(Flags::CAUSE);
        }
    }

    /// The sub-waits that are in no scope.
    pub(crate) fn sub_waits(&self) -> List {
        self.cold_if_any().map_or_else(List::default, |cold| cold.sub_waits.get())
    }

    pub(crate) fn set_sub_waits(&self, list: List) {
        self.cold().sub_waits.set(list);
    }

    /// The number of waits that are kept.
    pub(crate) fn seen_count(&self) -> usize {
        let count = |cold: &Cold| Some(cold.seen.borrow().as_ref()?.waits.len());
        self.cold_if_any().and_then(count).unwrap_or(0)
    }

    /// Keeps a wait of an inspected task for listings, after a poll with the task's own waker.
    pub(crate) fn note_seen(&self, seen: SeenWait) {
        // If a task inspects itself, its waits are kept from its next step on.
        if let Some(kept) = &mut *self.cold().seen.borrow_mut() {
            kept.waits.push(seen);
        }
    }

    /// Whether the wait that was kept last is inside a scope.
    pub(crate) fn is_last_seen_in(&self, scope: &SeenScope) -> bool {
        let seen = self.cold().seen.borrow();
        let last = seen.as_ref().and_then(|seen| seen.waits.last());
        last.is_some_and(|wait| wait.scopes.contains(scope))
    }

    /// Begins a step of an inspected task. Keeps the waits of this step, unless the inspection
    /// ends.
    pub(crate) fn begin_inspected_step(&self) {
        let before = self.cold().seen.take();
        let is_look = self.cold().is_looked_at.take();
        let has_moved = before.as_ref().is_some_and(|seen| seen.has_moved);
        let steps_left =
            before.map_or(Some(INSPECTED_STEPS - 1), |seen| seen.steps_left.checked_sub(1));
        match steps_left {
            None => self.flags().clear(Flags::INSPECTED),
            Some(steps_left) => {
                let seen = Seen { waits: Vec::new(), steps_left, has_moved, is_look };
                self.cold().seen.replace(Some(seen));
            }
        }
    }

    /// Notes that a wait of an inspected task has begun or ended.
    pub(crate) fn note_move(&self) {
        if let Some(kept) = &mut *self.cold().seen.borrow_mut() {
            kept.has_moved = true;
        }
    }

    /// Makes the task keep the waits of its next steps.
    pub(crate) fn begin_inspection(&self) {
        self.cold().seen.take();
        if !self.is_ready() {
            self.cold().is_looked_at.set(true);
        }
        self.flags().set(Flags::INSPECTED);
    }

    /// Whether the task is ready because of an [inspection](Self::inspect), and nothing else had
    /// made the task ready before. If the task does not go on in that step,
    /// [`was_looked_at`](Self::was_looked_at) holds after the step.
    pub fn is_looked_at(&self) -> bool {
        self.flags().has(Flags::INSPECTED)
            && self.cold_if_any().is_some_and(|cold| cold.is_looked_at.get())
    }

    /// Whether each poll of the task's waits has more to do than to wait.
    #[inline(always)]
    pub(crate) fn is_watched(&self) -> bool {
        self.flags().has(Flags::WATCHED)
    }

    /// Notes a wait that was polled with the task's own waker and is pending.
    #[inline(always)]
    pub(crate) fn set_wait(&self, kind: TrapKind, place: &'static Location<'static>) {
        self.flags().set_kind(kind);
        self.own().awaits_at.set(place);
    }

    /// The wait that was polled last in the last step and was pending, and the place of its await.
    /// `None`: there was no such wait; a task that is not ready then waits on a foreign future.
    pub fn last_wait(&self) -> Option<(TrapKind, &'static Location<'static>)> {
        Some((self.flags().kind()?, self.own().awaits_at.get()))
    }

    /// The parts of [`last_wait`](Self::last_wait) as they are stored: the
    /// [number](TrapKind::number) of the kind, and the place. Zero: there was no such wait, and the
    /// place is any one.
    #[inline(always)]
    pub fn last_wait_parts(&self) -> (u32, &'static Location<'static>) {
        (self.flags().kind_number(), self.own().awaits_at.get())
    }

    /// The waits that were polled with the task's own waker in the last step and were pending. If
    /// the task was [inspected](Self::inspect) before that step, the list has all of them, else the
    /// last one.
    pub fn seen_waits(&self) -> Vec<SeenWait> {
        let kept = |cold: &Cold| cold.seen.borrow().as_ref().map(|seen| seen.waits.clone());
        let seen = self.cold_if_any().and_then(kept);
        let last = || self.last_wait().map(|(trap, place)| SeenWait::plain(trap, place));
        // `shown_at` sets only the last wait, as a foreign future is no trap.
        seen.filter(|seen| !seen.is_empty()).unwrap_or_else(|| last().into_iter().collect())
    }

    /// Whether the task may have gone on since its [inspection](Self::inspect) began: a wait began
    /// or ended in an inspected step, or the task is not inspected any more.
    ///
    /// Each task is inspected in a step of its own. If a task goes on, then what other tasks have
    /// told of it may no longer be true.
    pub fn has_moved(&self) -> bool {
        let stands = |cold: &Cold| cold.seen.borrow().as_ref().is_some_and(|seen| !seen.has_moved);
        !self.cold_if_any().is_some_and(stands)
    }

    /// Whether the last step was but a look: an [inspection](Self::inspect) had made the task
    /// ready, and no wait of the task began or ended.
    #[inline(always)]
    pub fn was_looked_at(&self) -> bool {
        self.flags().has(Flags::INSPECTED) && self.is_last_step_a_look()
    }

    #[inline(never)]
    fn is_last_step_a_look(&self) -> bool {
        let is_look = |seen: &Seen| seen.is_look && !seen.has_moved;
        self.cold_if_any().is_some_and(|cold| cold.seen.borrow().as_ref().is_some_and(is_look))
    }

    /// Whether a clone of the task's waker exists, as a pending foreign future keeps one. Without,
    /// only the task's waits, a cancel or an abort make the task ready.
    pub fn has_wakers(&self) -> bool {
        // All `TaskRef`s share one reference.
        self.shared().refs.load(Ordering::Acquire) > 1
    }

    /// Whether the task is ready to be stepped. A task that has ended is not, also if a wake had
    /// listed it before.
    pub fn is_ready(&self) -> bool {
        self.flags().has(Flags::QUEUED) && !self.is_ended()
    }

    /// The number that the kernel assigned to the task.
    pub fn id(&self) -> TaskId {
        self.own().id.get()
    }

    /// The kernel the task belongs to.
    #[inline]
    pub fn kernel(&self) -> KernelId {
        // SAFETY: cells with a local side, such as this one, share a reference of the home.
        unsafe { self.shared().home.as_ref() }.id()
    }

    /// The index of the task in the kernel's table.
    #[inline]
    pub fn index(&self) -> u32 {
        self.shared().index.load(Ordering::Relaxed)
    }

    /// Sets the index of the task in the kernel's table. For the kernel.
    #[inline]
    pub fn set_index(&self, index: u32) {
        self.shared().index.store(index, Ordering::Relaxed);
    }

    /// Shows the task's waits to the kernel's observers
    /// ([`TrapHandler::observe`](crate::TrapHandler::observe)). For the kernel, before the first
    /// step.
    pub fn set_observed(&self) {
        self.flags().set(Flags::OBSERVED);
    }

    /// Sets the task's number. For the kernel, once.
    pub fn set_id(&self, id: TaskId) {
        self.own().id.set(id);
    }

    /// The task's name; empty for a task without a name.
    pub fn name(&self) -> &str {
        self.header().name()
    }

    /// Names a task that has no name. For services that name their tasks only if these wait, since
    /// a name costs memory.
    pub fn set_name(&self, name: impl Into<Cow<'static, str>>) {
        if self.cold().name.set(name.into()).is_ok() {
            self.flags().set(Flags::NAMED);
        }
    }

    /// The number of the task, as `task 3`, with its name if it has one, as ``task 3 `reader` ``.
    pub fn label(&self) -> String {
        match self.name() {
            "" => format!("task {}", self.id()),
            name => format!("task {} `{name}`", self.id()),
        }
    }

    /// The place where the task was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.own().spawned_at
    }

    /// The task that spawned this one; `None` if no task did. The parent may have ended since.
    pub fn parent(&self) -> Option<TaskId> {
        self.shared().parent.get()
    }

    /// The name of the future's type and its size in bytes.
    pub fn future_type(&self) -> (&'static str, usize) {
        (self.shared().vtable.future)()
    }

    /// Whether the task will not be polled again.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.flags().has(Flags::ENDED)
    }

    /// Whether the task has ended, and its destructors have run.
    #[inline]
    pub(crate) fn has_outcome(&self) -> bool {
        self.is_ended() && !self.flags().has(Flags::BUSY)
    }

    /// Whether the task will not be polled again, or has a name: one test for two rare cases.
    #[inline(always)]
    pub fn is_ended_or_named(&self) -> bool {
        self.flags().has(Flags::ENDED | Flags::NAMED)
    }

    /// The exit of a task that has ended.
    pub fn exit(&self) -> Option<Exit> {
        self.flags().exit()
    }

    /// Whether the task was stepped at least once.
    #[inline]
    pub fn was_stepped(&self) -> bool {
        self.flags().has(Flags::STEPPED)
    }

    /// Polls the task's future, in a step of the task. Returns the exit if the future ended; the
    /// task then has its outcome.
    ///
    /// A panic of the future is caught and is the outcome.
    #[inline(always)]
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Option<Exit> {
        debug_assert!(self.flags().has(Flags::BUSY), "a step has begun");
        // SAFETY: the vtable is that of the cell's type. This is the home thread, which a `TaskRef`
        // cannot leave. The stage is not in use: the begin of the step found `BUSY` clear and set
        // it, and all other users of the stage test `BUSY` first.
        unsafe { (self.shared().vtable.poll)(self.header, cx) }
    }

    /// Drops the task's future, if there is one; a join then returns `outcome`.
    ///
    /// # Panics
    ///
    /// When called from inside the same task's poll.
    pub(crate) fn drop_future(&self, outcome: TaskError) {
        struct Idle<'a>(&'a Flags);
        impl Drop for Idle<'_> {
            fn drop(&mut self) {
                self.0.clear(Flags::BUSY);
            }
        }

        self.assert_idle();
        let flags = self.flags();
        flags.set(Flags::BUSY);
        let _idle = Idle(flags);
        // SAFETY: as in `poll`.
        unsafe { (self.shared().vtable.abandon)(self.header, outcome) }
    }

    /// Panics inside the task's own poll.
    #[inline(always)]
    pub(crate) fn assert_idle(&self) {
        let is_busy = self.flags().has(Flags::BUSY);
        assert!(!is_busy, "a task was polled or dropped from inside itself (I6)");
    }

    pub(crate) fn local(&self, key: LocalKey) -> Option<Rc<dyn Any>> {
        self.cold_if_any()?.locals.get(key)
    }

    pub(crate) fn set_local(
        &self,
        key: LocalKey,
        value: Rc<dyn Any>,
    ) -> Result<Option<Rc<dyn Any>>, Rc<dyn Any>> {
        self.cold().locals.set(key, value)
    }

    /// Drops the task's locals, if it has any.
    #[inline]
    pub(crate) fn end_locals(&self) {
        if let Some(cold) = self.cold_if_any() {
            cold.locals.end();
        }
    }

    /// Takes the outcome of a task; `None` if the task has not ended, or its outcome was taken
    /// before.
    ///
    /// # Safety
    ///
    /// `T` is the output of the task's future.
    pub(crate) unsafe fn take_outcome<T>(&self) -> Option<Result<T, TaskError>> {
        if !self.has_outcome() {
            return None;
        }
        let mut outcome: Option<Result<T, TaskError>> = None;
        // SAFETY: the vtable is that of the cell's type, and this is the home thread. The stage is
        // not in use, since the task is not busy. `outcome` has the type that `take` writes.
        unsafe {
            (self.shared().vtable.take)(self.header, NonNull::from(&mut outcome).cast());
        }
        outcome
    }

    /// Whether both refer to the same task.
    #[inline(always)]
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

/// Whether both refer to the same task.
impl PartialEq for TaskRef {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.is(other)
    }
}

impl Eq for TaskRef {}

impl Clone for TaskRef {
    #[inline]
    fn clone(&self) -> Self {
        let local = &self.own().local;
        local.set(local.get().checked_add(1).expect("a task has fewer than 2^32 references"));
        Self { header: self.header, _home: PhantomData }
    }
}

impl Drop for TaskRef {
    #[inline]
    fn drop(&mut self) {
        let local = &self.own().local;
        match local.get() {
            1 => self.end_local_side(),
            count => local.set(count - 1),
        }
    }
}

impl TaskRef {
    /// Ends the local side of the cell, in the drop of the last reference.
    #[inline(never)]
    fn end_local_side(&mut self) {
        let own = self.own();
        // The reference counts until the stage is empty, so that a destructor does not get here
        // again.
        if !own.flags.has(Flags::ENDED) {
            own.flags.set_exit(Exit::Dropped);
        }
        // SAFETY: the vtable is that of the cell's type, and this is the home thread. The stage is
        // not in use: a poll or an abandon holds a `TaskRef`, and this is the last.
        unsafe { (self.shared().vtable.clear)(self.header) };
        own.local.set(0);
        let header = self.header;
        if own.cold.get().is_some() {
            // SAFETY: no `TaskRef` is left, and a waker reads only the flags, so this is the only
            // reference to the cold part.
            let cold = unsafe { &mut (*header.as_ptr()).own.cold };
            drop(cold.take());
        }
        // SAFETY: this is the home thread, no `TaskRef` is left, and stage and cold part are gone.
        unsafe { end_local_side(header) };
    }
}

impl fmt::Debug for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id().0)
            .field("name", &self.name())
            .field("parent", &self.parent().map(|parent| parent.0))
            .field("spawned_at", &format_args!("{}", self.spawned_at()))
            .field("ended", &self.is_ended())
            .finish()
    }
}

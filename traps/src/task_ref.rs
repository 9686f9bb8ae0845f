//! A counted reference to a task: what kernels, records and handles hold.
//!
//! All it does, it does on the home thread, for it cannot leave it. See `cell.rs` for who may touch
//! which part of a cell when, and for how references are counted.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, RawWaker, Waker};

use crate::cell::{self, Cold, Exit, Header, Own, TaskId, release};
use crate::door;
use crate::home::{KernelId, LocalHome};
use crate::interrupt::{Interrupted, TaskError};
use crate::ledger::Ledger;
use crate::locals::LocalKey;
use crate::queue::WaitQueue;
use crate::waker::WAKER;

/// A counted reference to a task, for its home thread.
///
/// What a kernel keeps of its tasks, and what is inside a [`Task`](crate::Task).
pub struct TaskRef {
    header: NonNull<Header>,
    /// Plainly counted, so it must not leave its thread.
    _home: PhantomData<*const ()>,
}

impl TaskRef {
    /// Builds a task's cell. The kernel behind `home` is to be told of it next.
    #[inline]
    pub(crate) fn new<F>(
        future: F,
        home: &LocalHome,
        cold: Option<Box<Cold>>,
        spawned_at: &'static Location<'static>,
        parent: Option<TaskId>,
    ) -> Self
    where
        F: Future + 'static,
    {
        let header = cell::allocate(future, home, cold, spawned_at, parent);
        Self { header, _home: PhantomData }
    }

    /// Another reference to a task, from the pointer in a waker.
    ///
    /// # Safety
    ///
    /// This is the home thread, and the task has not ended (so that its local count is not zero).
    pub(crate) unsafe fn of(header: NonNull<Header>) -> Self {
        // Counted by the clone; the original is not, and is not dropped.
        let uncounted = ManuallyDrop::new(Self { header, _home: PhantomData });
        Self::clone(&uncounted)
    }

    /// Looks at the task that is being polled, if the waker is its own.
    #[inline]
    pub(crate) fn when_polled_with<R>(waker: &Waker, look: impl FnOnce(&Self) -> R) -> Option<R> {
        if !std::ptr::eq(waker.vtable(), &WAKER) {
            return None;
        }
        let header = NonNull::new(waker.data().cast_mut().cast::<Header>())?;
        // SAFETY: the vtable says that this is a task's waker, which keeps the cell alive; only
        // `shared` is looked at, on whatever thread.
        let shared = unsafe { &(*header.as_ptr()).shared };
        if !door::is_inside(shared.home.id()) {
            return None;
        }
        // SAFETY: this is the home thread, as was just checked.
        let own = unsafe { &(*header.as_ptr()).own };
        if !own.busy.get() || own.exit.get().is_some() {
            return None;
        }
        // Not counted and not dropped: whoever polls a task holds a reference meanwhile.
        let uncounted = ManuallyDrop::new(Self { header, _home: PhantomData });
        Some(look(&uncounted))
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: a `TaskRef` is counted, so the cell lives; only shared references to a header
        // are ever made, and what changes in it is in cells or atomics.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn own(&self) -> &Own {
        &self.header().own
    }

    /// The number its kernel gave to the task.
    pub fn id(&self) -> TaskId {
        self.own().id.get()
    }

    /// The kernel the task belongs to.
    pub fn kernel(&self) -> KernelId {
        self.header().shared.home.id()
    }

    /// Gives the task its number. For the kernel, once.
    pub fn set_id(&self, id: TaskId) {
        self.own().id.set(id);
    }

    /// The task's name; empty where none was given.
    pub fn name(&self) -> &str {
        self.header().name()
    }

    /// Where the task was spawned.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.own().spawned_at
    }

    /// The task that spawned this one; `None` if it was not spawned by a task.
    ///
    /// That task may have ended since.
    pub fn parent(&self) -> Option<TaskId> {
        self.header().shared.parent.get()
    }

    /// The name of the future's type and its size in bytes.
    pub fn future_type(&self) -> (&'static str, usize) {
        (self.header().shared.vtable.future)()
    }

    /// The kernel's own notes.
    #[inline]
    pub fn ledger(&self) -> &Ledger {
        &self.own().ledger
    }

    /// Those who wait for the task's end.
    pub fn joiners(&self) -> &WaitQueue {
        &self.own().joiners
    }

    /// Whether the task will not be polled again.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.exit().is_some()
    }

    /// How the task ended, if it has.
    #[inline]
    pub fn exit(&self) -> Option<Exit> {
        self.own().exit.get()
    }

    /// Polls the task's future with a waker of its own. `true`: it ended, and has its outcome.
    ///
    /// For the kernel. A panic of the future is caught and is the outcome. A task that has ended
    /// is not polled.
    ///
    /// # Panics
    ///
    /// When called from inside the same task's poll.
    #[inline(always)]
    pub fn poll(&self) -> bool {
        if self.is_ended() {
            return true;
        }
        let waker = self.borrowed_waker();
        let mut cx = Context::from_waker(&waker);
        let exit = self.exclusively(|| {
            // SAFETY: the vtable is that of the cell's type, this is the home thread since a
            // `TaskRef` cannot leave it, and `exclusively` saw to it that the stage is not in use.
            unsafe { (self.header().shared.vtable.poll)(self.header, &mut cx) }
        });
        self.own().exit.set(exit);
        if exit.is_some() {
            self.end_locals();
        }
        exit.is_some()
    }

    /// Drops the task's future unfinished; `outcome` is what joining it gives.
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
        self.own().exit.set(Some(Exit::Dropped));
        self.exclusively(|| {
            // SAFETY: as in `poll`.
            unsafe { (self.header().shared.vtable.abandon)(self.header, outcome) }
        });
        self.end_locals();
    }

    /// Asks the task to end. See [`Task::cancel`](crate::Task::cancel).
    pub fn request_cancel(&self, reason: Interrupted) {
        door::reach(self.kernel(), |kernel| kernel.cancel(self, reason));
    }

    /// Ends the task without another step of it. See [`Task::abort`](crate::Task::abort).
    pub fn request_abort(&self, reason: Interrupted) {
        door::reach(self.kernel(), |kernel| kernel.abort(self, reason));
    }

    pub(crate) fn local(&self, key: LocalKey) -> Option<Rc<dyn Any>> {
        self.own().cold.get()?.locals.get(key)
    }

    pub(crate) fn set_local(
        &self,
        key: LocalKey,
        value: Rc<dyn Any>,
    ) -> Result<Option<Rc<dyn Any>>, Rc<dyn Any>> {
        self.own().cold.get_or_init(Box::default).locals.set(key, value)
    }

    #[inline]
    fn end_locals(&self) {
        if let Some(cold) = self.own().cold.get() {
            cold.locals.end();
        }
    }

    #[inline]
    fn exclusively<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Done<'a> {
            busy: &'a Cell<bool>,
            before: TaskId,
        }
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.busy.set(false);
                door::replace_task(self.before);
            }
        }

        let busy = &self.own().busy;
        assert!(!busy.replace(true), "a task was polled or dropped from inside itself (I6)");
        let _done = Done { busy, before: door::replace_task(self.id()) };
        work()
    }

    /// Takes the outcome of a task that has ended; `None` if it has not, or it was taken before.
    ///
    /// # Safety
    ///
    /// `T` is the output of the task's future.
    pub(crate) unsafe fn take_outcome<T>(&self) -> Option<Result<T, TaskError>> {
        if !self.is_ended() || self.own().busy.get() {
            return None;
        }
        let mut outcome: Option<Result<T, TaskError>> = None;
        // SAFETY: the vtable is that of the cell's type, this is the home thread, the stage is not
        // in use since the task is not busy, and `outcome` has the type `take` writes.
        unsafe {
            (self.header().shared.vtable.take)(self.header, NonNull::from(&mut outcome).cast());
        }
        outcome
    }

    /// A waker of the task that may go anywhere.
    pub fn waker(&self) -> Waker {
        (*self.borrowed_waker()).clone()
    }

    /// The waker, without a reference of its own: it must not outlive `self`.
    fn borrowed_waker(&self) -> ManuallyDrop<Waker> {
        let raw = RawWaker::new(self.header.as_ptr().cast_const().cast(), &WAKER);
        // SAFETY: the functions of `WAKER` are written for such a pointer, and the cell outlives
        // the waker, which is not dropped and so gives up no reference.
        ManuallyDrop::new(unsafe { Waker::from_raw(raw) })
    }

    /// Whether the waker is this task's own, and not a combinator's.
    #[inline]
    pub fn owns(&self, waker: &Waker) -> bool {
        waker.data() == self.header.as_ptr().cast_const().cast()
            && std::ptr::eq(waker.vtable(), &WAKER)
    }

    /// Whether both refer to the same task.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

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
    /// What the drop of the last one does.
    #[inline(never)]
    fn end_local_side(&mut self) {
        let own = self.own();
        // The last one: stays counted until the stage is empty, lest a destructor get here again.
        own.exit.set(own.exit.get().or(Some(Exit::Dropped)));
        // SAFETY: the vtable is that of the cell's type, and this is the home thread. The stage is
        // not in use: whoever polls or abandons holds a `TaskRef`, and this is the last.
        unsafe { (self.header().shared.vtable.clear)(self.header) };
        own.local.set(0);
        own.joiners.unbind();
        let header = self.header;
        // SAFETY: no `TaskRef` is left, and a waker looks at `exit` and no further, so the
        // reference to the cold part is the only one.
        let own = unsafe { &mut (*header.as_ptr()).own };
        drop(own.cold.take());
        // SAFETY: the reference of the local side, which ends here, with stage and cold part gone.
        unsafe { release(header) };
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

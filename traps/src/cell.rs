//! The task cell: one allocation for header, future and outcome, and the waker that points at it.
//!
//! This is one of the two files of pikake's ground floors with `unsafe` in it (the other is
//! `door.rs`). Everything above handles tasks through [`TaskRef`], which is safe.
//!
//! # Who may touch what
//!
//! ```text
//!           TaskCell<F>
//!  ┌─ Header ───────────────────────────┬───────────────────┐
//!  │ Shared            │ Own            │ stage             │
//!  │ any thread        │ home thread    │ home thread       │
//!  └───────────────────┴────────────────┴───────────────────┘
//! ```
//!
//! *Shared* is immutable or atomic. *Own* is made of plain cells and belongs to the thread of the
//! task's kernel, the *home thread*. *Stage* is first the future, then the outcome, then nothing;
//! it too belongs to the home thread, so neither a future nor its output needs to be `Send`.
//!
//! # Counting
//!
//! `Own::local` counts the [`TaskRef`]s, plainly: they cannot leave the home thread. All of them
//! together own one reference of `Shared::refs`, the atomic count, of which every waker owns one
//! more. So a spawn, a step, a join and a same-thread wake cost no atomic read-modify-write; only
//! cloning or dropping a waker does.
//!
//! 1. `local` falls to zero ([`TaskRef::drop`]): what is left of stage and cold part is dropped,
//!    on the home thread; then the local side gives up its reference.
//! 2. `refs` falls to zero ([`release`]), on any thread: the memory is freed. Nothing in it needs
//!    dropping any more but the `Arc` of the home.
//!
//! # Life of the stage
//!
//! ```text
//!            (1)            (2)                 (3)
//!   Future ───────▶ Future ───────▶ Ended(…) ───────▶ Empty
//!             ▲  │                     ▲
//!             └──┘ pending             │ (4) dropped unfinished
//! ```
//!
//! (1) [`TaskRef::poll`], while the kernel holds a `TaskRef`; (2) the same, when the future is
//! ready or panics: the future is dropped in place, then the outcome is written and `Own::exit` set;
//! (3) [`TaskRef::take_outcome`] or the end of the local side; (4) [`TaskRef::abandon`].
//! `Own::exit` is set before anything of (4) or of the local side's end is dropped, so that a wake
//! from a destructor finds a task that has ended.

use std::any::Any;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use crate::home::{Home, KernelId, LocalHome};
use crate::interrupt::TaskError;
use crate::queue::WaitQueue;

/// Names a task within its kernel. Later tasks have larger ids; none is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exit {
    /// Its future returned.
    Returned,
    /// Its future panicked.
    Panicked,
    /// Its future was dropped unfinished.
    Dropped,
}

/// Room in a task's header for the kernel that owns the task. The library never looks at it.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Where the kernel keeps the task.
    pub index: Cell<u32>,
    /// The first of the task's wait records.
    pub records: Cell<u32>,
    /// How many causes of interruption wait for the task's next suspension.
    pub pending: Cell<u32>,
    /// The task is in the ready queue.
    pub queued: Cell<bool>,
    /// The task was stepped at least once.
    pub started: Cell<bool>,
}

/// The part of a header that any thread may look at.
struct Shared {
    vtable: &'static VTable,
    /// Wakers, plus one for all `TaskRef`s together.
    refs: AtomicUsize,
    /// A wake of this task lies in the wake queue.
    in_mail: AtomicBool,
    home: Arc<Home>,
}

/// The part of a header that belongs to the home thread.
struct Own {
    /// `TaskRef`s.
    local: Cell<u32>,
    /// How the task ended, if it has: it will not be polled again.
    exit: Cell<Option<Exit>>,
    /// The future is being polled or dropped right now.
    busy: Cell<bool>,
    ledger: Ledger,
    id: Cell<TaskId>,
    spawned_at: &'static Location<'static>,
    joiners: WaitQueue,
    cold: OnceCell<Box<Cold>>,
}

/// What few tasks have and no step looks at.
pub(crate) struct Cold {
    pub(crate) name: Box<str>,
}

impl Cold {
    pub(crate) fn named(name: Option<Box<str>>) -> Option<Box<Self>> {
        name.map(|name| Box::new(Self { name }))
    }
}

struct Header {
    shared: Shared,
    own: Own,
}

/// The header comes first, so that a pointer to the cell is a pointer to its header.
#[repr(C)]
struct TaskCell<F: Future> {
    header: Header,
    stage: UnsafeCell<Stage<F, F::Output>>,
}

enum Stage<F, T> {
    Future(F),
    Ended(Result<T, TaskError>),
    Empty,
}

/// The operations that depend on the type of the future.
///
/// All take a pointer to the header of a live cell of that very type; all but `free` may be called
/// on the home thread only.
struct VTable {
    /// Polls the future and, if it is ready or panics, does what `Stage` (2) says.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> Option<Exit>,
    /// Drops the future, if it is still there, and puts the error in its place.
    abandon: unsafe fn(NonNull<Header>, TaskError),
    /// Moves the outcome to the `Option<Result<T, TaskError>>` behind the pointer.
    take: unsafe fn(NonNull<Header>, NonNull<()>),
    /// Drops whatever the stage holds.
    clear: unsafe fn(NonNull<Header>),
    /// Frees the memory of a cell whose stage is empty. On any thread.
    free: unsafe fn(NonNull<Header>),
    /// What the future's type is called, and its size in bytes.
    future: fn() -> (&'static str, usize),
}

impl<F: Future> TaskCell<F> {
    const VTABLE: VTable = VTable {
        poll: Self::poll,
        abandon: Self::abandon,
        take: Self::take,
        clear: Self::clear,
        free: Self::free,
        future: || (std::any::type_name::<F>(), size_of::<F>()),
    };

    /// # Safety
    ///
    /// `header` points to the header of a live `TaskCell<F>`.
    unsafe fn stage(header: NonNull<Header>) -> *mut Stage<F, F::Output> {
        // SAFETY: the cell is live and of this type, by the caller's promise; the reference is
        // shared and the stage is behind an `UnsafeCell`.
        let cell = unsafe { header.cast::<Self>().as_ref() };
        cell.stage.get()
    }

    /// # Safety
    ///
    /// As for [`VTable`]; no other reference into the stage exists (`Own::busy` sees to it).
    unsafe fn poll(header: NonNull<Header>, cx: &mut Context<'_>) -> Option<Exit> {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        let Stage::Future(future) = (unsafe { &mut *stage }) else { return None };
        // SAFETY: the cell is heap-allocated and never moved, and the future is dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(TaskError::Panicked(panic)),
        };
        let exit = if outcome.is_ok() { Exit::Returned } else { Exit::Panicked };
        // SAFETY: as for the caller's promise; `future` is not used any more.
        unsafe { Self::replace(header, Stage::Ended(outcome)) };
        Some(exit)
    }

    /// # Safety
    ///
    /// As for [`Self::poll`].
    unsafe fn abandon(header: NonNull<Header>, error: TaskError) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        if matches!(unsafe { &*stage }, Stage::Future(_)) {
            // SAFETY: the caller's promise.
            unsafe { Self::replace(header, Stage::Ended(Err(error))) };
        }
    }

    /// Drops what the stage holds, in place, and writes `next`. A panic of the drop is logged.
    ///
    /// # Safety
    ///
    /// As for [`Self::poll`].
    unsafe fn replace(header: NonNull<Header>, next: Stage<F, F::Output>) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the stage is valid and not dropped twice: it is overwritten just below,
            // without being dropped again, even if this drop panics.
            unsafe { stage.drop_in_place() };
        }));
        // SAFETY: the stage is valid for writing, and what it held has been dropped.
        unsafe { stage.write(next) };
        if let Err(panic) = dropped {
            // SAFETY: the header is live, and this is the home thread.
            log_crash(unsafe { header.as_ref() }, "dropping it panicked", &*panic);
        }
    }

    /// # Safety
    ///
    /// As for [`Self::poll`]; `into` points to a valid `Option<Result<F::Output, TaskError>>`.
    unsafe fn take(header: NonNull<Header>, into: NonNull<()>) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        let stage = unsafe { &mut *stage };
        if let Stage::Ended(_) = stage {
            let taken = std::mem::replace(stage, Stage::Empty);
            let Stage::Ended(outcome) = taken else { return };
            // SAFETY: valid for writing and of this type, by the caller's promise.
            let into = unsafe { into.cast::<Option<Result<F::Output, TaskError>>>().as_mut() };
            *into = Some(outcome);
        }
    }

    /// # Safety
    ///
    /// As for [`Self::poll`].
    unsafe fn clear(header: NonNull<Header>) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        if let Stage::Ended(Err(TaskError::Panicked(panic))) = unsafe { &*stage } {
            // SAFETY: the header is live, and this is the home thread.
            log_crash(unsafe { header.as_ref() }, "it panicked and nobody joined it", &**panic);
        }
        // SAFETY: the caller's promise.
        unsafe { Self::replace(header, Stage::Empty) };
    }

    /// # Safety
    ///
    /// `header` points to the header of a `TaskCell<F>` to which no reference is left and whose
    /// stage and cold part are empty.
    unsafe fn free(header: NonNull<Header>) {
        // SAFETY: the cell was made by `Box::new` in `TaskRef::new`, and this is the last use.
        drop(unsafe { Box::from_raw(header.cast::<Self>().as_ptr()) });
    }
}

fn log_crash(header: &Header, what: &str, panic: &(dyn Any + Send)) {
    let text = panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(not a text)");
    tracing::error!(
        task = header.own.id.get().0,
        name = header.name(),
        spawned_at = %header.own.spawned_at,
        panic = text,
        "task crashed: {what}"
    );
}

impl Header {
    fn name(&self) -> &str {
        self.own.cold.get().map_or("", |cold| &cold.name)
    }
}

/// A counted reference to a task, for its home thread.
///
/// What a kernel keeps of its tasks, and what is inside a [`Task`](crate::Task).
#[repr(transparent)]
pub struct TaskRef {
    header: NonNull<Header>,
    /// Plainly counted, so it must not leave its thread.
    _home: PhantomData<*const ()>,
}

impl TaskRef {
    /// Builds a task's cell. The kernel behind `home` is to be told of it next.
    pub(crate) fn new<F>(
        future: F,
        home: &LocalHome,
        cold: Option<Box<Cold>>,
        spawned_at: &'static Location<'static>,
    ) -> Self
    where
        F: Future + 'static,
    {
        let cell = Box::new(TaskCell {
            header: Header {
                shared: Shared {
                    vtable: const { &TaskCell::<F>::VTABLE },
                    refs: AtomicUsize::new(1),
                    in_mail: AtomicBool::new(false),
                    home: home.shared().clone(),
                },
                own: Own {
                    local: Cell::new(1),
                    exit: Cell::new(None),
                    busy: Cell::new(false),
                    ledger: Ledger::default(),
                    id: Cell::default(),
                    spawned_at,
                    joiners: WaitQueue::new(),
                    cold: cold.map_or_else(OnceCell::new, OnceCell::from),
                },
            },
            stage: UnsafeCell::new(Stage::Future(future)),
        });
        Self { header: NonNull::from(Box::leak(cell)).cast(), _home: PhantomData }
    }

    fn header(&self) -> &Header {
        // SAFETY: a `TaskRef` is counted, so the cell lives; only shared references to a header
        // are ever made, and what changes in it is in cells or atomics.
        unsafe { self.header.as_ref() }
    }

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

    /// The name of the future's type and its size in bytes.
    pub fn future_type(&self) -> (&'static str, usize) {
        (self.header().shared.vtable.future)()
    }

    /// The kernel's own notes.
    pub fn ledger(&self) -> &Ledger {
        &self.own().ledger
    }

    /// Those who wait for the task's end.
    pub fn joiners(&self) -> &WaitQueue {
        &self.own().joiners
    }

    /// Whether the task will not be polled again.
    pub fn is_ended(&self) -> bool {
        self.exit().is_some()
    }

    /// How the task ended, if it has.
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
    }

    fn exclusively<R>(&self, work: impl FnOnce() -> R) -> R {
        let busy = &self.own().busy;
        assert!(!busy.replace(true), "a task was polled or dropped from inside itself (I6)");
        let result = work();
        busy.set(false);
        result
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
    pub fn owns(&self, waker: &Waker) -> bool {
        waker.data() == self.header.as_ptr().cast_const().cast()
            && std::ptr::eq(waker.vtable(), &WAKER)
    }

    /// Whether both refer to the same task.
    pub fn is(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> Self {
        let local = &self.own().local;
        local.set(local.get().checked_add(1).expect("a task has fewer than 2^32 references"));
        Self { header: self.header, _home: PhantomData }
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        let own = self.own();
        let left = own.local.get() - 1;
        if left > 0 {
            own.local.set(left);
            return;
        }
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
            .field("spawned_at", &format_args!("{}", self.spawned_at()))
            .field("ended", &self.is_ended())
            .finish()
    }
}

/// Gives up one atomic reference; the last one frees the cell.
///
/// # Safety
///
/// The caller owns a reference, and gives it up. The local side has emptied the stage before.
unsafe fn release(header: NonNull<Header>) {
    // SAFETY: the caller still owns a reference.
    let shared = unsafe { &(*header.as_ptr()).shared };
    let free = shared.vtable.free;
    if shared.refs.fetch_sub(1, Ordering::Release) == 1 {
        // Everything that others did with the cell happens before it is freed.
        fence(Ordering::Acquire);
        // SAFETY: that was the last reference, the one of the local side included, so the stage
        // and the cold part are empty.
        unsafe { free(header) };
    }
}

/// A wake on its way through the wake queue. It owns a reference to the task's cell.
pub struct RemoteWake {
    header: NonNull<Header>,
}

// SAFETY: through a `RemoteWake` other threads reach only `Shared`, which is `Sync`; `Own` is
// reached by `arrive` alone, which the kernel calls on the home thread.
unsafe impl Send for RemoteWake {}

impl RemoteWake {
    pub(crate) fn home(&self) -> Arc<Home> {
        // SAFETY: the reference that `self` owns keeps the cell alive.
        let shared = unsafe { &(*self.header.as_ptr()).shared };
        shared.home.clone()
    }

    /// The task to make ready, if it has not ended. For its kernel, on its own thread.
    ///
    /// From here on further wakes of the task are delivered anew.
    ///
    /// # Panics
    ///
    /// On a thread that is not inside the task's kernel.
    pub fn arrive(&self) -> Option<&TaskRef> {
        // SAFETY: the reference that `self` owns keeps the cell alive.
        let shared = unsafe { &(*self.header.as_ptr()).shared };
        assert!(
            crate::door::is_inside(shared.home.id()),
            "a wake was taken out of the wake queue by someone else than its kernel (I5)"
        );
        shared.in_mail.store(false, Ordering::SeqCst);
        // SAFETY: this is the home thread, as was just checked.
        let own = unsafe { &(*self.header.as_ptr()).own };
        if own.exit.get().is_some() {
            return None;
        }
        // SAFETY: `TaskRef` is `repr(transparent)` over this very pointer, and the task has not
        // ended, so that its local count is not zero.
        Some(unsafe { &*std::ptr::from_ref(&self.header).cast::<TaskRef>() })
    }
}

impl Drop for RemoteWake {
    fn drop(&mut self) {
        // SAFETY: the reference is owned, and given up here.
        unsafe { release(self.header) };
    }
}

impl fmt::Debug for RemoteWake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteWake")
    }
}

/// The functions of a task's waker. Its data is the pointer to the header, with one reference.
static WAKER: RawWakerVTable = RawWakerVTable::new(waker_clone, waker_wake, waker_ref, waker_drop);

/// Far more wakers than memory can hold; a count that gets here comes from leaking them in a loop.
const MAX_REFS: usize = isize::MAX as usize;

/// # Safety
///
/// `data` is that of a waker of a task whose cell is live.
unsafe fn waker_clone(data: *const ()) -> RawWaker {
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let shared = unsafe { &(*data.cast::<Header>()).shared };
    if shared.refs.fetch_add(1, Ordering::Relaxed) > MAX_REFS {
        std::process::abort();
    }
    RawWaker::new(data, &WAKER)
}

/// # Safety
///
/// As for [`waker_clone`]; the waker's reference is given up.
unsafe fn waker_wake(data: *const ()) {
    // SAFETY: the caller's promise.
    unsafe { waker_ref(data) };
    // SAFETY: the caller's promise.
    unsafe { waker_drop(data) };
}

/// # Safety
///
/// As for [`waker_clone`].
unsafe fn waker_ref(data: *const ()) {
    let header = NonNull::new(data.cast_mut().cast::<Header>()).expect("a waker's data is a cell");
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let shared = unsafe { &(*header.as_ptr()).shared };
    if crate::door::is_inside(shared.home.id()) {
        // SAFETY: this is the home thread, as was just checked.
        let own = unsafe { &(*header.as_ptr()).own };
        if own.exit.get().is_none() && !own.ledger.queued.get() {
            // A task that has not ended has a `TaskRef`; this one borrows its count.
            let task = ManuallyDrop::new(TaskRef { header, _home: PhantomData });
            crate::door::with(|kernel| kernel.wake(&task));
        }
    } else if !shared.in_mail.swap(true, Ordering::SeqCst) {
        // SAFETY: the caller's promise; the clone's reference goes to the `RemoteWake`.
        let _ = unsafe { waker_clone(data) };
        crate::home::wake_from_elsewhere(RemoteWake { header });
    }
}

/// # Safety
///
/// As for [`waker_clone`]; the waker's reference is given up.
unsafe fn waker_drop(data: *const ()) {
    let header = NonNull::new(data.cast_mut().cast::<Header>()).expect("a waker's data is a cell");
    // SAFETY: the caller's promise. The stage is empty if this is the last reference, since the
    // local side owns one until then.
    unsafe { release(header) };
}

/// Runs `drive` with a task whose future may borrow; gives what the future returned.
///
/// The task is given to `drive`, which hands it to a kernel and lets the kernel run. When `drive`
/// is done, or panics, a future that has not ended is dropped, so that nothing of it is left when
/// this returns.
///
/// # Errors
///
/// What became of the task instead: it panicked or was cancelled, or `drive` came back before it
/// had ended ([`TaskError::Stopped`]).
pub fn borrowing<F: Future>(
    future: F,
    home: &LocalHome,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
    drive: impl FnOnce(&TaskRef),
) -> Result<F::Output, TaskError> {
    struct Finish(TaskRef);
    impl Drop for Finish {
        fn drop(&mut self) {
            self.0.abandon(TaskError::Stopped);
        }
    }

    let output = Cell::new(None);
    let outcome = {
        let body = std::pin::pin!(Body { future: Some(future), output: &output });
        let body: Pin<&mut (dyn Clear + '_)> = body;
        // SAFETY: only the lifetime changes. The reference is owned by the task's cell, which gives
        // it up at the latest in `Finish::drop`; that runs before `body` goes out of scope, also
        // when `drive` panics. A task that has ended is never polled again, whoever refers to it.
        let body: Pin<&'static mut (dyn Clear + 'static)> = unsafe { std::mem::transmute(body) };
        let finish = Finish(TaskRef::new(Borrowed(body), home, Cold::named(name), spawned_at));
        drive(&finish.0);
        finish.0.abandon(TaskError::Stopped);
        // SAFETY: the output of `Borrowed` is `()`.
        unsafe { finish.0.take_outcome::<()>() }
    };
    match outcome {
        Some(Ok(())) => Ok(output.take().expect("the body wrote its output before it ended")),
        Some(Err(error)) => Err(error),
        None => Err(TaskError::Stopped),
    }
}

pin_project_lite::pin_project! {
    /// A future on the stack of [`borrowing`], and where its output goes.
    struct Body<'a, F: Future> {
        #[pin]
        future: Option<F>,
        output: &'a Cell<Option<F::Output>>,
    }
}

/// A future that can be dropped before the place it lies in is.
trait Clear: Future<Output = ()> {
    fn clear(self: Pin<&mut Self>);
}

impl<F: Future> Future for Body<'_, F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let Some(future) = this.future.as_pin_mut() else { return Poll::Ready(()) };
        future.poll(cx).map(|output| this.output.set(Some(output)))
    }
}

impl<F: Future> Clear for Body<'_, F> {
    fn clear(self: Pin<&mut Self>) {
        self.project().future.set(None);
    }
}

/// What the task of [`borrowing`] has for a future: dropping it drops the one on the stack.
struct Borrowed(Pin<&'static mut dyn Clear>);

impl Future for Borrowed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.0.as_mut().clear();
    }
}

//! The task cell: one allocation for header, future and outcome, and the waker that points at the
//! cell.
//!
//! Only the files of the folder `cell/` and `waker.rs` use the cell; everything above handles tasks
//! through [`TaskRef`](crate::TaskRef), which is safe.
//!
//! # Threads
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
//! task's kernel, the *home thread*. *Stage* is first the future, then the outcome, then nothing.
//! The stage too belongs to the home thread, so neither a future nor its output needs to be `Send`.
//!
//! # Counting
//!
//! `Own::local` counts the `TaskRef`s without atomics, as they cannot leave the home thread. All of
//! them together own one reference of `Shared::refs`, the atomic count. Every waker owns one more.
//! So a spawn, a step, a join and a same-thread wake cost no atomic read-modify-write; only cloning
//! or dropping a waker does.
//!
//! 1. `local` falls to zero (the drop of a `TaskRef`): stage and cold part are dropped, on the home
//!    thread. Then the local side releases its reference.
//! 2. `refs` falls to zero ([`release`]), on any thread: the memory is given back (`memory.rs`).
//!    Nothing in the cell needs dropping any more.
//!
//! A header points at its [`Home`] without a count of its own. While cells have a local side, all
//! of them share one reference of the home ([`Home::add_cell`]). A cell whose wakers outlive its
//! local side gets a reference of its own when the local side ends, and the last waker releases
//! that reference.
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
//! (1) `TaskRef::poll`, while the caller holds a `TaskRef`; (2) the same, when the future is ready
//! or panics: the future is dropped in place, then the outcome is written and the flags get the
//! exit; (3) `TaskRef::take_outcome` or the end of the local side; (4)
//! [`TaskRef::abandon`](crate::TaskRef::abandon). In (4) and at the local side's end, the flags get
//! the exit before the drops. So a wake from a destructor finds a task that has ended.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::future::Future;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::catch::discard;
use crate::cause::Cause;
use crate::home::{Home, LocalHome, Message, RemoteWake};
use crate::interrupt::{Panic, TaskError};
use crate::memory;
use crate::names::TaskId;
use crate::seen::SeenWait;
use crate::threads::{AtomicBool, AtomicU32, Ordering, fence};

pub(crate) mod flags;
pub(crate) mod locals;
pub(crate) mod ready;
pub(crate) mod reference;
#[cfg(all(test, pikake_shuttle))]
mod shared_tests;
pub(crate) mod sub_wait;

use flags::{Exit, Flags};
use locals::Locals;
use sub_wait::List;

/// The part of a header that any thread may access.
struct Shared {
    vtable: &'static VTable,
    home: NonNull<Home>,
    /// Wakers, plus one for all `TaskRef`s together.
    refs: AtomicU32,
    /// The task's index in the kernel's table. Used by the home thread alone; atomic, at no cost,
    /// because it lies in the shared part.
    index: AtomicU32,
    /// The wake queue has a wake of this task.
    is_wake_queued: AtomicBool,
    parent: Parent,
}

/// The id of the task that spawned another one, in the seven bytes that the alignment of `Shared`
/// leaves free; all zero for none.
///
/// A kernel that spawns ten million tasks a second needs two hundred years to run out of ids.
#[derive(Clone, Copy)]
struct Parent([u8; PARENT_BYTES]);

/// The bytes of a word without that of a flag.
const PARENT_BYTES: usize = size_of::<u64>() - 1;

impl Parent {
    fn new(parent: Option<TaskId>) -> Self {
        let [bytes @ .., _] = parent.map_or(0, |parent| parent.0).to_le_bytes();
        Self(bytes)
    }

    fn get(self) -> Option<TaskId> {
        let mut bytes = [0; size_of::<u64>()];
        bytes[..PARENT_BYTES].copy_from_slice(&self.0);
        Some(TaskId(u64::from_le_bytes(bytes))).filter(|parent| parent.0 != 0)
    }
}

/// The part of a header that belongs to the home thread.
struct Own {
    flags: Flags,
    /// The number of `TaskRef`s.
    local: Cell<u32>,
    /// The next task in the ready list.
    next: Cell<Option<NonNull<Header>>>,
    spawned_at: &'static Location<'static>,
    /// The place of the await of the wait that was polled last and is pending. The flags have its
    /// kind.
    awaits_at: Cell<&'static Location<'static>>,
    id: Cell<TaskId>,
    cold: OnceCell<Box<Cold>>,
}

/// Work that a task has offered to other kernels.
pub(crate) trait Withdraw {
    /// Takes the work back, for the task to drop. `false`: another kernel has begun it.
    fn withdraw(&self) -> bool;

    /// Whether nobody has taken the work.
    fn is_free(&self) -> bool;
}

/// The parts that few tasks have, and that a step does not use.
#[derive(Default)]
struct Cold {
    name: OnceCell<Cow<'static, str>>,
    locals: Locals,
    /// The task's work, which another kernel may begin before the task's first step.
    offer: OnceCell<Rc<dyn Withdraw>>,
    /// The request to end, once there was one.
    cause: OnceCell<Box<Cause>>,
    /// The number of live causes of the task and of its scopes.
    causes: Cell<u32>,
    /// The sub-waits that are in no scope.
    sub_waits: Cell<List>,
    /// The waits of the last step, if that step was inspected.
    seen: RefCell<Option<Seen>>,
    /// An inspection has made the task ready for its next step, and nothing else before.
    is_looked_at: Cell<bool>,
}

/// The number of steps whose waits an inspection keeps, each instead of those of the step before.
/// More than one, since combinators that have polled all of their futures wake their task to be
/// polled again.
const INSPECTED_STEPS: u32 = 4;

/// The waits of an inspected step.
struct Seen {
    /// The pending waits that were polled with the task's own waker.
    waits: Vec<SeenWait>,
    /// The number of steps that are inspected after this one.
    steps_left: u32,
    /// A wait began or ended in this step, or in one before that was inspected.
    has_moved: bool,
    /// The inspection alone has made the task ready for this step.
    is_look: bool,
}

impl Cold {
    fn named(name: Option<Box<str>>) -> Option<Box<Self>> {
        let name = OnceCell::from(Cow::Owned(name?.into()));
        Some(Box::new(Self { name, ..Self::default() }))
    }
}

pub(crate) struct Header {
    shared: Shared,
    own: Own,
}

/// A header has a cache line and a quarter at most. The model checker's atomics are larger.
#[cfg(all(target_pointer_width = "64", not(pikake_shuttle)))]
const _: () = {
    let bytes = 80;
    assert!(size_of::<Header>() <= bytes, "the header of a task has grown");
};

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
/// All take a pointer to the header of a live cell of the vtable's type; all but `free` may be
/// called on the home thread only.
struct VTable {
    /// Polls the future. If the future is ready or panics, drops it and writes the outcome.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> Option<Exit>,
    /// Replaces a future by the error.
    abandon: unsafe fn(NonNull<Header>, TaskError),
    /// Moves the outcome to the `Option<Result<T, TaskError>>` behind the pointer, which is `None`.
    take: unsafe fn(NonNull<Header>, NonNull<()>),
    /// Drops the content of the stage.
    clear: unsafe fn(NonNull<Header>),
    /// Gives back the memory of a cell whose stage is empty. On any thread.
    free: unsafe fn(NonNull<Header>),
    /// The name of the future's type, and its size in bytes.
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
    #[inline(always)]
    unsafe fn stage(header: NonNull<Header>) -> *mut Stage<F, F::Output> {
        let cell = header.cast::<Self>().as_ptr();
        // SAFETY: the cell is live and of this type, by the caller's promise.
        let stage = unsafe { &raw const (*cell).stage };
        UnsafeCell::raw_get(stage)
    }

    /// # Safety
    ///
    /// As for [`VTable`]; no other reference into the stage exists (`Flags::BUSY` prevents it).
    unsafe fn poll(header: NonNull<Header>, cx: &mut Context<'_>) -> Option<Exit> {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        let Stage::Future(future) = (unsafe { &mut *stage }) else {
            return None;
        };
        let future = ptr::from_mut(future);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the future is valid, and no other reference to it exists.
            let future = unsafe { &mut *future };
            // SAFETY: the cell is heap-allocated and never moved, and the future is dropped in
            // place.
            let future = unsafe { Pin::new_unchecked(future) };
            let Poll::Ready(value) = future.poll(cx) else { return None };
            // Here, and not with the outcome of `catch_unwind`, which would be one more copy.
            // SAFETY: the caller's promise; the future is not used any more.
            unsafe { Self::end(header, Ok(value)) };
            Some(Exit::Returned)
        }));
        polled.unwrap_or_else(|panic| {
            // SAFETY: as above. If `end` has panicked, in a subscriber of `tracing`, the stage is
            // empty.
            unsafe { Self::end(header, Err(TaskError::Panicked(Panic::new(panic)))) };
            Some(Exit::Panicked)
        })
    }

    /// Replaces the future by the outcome.
    ///
    /// # Safety
    ///
    /// As for [`Self::poll`]; the stage has a future, or is empty.
    #[inline(always)]
    unsafe fn end(header: NonNull<Header>, outcome: Result<F::Output, TaskError>) {
        if needs_drop::<F>() {
            // SAFETY: the caller's promise.
            unsafe { Self::empty(header) };
        }
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid for writing, and its content has been dropped, or need not be.
        unsafe { stage.write(Stage::Ended(outcome)) };
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
            unsafe { Self::end(header, Err(error)) };
        }
    }

    /// Drops the content of the stage in place, and leaves the stage empty. A panic of the drop is
    /// logged.
    ///
    /// # Safety
    ///
    /// As for [`Self::poll`].
    #[inline(never)]
    unsafe fn empty(header: NonNull<Header>) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the stage is valid and not dropped twice: it is overwritten just below,
            // without being dropped again, even if this drop panics.
            unsafe { stage.drop_in_place() };
        }));
        // SAFETY: the stage is valid for writing, and its content has been dropped.
        unsafe { stage.write(Stage::Empty) };
        if let Err(payload) = dropped {
            let panic = Panic::new(payload);
            // SAFETY: the header is live, and this is the home thread.
            log_crash(unsafe { header.as_ref() }, "dropping it panicked", &panic);
            discard(panic.into_payload());
        }
    }

    /// # Safety
    ///
    /// As for [`Self::poll`]; `into` points to an `Option<Result<F::Output, TaskError>>` that is
    /// `None`.
    unsafe fn take(header: NonNull<Header>, into: NonNull<()>) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        let Stage::Ended(outcome) = (unsafe { &*stage }) else { return };
        // SAFETY: the outcome is valid, and is not used again: the stage is overwritten below.
        let outcome = unsafe { ptr::read(outcome) };
        // SAFETY: the stage is valid for writing, and its content has been moved out.
        unsafe { stage.write(Stage::Empty) };
        // SAFETY: valid for writing and of this type, by the caller's promise. It is `None`, which
        // need not be dropped.
        unsafe { into.cast::<Option<Result<F::Output, TaskError>>>().write(Some(outcome)) };
    }

    /// # Safety
    ///
    /// As for [`Self::poll`].
    unsafe fn clear(header: NonNull<Header>) {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        match unsafe { &*stage } {
            Stage::Empty => return,
            Stage::Ended(Err(TaskError::Panicked(panic))) => {
                // SAFETY: the header is live, and this is the home thread.
                let header = unsafe { header.as_ref() };
                log_crash(header, "it panicked and was not joined", panic);
            }
            Stage::Ended(Ok(_)) if !needs_drop::<F::Output>() => {
                // SAFETY: the stage is valid for writing, and its content need not be dropped.
                return unsafe { stage.write(Stage::Empty) };
            }
            Stage::Ended(_) | Stage::Future(_) => {}
        }
        // SAFETY: the caller's promise.
        unsafe { Self::empty(header) };
    }

    /// # Safety
    ///
    /// `header` points to the header of a `TaskCell<F>` to which no reference is left and whose
    /// stage and cold part are empty.
    unsafe fn free(header: NonNull<Header>) {
        let Some(class) = (const { memory::class_of::<Self>() }) else {
            let cell = header.cast::<Self>().as_ptr();
            // SAFETY: the cell is a box of its own, made in `allocate`, and this is the last use.
            return drop(unsafe { Box::from_raw(cell) });
        };
        // Nothing in the cell needs to be dropped any more.
        // SAFETY: the memory was taken in `allocate`, of the same class, and this is the last use.
        unsafe { memory::give_back(header.cast(), class) };
    }
}

/// Allocates the cell of a task, with one reference of the local side. The caller [fills](fill) it.
#[inline(always)]
fn allocate<F>(
    home: &LocalHome,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
    parent: Option<TaskId>,
) -> NonNull<Header>
where
    F: Future + 'static,
{
    let cell: NonNull<TaskCell<F>> = match const { memory::class_of::<TaskCell<F>>() } {
        Some(class) => memory::take(class).cast(),
        None => NonNull::from(Box::leak(Box::<TaskCell<F>>::new_uninit())).cast(),
    };
    // SAFETY: a `LocalHome` is on the home thread.
    unsafe { home.shared().add_cell() };
    let cell = cell.as_ptr();
    // SAFETY: the memory is large enough for a cell, aligned, and used by nothing else.
    let header = unsafe { &raw mut (*cell).header };
    // SAFETY: the header is valid for writing.
    unsafe {
        header.write(Header {
            shared: Shared {
                vtable: const { &TaskCell::<F>::VTABLE },
                home: home.address(),
                refs: AtomicU32::new(1),
                index: AtomicU32::new(u32::MAX),
                is_wake_queued: AtomicBool::new(false),
                parent: Parent::new(parent),
            },
            own: Own {
                flags: Flags::new(name.is_some()),
                local: Cell::new(1),
                next: Cell::new(None),
                spawned_at,
                awaits_at: Cell::new(spawned_at),
                id: Cell::default(),
                cold: Cold::named(name).map_or_else(OnceCell::new, OnceCell::from),
            },
        })
    };
    NonNull::new(header).expect("an allocation is not null")
}

/// Writes the future of a new cell in place.
///
/// # Safety
///
/// `header` was returned by [`allocate`] for this type, and this is its first use.
#[inline(always)]
unsafe fn fill<F: Future>(header: NonNull<Header>, future: F) {
    // SAFETY: the cell is live and of this type.
    let stage = unsafe { TaskCell::<F>::stage(header) };
    // SAFETY: the stage is valid for writing, and has no content.
    unsafe { stage.write(Stage::Future(future)) };
}

#[cold]
fn log_crash(header: &Header, what: &str, panic: &Panic) {
    let last_events = LAST_EVENTS.get()(header.shared.home, header.own.id.get());
    tracing::error!(
        task = header.own.id.get().0,
        name = header.name(),
        spawned_at = %header.own.spawned_at,
        panicked_at = panic.place().map(display),
        panic = panic.message().unwrap_or("(not a text)"),
        last_events,
        "task crashed: {what}"
    );
}

type LastEvents = fn(NonNull<Home>, TaskId) -> Option<String>;

thread_local! {
    /// Tells the last events of a task, for the report of its crash. A kernel that is listed on the
    /// thread (`door.rs`) sets this; until then nothing is known.
    pub(crate) static LAST_EVENTS: Cell<LastEvents> = const { Cell::new(|_, _| None) };
}

impl Header {
    fn name(&self) -> &str {
        self.own.cold.get().and_then(|cold| cold.name.get()).map_or("", |name| name)
    }
}

/// Ends the local side of a cell: releases its reference, and its part in that of the home.
///
/// # Safety
///
/// This is the home thread, no `TaskRef` is left, and stage and cold part are empty.
#[inline]
unsafe fn end_local_side(header: NonNull<Header>) {
    // SAFETY: the local side owns a reference, which keeps the cell alive.
    let shared = unsafe { &(*header.as_ptr()).shared };
    let (home, free) = (shared.home, shared.vtable.free);
    if shared.refs.load(Ordering::Acquire) == 1 {
        // SAFETY: the local side's reference is the last one. Without a waker, no new waker can be
        // made.
        unsafe { free(header) };
    } else {
        // SAFETY: the pointer is that of an `Arc`, of which the cells in use share a reference.
        unsafe { Arc::increment_strong_count(home.as_ptr()) };
        // SAFETY: the reference of the local side, which ends here.
        unsafe { release(header) };
    }
    // SAFETY: this is the home thread; the cell was counted when it was allocated.
    unsafe { Home::remove_cell(home) };
}

/// Releases one atomic reference of a cell that has, or had, wakers; the last one frees the cell.
///
/// # Safety
///
/// The caller owns a reference, and loses it. If the local side has ended, it has emptied the stage
/// before, and given the cell a reference of its home.
pub(crate) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: the caller still owns a reference.
    let shared = unsafe { &(*header.as_ptr()).shared };
    let (home, free) = (shared.home, shared.vtable.free);
    if shared.refs.fetch_sub(1, Ordering::Release) == 1 {
        // All uses of the cell by other threads happen before the cell is freed.
        fence(Ordering::Acquire);
        // SAFETY: that was the last reference. The local side empties the stage and the cold part
        // before it releases its own.
        unsafe { free(header) };
        // SAFETY: the pointer is that of an `Arc`. The caller is `end_local_side`, or a waker after
        // it, so the cell has a reference of its home.
        unsafe { Arc::decrement_strong_count(home.as_ptr()) };
    }
}

/// The limit of a task's wakers. Only a loop that leaks wakers can reach it.
const MAX_REFS: u32 = i32::MAX as u32;

/// Adds an atomic reference.
///
/// # Safety
///
/// The cell is live.
pub(crate) unsafe fn retain(header: NonNull<Header>) {
    // SAFETY: the caller's promise; only `shared` is read, which any thread may do.
    let shared = unsafe { &(*header.as_ptr()).shared };
    if shared.refs.fetch_add(1, Ordering::Relaxed) > MAX_REFS {
        std::process::abort();
    }
}

/// The home of a task.
///
/// # Safety
///
/// The cell is live.
#[inline(always)]
pub(crate) unsafe fn home_of(header: NonNull<Header>) -> NonNull<Home> {
    // SAFETY: the caller's promise; only `shared` is read, which any thread may do.
    unsafe { (*header.as_ptr()).shared.home }
}

/// [`release`], for code that does not know the type of a cell.
///
/// # Safety
///
/// As for [`release`]; the pointer is that of a header.
unsafe fn release_erased(cell: NonNull<()>) {
    // SAFETY: the caller's promise.
    unsafe { release(cell.cast()) };
}

/// Sends a task's wake home, unless one is on its way.
///
/// # Safety
///
/// The cell is live.
#[inline(never)]
pub(crate) unsafe fn send_wake(header: NonNull<Header>) {
    // SAFETY: the caller's promise; only `shared` is read, which any thread may do.
    let shared = unsafe { &(*header.as_ptr()).shared };
    if shared.is_wake_queued.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: the caller's promise; the reference goes to the `RemoteWake`.
    unsafe { retain(header) };
    // SAFETY: the pointer is that of an `Arc`, which lives. All cells with a local side share a
    // reference, and a cell without a local side has its own.
    unsafe { Arc::increment_strong_count(shared.home.as_ptr()) };
    // SAFETY: the reference that was just made.
    let home: Arc<Home> = unsafe { Arc::from_raw(shared.home.as_ptr()) };
    let sent = home.moment_of_wake();
    // SAFETY: the reference was made above, the pointer is that of a cell, and `release` may be
    // called on any thread.
    let wake = unsafe { RemoteWake::new(header.cast(), release_erased, sent) };
    // A kernel that has ended has no task left to wake.
    drop(home.send(Message::Wake(wake)));
}

/// Notes that a wake was taken out of the wake queue. Further wakes of the task are sent anew.
///
/// # Safety
///
/// The cell is live.
pub(crate) unsafe fn receive_wake(header: NonNull<Header>) {
    // SAFETY: the caller's promise; only `shared` is read, which any thread may do.
    let shared = unsafe { &(*header.as_ptr()).shared };
    // A swap, since a read makes the code before the wake happen before the step that the wake
    // causes.
    shared.is_wake_queued.swap(false, Ordering::SeqCst);
}

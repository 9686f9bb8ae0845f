//! The task cell: one allocation for header, future and outcome, and the waker that points at it.
//!
//! Only the files of the folder `cell/` and `waker.rs` use the cell; everything above handles tasks
//! through [`TaskRef`](crate::TaskRef), which is safe.
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
//! `Own::local` counts the `TaskRef`s, plainly: they cannot leave the home thread. All of them
//! together own one reference of `Shared::refs`, the atomic count, of which every waker owns one
//! more. So a spawn, a step, a join and a same-thread wake cost no atomic read-modify-write; only
//! cloning or dropping a waker does.
//!
//! 1. `local` falls to zero (the drop of a `TaskRef`): what is left of stage and cold part is
//!    dropped, on the home thread; then the local side gives up its reference.
//! 2. `refs` falls to zero ([`release`]), on any thread: the memory is given back (`memory.rs`).
//!    Nothing in it needs dropping any more.
//!
//! A header points at its [`Home`] without a count of its own. While cells have a local side, all of
//! them share one reference of the home ([`Home::add_cell`]). A cell whose wakers outlive its local side
//! gets a reference of its own when the local side ends, and the last waker gives it up.
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
//! (1) `TaskRef::poll`, while the caller holds a `TaskRef`; (2) the same, when the future is
//! ready or panics: the future is dropped in place, then the outcome is written and the flags say
//! how it ended; (3) `TaskRef::take_outcome` or the end of the local side; (4)
//! [`TaskRef::abandon`](crate::TaskRef::abandon). The flags say how it ended before anything of (4) or of the local side's
//! end is dropped, so that a wake from a destructor finds a task that has ended.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::future::Future;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::catch::{discard, text_of};
use crate::cause::Cause;
use crate::home::{Home, LocalHome, Message, RemoteWake};
use crate::interrupt::{Panic, TaskError};
use crate::names::{SeenWait, TaskId};
use crate::threads::{AtomicBool, AtomicU32, Ordering, fence};

pub(crate) mod flags;
pub(crate) mod locals;
mod memory;
pub(crate) mod ready;
pub(crate) mod reference;
#[cfg(all(test, pikake_shuttle))]
mod shared_tests;
pub(crate) mod sub_wait;

use flags::{Exit, Flags};
use locals::Locals;
use sub_wait::List;

/// The part of a header that any thread may look at.
struct Shared {
    vtable: &'static VTable,
    home: NonNull<Home>,
    /// Wakers, plus one for all `TaskRef`s together.
    refs: AtomicU32,
    /// Where the kernel keeps the task. Written and read by the home thread alone; atomic for the
    /// sake of its place beside `refs`, which costs nothing.
    index: AtomicU32,
    /// A wake of this task lies in the wake queue.
    in_mail: AtomicBool,
    parent: Parent,
}

/// The id of the task that spawned another one, in the seven bytes that the alignment of `Shared`
/// leaves free; all zero for none.
///
/// A kernel that spawned ten million tasks a second would need two hundred years to run out of them.
#[derive(Clone, Copy)]
struct Parent([u8; PARENT_BYTES]);

/// As many as fit beside a flag into one word.
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
    /// `TaskRef`s.
    local: Cell<u32>,
    /// The next task in the ready list.
    next: Cell<Option<NonNull<Header>>>,
    spawned_at: &'static Location<'static>,
    /// Where the wait is awaited that was polled last and is pending; its kind is in the flags.
    waits_at: Cell<&'static Location<'static>>,
    id: Cell<TaskId>,
    cold: OnceCell<Box<Cold>>,
}

/// What few tasks have and no step looks at.
#[derive(Default)]
struct Cold {
    name: Box<str>,
    locals: Locals,
    /// The request to end, once there was one.
    cause: OnceCell<Box<Cause>>,
    /// How many causes are live, of the task and of its scopes.
    causes: Cell<u32>,
    /// The sub-waits that are in no scope.
    sub_waits: Cell<List>,
    /// The pending waits that were polled with the task's own waker in the last step, if it was inspected
    /// before that.
    seen: RefCell<Option<Vec<SeenWait>>>,
}

impl Cold {
    fn named(name: Option<Box<str>>) -> Option<Box<Self>> {
        name.map(|name| Box::new(Self { name, ..Self::default() }))
    }
}

pub(crate) struct Header {
    shared: Shared,
    own: Own,
}

/// The most that a header may take, in bytes: a cache line and a quarter. The model checker's atomics
/// take more.
#[cfg(all(target_pointer_width = "64", not(pikake_shuttle)))]
const HEADER_BYTES: usize = 80;

#[cfg(all(target_pointer_width = "64", not(pikake_shuttle)))]
const _: () = assert!(size_of::<Header>() <= HEADER_BYTES, "the header of a task has grown");

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
    /// Gives back the memory of a cell whose stage is empty. On any thread.
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
    #[inline(always)]
    unsafe fn stage(header: NonNull<Header>) -> *mut Stage<F, F::Output> {
        let cell = header.cast::<Self>().as_ptr();
        // SAFETY: the cell is live and of this type, by the caller's promise.
        let stage = unsafe { &raw const (*cell).stage };
        UnsafeCell::raw_get(stage)
    }

    /// # Safety
    ///
    /// As for [`VTable`]; no other reference into the stage exists (`Flags::BUSY` sees to it).
    unsafe fn poll(header: NonNull<Header>, cx: &mut Context<'_>) -> Option<Exit> {
        // SAFETY: the caller's promise.
        let stage = unsafe { Self::stage(header) };
        // SAFETY: the stage is valid, and no other reference into it exists.
        let Stage::Future(future) = (unsafe { &mut *stage }) else {
            return None;
        };
        // SAFETY: the cell is heap-allocated and never moved, and the future is dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        let outcome = match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(TaskError::Panicked(Panic::new(panic))),
        };
        let exit = if outcome.is_ok() { Exit::Returned } else { Exit::Panicked };
        if needs_drop::<F>() {
            // SAFETY: as for the caller's promise; `future` is not used any more.
            unsafe { Self::empty(header) };
        }
        // SAFETY: the stage is valid for writing, and what it held has been dropped, or need not be.
        unsafe { stage.write(Stage::Ended(outcome)) };
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
            unsafe { Self::empty(header) };
            // SAFETY: the stage is valid for writing, and what it held has been dropped.
            unsafe { stage.write(Stage::Ended(Err(error))) };
        }
    }

    /// Drops what the stage holds, in place, and leaves it empty. A panic of the drop is logged.
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
        // SAFETY: the stage is valid for writing, and what it held has been dropped.
        unsafe { stage.write(Stage::Empty) };
        if let Err(panic) = dropped {
            // SAFETY: the header is live, and this is the home thread.
            log_crash(unsafe { header.as_ref() }, "dropping it panicked", text_of(&*panic));
            discard(panic);
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
        match unsafe { &*stage } {
            Stage::Empty => return,
            Stage::Ended(Err(TaskError::Panicked(panic))) => {
                // SAFETY: the header is live, and this is the home thread.
                let header = unsafe { header.as_ref() };
                log_crash(header, "it panicked and nobody joined it", panic.message());
            }
            Stage::Ended(Ok(_)) if !needs_drop::<F::Output>() => {
                // SAFETY: the stage is valid for writing, and what it holds need not be dropped.
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
            let place = header.cast::<Self>().as_ptr();
            // SAFETY: the cell is a box of its own, made in `allocate`, and this is the last use.
            return drop(unsafe { Box::from_raw(place) });
        };
        // Nothing in the cell needs to be dropped any more.
        // SAFETY: the memory was taken in `allocate`, of the same class, and this is the last use.
        unsafe { memory::give_back(header.cast(), class) };
    }
}

/// Allocates the cell of a task, with one reference of the local side.
#[inline]
fn allocate<F>(
    future: F,
    home: &LocalHome,
    name: Option<Box<str>>,
    spawned_at: &'static Location<'static>,
    parent: Option<TaskId>,
) -> NonNull<Header>
where
    F: Future + 'static,
{
    // Written in place: a future may be large, and would be moved once more.
    let place: NonNull<TaskCell<F>> = match const { memory::class_of::<TaskCell<F>>() } {
        Some(class) => memory::take(class).cast(),
        None => NonNull::from(Box::leak(Box::<TaskCell<F>>::new_uninit())).cast(),
    };
    // SAFETY: a `LocalHome` is on the home thread.
    unsafe { home.shared().add_cell() };
    let place = place.as_ptr();
    // SAFETY: the place is large enough for a cell, and aligned, and nobody else's.
    let header = unsafe { &raw mut (*place).header };
    // SAFETY: as above.
    let stage = unsafe { &raw mut (*place).stage };
    // SAFETY: it is valid for writing.
    unsafe { stage.write(UnsafeCell::new(Stage::Future(future))) };
    // SAFETY: it is valid for writing.
    unsafe {
        header.write(Header {
            shared: Shared {
                vtable: const { &TaskCell::<F>::VTABLE },
                home: home.address(),
                refs: AtomicU32::new(1),
                index: AtomicU32::new(u32::MAX),
                in_mail: AtomicBool::new(false),
                parent: Parent::new(parent),
            },
            own: Own {
                flags: Flags::new(name.is_some()),
                local: Cell::new(1),
                next: Cell::new(None),
                spawned_at,
                waits_at: Cell::new(spawned_at),
                id: Cell::default(),
                cold: Cold::named(name).map_or_else(OnceCell::new, OnceCell::from),
            },
        })
    };
    NonNull::new(header).expect("memory is somewhere")
}

#[cold]
fn log_crash(header: &Header, what: &str, panic: Option<&str>) {
    tracing::error!(
        task = header.own.id.get().0,
        name = header.name(),
        spawned_at = %header.own.spawned_at,
        panic = panic.unwrap_or("(not a text)"),
        "task crashed: {what}"
    );
}

impl Header {
    fn name(&self) -> &str {
        self.own.cold.get().map_or("", |cold| &cold.name)
    }
}

/// Ends the local side of a cell: gives up its reference, and its part in that of the home.
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
        // No waker is left, and nobody has one to make more of.
        // SAFETY: the local side's reference is the last one.
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

/// Gives up one atomic reference of a cell that has, or had, wakers; the last one frees the cell.
///
/// # Safety
///
/// The caller owns a reference, and gives it up. If the local side has ended, it has emptied the
/// stage before, and given the cell a reference of its home.
pub(crate) unsafe fn release(header: NonNull<Header>) {
    // SAFETY: the caller still owns a reference.
    let shared = unsafe { &(*header.as_ptr()).shared };
    let (home, free) = (shared.home, shared.vtable.free);
    if shared.refs.fetch_sub(1, Ordering::Release) == 1 {
        // Everything that others did with the cell happens before it is freed.
        fence(Ordering::Acquire);
        // SAFETY: that was the last reference. The local side gives up its own after everything
        // else, so the stage and the cold part are empty.
        unsafe { free(header) };
        // SAFETY: the pointer is that of an `Arc`. Not the local side is last here, but after it a
        // waker, or it itself in `end_local_side`, so the cell has a reference of its home.
        unsafe { Arc::decrement_strong_count(home.as_ptr()) };
    }
}

/// Far more wakers than a task can use; a count that gets here comes from leaking them in a loop.
const MAX_REFS: u32 = i32::MAX.cast_unsigned();

/// Makes one atomic reference more.
///
/// # Safety
///
/// The cell is live.
pub(crate) unsafe fn retain(header: NonNull<Header>) {
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
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
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    unsafe { (*header.as_ptr()).shared.home }
}

/// [`release`], for who does not know what a cell is.
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
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let shared = unsafe { &(*header.as_ptr()).shared };
    if shared.in_mail.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: the caller's promise; the reference goes to the `RemoteWake`.
    unsafe { retain(header) };
    // SAFETY: the reference was just made, the pointer is that of a cell, and `release` may be called on
    // any thread.
    let wake = unsafe { RemoteWake::new(header.cast(), release_erased) };
    // SAFETY: the pointer is that of an `Arc`, which lives: of the cells with a local side all share
    // a reference, and a cell without one has its own.
    unsafe { Arc::increment_strong_count(shared.home.as_ptr()) };
    // SAFETY: the reference that was just made.
    let home: Arc<Home> = unsafe { Arc::from_raw(shared.home.as_ptr()) };
    // A kernel that has ended has no task left to wake.
    drop(home.send(Message::Wake(wake)));
}

/// A wake has come home: from here on further wakes of the task are sent anew.
///
/// # Safety
///
/// The cell is live.
pub(crate) unsafe fn receive_wake(header: NonNull<Header>) {
    // SAFETY: the caller's promise; only `shared` is looked at, on whatever thread.
    let shared = unsafe { &(*header.as_ptr()).shared };
    // Read as well as written: what was done before the wake happens before the step it causes.
    shared.in_mail.swap(false, Ordering::SeqCst);
}

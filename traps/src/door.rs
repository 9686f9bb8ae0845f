//! The door to a kernel: the thread-local pointer by which every trap finds the kernel that runs it.
//!
//! A kernel opens the door to its [`Local`] for the length of a turn with [`enter`]; the thread then has a
//! current kernel, and every trap goes to that one. The door is not found through the `Waker`,
//! because combinators such as `FuturesUnordered` poll their children with wakers of their own.
//!
//! A few things must reach a kernel from outside a turn, on the same thread. A future that is dropped
//! between two runs takes its wait back, and a wait queue notifies its waiters. For them a kernel is also
//! listed in its thread's directory for as long as it lives ([`register`]). Once it is gone they
//! find nothing, and do nothing.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::cell::reference::TaskRef;
use crate::local::{Local, TrapHandler};
use crate::names::{KernelId, TaskId, TrapKind};

thread_local! {
    static DOOR: Cell<Option<NonNull<Local>>> = const { Cell::new(None) };

    static DIRECTORY: RefCell<Vec<Rc<dyn TrapHandler>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with the current kernel's [`Local`], if the thread is inside a kernel.
#[inline(always)]
pub(crate) fn try_with<R>(work: impl FnOnce(&Local) -> R) -> Option<R> {
    let local = DOOR.with(Cell::get)?;
    // SAFETY: the pointer was made from a borrow that `enter` holds until it has reset it, on
    // every path. `work` gets a borrow that cannot outlive the call.
    Some(work(unsafe { local.as_ref() }))
}

/// Calls `work` with that, and the task whose future is being polled; `None` outside.
#[inline(always)]
pub(crate) fn try_with_task<R>(work: impl FnOnce(&Local, &TaskRef) -> R) -> Option<R> {
    try_with(|local| {
        let task = local.polled()?;
        Some(work(local, &task))
    })?
}

/// The current kernel's id; `None` outside.
pub(crate) fn current_kernel() -> Option<KernelId> {
    try_with(Local::id)
}

/// Calls `work` with the current kernel's [`Local`].
///
/// # Panics
///
/// Outside a kernel, with the place of the caller.
#[track_caller]
#[inline]
pub(crate) fn with<R>(work: impl FnOnce(&Local) -> R) -> R {
    match try_with(work) {
        Some(result) => result,
        None => outside("this call", Location::caller()),
    }
}

/// Panics at the place that made a trap which no kernel can execute.
#[cold]
#[inline(never)]
pub(crate) fn outside(what: &str, place: &'static Location<'static>) -> ! {
    panic!(
        "{what} (at {place}) needs a pikake kernel, and this thread is not inside one: call it \
         from a task, under #[pikake::main], pikake::run or Kernel::run, and not from a thread \
         or an executor of another kind"
    )
}

/// Panics for a trap that is executed between steps, where there is no task to suspend.
#[cold]
#[track_caller]
pub(crate) fn outside_a_task(what: TrapKind, place: &'static Location<'static>) -> ! {
    panic!(
        "the trap `{what}` (at {place}) was polled inside a kernel but outside a task: \
         spawn a task and await it there"
    )
}

/// Calls `work` with the [`Local`] of a kernel of this thread, inside or outside its turn.
///
/// `None`: it has ended, or is not of this thread.
#[inline]
pub(crate) fn reach<R>(id: KernelId, work: impl FnOnce(&Local) -> R) -> Option<R> {
    let mut work = Some(work);
    let inside = try_with(|local| match local.id() == id {
        true => work.take().map(|work| work(local)),
        false => None,
    });
    match inside.flatten() {
        Some(result) => Some(result),
        None => reach_from_outside(id, work?),
    }
}

#[cold]
#[inline(never)]
fn reach_from_outside<R>(id: KernelId, work: impl FnOnce(&Local) -> R) -> Option<R> {
    let find = |directory: &RefCell<Vec<Rc<dyn TrapHandler>>>| {
        directory.borrow().iter().find(|kernel| kernel.local().id() == id).cloned()
    };
    let kernel = DIRECTORY.try_with(find).ok()??;
    let local = kernel.local();
    let _far = Far::set(local, &kernel);
    let result = work(local);
    if !local.ready().is_empty() || local.needs_attention() {
        // A foreign loop that watches the kernel's descriptor is to see that there is work.
        local.home().nudge();
    }
    Some(result)
}

/// Has a kernel's [`Local`] find the kernel, until this is dropped.
struct Far<'a> {
    local: &'a Local,
    before: Option<NonNull<dyn TrapHandler>>,
}

impl<'a> Far<'a> {
    fn set(local: &'a Local, kernel: &'a Rc<dyn TrapHandler>) -> Self {
        let kernel = NonNull::new(Rc::as_ptr(kernel).cast_mut());
        Self { local, before: local.replace_kernel(kernel) }
    }
}

impl Drop for Far<'_> {
    fn drop(&mut self) {
        self.local.replace_kernel(self.before);
    }
}

/// Another kernel is running on this thread already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NestedRun;

impl fmt::Display for NestedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a kernel cannot be run inside a running kernel on the same thread: \
             spawn a task and await it, or run the other kernel on a thread of its own",
        )
    }
}

impl std::error::Error for NestedRun {}

/// Makes `kernel` the thread's current kernel while `inside` runs.
///
/// # Errors
///
/// [`NestedRun`] if the thread is inside a kernel already; `inside` is not called.
pub fn enter<R>(kernel: &Rc<dyn TrapHandler>, inside: impl FnOnce() -> R) -> Result<R, NestedRun> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DOOR.set(None);
        }
    }

    // Asked first: the kernel's own code may panic, and must find the door as it was.
    let local = kernel.local();
    if DOOR.get().is_some() {
        return Err(NestedRun);
    }
    let _far = Far::set(local, kernel);
    DOOR.set(Some(NonNull::from(local)));
    let _leave = Leave;
    Ok(inside())
}

/// Whether the thread is inside a kernel, so that traps have somewhere to go.
pub fn is_open() -> bool {
    current_kernel().is_some()
}

/// Lists a kernel in its thread's directory; the returned guard takes it out again.
pub fn register(kernel: Rc<dyn TrapHandler>) -> Registration {
    let id = kernel.local().id();
    DIRECTORY.with(|directory| directory.borrow_mut().push(kernel));
    Registration { id, _home: std::marker::PhantomData }
}

/// A kernel's entry in its thread's directory.
#[derive(Debug)]
pub struct Registration {
    id: KernelId,
    /// The entry is one of this thread.
    _home: std::marker::PhantomData<*const ()>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // At the thread's end the directory may be gone before the kernel is, entry included.
        let kernel = DIRECTORY.try_with(|directory| {
            let mut directory = directory.borrow_mut();
            let place = directory.iter().position(|kernel| kernel.local().id() == self.id)?;
            Some(directory.swap_remove(place))
        });
        drop(kernel);
    }
}

/// The kernel that is running here, and the task whose future it is polling or dropping.
#[inline]
pub(crate) fn polling() -> (KernelId, TaskId) {
    let found = try_with_task(|local, task| (local.id(), task.id()));
    found.unwrap_or((KernelId::NONE, TaskId(0)))
}

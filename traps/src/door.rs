//! The door: how a task reaches the kernel that runs it.
//!
//! A kernel opens the door of its thread for the length of a turn with [`enter`]; inside, the
//! thread has a current kernel, and every trap goes to that one. It is a thread-local pointer and
//! not something found through the `Waker`, because combinators such as `FuturesUnordered` poll
//! their children with wakers of their own.
//!
//! A few things must reach a kernel from outside a turn, on the same thread: a trap future dropped
//! between two runs withdraws its record, a wait queue gives its number back. For them a kernel is
//! also listed in its thread's directory for as long as it lives ([`register`]). Once
//! it is gone they find nothing, and do nothing.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::cell::TaskId;
use crate::handler::TrapHandler;
use crate::home::KernelId;

struct Door {
    kernel: Cell<Option<NonNull<dyn TrapHandler>>>,
    id: Cell<KernelId>,
    /// The task whose future is being polled or dropped; zero for none.
    task: Cell<TaskId>,
}

thread_local! {
    static DOOR: Door = const {
        Door {
            kernel: Cell::new(None),
            id: Cell::new(KernelId::NONE),
            task: Cell::new(TaskId(0)),
        }
    };

    static DIRECTORY: RefCell<Vec<Rc<dyn TrapHandler>>> = const { RefCell::new(Vec::new()) };
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
            DOOR.with(|door| {
                door.kernel.set(None);
                door.id.set(KernelId::NONE);
            });
        }
    }

    // Asked first: the kernel's own code may panic, and must find the door as it was.
    let id = kernel.home().id();
    DOOR.with(|door| {
        if door.kernel.get().is_some() {
            return Err(NestedRun);
        }
        door.kernel.set(NonNull::new(Rc::as_ptr(kernel).cast_mut()));
        door.id.set(id);
        Ok(())
    })?;
    let _leave = Leave;
    Ok(inside())
}

/// Whether the thread is inside that kernel.
#[inline]
pub(crate) fn is_inside(kernel: KernelId) -> bool {
    DOOR.with(|door| door.id.get() == kernel)
}

/// Names the task whose future is polled or dropped from now on, and gives the one before.
#[inline]
pub(crate) fn replace_task(task: TaskId) -> TaskId {
    DOOR.with(|door| door.task.replace(task))
}

/// The kernel that is running here, and the task whose future it is polling or dropping.
#[inline]
pub(crate) fn polling() -> (KernelId, TaskId) {
    DOOR.with(|door| (door.id.get(), door.task.get()))
}

/// The current kernel's id; `None` outside.
pub(crate) fn current_kernel() -> Option<KernelId> {
    let id = DOOR.with(|door| door.id.get());
    (id != KernelId::NONE).then_some(id)
}

/// Whether the thread is inside a kernel, so that traps have somewhere to go.
pub fn is_open() -> bool {
    current_kernel().is_some()
}

/// Calls `ask` with the current kernel, if there is one.
#[inline]
pub(crate) fn try_with<R>(ask: impl FnOnce(&dyn TrapHandler) -> R) -> Option<R> {
    let kernel = DOOR.with(|door| door.kernel.get())?;
    // SAFETY: the pointer was made from an `Rc` that `enter` borrows until it has reset it, on
    // every path. `ask` gets a borrow that cannot outlive the call.
    Some(ask(unsafe { kernel.as_ref() }))
}

/// Calls `ask` with the current kernel.
///
/// # Panics
///
/// Outside a kernel, with the place of the caller.
#[track_caller]
#[inline]
pub(crate) fn with<R>(ask: impl FnOnce(&dyn TrapHandler) -> R) -> R {
    match try_with(ask) {
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

/// Lists a kernel in its thread's directory; the returned guard takes it out again.
pub fn register(kernel: Rc<dyn TrapHandler>) -> Registration {
    let id = kernel.home().id();
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
            let place = directory.iter().position(|kernel| kernel.home().id() == self.id)?;
            Some(directory.swap_remove(place))
        });
        drop(kernel);
    }
}

/// Calls `ask` with a kernel of this thread, inside or outside its turn.
///
/// `None`: it has ended, or is not of this thread.
#[inline]
pub(crate) fn reach<R>(id: KernelId, ask: impl FnOnce(&dyn TrapHandler) -> R) -> Option<R> {
    if is_inside(id) {
        return try_with(ask);
    }
    let kernel = look_up(id)?;
    Some(ask(&*kernel))
}

/// A kernel of this thread, by its entry in the directory.
#[cold]
#[inline(never)]
fn look_up(id: KernelId) -> Option<Rc<dyn TrapHandler>> {
    let find = |directory: &RefCell<Vec<Rc<dyn TrapHandler>>>| {
        directory.borrow().iter().find(|kernel| kernel.home().id() == id).cloned()
    };
    DIRECTORY.try_with(find).ok()?
}

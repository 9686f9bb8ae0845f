//! The door to a kernel: the thread-local pointer by which every trap finds its kernel.
//!
//! A kernel sets the door to its [`Local`] for the length of a turn, by [`enter`]. The thread then
//! has a current kernel, which gets every trap. The door does not use the `Waker`, because
//! combinators such as `FuturesUnordered` poll their children with wakers of their own.
//!
//! Some calls reach a kernel of the same thread outside of a turn. A future that is dropped between
//! two runs withdraws its wait, and a wait queue notifies its waiters. For these calls the thread's
//! directory lists a kernel during the kernel's life ([`register`]). After that life the calls do
//! nothing.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::cell;
use crate::cell::reference::TaskRef;
use crate::home::Home;
use crate::local::{Local, TrapHandler};
use crate::names::{KernelId, TaskId};

thread_local! {
    static DOOR: Cell<Option<NonNull<Local>>> = const { Cell::new(None) };

    static DIRECTORY: RefCell<Vec<Rc<dyn TrapHandler>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with the current kernel's [`Local`], if the thread is inside a kernel.
#[inline(always)]
pub(crate) fn try_with<R>(work: impl FnOnce(&Local) -> R) -> Option<R> {
    let local = DOOR.with(Cell::get)?;
    // SAFETY: the pointer was made from a borrow that `enter` holds until it has reset the pointer,
    // on every path. `work` gets a borrow that cannot outlive the call.
    Some(work(unsafe { local.as_ref() }))
}

/// Calls `work` with the current kernel's [`Local`] and the task whose future is being polled.
#[inline(always)]
pub(crate) fn try_with_task<R>(work: impl FnOnce(&Local, &TaskRef) -> R) -> Option<R> {
    try_with(|local| {
        let task = local.step.task()?;
        Some(work(local, &task))
    })?
}

/// The kernel that the thread is inside of; `None` outside.
pub fn current_kernel() -> Option<KernelId> {
    try_with(Local::id)
}

/// Calls `work` with the current kernel's [`Local`].
///
/// # Panics
///
/// Outside a kernel, at the caller's line.
#[track_caller]
#[inline]
pub(crate) fn with<R>(work: impl FnOnce(&Local) -> R) -> R {
    match try_with(work) {
        Some(result) => result,
        None => panic_outside_kernel("this call"),
    }
}

/// Panics for a call or a future that is used outside of a kernel.
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn panic_outside_kernel(what: &str) -> ! {
    panic!(
        "{what} needs a pikake kernel, and this thread is not inside one: call it \
         from a task, under #[pikake::main], pikake::run or Kernel::run, and not from a thread \
         or an executor of another kind"
    )
}

/// Panics for a trap that is executed between steps, where there is no task to suspend.
#[cold]
#[track_caller]
pub(crate) fn panic_outside_task(what: &str) -> ! {
    panic!(
        "{what} was polled inside a kernel but outside a task: \
         spawn a task and await it there"
    )
}

/// Calls `work` with the [`Local`] of a kernel of this thread, inside or outside its turn.
///
/// `None`: the kernel has ended, or belongs to another thread.
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
    let _far = FarHalf::set(local, &kernel);
    let result = work(local);
    if !local.ready().is_empty() || local.needs_attention() {
        // The work must show on the kernel's descriptor, for a foreign loop that watches it.
        local.home().wake_if_asleep();
    }
    Some(result)
}

/// Gives a [`Local`] the far half of its kernel, until the guard is dropped.
struct FarHalf<'a> {
    local: &'a Local,
    before: Option<NonNull<dyn TrapHandler>>,
}

impl<'a> FarHalf<'a> {
    fn set(local: &'a Local, kernel: &'a Rc<dyn TrapHandler>) -> Self {
        let kernel = NonNull::new(Rc::as_ptr(kernel).cast_mut());
        Self { local, before: local.replace_kernel(kernel) }
    }
}

impl Drop for FarHalf<'_> {
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

    // `local` is the kernel's own code, and may panic, so it is called before the door changes.
    let local = kernel.local();
    if DOOR.get().is_some() {
        return Err(NestedRun);
    }
    let _far = FarHalf::set(local, kernel);
    DOOR.set(Some(NonNull::from(local)));
    let _leave = Leave;
    Ok(inside())
}

/// Whether the thread is inside a kernel.
pub fn is_open() -> bool {
    current_kernel().is_some()
}

/// Lists a kernel in its thread's directory; the drop of the returned guard removes it.
pub fn register(kernel: Rc<dyn TrapHandler>) -> Registration {
    let id = kernel.local().id();
    cell::LAST_EVENTS.set(last_events);
    DIRECTORY.with(|directory| directory.borrow_mut().push(kernel));
    Registration { id, _home: std::marker::PhantomData }
}

/// The last events of a task of the current kernel, if the kernel records steps.
fn last_events(home: NonNull<Home>, task: TaskId) -> Option<String> {
    try_with(|local| {
        let kernel = local.is_home(home).then(|| local.kernel())?;
        kernel.inspect()?.last_events(task)
    })?
}

/// A kernel's entry in its thread's directory.
#[derive(Debug)]
pub struct Registration {
    id: KernelId,
    /// The entry belongs to this thread's directory.
    _home: std::marker::PhantomData<*const ()>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // At the thread's end the directory may be dropped before the kernel.
        let kernel = DIRECTORY.try_with(|directory| {
            let mut directory = directory.borrow_mut();
            let index = directory.iter().position(|kernel| kernel.local().id() == self.id)?;
            Some(directory.swap_remove(index))
        });
        drop(kernel);
    }
}

/// The current kernel, and the task whose future it is polling or dropping.
#[inline]
pub(crate) fn current_ids() -> (KernelId, TaskId) {
    let found = try_with_task(|local, task| (local.id(), task.id()));
    found.unwrap_or((KernelId::NONE, TaskId(0)))
}

//! The kernels of runtimes, on the threads that made them.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use pikake_kernel::Kernel;
use pikake_time::Clock;
use pikake_traps::{door, KernelId, TaskError};

use super::clock::PausableClock;
use crate::task::coop;

/// The kernel of a runtime.
pub(super) struct Owned {
    pub(super) kernel: Kernel<PausableClock>,
    pub(super) id: KernelId,
    pub(super) name: Option<Arc<str>>,
    /// The runtime was dropped on another thread.
    pub(super) is_dropped: Arc<AtomicBool>,
    pub(super) awaited: Awaited,
    /// Ends when nothing is awaited any more.
    pub(super) awaits: mpsc::Receiver<Infallible>,
}

/// The drop of a runtime waits for the drop of this.
pub(super) type Awaited = mpsc::Sender<Infallible>;

thread_local! {
    /// The kernels of the runtimes that were made on this thread.
    static OWNED: RefCell<Vec<Rc<Owned>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn find(id: KernelId) -> Option<Rc<Owned>> {
    OWNED.try_with(|owned| owned.borrow().iter().find(|owned| owned.id == id).cloned()).ok()?
}

thread_local! {
    /// The kernel in which this thread runs futures for other kernels' handles.
    static BESIDE: RefCell<Option<Rc<Kernel>>> = const { RefCell::new(None) };
}

/// Whether a kernel runs a future for another kernel's handle.
pub(super) fn is_beside(id: KernelId) -> bool {
    let is_beside = |beside: &Rc<Kernel>| beside.handle().id() == id;
    // A thread that ends runs no future any more.
    BESIDE.try_with(|beside| beside.borrow().as_ref().is_some_and(is_beside)).unwrap_or(false)
}

/// Takes the kernels out whose runtimes other threads have dropped. Drop them with nothing
/// borrowed.
pub(super) fn take_dropped() -> Vec<Rc<Owned>> {
    OWNED.with_borrow_mut(|owned| {
        let all = std::mem::take(owned).into_iter();
        let (dropped, kept) = all.partition(|owned| owned.is_dropped.load(Ordering::Acquire));
        *owned = kept;
        dropped
    })
}

/// The kernel in which this thread runs futures for other kernels' handles.
///
/// # Panics
///
/// If the process is out of descriptors.
#[track_caller]
pub(super) fn beside() -> Rc<Kernel> {
    BESIDE.with_borrow_mut(|beside| match beside {
        Some(beside) => beside.clone(),
        None => {
            let fresh =
                Kernel::new().unwrap_or_else(|error| panic!("no kernel can be made: {error}"));
            beside.insert(Rc::new(fresh)).clone()
        }
    })
}

/// Adds the kernel of a runtime.
pub(super) fn add(owned: Owned) {
    drop(take_dropped());
    OWNED.with_borrow_mut(|all| all.push(Rc::new(owned)));
}

/// Takes out a kernel of this thread, if it is one.
pub(super) fn take(id: KernelId) -> Option<Rc<Owned>> {
    let taken = OWNED.try_with(|owned| {
        let mut owned = owned.borrow_mut();
        let index = owned.iter().position(|owned| owned.id == id)?;
        Some(owned.swap_remove(index))
    });
    taken.ok().flatten()
}

#[track_caller]
pub(super) fn assert_outside() {
    if door::current_kernel().is_some() {
        panic!("Cannot start a runtime from within a runtime. This happens because a function (like `block_on`) attempted to block the current thread while the thread is being used to drive asynchronous tasks.");
    }
}

pub(super) fn run<C: Clock + 'static, F: Future>(kernel: &Kernel<C>, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let main = std::future::poll_fn(|cx| coop::budget(|| future.as_mut().poll(cx)));
    match kernel.try_run(main) {
        Ok(output) => output,
        Err(TaskError::Panicked(panic)) => resume_unwind(panic.into_payload()),
        Err(error) => panic!("the runtime was stopped: {error}"),
    }
}

/// The clock of the current kernel, if a runtime was made for it.
pub(crate) fn current_clock() -> Option<PausableClock> {
    Some(find(door::current_kernel()?)?.kernel.clock().clone())
}

/// For something that the drop of the current kernel's runtime waits for, if it has one.
pub(super) fn current_awaits() -> Option<Awaited> {
    Some(find(door::current_kernel()?)?.awaited.clone())
}

/// Calls a closure in the kernel of a runtime that was made on this thread and does not run.
pub(super) fn enter<R>(id: KernelId, inside: impl FnOnce() -> R) -> Option<R> {
    find(id)?.kernel.enter(inside).ok()
}

/// The name of a kernel's runtime.
pub(super) fn name(id: KernelId) -> Option<Arc<str>> {
    find(id)?.name.clone()
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.id).finish()
    }
}

impl Owned {
    /// Ends the kernel, and waits for writes to files on its helper threads.
    pub(super) fn end(self, patience: Option<Duration>) {
        let Self { kernel, awaited, awaits, .. } = self;
        drop(kernel);
        drop(awaited);
        // Both fail when the last sender is dropped: nothing is ever sent.
        let _ = match patience {
            None => awaits.recv().is_ok(),
            Some(length) => awaits.recv_timeout(length).is_ok(),
        };
    }
}

//! The handle of a runtime: of the current kernel, or of one that was entered.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::{Arc, MutexGuard};
use std::thread::AccessError;

use pikake_traps::{door, KernelHandle};

use super::kernels;

/// Reaches a kernel from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) kernel: KernelHandle,
    pub(crate) name: Option<Arc<str>>,
}

impl Handle {
    /// The handle of the current kernel, or else the one that this thread has entered.
    ///
    /// # Panics
    ///
    /// Outside of both.
    #[track_caller]
    pub fn current() -> Self {
        match Self::try_current() {
            Ok(handle) => handle,
            Err(error) => panic!("{error}"),
        }
    }

    /// The handle of the current kernel, or else the one that this thread has entered.
    pub fn try_current() -> Result<Self, TryCurrentError> {
        match (door::current_kernel(), entered()) {
            (_, Err(_)) => Err(TryCurrentError { is_missing: false }),
            (Some(id), Ok(Some(handle))) if kernels::is_beside(id) => Ok(handle),
            (Some(id), _) => Ok(Self { kernel: KernelHandle::current(), name: kernels::name(id) }),
            (None, Ok(Some(handle))) => Ok(handle),
            (None, Ok(None)) => Err(TryCurrentError { is_missing: true }),
        }
    }

    /// Whether this thread is inside the kernel.
    pub(crate) fn is_here(&self) -> bool {
        door::current_kernel() == Some(self.kernel.id())
    }

    /// Makes this the handle that [`current`](Self::current) returns outside of a kernel, until the
    /// guard is dropped.
    pub fn enter(&self) -> EnterGuard<'_> {
        let entered = Entered { depth: enter(self.clone()), thread: PhantomData };
        EnterGuard { _entered: entered, handle: PhantomData }
    }

    /// That of a kernel: one thread.
    pub fn runtime_flavor(&self) -> RuntimeFlavor {
        RuntimeFlavor::CurrentThread
    }

    /// The kernel's number.
    pub fn id(&self) -> Id {
        Id(NonZeroU64::new(u64::from(self.kernel.id().number())).unwrap_or(NonZeroU64::MAX))
    }

    /// The name that the runtime was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The figures that a kernel has for any thread.
    pub fn metrics(&self) -> RuntimeMetrics {
        RuntimeMetrics(())
    }

    /// Where tokio's files look for drivers.
    pub(crate) fn driver(&self) -> &Self {
        self
    }
}

thread_local! {
    static ENTERED: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// The handle that was entered last, and has not been left.
fn entered() -> Result<Option<Handle>, AccessError> {
    ENTERED.try_with(|entered| entered.borrow().last().cloned())
}

/// Enters a handle's context, and returns how many were entered before.
fn enter(handle: Handle) -> usize {
    ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        entered.push(handle);
        entered.len() - 1
    })
}

/// Leaves the context that was entered as the one of this number.
#[track_caller]
fn leave(depth: usize) {
    let left = ENTERED.try_with(|entered| {
        let mut entered = entered.borrow_mut();
        let is_last = entered.len() == depth + 1;
        entered.truncate(depth);
        is_last
    });
    if left == Ok(false) && !std::thread::panicking() {
        panic!(
            "`EnterGuard` values dropped out of order. Guards returned by \
             `tokio::runtime::Handle::enter()` must be dropped in the reverse \
             order as they were acquired."
        );
    }
}

/// Leaves the handle's context when dropped.
#[derive(Debug)]
#[must_use = "the context is left when the guard is dropped"]
pub struct EnterGuard<'a> {
    _entered: Entered,
    handle: PhantomData<&'a Handle>,
}

#[derive(Debug)]
struct Entered {
    /// The number of handles that were entered before.
    depth: usize,
    /// `Sync`, and not `Send`.
    thread: PhantomData<MutexGuard<'static, ()>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        leave(self.depth);
    }
}

/// The kinds of runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuntimeFlavor {
    /// One thread, as every kernel.
    CurrentThread,
    /// Several threads, which no kernel has.
    MultiThread,
}

/// No kernel is current, and no handle was entered.
pub struct TryCurrentError {
    is_missing: bool,
}

impl TryCurrentError {
    /// Whether there is no kernel and no entered handle.
    pub fn is_missing_context(&self) -> bool {
        self.is_missing
    }

    /// Whether the thread is ending.
    pub fn is_thread_local_destroyed(&self) -> bool {
        !self.is_missing
    }
}

impl fmt::Debug for TryCurrentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TryCurrentError").field(&self.is_missing).finish()
    }
}

impl fmt::Display for TryCurrentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_missing {
            true => crate::util::error::CONTEXT_MISSING_ERROR,
            false => crate::util::error::THREAD_LOCAL_DESTROYED_ERROR,
        })
    }
}

impl Error for TryCurrentError {}

/// The number of a runtime.
#[derive(Clone, Copy, Debug, Hash, Eq, PartialEq)]
pub struct Id(NonZeroU64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The figures that a kernel has for any thread; `pikake ps` and `pikake top` have the others.
#[derive(Clone, Debug)]
pub struct RuntimeMetrics(());

impl RuntimeMetrics {
    /// One: a kernel is one thread.
    pub fn num_workers(&self) -> usize {
        1
    }
}

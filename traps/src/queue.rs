//! Wait queues: what a mutex, a channel or a join parks its waiters on.
//!
//! A [`WaitQueue`] is a place to wait in and says nothing about what is waited for. The primitive
//! that owns it keeps the state (a flag, a count, a buffer) and follows one protocol:
//!
//! * to wait, look at the state, and while it does not suit, [`park`] and look again;
//! * to let waiters go on, change the state, then [`WaitQueue::wake`].
//!
//! Waiters are woken in the order in which they parked. A wake that was given to a waiter that is
//! then dropped before it saw it goes to the next one in the queue, and if there is none it is
//! gone: so the state must say by itself what may be taken (a count of permits, not a value left
//! in a waiter's slot).
//!
//! The waiters themselves are in the kernel's table. The queue holds a number by which its kernel
//! knows it, lent at the first park and given back when the queue is dropped.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

#[cfg(doc)]
use crate::calls::park;
use crate::home::KernelId;
use crate::local::{self, Local};

/// A first-in first-out place to wait in, for the tasks of one kernel.
///
/// # Examples
///
/// An event, made of a flag and a queue:
///
/// ```
/// use pikake_traps::{Interrupted, WaitQueue, park};
/// use std::cell::Cell;
///
/// #[derive(Default)]
/// struct Event {
///     is_set: Cell<bool>,
///     waiters: WaitQueue,
/// }
///
/// impl Event {
///     fn set(&self) {
///         self.is_set.set(true);
///         self.waiters.wake(usize::MAX);
///     }
///
///     async fn wait(&self) -> Result<(), Interrupted> {
///         while !self.is_set.get() {
///             park(&self.waiters).await?;
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// It cannot leave its thread, nor can a reference to it:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(pikake_traps::WaitQueue::new());
/// ```
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(&pikake_traps::WaitQueue::new());
/// ```
pub struct WaitQueue {
    kernel: Cell<KernelId>,
    index: Cell<u32>,
    /// It belongs to its kernel's thread.
    _home: PhantomData<*const ()>,
}

impl WaitQueue {
    /// An empty queue, which becomes part of the first kernel that parks a task on it.
    pub const fn new() -> Self {
        Self { kernel: Cell::new(KernelId::NONE), index: Cell::new(0), _home: PhantomData }
    }

    /// Wakes up to `count` waiters, those that parked first, and tells how many there were.
    ///
    /// May be called inside the waiters' kernel or between its runs. Never suspends.
    #[inline]
    pub fn wake(&self, count: usize) -> usize {
        let notified = self.reach(|local| {
            let notified = local.kernel().notify(self, count);
            local.call_wakers();
            notified
        });
        notified.unwrap_or(0)
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.reach(|local| local.kernel().queue_len(self)).unwrap_or(0)
    }

    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn reach<R>(&self, ask: impl FnOnce(&Local) -> R) -> Option<R> {
        let kernel = self.kernel.get();
        if kernel == KernelId::NONE { None } else { local::reach(kernel, ask) }
    }

    /// The number by which `kernel` knows this queue, if it does. For kernels.
    #[inline]
    pub fn index_in(&self, kernel: KernelId) -> Option<u32> {
        (self.kernel.get() == kernel).then(|| self.index.get())
    }

    /// Makes the queue known to a kernel, under the number that `number` gives. For kernels.
    ///
    /// # Panics
    ///
    /// When the queue is known to another kernel that still lives; it stays so.
    #[cold]
    #[inline(never)]
    pub fn bind(&self, kernel: KernelId, number: impl FnOnce() -> u32) -> u32 {
        let before = self.kernel.get();
        assert!(
            before == KernelId::NONE || local::reach(before, |_| ()).is_none(),
            "a wait queue (of a lock, a channel or a task) was used in two kernels at once: \
             kernel {before} knows it, and kernel {kernel} was asked to park on it"
        );
        let index = number();
        self.kernel.set(kernel);
        self.index.set(index);
        index
    }

    /// Gives the queue's number back to its kernel.
    #[inline]
    pub(crate) fn unbind(&self) {
        let kernel = self.kernel.replace(KernelId::NONE);
        if kernel != KernelId::NONE {
            forget(kernel, self.index.get());
        }
    }
}

#[inline(never)]
fn forget(kernel: KernelId, index: u32) {
    local::reach(kernel, |local| local.kernel().forget_queue(index));
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for WaitQueue {
    #[inline]
    fn drop(&mut self) {
        self.unbind();
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("waiting", &self.len()).finish()
    }
}

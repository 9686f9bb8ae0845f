//! Wait queues: what a mutex, a channel or a join parks its waiters on.
//!
//! A [`WaitQueue`] is a place to wait in and says nothing about what is waited for. The primitive
//! that owns it keeps the state (a flag, a count, a buffer) and follows one protocol:
//!
//! * to wait, look at the state, and while it does not suit, [`park`](crate::park) and look again;
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
use std::marker::PhantomData;

use crate::names::KernelId;

mod waking;

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

    /// The number by which `kernel` knows this queue, if it does. For kernels.
    #[inline]
    pub fn index_in(&self, kernel: KernelId) -> Option<u32> {
        (self.kernel.get() == kernel).then(|| self.index.get())
    }
}

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
//! The waiters themselves are the kernel's records. The queue holds a number by which its kernel
//! knows it, lent at the first park and given back when the queue is dropped.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::door;
use crate::handler::{TrapKind, Wait};
use crate::home::KernelId;
use crate::interrupt::Interrupted;
use crate::trap::{KernelTrap, Trap, kernel_trap_at};

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
        self.reach(|kernel| kernel.wake_queue(self, count)).unwrap_or(0)
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.reach(|kernel| kernel.queue_len(self)).unwrap_or(0)
    }

    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn reach<R>(&self, ask: impl FnOnce(&dyn crate::TrapHandler) -> R) -> Option<R> {
        let kernel = self.kernel.get();
        if kernel == KernelId::NONE { None } else { door::reach(kernel, ask) }
    }

    /// The number by which `kernel` knows this queue, if it does. For kernels.
    #[inline]
    pub fn index_in(&self, kernel: KernelId) -> Option<u32> {
        (self.kernel.get() == kernel).then(|| self.index.get())
    }

    /// Makes the queue known to a kernel, under a number that the kernel is asked for. For kernels.
    ///
    /// # Panics
    ///
    /// When the queue is known to another kernel that still lives; it stays so.
    #[cold]
    #[inline(never)]
    pub fn bind(&self, kernel: KernelId, number: impl FnOnce() -> u32) -> u32 {
        let before = self.kernel.get();
        assert!(
            before == KernelId::NONE || door::reach(before, |_| ()).is_none(),
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
    door::reach(kernel, |kernel| kernel.forget_queue(index));
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

/// The trap that waits in a [`WaitQueue`]. See [`park`].
#[derive(Debug)]
pub struct Park<'a> {
    queue: &'a WaitQueue,
}

impl Trap for Park<'_> {
    type Answer = Result<(), Interrupted>;
    const KIND: TrapKind = TrapKind::Park;

    fn wait(&mut self) -> Wait<'_> {
        Wait::Park(self.queue)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// Waits in the queue until woken.
///
/// # Cancellation
///
/// An interruption point. Dropped while it waits, it leaves the queue; dropped after it was woken,
/// it passes the wake on to the next waiter.
///
/// # Errors
///
/// [`Interrupted`], having left the queue.
///
/// # Panics
///
/// Polled outside a task, or in another kernel than the one whose tasks already wait here.
#[track_caller]
#[inline]
pub fn park(queue: &WaitQueue) -> KernelTrap<Park<'_>> {
    park_at(queue, Location::caller())
}

/// [`park`], reported as awaited at `place`.
#[inline]
pub fn park_at<'a>(
    queue: &'a WaitQueue,
    place: &'static Location<'static>,
) -> KernelTrap<Park<'a>> {
    kernel_trap_at(Park { queue }, place)
}

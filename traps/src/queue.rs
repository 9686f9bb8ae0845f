//! Wait queues: what a lock, a channel or a join parks its waiters on.
//!
//! A queue holds waiters in the order in which they came, and serves them in that order. There are two
//! ways to wait in one.
//!
//! * **For a signal**: [`park`](crate::park), until [`wake`](WaitQueue::wake). The primitive keeps the state
//!   (a flag, a count) and looks at it again after each wait. A signal that a waiter did not
//!   collect goes to the next waiter, and without one it is gone.
//! * **For permits**: [`take`](crate::take), until so many are free for the first waiter. The queue keeps the
//!   free permits and grants them, the first waiter first: [`give`](WaitQueue::give). Permits that were
//!   granted to a waiter are its own before it runs, so nobody who comes later takes them. If the waiter leaves
//!   without having collected them, they are free again, and the next waiter is served.
//!
//! ```text
//!            give                 grant                 collected
//!   (none) ────────▶ free ────────────────▶ granted ────────────────▶ the taker's
//!                     ▲ │  try_take            │                         │
//!                     │ └──────────────────────┼─────────────────────────▶
//!                     └────────────────────────┘ the waiter left         │ give
//!                     ▲                                                  │
//!                     └──────────────────────────────────────────────────┘
//! ```
//!
//! A mutex is a queue with one permit, and a semaphore one with several. At any time the waiters of a queue are
//! of one kind.
//!
//! The waiters are in the kernel's table, linked; the queue knows the first and the last of them.

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
/// A lock, made of a queue with one permit:
///
/// ```
/// use pikake_traps::{Interrupted, WaitQueue, take};
///
/// struct Lock(WaitQueue);
///
/// impl Lock {
///     fn new() -> Self {
///         Self(WaitQueue::with_permits(1))
///     }
///
///     async fn lock(&self) -> Result<(), Interrupted> {
///         take(&self.0, 1).await
///     }
///
///     fn unlock(&self) {
///         self.0.give(1);
///     }
/// }
/// # pikake_sim::example(async {
/// # let lock = Lock::new();
/// # lock.lock().await?;
/// # assert!(!lock.0.try_take(1));
/// # lock.unlock();
/// # lock.lock().await
/// # }).unwrap();
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
    /// The kernel in whose table the waiters are; none before the first wait.
    kernel: Cell<KernelId>,
    waiters: Cell<WaiterList>,
    length: Cell<u32>,
    free: Cell<usize>,
    /// Permits that were granted and not collected yet.
    granted: Cell<usize>,
    /// It belongs to its kernel's thread.
    _home: PhantomData<*const ()>,
}

/// A list of waiters in a kernel's table: a kernel gives the numbers, and only it reads them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaiterList {
    /// The number of the first waiter.
    pub first: u32,
    /// The number of the last waiter.
    pub last: u32,
}

impl WaiterList {
    /// No waiter.
    pub const NONE: u32 = u32::MAX;
    /// A list without a waiter.
    pub const EMPTY: Self = Self { first: Self::NONE, last: Self::NONE };
}

impl WaitQueue {
    /// An empty queue, which becomes part of the first kernel where a task waits in it.
    pub const fn new() -> Self {
        Self::with_permits(0)
    }

    /// An empty queue with so many free permits.
    pub const fn with_permits(count: usize) -> Self {
        Self {
            kernel: Cell::new(KernelId::NONE),
            waiters: Cell::new(WaiterList::EMPTY),
            length: Cell::new(0),
            free: Cell::new(count),
            granted: Cell::new(0),
            _home: PhantomData,
        }
    }

    /// How many permits are free.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.get()
    }

    /// How many permits were granted to waiters that have not collected them yet.
    #[inline]
    pub fn granted(&self) -> usize {
        self.granted.get()
    }

    /// Takes the free permits away, all of them.
    #[inline]
    pub fn reclaim(&self) -> usize {
        self.free.replace(0)
    }

    /// The waiters. For kernels.
    #[inline]
    pub fn waiters(&self) -> WaiterList {
        self.waiters.get()
    }

    /// Some waiters have come: this is their list now. For kernels.
    #[inline]
    pub fn waiters_came(&self, count: usize, waiters: WaiterList) {
        self.waiters.set(waiters);
        self.length.set(self.length.get() + count as u32);
    }

    /// Some waiters have left: this is the list of those that are left. For kernels.
    #[inline]
    pub fn waiters_left(&self, count: usize, waiters: WaiterList) {
        self.waiters.set(waiters);
        self.length.set(self.length.get() - count as u32);
    }

    /// Grants permits to a waiter, if so many are free. For kernels, which notify the waiter then.
    #[inline]
    pub fn grant(&self, count: usize) -> bool {
        let is_granted = self.free.get() >= count;
        if is_granted {
            self.free.set(self.free.get() - count);
            self.granted.set(self.granted.get() + count);
        }
        is_granted
    }

    /// A waiter has collected permits that were granted to it. For kernels.
    #[inline]
    pub fn collected(&self, count: usize) {
        self.granted.set(self.granted.get() - count);
    }

    /// A waiter has left without collecting permits that were granted to it: they are free again. For kernels.
    #[inline]
    pub fn returned(&self, count: usize) {
        self.collected(count);
        self.free.set(self.free.get() + count);
    }
}

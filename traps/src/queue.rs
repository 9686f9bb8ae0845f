//! Wait queues, on which locks and channels park their waiters.
//!
//! A queue holds waiters in the order of their arrival, and serves them in that order. There are
//! two ways to wait.
//!
//! * **For a signal**: [`park`](crate::park), until [`wake`](WaitQueue::wake). The primitive keeps
//!   the state (a flag, a count) and checks it again after each wait. If a waiter leaves without
//!   collecting its signal, the signal goes to the next waiter, or is lost without one.
//! * **For permits**: [`take`](crate::take), until enough are free for the first waiter. The queue
//!   keeps the free permits and grants them, the first waiter first: [`give`](WaitQueue::give). A
//!   waiter owns granted permits before its task runs, so no later task takes them. If the waiter
//!   leaves without collecting its permits, they are free again, and the queue serves the next
//!   waiter.
//!
//! ```text
//!            give                 grant                 collected
//!   (none) ────────▶ free ────────────────▶ granted ────────────────▶ taken
//!                     ▲ │  try_take            │                         │
//!                     │ └──────────────────────┼─────────────────────────▶
//!                     └────────────────────────┘ the waiter left         │ give
//!                     ▲                                                  │
//!                     └──────────────────────────────────────────────────┘
//! ```
//!
//! A mutex is a queue with one permit, and a semaphore one with several. At any time the waiters of
//! a queue are of one kind.
//!
//! The waiters are linked in the kernel's table; the queue has the indexes of the first and the
//! last one.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::names::KernelId;

mod waking;

/// A first-in, first-out queue of waiters, for the tasks of one kernel.
///
/// # Examples
///
/// An event, made of a flag and a queue:
///
/// ```
/// use pikake::Interrupted;
/// use pikake::traps::{WaitQueue, park};
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
/// use pikake::Interrupted;
/// use pikake::traps::{WaitQueue, take};
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
/// # pikake::sim::example(async {
/// # let lock = Lock::new();
/// # lock.lock().await?;
/// # assert!(!lock.0.try_take(1));
/// # lock.unlock();
/// # lock.lock().await
/// # }).unwrap();
/// ```
///
/// Neither a queue nor a reference to a queue can leave its thread:
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(pikake::traps::WaitQueue::new());
/// ```
///
/// ```compile_fail,E0277
/// fn send<T: Send>(_: T) {}
/// send(&pikake::traps::WaitQueue::new());
/// ```
pub struct WaitQueue {
    /// The kernel whose table has the waiters; none before the first wait.
    kernel: Cell<KernelId>,
    waiters: Cell<WaiterList>,
    length: Cell<u32>,
    /// Whether the waiters, if there are any, want permits.
    has_takers: Cell<bool>,
    free: Cell<usize>,
    /// Permits that were granted and not collected yet.
    granted: Cell<usize>,
    /// The queue belongs to its kernel's thread.
    _home: PhantomData<*const ()>,
}

/// A list of waiters in a kernel's table. Only the kernel sets and reads the numbers.
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
    /// An empty queue. The queue becomes part of the kernel of the first wait.
    pub const fn new() -> Self {
        Self::with_permits(0)
    }

    /// An empty queue with `count` free permits.
    pub const fn with_permits(count: usize) -> Self {
        Self {
            kernel: Cell::new(KernelId::NONE),
            waiters: Cell::new(WaiterList::EMPTY),
            length: Cell::new(0),
            has_takers: Cell::new(false),
            free: Cell::new(count),
            granted: Cell::new(0),
            _home: PhantomData,
        }
    }

    /// The number of free permits.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.get()
    }

    /// Whether the waiters, if there are any, want permits.
    pub(crate) fn has_takers(&self) -> bool {
        self.has_takers.get()
    }

    /// The number of permits that were granted to waiters and not collected yet.
    #[inline]
    pub fn granted(&self) -> usize {
        self.granted.get()
    }

    /// Takes all free permits, and returns their number.
    #[inline]
    pub fn reclaim(&self) -> usize {
        self.free.replace(0)
    }

    /// The waiters. For kernels.
    #[inline]
    pub fn waiters(&self) -> WaiterList {
        self.waiters.get()
    }

    /// Sets the list after `count` waiters were added. For kernels.
    #[inline]
    pub fn waiters_added(&self, count: usize, waiters: WaiterList) {
        self.waiters.set(waiters);
        self.length.set(self.length.get() + count as u32);
    }

    /// Sets the list after `count` waiters were removed. For kernels.
    #[inline]
    pub fn waiters_removed(&self, count: usize, waiters: WaiterList) {
        self.waiters.set(waiters);
        self.length.set(self.length.get() - count as u32);
    }

    /// Grants `count` permits to a waiter, if they are free; none to a waiter for a signal, which
    /// is always granted. For kernels, which then notify the waiter.
    #[inline]
    pub fn grant(&self, count: usize) -> bool {
        let is_granted = self.free.get() >= count;
        if is_granted {
            self.free.set(self.free.get() - count);
            self.granted.set(self.granted.get() + count);
        }
        is_granted
    }

    /// Notes that a waiter has collected its granted permits. For traps.
    #[inline]
    pub fn collected(&self, count: usize) {
        self.granted.set(self.granted.get() - count);
    }

    /// Frees the granted permits of a waiter that has left without collecting them. For traps,
    /// which then [serve](Self::serve) the queue.
    #[inline]
    pub fn returned(&self, count: usize) {
        self.collected(count);
        self.free.set(self.free.get() + count);
    }
}

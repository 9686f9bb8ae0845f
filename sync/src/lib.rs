//! Locks, semaphores, events, queues and channels for the tasks of one kernel; and a few of them
//! for threads.
//!
//! | for | use |
//! | --- | --- |
//! | shared state without a lock, between awaits | [`Local`] |
//! | one task at a time, across awaits | [`Mutex`]; [`ReentrantMutex`], if its holder may lock again |
//! | many readers or one writer | [`RwLock`] |
//! | a limited number of tasks at a time | [`Semaphore`] |
//! | waiting for a condition | [`Event`]; on state behind a mutex: [`Condvar`] |
//! | waiting for something to do | [`Notify`] |
//! | waiting until other tasks are done | [`WaitGroup`]; for each other: [`Barrier`] |
//! | a value initialised once | [`OnceCell`] by its first user; [`Promise`] by another task |
//! | items, each for one receiver | [`Queue`], [`PriorityQueue`], [`LifoQueue`]; [`mpsc`], [`oneshot`] |
//! | items for all receivers | [`broadcast`]; only the last value: [`watch`] |
//! | locks, events, notifications, queues and channels with other threads or kernels | [`shared`] |
//!
//! # Examples
//!
//! ```
//! use pikake::sync::mpsc;
//!
//! # pikake::sim::example(async {
//! let (sender, mut receiver) = mpsc::channel(2);
//! let producer = pikake::spawn(async move {
//!     for number in 1..=10 {
//!         sender.send(number).await?;
//!     }
//!     Ok::<_, mpsc::SendError<u32>>(())
//! });
//! let mut sum = 0;
//! while let Some(number) = receiver.recv().await? {
//!     sum += number;
//! }
//! producer.await.unwrap().unwrap();
//! assert_eq!(sum, 55);
//! # Ok::<_, pikake::Interrupted>(())
//! # })
//! # .unwrap();
//! ```
//!
//! # Common rules
//!
//! * **Waiters are served in order.** A lock, permit or item that is handed over belongs to the
//!   waiter even before it runs; no later caller can take it. Operations that need not wait do not
//!   suspend.
//! * **Every wait is an interruption point**, and returns the interruption as an error. A hand-over
//!   before the waiter's next poll wins over a cancel or a deadline. An operation that need not
//!   wait is done even when an interruption is due; the next wait returns that.
//! * **Nothing is lost.** A lock, permit or item that was handed to a waiter goes to the next
//!   waiter if the first is dropped uncollected. An error returns the item that was not put. An
//!   interrupted waiter leaves the wait queue in the same poll.
//! * **`Debug` shows** the holder and the number of waiters.
//!
//! Everything except [`shared`] consists of traps alone: it runs on any kernel, belongs to the
//! kernel that first waits on it (until that kernel is gone), and uses no atomic operations.

#![forbid(unsafe_code)]

mod barrier;
pub mod broadcast;
mod condvar;
mod error;
mod event;
mod holder;
mod local;
mod lock;
pub mod mpsc;
mod mutex;
mod name;
mod notify;
mod once_cell;
pub mod oneshot;
mod pending;
mod permits;
mod promise;
mod queue;
mod reentrant;
mod rwlock;
mod semaphore;
pub mod shared;
mod store;
mod wait_group;
pub mod watch;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::{Condvar, WaitInterrupted};
pub use error::{NotPut, NothingToDo, PutError, TryGetError, TryLockError, TryPutError};
pub use event::Event;
pub use local::Local;
pub use mutex::{Mutex, MutexGuard};
pub use notify::Notify;
pub use once_cell::OnceCell;
pub use promise::Promise;
pub use queue::waits::QueueStream;
pub use queue::{AnyQueue, LifoQueue, PriorityQueue, Queue};
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, TooMany, TryAcquireError};
pub use store::{Fifo, Lifo, Smallest, Store};
pub use wait_group::{BelowZero, Entered, WaitGroup};

//! Locks, semaphores, events, queues and channels for the tasks of one kernel; and a few of them
//! for threads.
//!
//! | tasks want | use |
//! | --- | --- |
//! | state that nobody holds over an await | [`Local`] |
//! | one at a time, over an await | [`Mutex`]; where the holder may come again, [`ReentrantMutex`] |
//! | many readers or one writer | [`RwLock`] |
//! | so many at a time | [`Semaphore`] |
//! | to wait until something is so | [`Event`]; a state behind a mutex: [`Condvar`] |
//! | to wait until so many are done | [`WaitGroup`]; for each other: [`Barrier`] |
//! | a value that is made once | [`OnceCell`]; that somebody sets: [`Promise`] |
//! | to hand on items, each to one | [`Queue`], [`PriorityQueue`], [`LifoQueue`]; [`mpsc`], [`oneshot`] |
//! | to tell everybody | [`broadcast`]; only the last state: [`watch`] |
//! | any of this with other threads | [`shared`] |
//!
//! # What holds for all of them
//!
//! * **Who comes first is served first**, and what is handed over to somebody is theirs before they
//!   run: nobody who comes later can take it. What can be had at once is had without suspending.
//! * **Every wait is an interruption point**, and tells of it by an error. What is handed over before
//!   the waiter is polled counts, also after a cancel or a deadline came up. An operation that could be done at once is done, also when
//!   an interruption is due: that is told by the next wait.
//! * **Nothing is lost.** A lock, a permit or an item that was handed over to a waiter which is
//!   dropped before it has seen it goes to the next in line. An item that could not be put is in the
//!   error. A waiter that is interrupted is out of the line with that poll.
//! * **`Debug` shows** who holds and how many wait.
//!
//! Everything here but [`shared`] is made of traps alone, so it runs on any kernel, belongs to the one
//! that first waits on it (until that is gone), and does without atomic operations.

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
mod signals;
mod store;
mod wait_group;
pub mod watch;

pub use barrier::Barrier;
pub use condvar::{Condvar, WaitInterrupted};
pub use error::{GetError, NotPut, NothingToDo, PutError, TryGetError};
pub use event::Event;
pub use local::Local;
pub use mutex::{Mutex, MutexGuard};
pub use once_cell::OnceCell;
pub use promise::Promise;
pub use queue::waits::QueueStream;
pub use queue::{AnyQueue, LifoQueue, PriorityQueue, Queue};
pub use reentrant::{ReentrantGuard, ReentrantMutex};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{Permit, Semaphore, TooMany};
pub use store::{Fifo, Lifo, Smallest, Store};
pub use wait_group::{BelowZero, Entered, WaitGroup};

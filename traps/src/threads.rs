//! The thread types of blocking calls, replies, the wake queue and task cells: the standard
//! library's, or the model checker's.
//!
//! The checker treats every atomic operation as sequentially consistent, and ignores fences. So it
//! finds wrong orders of operations, not wrong `Ordering`s.

#[cfg(not(pikake_shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(pikake_shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

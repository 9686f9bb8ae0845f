//! What jobs, replies, the wake queue and task cells use of threads. In a file of its own so that a
//! model checker can be put in its place.
//!
//! The checker takes every atomic operation as sequentially consistent and every fence as none: it
//! finds wrong orders of operations, not wrong `Ordering`s.

#[cfg(not(pikake_shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, Ordering, fence},
};

#[cfg(pikake_shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, Ordering, fence},
};

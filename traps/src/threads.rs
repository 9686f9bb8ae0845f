//! What jobs and replies use of threads. In a file of its own so that a model checker can be put in
//! its place.

#[cfg(not(pikake_shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

#[cfg(pikake_shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

//! Closures that block.

use super::JoinHandle;

/// Runs a closure on a helper thread of the current kernel.
///
/// # Panics
///
/// Outside of a kernel.
#[track_caller]
pub fn spawn_blocking<F, R>(work: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    crate::runtime::spawn_blocking(work)
}

/// Runs a closure here. A kernel is one thread, so its other tasks wait.
pub fn block_in_place<F, R>(work: F) -> R
where
    F: FnOnce() -> R,
{
    work()
}

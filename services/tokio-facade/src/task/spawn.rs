//! Starting a task.

use std::future::Future;

use super::JoinHandle;
use crate::runtime::Handle;

/// Starts a task in the current kernel, or in the one that was entered.
///
/// # Panics
///
/// Outside of both.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Handle::current().spawn(future)
}

//! hyper's executor: spawns tasks on the kernel.

use std::future::Future;

use hyper::rt;
use pikake_traps::Builder;

/// Starts hyper's background work as tasks of the current kernel.
///
/// HTTP/2 needs an executor: each stream is a task, which ends with its connection.
///
/// # Panics
///
/// If hyper spawns a task outside a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F: Future + 'static> rt::Executor<F> for Executor {
    #[track_caller]
    fn execute(&self, future: F) {
        let work = async move { drop(future.await) };
        Builder::new().name("http stream").spawn(work).detach();
    }
}

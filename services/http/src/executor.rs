//! Where hyper starts tasks.

use std::future::Future;

use hyper::rt;
use pikake_traps::Builder;

/// Starts hyper's background work as tasks of the current kernel.
///
/// HTTP/2 needs it: each of its streams is a task. Such a task ends when its connection does.
///
/// # Panics
///
/// Starting one outside a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executor;

impl<F: Future + 'static> rt::Executor<F> for Executor {
    #[track_caller]
    fn execute(&self, future: F) {
        let work = async move { drop(future.await) };
        Builder::new().name("http stream").spawn(work).detach();
    }
}

//! Blocking closures: the kernel's helper threads.

use std::panic::{catch_unwind, AssertUnwindSafe, Location};

use super::handle::Handle;
use super::kernels;
use super::task::{self, JoinHandle};

#[track_caller]
pub(crate) fn spawn_blocking<F, R>(work: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    Handle::current().spawn_blocking(work)
}

/// A closure that runs also if the kernel ends before: a write to a file that a program believes
/// done. A [`Runtime`](super::Runtime) waits for it when dropped.
#[track_caller]
pub(crate) fn spawn_mandatory_blocking<F, R>(work: F) -> Option<JoinHandle<R>>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let mut mandatory = Mandatory { work: Some(work), _awaited: kernels::current_awaits() };
    Some(spawn_blocking(move || {
        let work = mandatory.work.take().expect("a closure is called once");
        work()
    }))
}

/// Calls a closure when dropped, unless it was called: its kernel has ended.
struct Mandatory<R, F: FnOnce() -> R> {
    work: Option<F>,
    _awaited: Option<kernels::Awaited>,
}

impl<R, F: FnOnce() -> R> Drop for Mandatory<R, F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(work())));
        }
    }
}

impl Handle {
    /// Runs a closure on a helper thread of the kernel.
    #[track_caller]
    pub fn spawn_blocking<F, R>(&self, work: F) -> JoinHandle<R>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        spawn_on(self, work, Location::caller())
    }
}

/// Sends a closure to a helper thread at once: a task of the kernel waits for it.
fn spawn_on<F, R>(handle: &Handle, work: F, place: &'static Location<'static>) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let (ending, join) = task::promise();
    let context = handle.clone();
    let call = move || {
        if !ending.is_aborted() {
            let _entered = context.enter();
            ending.end_by(work);
        }
    };
    let start = move || {
        // A paused clock waits for the closure.
        let hold = kernels::current_clock().map(|clock| clock.hold());
        let task = async move {
            drop(pikake_traps::blocking(call).awaited_at(place).await);
            drop(hold);
        };
        pikake_traps::Builder::new().eager().spawned_at(place).spawn(task).detach();
    };
    if handle.is_here() {
        start();
    } else {
        let _ = handle.kernel.call_there(Box::new(start));
    }
    join
}

//! Blocking work on the kernel's helper threads, with an `io::Error` for each failure.

use std::future::Future;
use std::io;
use std::panic::{Location, resume_unwind};
use std::path::{Path, PathBuf};

use pikake_net::in_context;
use pikake_traps::{Blocking, TaskError, blocking, in_kernel, system};

/// Runs a closure on a helper thread.
pub(crate) async fn in_pool<R: Send + 'static>(
    place: &'static Location<'static>,
    work: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    system()?;
    awaited(blocking(work).awaited_at(place)).await
}

/// As [`in_pool`], on a path, which an error contains.
pub(crate) fn on_path<R: Send + 'static>(
    place: &'static Location<'static>,
    verb: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Path) -> io::Result<R> + Send + 'static,
) -> impl Future<Output = io::Result<R>> {
    in_kernel(in_pool(place, move || {
        work(&path).map_err(|error| in_context(error, || format!("{verb} {}", path.display())))
    }))
}

/// The result of a closure on a helper thread.
pub(crate) async fn awaited<R>(work: Blocking<io::Result<R>>) -> io::Result<R> {
    match work.await {
        Ok(result) => result,
        Err(TaskError::Interrupted(why)) => Err(why.into()),
        // A panic of this crate or of the standard library: resumed in the caller.
        Err(TaskError::Panicked(panic)) => resume_unwind(panic.into_payload()),
        Err(error) => Err(io::Error::other(error)),
    }
}

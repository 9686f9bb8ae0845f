//! Work that blocks, in the kernel's helper threads, with an `io::Error` for whatever goes wrong.

use std::future::Future;
use std::io;
use std::panic::{Location, resume_unwind};
use std::path::{Path, PathBuf};

use pikake_net::in_context;
use pikake_traps::{Blocking, TaskError, blocking, system};

/// Does something in a thread.
pub(crate) async fn in_pool<R: Send + 'static>(
    place: &'static Location<'static>,
    work: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    system()?;
    awaited(blocking(work).awaited_at(place)).await
}

/// As [`in_pool`], to a path, which an error is to name.
pub(crate) fn on_path<R: Send + 'static>(
    place: &'static Location<'static>,
    verb: &'static str,
    path: PathBuf,
    work: impl FnOnce(&Path) -> io::Result<R> + Send + 'static,
) -> impl Future<Output = io::Result<R>> {
    in_pool(place, move || {
        work(&path).map_err(|error| in_context(error, || format!("{verb} {}", path.display())))
    })
}

/// What a closure in a thread has come to.
pub(crate) async fn awaited<R>(work: Blocking<io::Result<R>>) -> io::Result<R> {
    match work.await {
        Ok(result) => result,
        Err(TaskError::Interrupted(why)) => Err(why.into()),
        // Of this crate or of the standard library: the caller is to see it.
        Err(TaskError::Panicked(panic)) => resume_unwind(panic.into_payload()),
        Err(error) => Err(io::Error::other(error)),
    }
}

//! Runs a program's main task in a fresh kernel, and shuts that kernel down afterwards.

use std::future::Future;

use pikake_traps::TaskError;

use crate::kernels::peers_of_main;
use crate::{Builder, Kernel};

/// Runs a future as the main task of a fresh kernel, then shuts the kernel down.
///
/// Tasks that are left when the main task has ended are asked to end, and may clean up for as long
/// as [`SHUTDOWN_GRACE`](crate::SHUTDOWN_GRACE).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let answer = pikake::run(async {
///     pikake::sleep(Duration::from_millis(1)).await.unwrap();
///     6 * 7
/// });
/// assert_eq!(answer, 42);
/// ```
///
/// # Panics
///
/// With the future's panic. When the main task was cancelled, or the kernel stopped, before the
/// future returned. Inside a running kernel on the same thread. When the process is out of
/// descriptors.
#[doc(alias = "block_on")]
#[track_caller]
pub fn run<F: Future>(future: F) -> F::Output {
    run_on(fresh_kernel(Kernel::builder().name("main")), future)
}

/// As [`run`], but returns an error if the future gives no value.
///
/// # Errors
///
/// The main task panicked or was cancelled, or the kernel was stopped before it returned.
///
/// # Panics
///
/// Inside a running kernel on the same thread; when the process is out of descriptors.
#[track_caller]
pub fn try_run<F: Future>(future: F) -> Result<F::Output, TaskError> {
    let kernel = fresh_kernel(Kernel::builder().name("main"));
    let outcome = kernel.try_run(future);
    kernel.shutdown();
    outcome
}

/// [`run`], in a kernel of the caller's.
#[doc(hidden)]
#[track_caller]
pub fn run_on<F: Future>(kernel: Kernel, future: F) -> F::Output {
    let output = kernel.run(future);
    kernel.shutdown();
    kernel.assert_none_swallowed();
    output
}

/// Builds a kernel for a main task, beside the kernels of
/// [`with_threads`](crate::with_threads), and panics if the system refuses.
#[doc(hidden)]
#[track_caller]
pub fn fresh_kernel(builder: Builder) -> Kernel {
    let builder = match peers_of_main() {
        Some(peers) => builder.peers(&peers),
        None => builder,
    };
    match builder.build() {
        Ok(kernel) => kernel,
        Err(error) => panic!("no kernel could be made: {error}"),
    }
}

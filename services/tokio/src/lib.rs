//! A tokio runtime on a thread of its own, for libraries that need one.
//!
//! | for | use |
//! | --- | --- |
//! | a future that needs tokio | [`in_tokio`] |
//! | a constructor that needs tokio | [`with_tokio`] |
//! | tokio's own functions | [`runtime`] |
//!
//! Such a library finds the current runtime in a thread-local when it opens a socket, sets a timer
//! or spawns. [`in_tokio`] polls the library's futures in a task of pikake, with that thread-local
//! set to a runtime of one thread, started on first use. That thread drives the library's sockets
//! and timers and runs the tasks it spawns. Wakes come back through the kernel's wake queue.
//!
//! The costs are a thread, and two thread switches for each wait of the library. A simulated kernel
//! does not see these sockets and timers, and task listings show one `future_wait`. If a library
//! accepts another runtime's traits, use those instead.
#![forbid(unsafe_code)]

use std::fmt;
use std::future::{Future, pending};
use std::panic::Location;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use pikake_traps::{FutureWait, future_wait_at};
use tokio::runtime::{Builder, Handle};

/// The tokio runtime, started on first use.
///
/// # Panics
///
/// If the process is out of threads or descriptors.
pub fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap_or_else(|error| panic!("tokio cannot be started: {error}"));
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("pikake-tokio".to_owned());
        // The thread runs until the process ends.
        let started = thread.spawn(move || runtime.block_on(pending::<()>()));
        started.unwrap_or_else(|error| panic!("no thread can be started for tokio: {error}"));
        handle
    })
}

/// Calls `work` in the context of the tokio runtime, which constructors of clients often need.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let timer = pikake::tokio::with_tokio(|| tokio::time::sleep(Duration::from_secs(1)));
/// # pikake::tokio::with_tokio(|| drop(timer));
/// ```
///
/// # Panics
///
/// As for [`runtime`], and if `work` panics.
pub fn with_tokio<R>(work: impl FnOnce() -> R) -> R {
    let _entered = runtime().enter();
    work()
}

/// Awaits a future of a library that needs tokio.
///
/// # Examples
///
/// ```
/// # use pikake::Kernel;
/// use pikake::tokio::in_tokio;
/// use std::time::Duration;
///
/// # Kernel::new().unwrap().run(async {
/// let timer = async { tokio::time::sleep(Duration::from_millis(1)).await };
/// in_tokio(timer).await?;
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point; the future is dropped with the wait, in the runtime's context. Its
/// library documents what is lost then.
///
/// # Errors
///
/// [`Interrupted`](pikake_traps::Interrupted), while the future was still pending.
///
/// # Panics
///
/// As for [`runtime`], and if the future is pending when polled outside a task of a kernel.
#[track_caller]
pub fn in_tokio<F: Future>(future: F) -> FutureWait<InTokio<F>> {
    future_wait_at(InTokio { future: Some(future) }, Location::caller())
}

pin_project_lite::pin_project! {
    /// A future that is polled and dropped in the context of the tokio runtime.
    pub struct InTokio<F> {
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for InTokio<F> {
        fn drop(this: Pin<&mut Self>) {
            let _entered = runtime().enter();
            this.project().future.set(None);
        }
    }
}

impl<F: Future> Future for InTokio<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = runtime().enter();
        let future = self.project().future.as_pin_mut();
        future.expect("only the destructor takes the future").poll(cx)
    }
}

impl<F> fmt::Debug for InTokio<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTokio").finish_non_exhaustive()
    }
}

//! The way out for libraries that insist on tokio: its runtime on a thread beside, entered where
//! they are polled.
//!
//! Such a library asks a thread-local for "the current runtime" when it opens a socket, sets a timer
//! or spawns. [`in_tokio`] polls its futures here, in a task of pikake, with that thread-local set to
//! a runtime of one thread, which is started when it is first needed. Sockets and timers of the
//! library are driven there, tasks that it spawns run there, and each wake comes back through the
//! kernel's wake queue.
//!
//! What that costs: a thread, and two changes of threads for each time the library waits. What it
//! gives up: a simulated kernel knows nothing of these sockets and timers, and listings show one
//! `future_wait`. A library with a seam of its own is better served by that.
#![forbid(unsafe_code)]

use std::fmt;
use std::future::{Future, pending};
use std::panic::Location;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use pikake_traps::{FutureWait, future_wait_at};
use tokio::runtime::{Builder, Handle};

/// The runtime beside. Starts it if need be.
///
/// # Panics
///
/// When the process is out of threads or descriptors.
pub fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap_or_else(|error| panic!("tokio cannot be started: {error}"));
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("tokio beside pikake".to_owned());
        // It runs until the process ends.
        let started = thread.spawn(move || runtime.block_on(pending::<()>()));
        started.unwrap_or_else(|error| panic!("no thread can be started for tokio: {error}"));
        handle
    })
}

/// Calls something that asks for a runtime of tokio, as constructors of clients do.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let timer = pikake_tokio::with_tokio(|| tokio::time::sleep(Duration::from_secs(1)));
/// # pikake_tokio::with_tokio(|| drop(timer));
/// ```
///
/// # Panics
///
/// As for [`runtime`], and with the panic of `work`.
pub fn with_tokio<R>(work: impl FnOnce() -> R) -> R {
    let _entered = runtime().enter();
    work()
}

/// Awaits a future of a library that insists on tokio.
///
/// # Examples
///
/// ```
/// # use pikake_kernel::Kernel;
/// use pikake_tokio::in_tokio;
/// use std::time::Duration;
///
/// # Kernel::new().unwrap().run(async {
/// let timer = async { tokio::time::sleep(Duration::from_millis(1)).await };
/// in_tokio(timer).await?;
/// # Ok::<_, pikake_traps::Interrupted>(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point; the future is dropped with the wait, in the runtime's context. What is
/// lost then is for its library to say.
///
/// # Errors
///
/// [`Interrupted`](pikake_traps::Interrupted), while the future was still pending.
///
/// # Panics
///
/// As for [`runtime`]; when the future is pending and this is polled outside a task of a kernel.
#[track_caller]
pub fn in_tokio<F: Future>(future: F) -> FutureWait<InTokio<F>> {
    future_wait_at(InTokio { future: Some(future) }, Location::caller())
}

pin_project_lite::pin_project! {
    /// A future that is polled and dropped in the context of the runtime beside.
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

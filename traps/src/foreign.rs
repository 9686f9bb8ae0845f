//! Waiting for what the kernel cannot see: other people's futures, name lookups.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::door;
use crate::handler::{TrapKind, Wait};
use crate::interrupt::Interrupted;
use crate::reply::Reply;
use crate::trap::{KernelTrap, Trap, kernel_trap_at};

/// What a name lookup gives.
pub type Addresses = io::Result<Vec<SocketAddr>>;

/// The trap that makes a wait on something foreign visible. See [`future_wait`].
#[derive(Debug)]
pub struct ForeignTrap {
    kind: TrapKind,
}

impl Trap for ForeignTrap {
    /// `Ok`: look at the future again.
    type Answer = Result<(), Interrupted>;
    const KIND: TrapKind = TrapKind::FutureWait;

    fn wait(&mut self) -> Wait<'_> {
        Wait::Foreign(self.kind)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

pin_project_lite::pin_project! {
    /// The future of [`future_wait`].
    #[must_use = "a future does nothing until it is awaited"]
    pub struct FutureWait<F> {
        #[pin]
        future: F,
        trap: KernelTrap<ForeignTrap>,
    }
}

impl<F> fmt::Debug for FutureWait<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureWait").field("trap", &self.trap).finish_non_exhaustive()
    }
}

/// Awaits a future of another library as a trap: visible to the kernel, and interruptible.
///
/// The future is polled first, so its output wins over an interruption of the same moment. By
/// value the future is dropped with the wait; pass `pin!(future).as_mut()` or `&mut future` to
/// keep it.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// use std::future::ready;
///
/// assert_eq!(pikake_traps::future_wait(ready(7)).await?, 7);
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. What is lost when the future is dropped is for its library to say.
///
/// # Errors
///
/// [`Interrupted`], while the future was still pending.
///
/// # Panics
///
/// When the future is pending and this is polled outside a task of a kernel.
#[track_caller]
pub fn future_wait<F: Future>(future: F) -> FutureWait<F> {
    future_wait_at(future, Location::caller())
}

/// [`future_wait`], reported as awaited at `place`.
pub fn future_wait_at<F: Future>(future: F, place: &'static Location<'static>) -> FutureWait<F> {
    wait_for(future, TrapKind::FutureWait, place)
}

pub(crate) fn wait_for<F: Future>(
    future: F,
    kind: TrapKind,
    place: &'static Location<'static>,
) -> FutureWait<F> {
    FutureWait { future, trap: kernel_trap_at(ForeignTrap { kind }, place) }
}

impl<F: Future> Future for FutureWait<F> {
    type Output = Result<F::Output, Interrupted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Poll::Ready(output) = this.future.as_mut().poll(cx) {
                this.trap.reset();
                return Poll::Ready(Ok(output));
            }
            match Pin::new(&mut *this.trap).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(interrupted)) => return Poll::Ready(Err(interrupted)),
                Poll::Ready(Ok(())) => this.trap.reset(),
            }
        }
    }
}

/// Looks up the addresses of a host name, in the order in which they are to be tried.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// What the system's resolver reports, or that the wait was interrupted.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn lookup(host: &str, port: u16) -> impl Future<Output = Addresses> + use<> {
    lookup_at(host, port, Location::caller())
}

/// [`lookup`], reported as awaited at `place`.
///
/// # Errors
///
/// As for [`lookup`].
pub fn lookup_at(
    host: &str,
    port: u16,
    place: &'static Location<'static>,
) -> impl Future<Output = Addresses> + use<> {
    let host = host.to_owned();
    async move {
        let (reply, replied) = Reply::channel();
        door::with(|kernel| kernel.lookup(&host, port, reply));
        match wait_for(replied, TrapKind::Lookup, place).await? {
            Some(addresses) => addresses,
            None => Err(io::Error::other(format!("the lookup of {host} was given up"))),
        }
    }
}

//! One server on several kernels.
//!
//! Each kernel has a listener of its own at the same address, and the system distributes the
//! connections. The kernels are given as handles: this crate asks kernels for things and starts
//! none.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use pikake_traps::{Bound, KernelHandle, on_kernels};

use crate::address::ToSocketAddrs;
use crate::replicas::Replicas;
use crate::tcp::TcpListener;

/// Serves an address on the current kernel and on each of the others, with a listener of its own on
/// each kernel ([`TcpListener::bind_shared`]). Returns each kernel's report: that of the current
/// kernel first, the others in their order.
///
/// `serve` is sent to each kernel, and called there with the kernel's listener. Its future is the
/// server of that kernel, as [`serve_until`](crate::serve_until). A future need not be `Send`, and
/// the report that it returns must be.
///
/// An interruption, as by a signal, cancels all servers, and each may end gracefully. The first
/// server that fails, as by its listener or a panic, cancels the others in the same way; see
/// [`on_kernels`].
///
/// # Examples
///
/// Four kernels, until SIGINT or SIGTERM:
///
/// ```no_run
/// use pikake::net::{Closing, Patience, TcpStream, serve_on_all, serve_until};
/// use pikake::other_kernels;
///
/// #[pikake::main(threads = 4, signals)]
/// async fn main() -> std::io::Result<()> {
///     let reports = serve_on_all("0.0.0.0:7000", &other_kernels(), |listener| {
///         let greet = async |stream: TcpStream, _| drop(stream.write_all(b"hello\n").await);
///         serve_until(listener, 1000, Closing::new(), Patience::default(), greet)
///     })
///     .await?;
///     for (number, report) in reports.into_iter().enumerate() {
///         println!("kernel {number}: {}", report?);
///     }
///     Ok(())
/// }
/// ```
///
/// For TLS, `serve` takes a clone of the acceptor along, and serves `acceptor.listen(listener)`.
///
/// # Cancellation
///
/// An interruption point. The first interruption cancels the servers, and the reports tell how they
/// ended. A second one aborts them. A drop cancels them, without a wait for their ends.
///
/// # Errors
///
/// The address cannot be bound, or the call was interrupted before. For each kernel: its listener
/// cannot be bound; its server failed or panicked; its kernel has ended.
///
/// # Panics
///
/// Outside a task of a kernel.
#[track_caller]
pub fn serve_on_all<A, M, F, T, E>(
    address: A,
    others: &[KernelHandle],
    serve: M,
) -> impl Future<Output = io::Result<Vec<io::Result<T>>>> + use<A, M, F, T, E>
where
    A: ToSocketAddrs,
    M: FnOnce(TcpListener) -> F + Clone + Send + 'static,
    F: Future<Output = Result<T, E>> + 'static,
    T: Send + 'static,
    E: Into<io::Error>,
{
    let binding = TcpListener::bind_shared(address);
    let others = others.to_vec();
    async move {
        let first = binding.await?;
        // The others listen at the port that the system chose.
        let address = first.local_addr()?;
        let first = Arc::new(Mutex::new(Some(Bound::new(first))));
        let replicas = Replicas::default();
        let results = on_kernels(&others, move || async move {
            let here = {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                first.take_if(|listener| listener.is_home())
            };
            let mut listener = match here {
                Some(listener) => listener.into_inner(),
                None => TcpListener::bind_shared(address).await?,
            };
            listener.replicas = Some(replicas);
            serve(listener).await.map_err(Into::into)
        });
        Ok(results.await)
    }
}

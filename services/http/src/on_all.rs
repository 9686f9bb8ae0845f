//! One HTTP server on several kernels.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;

use pikake_net::{TcpListener, ToSocketAddrs, interruption};
use pikake_traps::KernelHandle;

use crate::report::{Report, ServeError};

/// The reports of the kernels of one server, by [`serve_on_all`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Reports {
    /// The report of each kernel: that of the caller first, the others in their order.
    pub kernels: Vec<Report>,
}

impl Reports {
    /// The report of the whole server: the sums of requests, all that was left, and the first
    /// interruption of each kind.
    pub fn total(&self) -> Report {
        let mut total = Report::default();
        for report in self.kernels.iter().cloned() {
            total.answered += report.answered;
            total.upgraded += report.upgraded;
            total.shed += report.shed;
            total.interrupted.extend(report.interrupted);
            total.dropped.extend(report.dropped);
            total.ended_by = total.ended_by.or(report.ended_by);
            total.cut_short_by = total.cut_short_by.or(report.cut_short_by);
        }
        total
    }
}

/// A line for each kernel.
impl fmt::Display for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, report) in self.kernels.iter().enumerate() {
            let line_end = if number == 0 { "" } else { "\n" };
            write!(f, "{line_end}kernel {number}: {report}")?;
        }
        Ok(())
    }
}

/// Serves HTTP at an address on the current kernel and on each of the others, each with a listener
/// of its own, between which the system distributes the connections.
///
/// `make` is sent to each kernel and called there with the kernel's listener. It returns a
/// [`serve`](crate::serve) with its configuration. So it is `Send`, as what it takes along, and the
/// service that it makes need not be.
///
/// A kernel that is late, by a millisecond or more, offers the requests that come to the others:
/// one that is idle answers with the service that `make` made there. So a long handler delays the
/// requests beside it less. A request stays where its handler has begun, and a handler sees nothing
/// of it. For this the server must run inside the future that `make` returns, as here. `serve` on
/// one kernel offers nothing.
///
/// The kernels are those of `#[pikake::main(threads = N)]`, by `pikake::other_kernels`, or of a
/// `pikake::Kernels`.
///
/// # Shutdown
///
/// An interruption of the calling task, for example by a signal, shuts all servers down, each in
/// good order. So does the failure of one of them. A
/// [`shutdown_when`](crate::Server::shutdown_when) shuts down the server of its kernel only; the
/// call returns when all have ended.
///
/// # Examples
///
/// HTTPS on four cores, until SIGINT or SIGTERM. The acceptor is shared, so a client can resume its
/// session on any kernel:
///
/// ```no_run
/// use axum::Router;
/// use axum::routing::get;
/// use pikake::http::{ALPN, serve, serve_on_all};
/// use pikake::net::tls::{Identity, TlsAcceptor};
/// use pikake::other_kernels;
///
/// #[pikake::main(threads = 4, signals)]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let identity = Identity::from_pem_files("server.crt", "server.key")?;
///     let acceptor = TlsAcceptor::builder(identity).alpn(ALPN).build()?;
///     let reports = serve_on_all("0.0.0.0:443", &other_kernels(), |listener| {
///         let app = Router::new().route("/", get(async || "hello"));
///         serve(listener, app).tls(acceptor)
///     });
///     println!("{}", reports.await?);
///     Ok(())
/// }
/// ```
///
/// # Cancellation
///
/// An interruption point. The first interruption shuts all servers down, a second one drops them
/// without a report. A drop of the call interrupts them.
///
/// # Errors
///
/// [`ServeError`] with the total of the reports, if the address cannot be bound, or if a server
/// failed, panicked or was dropped on one of the kernels. The others have then been shut down.
///
/// # Panics
///
/// When polled outside a task.
pub fn serve_on_all<A, M, I>(
    address: A,
    others: &[KernelHandle],
    make: M,
) -> impl Future<Output = Result<Reports, ServeError>> + use<A, M, I>
where
    A: ToSocketAddrs,
    M: FnOnce(TcpListener) -> I + Clone + Send + 'static,
    I: IntoFuture<Output = Result<Report, ServeError>, IntoFuture: 'static>,
{
    let serve = move |listener| async move { make(listener).await.map_err(io::Error::other) };
    let serving = pikake_net::serve_on_all(address, others, serve);
    async move {
        match serving.await {
            Ok(served) => gather(served),
            Err(error) => match interruption(&error).cloned() {
                ended_by @ Some(_) => {
                    let kernels = vec![Report { ended_by, ..Report::default() }];
                    Ok(Reports { kernels })
                }
                None => Err(Report::default().because(error)),
            },
        }
    }
}

/// The reports of the kernels, or the first failure with their total.
fn gather(served: Vec<io::Result<Report>>) -> Result<Reports, ServeError> {
    let mut reports = Reports::default();
    // A failed server may have others cancelled before their first step, which is an error as well.
    let (mut failure, mut cancelled) = (None, None);
    for served in served {
        let report = served.unwrap_or_else(|error| match error.downcast::<ServeError>() {
            Ok(ServeError { report, source }) => {
                failure.get_or_insert(source);
                report
            }
            Err(error) => {
                cancelled.get_or_insert(error);
                Report::default()
            }
        });
        reports.kernels.push(report);
    }
    match failure.or(cancelled) {
        None => Ok(reports),
        Some(source) => Err(reports.total().because(source)),
    }
}

//! The server: accept, serve, and end in good order.
//!
//! ```text
//!   serving ──(1) asked, or interrupted──▶ finishing ──(2) soft deadline──▶ told ──(3) hard──▶ dropped
//!      │                                       │                             │                   │
//!      │ (4) the listener failed               └──────────┬──────────────────┴───────────────────┘
//!      ▼                                                  ▼ (5) nobody is left
//!    error                                              report
//! ```
//!
//! (1) Who waits in the backlog is let in, the listener is closed, idle connections are, and the
//! others after the request that they are in. (2) The tasks of requests are told, and connections without one are closed. (3) What is left
//! is dropped and reported. An interruption during (1) or (2) leads to (3) at once. (4) As when it
//! is closed from elsewhere; connections that are open end by themselves.

use std::fmt::{self, Debug};
use std::future::{Future, IntoFuture, pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use pikake_net::Listener;
use pikake_traps::{Builder, TaskError};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use crate::BoxError;
use crate::connection::serve_connection;
use crate::gate::{Gate, Gated};
use crate::incoming::Incoming;
use crate::pace::Limits;
use crate::report::{Report, ServeError};

/// How many connections a server has at a time, unless it is told otherwise.
pub const CONNECTIONS: usize = 10_000;

/// How long a client may take to send the head of a request, and how long a connection may be idle,
/// unless the server is told otherwise. Long enough for people on trains.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may let a request wait, unless the server is told otherwise: as long as for a
/// head.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long after the begin of a shutdown requests are told to end, unless the server is told
/// otherwise.
pub const SOFT_DEADLINE: Duration = Duration::from_secs(10);

/// How long after the begin of a shutdown requests are dropped, unless the server is told otherwise.
/// Less than the half minute that supervisors give a process.
pub const HARD_DEADLINE: Duration = Duration::from_secs(20);

/// Serves HTTP/1 and HTTP/2 from a listener, with a service for the requests. Await it.
///
/// The service is any [`tower_service::Service`], such as an `axum::Router`; each request is a call
/// of a clone of it, in a task of its own. When the client goes away, that task is cancelled with the
/// reason [`CLIENT_GONE`](crate::CLIENT_GONE): its await returns
/// [`Interrupted`](pikake_traps::Interrupted), and it may clean up; its connection has its place until
/// it has ended. A handler that panics gives the status 500, and the panic is logged.
///
/// An `axum::Router` without a state makes its routes anew for each request, unless `with_state(())` was called.
///
/// Small writes on a [`TcpStream`](pikake_net::TcpStream) are sent at once. A listener that wraps its
/// connections, as in TLS, has to see to that itself.
///
/// # Limits
///
/// A client holds a connection only as long as it uses it, see [`connections`](Server::connections),
/// [`header_timeout`](Server::header_timeout) and [`stall_timeout`](Server::stall_timeout). At most
/// 200 requests of a connection run at a time; more are answered with the status 503. hyper's own
/// limits hold besides: a hundred headers, and half a megabyte (HTTP/2: 16 KiB) of them. A request's
/// body has the limit that the service sets.
///
/// # Ending
///
/// It is shut down by [`shutdown_when`](Server::shutdown_when), or when its own task is interrupted,
/// as by a signal. Then it takes the connections that wait in the listener's backlog, as far as there
/// is room, so that requests that were sent are answered; closes the listener, which resets whoever
/// is left there; and lets the requests end. It tells them after the
/// [soft deadline](Server::soft_deadline); and drops them at the [hard
/// one](Server::hard_deadline). Interrupted meanwhile, it drops them at once. Dropped, it has
/// connections closed and requests told, and nobody waits for them.
///
/// # Examples
///
/// ```no_run
/// use http::{Request, Response};
/// use pikake_net::TcpListener;
/// use std::convert::Infallible;
///
/// # use std::task::{Context, Poll};
/// # #[derive(Clone)] struct Hello;
/// # impl tower_service::Service<Request<pikake_http::Incoming>> for Hello {
/// #     type Response = Response<String>;
/// #     type Error = Infallible;
/// #     type Future = std::future::Ready<Result<Response<String>, Infallible>>;
/// #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
/// #     fn call(&mut self, _: Request<pikake_http::Incoming>) -> Self::Future {
/// #         std::future::ready(Ok(Response::new("hello".to_owned())))
/// #     }
/// # }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = TcpListener::bind("127.0.0.1:8080").await?;
/// let report = pikake_http::serve(listener, Hello).await?;
/// println!("{report}");
/// # Ok(()) }
/// ```
///
/// # Cancellation
///
/// An interruption point; see above.
///
/// # Errors
///
/// [`ServeError`]: the interruption or the listener's error, with the report.
///
/// # Panics
///
/// When polled outside a task.
pub fn serve<L, S>(listener: L, service: S) -> Server<L, S> {
    Server {
        listener,
        service,
        connections: CONNECTIONS,
        limits: Limits { idle: Some(HEADER_TIMEOUT), stalled: Some(STALL_TIMEOUT) },
        soft: SOFT_DEADLINE,
        hard: HARD_DEADLINE,
        asked: None,
    }
}

/// A server that does nothing until it is awaited. Made by [`serve`].
#[must_use = "a server does nothing until it is awaited"]
pub struct Server<L, S> {
    listener: L,
    service: S,
    connections: usize,
    limits: Limits,
    soft: Duration,
    hard: Duration,
    asked: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl<L, S> Server<L, S> {
    /// How many connections may be open at a time; further clients wait to be accepted.
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// How long a client may take to send the head of a request, also the first one, and so how long
    /// a connection may be idle. `None`: for ever, and then anybody can hold all connections.
    ///
    /// Up to a quarter more passes before an idle connection is closed.
    pub fn header_timeout(mut self, header_timeout: impl Into<Option<Duration>>) -> Self {
        self.limits.idle = header_timeout.into();
        self
    }

    /// How long a client may let a request wait: for the body that its handler waits for, or by not
    /// reading the response. `None`: for ever.
    ///
    /// Time in which the handler or the response's body has the next move does not count, however
    /// long it is. Bytes that get through earn time, a second for each [`MINIMUM_PACE`]; so a client
    /// that is merely slow is served to the end, and one that sends or takes a byte now and then is
    /// not. Its connection is then closed, and its handlers are told that it has gone. Up to half
    /// more passes before that.
    ///
    /// [`MINIMUM_PACE`]: crate::MINIMUM_PACE
    pub fn stall_timeout(mut self, stall_timeout: impl Into<Option<Duration>>) -> Self {
        self.limits.stalled = stall_timeout.into();
        self
    }

    /// Shuts down in good order when this future is done, and then gives the report.
    pub fn shutdown_when(self, asked: impl Future<Output = ()> + 'static) -> Self {
        Self { asked: Some(Box::pin(asked)), ..self }
    }

    /// How long after the begin of a shutdown requests are told to end.
    pub fn soft_deadline(self, soft: Duration) -> Self {
        Self { soft, ..self }
    }

    /// How long after the begin of a shutdown requests are dropped.
    pub fn hard_deadline(self, hard: Duration) -> Self {
        Self { hard, ..self }
    }
}

impl<L, S> fmt::Debug for Server<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connections", &self.connections)
            .field("limits", &self.limits)
            .field("soft", &self.soft)
            .field("hard", &self.hard)
            .finish_non_exhaustive()
    }
}

impl<L, S, B> IntoFuture for Server<L, S>
where
    L: Listener + 'static,
    L::Connection: AsyncRead + AsyncWrite + Unpin + 'static,
    L::Address: Debug + Clone + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    type Output = Result<Report, ServeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { listener, service, connections, limits, soft, hard, asked } = self;
            let gate = Rc::<Gate>::default();
            let listener = Gated::new(listener, connections, gate.clone());
            let open = listener.open.clone();
            let handler = {
                let gate = gate.clone();
                move |stream, peer| {
                    let (service, gate) = (service.clone(), gate.clone());
                    serve_connection(stream, peer, service, gate, limits)
                }
            };
            // In a task of its own, so that an interruption of this one is not the connections'.
            let accepting = pikake_net::serve(listener, connections, handler);
            let mut accepting =
                Builder::new().name("http server").spawn(accepting).cancel_on_drop();
            let mut asked = asked.unwrap_or_else(|| Box::pin(pending()));
            let ended = poll_fn(|cx| match Pin::new(&mut accepting).poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending => asked.as_mut().poll(cx).map(|()| None),
            });
            let why = match ended.await {
                None => None,
                Some(Err(TaskError::Interrupted(interrupted))) => Some(interrupted.into()),
                Some(Err(error)) => return Err(gate.report().because(io::Error::other(error))),
                Some(Ok(Err(error))) => return Err(gate.report().because(error)),
                Some(Ok(Ok(never))) => match never {},
            };
            gate.shut();
            if !gate.is_accepting() {
                // There is room for nobody, so those in the backlog need not wait to hear of it.
                drop(open.take());
            }
            let report = gate.end(&mut accepting, soft, hard).await;
            match why {
                None => Ok(report),
                Some(why) => Err(report.because(why)),
            }
        })
    }
}

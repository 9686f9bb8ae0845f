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
//! (1) The listener is closed, idle connections are, and the others after the request that they are
//! in. (2) The tasks of requests are told, and connections without one are closed. (3) What is left
//! is dropped and reported. An interruption during (1) or (2) leads to (3) at once. (4) As when it
//! is closed from elsewhere; connections that are open end by themselves.

use std::error::Error;
use std::fmt::{self, Debug};
use std::future::{Future, IntoFuture, pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use pikake_net::Listener;
use pikake_traps::{Builder, Interrupted, TaskError, timeout_after};
use tokio::io::{AsyncRead, AsyncWrite};
use tower_service::Service;

use crate::BoxError;
use crate::connection::serve_connection;
use crate::gate::{Gate, Gated};
use crate::request::Running;

/// How many connections a server has at a time, unless it is told otherwise.
pub const CONNECTIONS: usize = 10_000;

/// How long a client may take to send the head of a request, and how long a connection may be idle,
/// unless the server is told otherwise. Long enough for people on trains.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long after the begin of a shutdown requests are told to end, unless the server is told
/// otherwise.
pub const SOFT_DEADLINE: Duration = Duration::from_secs(10);

/// How long after the begin of a shutdown requests are dropped, unless the server is told otherwise.
/// Less than the half minute that supervisors give a process.
pub const HARD_DEADLINE: Duration = Duration::from_secs(20);

/// The reason with which a request's task is cancelled at the soft deadline.
pub const SHUTTING_DOWN: &str = "the server is being shut down";

/// Serves HTTP/1 and HTTP/2 from a listener, with a service for the requests. Await it.
///
/// The service is any [`tower_service::Service`], such as an `axum::Router`; each request is a call
/// of a clone of it, in a task of its own. When the client goes away, that task is cancelled with the
/// reason [`CLIENT_GONE`](crate::CLIENT_GONE): its await returns
/// [`Interrupted`](pikake_traps::Interrupted), and it may clean up. A handler that panics gives the
/// status 500, and the panic is logged.
///
/// # Ending
///
/// It is shut down by [`shutdown_when`](Server::shutdown_when), or when its own task is interrupted,
/// as by a signal. Then it closes the listener and lets the requests end; tells them after the
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
/// # impl tower_service::Service<Request<hyper::body::Incoming>> for Hello {
/// #     type Response = Response<String>;
/// #     type Error = Infallible;
/// #     type Future = std::future::Ready<Result<Response<String>, Infallible>>;
/// #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
/// #     fn call(&mut self, _: Request<hyper::body::Incoming>) -> Self::Future {
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
        header_timeout: Some(HEADER_TIMEOUT),
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
    header_timeout: Option<Duration>,
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
    pub fn header_timeout(self, header_timeout: impl Into<Option<Duration>>) -> Self {
        Self { header_timeout: header_timeout.into(), ..self }
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
            .field("header_timeout", &self.header_timeout)
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
            let Self { listener, service, connections, header_timeout, soft, hard, asked } = self;
            let gate = Rc::<Gate>::default();
            let listener = Gated { listener: Some(Rc::new(listener)).into(), gate: gate.clone() };
            let handler = {
                let gate = gate.clone();
                move |stream, peer| {
                    let (service, gate) = (service.clone(), gate.clone());
                    serve_connection(stream, peer, service, gate, header_timeout)
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
            let report = gate.end(&mut accepting, soft, hard).await;
            match why {
                None => Ok(report),
                Some(why) => Err(report.because(why)),
            }
        })
    }
}

impl Gate {
    fn report(&self) -> Report {
        Report { answered: self.answered.get(), told: Vec::new(), dropped: Vec::new() }
    }

    /// Who is there: each request, and each connection without one.
    fn left(&self) -> Vec<Left> {
        let mut left = Vec::new();
        for (_, open) in &*self.open.borrow() {
            let peer = || open.peer.clone();
            let running = open.requests.running.borrow();
            if running.is_empty() {
                left.push(Left { peer: peer(), request: None });
            }
            for (_, Running { method, uri, .. }) in &*running {
                left.push(Left { peer: peer(), request: Some(format!("{method} {uri}")) });
            }
        }
        left
    }

    /// Waits for the connections, up to the deadlines. The gate is shut.
    async fn end<F, T>(&self, accepting: &mut F, soft: Duration, hard: Duration) -> Report
    where
        F: Future<Output = Result<T, TaskError>> + Unpin,
    {
        let (mut told, mut dropped) = (Vec::new(), Vec::new());
        let mut ended = timeout_after(soft, &mut *accepting).await;
        if ended.is_err() {
            told = self.left();
            self.tell();
            ended = timeout_after(hard.saturating_sub(soft), &mut *accepting).await;
        }
        if let Err(_) | Ok(Err(TaskError::Interrupted(_))) = ended {
            dropped = self.left();
            for left in &dropped {
                tracing::warn!(%left, "dropped at the hard deadline of a shutdown");
            }
            self.drop_all();
            // They are gone before the next step; interrupted once more, nothing is left to do.
            drop(accepting.await);
        }
        Report { told, dropped, ..self.report() }
    }

    fn tell(&self) {
        let open: Vec<_> =
            self.open.borrow().iter().map(|(_, o)| (o.task.clone(), o.requests.clone())).collect();
        for (connection, requests) in open {
            if requests.running.borrow().is_empty() {
                connection.request_cancel(Interrupted::cancelled(SHUTTING_DOWN));
            }
            requests.tell(SHUTTING_DOWN);
        }
    }

    fn drop_all(&self) {
        let mut tasks = Vec::new();
        for (_, open) in &*self.open.borrow() {
            tasks.extend(open.requests.tasks());
            tasks.push(open.task.clone());
        }
        for task in tasks {
            task.request_abort(Interrupted::cancelled(SHUTTING_DOWN));
        }
    }
}

/// What a server has done, and whom it had to cut short.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many requests were answered.
    pub answered: u64,
    /// Who was left at the soft deadline and was told to end.
    pub told: Vec<Left>,
    /// Who was left at the hard deadline and was dropped.
    pub dropped: Vec<Left>,
}

impl Report {
    fn because(self, source: io::Error) -> ServeError {
        ServeError { report: self, source }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests were answered", self.answered)?;
        for (what, left) in [("told to end", &self.told), ("dropped", &self.dropped)] {
            for (number, left) in left.iter().enumerate() {
                f.write_str(if number == 0 { "; " } else { ", " })?;
                match number {
                    0 => write!(f, "{what}: {left}")?,
                    _ => write!(f, "{left}")?,
                }
            }
        }
        Ok(())
    }
}

/// A request that was not answered in time, or a connection without one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Left {
    /// Where it came from.
    pub peer: String,
    /// Method and target; `None` for a connection that was in no request.
    pub request: Option<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Some(request) => write!(f, "{request} from {}", self.peer),
            None => write!(f, "the connection from {}", self.peer),
        }
    }
}

/// Why a server ended that was not asked to, and what it had done by then.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeError {
    /// What it had done.
    pub report: Report,
    /// The interruption, which [`pikake_net::interruption`] finds, or the listener's error.
    pub source: io::Error,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "serving HTTP ended: {} ({})", self.source, self.report)
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

//! The server: accept, serve, and shut down in order.
//!
//! ```text
//!   serving ──(1) asked, or interrupted──▶ finishing ──(2) soft deadline──▶ interrupted ──(3) hard──▶ dropped
//!      │                                       │                                │                       │
//!      │ (4) the listener failed               └──────────┬─────────────────────┴───────────────────────┘
//!      ▼                                                  ▼ (5) no connection is left
//!    error                                              report
//! ```
//!
//! (1) Connections in the backlog are accepted, then the listener is closed. Idle connections are
//! closed after a moment in which a request may arrive, others after their current request. (2)
//! Requests are interrupted, and connections without one are closed. (3) The rest is dropped and
//! reported. An interruption during (1) or (2) leads to (3) at once. (4) Open connections go on
//! until they end.

use std::fmt::{self, Debug};
use std::future::{Future, IntoFuture, pending, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use pikake_net::{Ended, Listener, serve_at};
use pikake_traps::{Builder, Peers, TaskError};
use tower_service::Service;

use crate::BoxError;
use crate::connection::serve_connection;
use crate::gate::{self, Gate, Gated};
use crate::handshake::{Handshake, Plain};
use crate::incoming::Incoming;
use crate::pace::Limits;
use crate::report::{Report, ServeError};
use crate::takers;

/// The default number of connections at a time.
pub const CONNECTIONS: usize = 10_000;

/// How long a client may take to send the head of a request, and a connection may be idle, by
/// default. Long enough for people on trains.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may let a request wait by default: as long as for a head.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long after the start of a shutdown requests are interrupted by default.
pub const SOFT_DEADLINE: Duration = Duration::from_secs(10);

/// How long after the start of a shutdown requests are dropped by default. Less than the half
/// minute that supervisors give a process.
pub const HARD_DEADLINE: Duration = Duration::from_secs(20);

/// How long a client that sends no request is waited for at a shutdown: longer than most clients
/// take to react to an answer.
const LAST_REQUEST: Duration = Duration::from_millis(100);

/// Serves HTTP/1 and HTTP/2 from a listener, with a service for the requests. The server runs when
/// awaited.
///
/// The service is any [`tower_service::Service`], such as an `axum::Router`. Each request calls a
/// clone of the service, in a task of its own, which begins inside the step of its connection
/// ([`eager`](pikake_traps::Builder::eager)). So a request whose handler does not wait is one step,
/// and a handler that computes for long before it waits delays the other requests. A handler that
/// panics gives the status 500, and the panic is logged.
///
/// An `axum::Router` without a state makes its routes anew for each request, unless
/// `with_state(())` was called.
///
/// Small writes on a [`TcpStream`](pikake_net::TcpStream) are sent at once. A listener that wraps
/// its connections has to set `TCP_NODELAY` itself.
///
/// # When the client goes away
///
/// The task of the request is cancelled with the reason [`CLIENT_GONE`](crate::CLIENT_GONE): its
/// await returns [`Interrupted`](pikake_traps::Interrupted), and it may clean up, awaiting; until
/// it has ended, its connection counts as open. Over HTTP/1, a client that ends its side of the
/// connection may have gone, or wait for the answer. A handler should therefore end its work in
/// good order and return soon, with what it has or with an error status: what it returns is sent,
/// and nobody reads it if the client has gone. A handler that must not be interrupted awaits in a
/// [`shield`](pikake_traps::shield). [`client_end_grace`](Server::client_end_grace) gives handlers
/// more time.
///
/// # Limits
///
/// A client holds a connection only as long as it uses it, see
/// [`connections`](Server::connections), [`header_timeout`](Server::header_timeout) and
/// [`stall_timeout`](Server::stall_timeout). At most 200 requests of a connection run at a time;
/// more are answered with the status 503. hyper's own limits apply as well: a hundred headers, of
/// half a megabyte (HTTP/2: 16 KiB) in all. The service limits the request's body.
///
/// # Upgrades
///
/// A handler may take over its connection, or its stream of HTTP/2, for another protocol such as
/// WebSocket, or for a tunnel: see [`upgrade`](crate::upgrade). To the limit of connections and to
/// a shutdown, what follows is a request that runs. The other limits do not apply to it.
///
/// # Refused requests
///
/// Requests that two servers may understand differently do not reach the service. These are
/// answered with the status 400 (RFC 9112, section 3.2):
///
/// * a request of HTTP/1.1 without a `Host`, also if its target is a whole URL;
/// * a request with several `Host`s, or with one that is not a host with an optional port. `Host`
///   may be empty if the target is a path;
/// * over HTTP/2, a `Host` that differs from `:authority` (RFC 9113, section 8.3.1);
/// * a target whose authority is invalid or has a user, and one that is none of its method:
///   `CONNECT` has an authority, no other method of HTTP/1 has, and `*` is for `OPTIONS`.
///
/// A transfer coding other than `chunked` is answered with 501. Such answers count as any others,
/// and a connection of HTTP/1 ends with them. hyper refuses heads that it cannot parse, without an
/// entry in the report. A request with both `Transfer-Encoding` and `Content-Length` is served by
/// the former, and is the last of its connection (RFC 9112, section 6.1).
///
/// # Shutdown
///
/// The server shuts down when the future of [`shutdown_when`](Server::shutdown_when) completes, or
/// when its own task is interrupted, for example by a signal. The server then accepts the
/// connections in the listener's backlog, as far as there is room, so that requests already sent
/// are answered; closes the listener, which resets connections left there; and lets the requests
/// end. The server interrupts them at the [soft deadline](Server::soft_deadline), and drops them at
/// the [hard one](Server::hard_deadline). Another interruption drops them at once. Dropping the
/// server closes connections and interrupts requests, without waiting for them.
///
/// A server that was shut down has done its work: it returns its [`Report`], with the interruption
/// as [`ended_by`](Report::ended_by). So `serve(listener, service).await?` in a `main` with
/// `#[pikake::main(signals)]` ends with the exit code 0 after a SIGTERM.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use pikake::http;
/// use pikake::net::{TcpListener, TcpStream};
/// use pikake::sleep;
/// use std::time::Duration;
///
/// # pikake::sim::example(async {
/// let app = Router::new().route("/", get(async || "hello"));
/// let listener = TcpListener::bind("127.0.0.1:8080").await?;
/// let server = http::serve(listener, app)
///     .header_timeout(Duration::from_secs(5))
///     .shutdown_when(async { drop(sleep(Duration::from_secs(1)).await) });
/// let server = pikake::spawn(server.into_future());
///
/// let client = TcpStream::connect("127.0.0.1:8080").await?;
/// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// let mut answer = [0; 15];
/// client.read_exact(&mut answer).await?;
/// assert_eq!(&answer, b"HTTP/1.0 200 OK");
///
/// let report = server.await??;
/// assert_eq!(report.to_string(), "1 requests were answered");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point; see above. A [`timeout_after`](pikake_traps::timeout_after) around the
/// server reports `TimedOut` as always, and drops the server's report;
/// [`timed`](pikake_traps::timed) keeps it.
///
/// # Errors
///
/// [`ServeError`]: the listener's error, with the report. No shutdown is an error.
///
/// # Panics
///
/// When polled outside a task.
#[track_caller]
pub fn serve<L, S>(listener: L, service: S) -> Server<L, S> {
    Server {
        listener,
        service,
        connections: CONNECTIONS,
        limits: Limits {
            idle: Some(HEADER_TIMEOUT),
            stalled: Some(STALL_TIMEOUT),
            last: LAST_REQUEST,
            gone: Some(Duration::ZERO),
            late: None,
        },
        handshake: Ok(Plain),
        soft: SOFT_DEADLINE,
        hard: HARD_DEADLINE,
        asked: None,
        logs: false,
        place: Location::caller(),
    }
}

/// A server that does nothing until it is awaited. Made by [`serve`].
#[must_use = "a server does nothing until it is awaited"]
pub struct Server<L, S, H = Plain> {
    listener: L,
    service: S,
    /// An error of the configuration is returned when the server is awaited.
    handshake: io::Result<H>,
    connections: usize,
    limits: Limits,
    soft: Duration,
    hard: Duration,
    asked: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Whether there is an access log.
    logs: bool,
    /// The place of the call of [`serve`].
    place: &'static Location<'static>,
}

#[cfg(feature = "tls")]
impl<L, S> Server<L, S> {
    /// Serves HTTPS: each connection begins with a TLS handshake as this
    /// [`Identity`](pikake_net::tls::Identity).
    ///
    /// The client chooses HTTP/2 or HTTP/1 in the handshake, among [`ALPN`](crate::ALPN). For other
    /// options, such as certificates of clients, pass a
    /// [`TlsAcceptorBuilder`](pikake_net::tls::TlsAcceptorBuilder); a
    /// [`TlsAcceptor`](pikake_net::tls::TlsAcceptor) is taken as it is, with its protocols.
    ///
    /// A handshake takes place in the connection's own task, within the acceptor's timeout, so a
    /// client that does not finish it delays no other. Its connection counts as open. A shutdown
    /// ends it after a moment.
    ///
    /// With the feature `tls`.
    ///
    /// # Errors
    ///
    /// The server returns the error of a key that does not match its certificate when it is
    /// awaited. Failed handshakes are logged.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
    /// use pikake::http;
    /// use pikake::net::{TcpListener, tls::Identity};
    ///
    /// let identity = Identity::from_pem_files("server.crt", "server.key")?;
    /// let listener = TcpListener::bind("0.0.0.0:443").await?;
    /// println!("{}", http::serve(listener, app).tls(identity).await?);
    /// # Ok(()) }
    /// ```
    pub fn tls(self, identity: impl crate::IntoTls) -> Server<L, S, crate::Tls> {
        let Self {
            listener,
            service,
            handshake: _,
            connections,
            limits,
            soft,
            hard,
            asked,
            logs,
            place,
        } = self;
        let handshake = identity.into_tls();
        Server { listener, service, handshake, connections, limits, soft, hard, asked, logs, place }
    }
}

impl<L, S, H> Server<L, S, H> {
    /// Sets how many connections may be open at a time; further clients wait to be accepted.
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// Sets how long a client may take to send the head of a request, including the first one, and
    /// so how long a connection may be idle. `None`: for ever, so a single client can occupy all
    /// connections.
    ///
    /// Bytes without a request, such as HTTP/2's pings, do not extend it. Closing an idle
    /// connection may take up to half longer, and a quarter more if the client has sent a part of a
    /// head, or does not answer HTTP/2's announcement of the end.
    pub fn header_timeout(mut self, header_timeout: impl Into<Option<Duration>>) -> Self {
        self.limits.idle = header_timeout.into();
        self
    }

    /// Sets how long a client may let a request wait, by not sending a body that the handler reads
    /// or by not reading the response. `None`: for ever.
    ///
    /// Time in which the connection waits for the handler or the response's body does not count.
    /// Bytes that get through earn time, a second for each [`MINIMUM_PACE`]: a slow client is
    /// served to the end if it takes each buffer of the system within the limit, and one that sends
    /// or reads single bytes is not. A client that has read its responses has the whole time again;
    /// requests that it begins or resets give it none. The connection is then closed, and its
    /// handlers are cancelled, up to half later than the limit.
    ///
    /// [`MINIMUM_PACE`]: crate::MINIMUM_PACE
    pub fn stall_timeout(mut self, stall_timeout: impl Into<Option<Duration>>) -> Self {
        self.limits.stalled = stall_timeout.into();
        self
    }

    /// Sets how long after the end of its client's side of the connection a handler of HTTP/1 is
    /// interrupted with [`CLIENT_GONE`](crate::CLIENT_GONE): at once by default. `None`: not at
    /// all.
    ///
    /// A client that has gone looks like one that has sent its request, ended its side, and waits
    /// for the answer: `printf 'GET / HTTP/1.0\r\n\r\n' | nc -N` does that. So what the handler
    /// returns after the interruption is sent, and so is a response that is being sent. One that
    /// waits for its service is ended at that time, with its connection. A reset of the connection,
    /// and its end over HTTP/2, interrupt handlers at once, and no answer is sent; but a reset
    /// after the end of the client's side shows only when something is sent.
    pub fn client_end_grace(mut self, grace: impl Into<Option<Duration>>) -> Self {
        self.limits.gone = grace.into();
        self
    }

    /// Sets how late a request may begin: one that has waited for its kernel for longer is *shed*.
    /// The server answers 503 with the header `Retry-After: 1`, and does not call the service.
    /// `None`, the default: requests are not shed.
    ///
    /// A server that gets more requests than it can answer makes each of them wait longer than the
    /// one before, until none is answered in the time that its client has. This option keeps the
    /// wait near `delay`, by answering fewer. A fraction of the time that clients wait is enough.
    ///
    /// The wait is that of the tasks that are ready on the kernel, in which the request may have
    /// been: the time since the poll of the driver before the one that found them. A handler that
    /// computes for longer than `delay` before it waits has the requests that came meanwhile shed.
    /// A request that has come with its connection has waited since the poll before the one that
    /// found the connection. A longer wait in the listener's backlog is not seen, for example that
    /// for one of the [`connections`](Self::connections) to end. The time after the handler has
    /// begun does not count. Under [`serve_on_all`](crate::serve_on_all), a kernel that is late
    /// first offers its requests to the others. A request that was offered is shed where it begins,
    /// if the time since the offer is longer than `delay`, or its own kernel begins it and is later
    /// than that.
    ///
    /// The [report](Report::shed) and the [figures](crate#figures) count requests that were shed.
    /// Their clients lose no connection over HTTP/2; over HTTP/1, a request's unread body may end
    /// its connection, as after any answer that does not wait for the body.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use pikake::http;
    /// use pikake::net::{TcpListener, TcpStream};
    /// use std::thread;
    /// use std::time::Duration;
    ///
    /// # pikake::run(async {
    /// let app = Router::new().route("/", get(async || "hello"));
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?;
    /// let server = http::serve(listener, app).shed_after(Duration::from_millis(10));
    /// pikake::spawn(server.into_future()).detach();
    ///
    /// let client = TcpStream::connect(address).await?;
    /// pikake::sleep(Duration::from_millis(50)).await?;
    /// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    /// thread::sleep(Duration::from_millis(50)); // in place of a computation
    /// let mut answer = [0; 32];
    /// client.read_exact(&mut answer).await?;
    /// assert_eq!(&answer, b"HTTP/1.0 503 Service Unavailable");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn shed_after(mut self, delay: impl Into<Option<Duration>>) -> Self {
        self.limits.late = delay.into();
        self
    }

    /// Writes an access log: an event of `tracing` for each request, when its answer has ended. Its
    /// level is INFO and its target `pikake::http::access`. Off by default, and then without cost.
    ///
    /// | field | holds |
    /// | --- | --- |
    /// | `method`, `version` | such as `GET` and `HTTP/1.1` |
    /// | `path` | the path as the client has sent it, without the query |
    /// | `query` | the query without its question mark, if there is one; drop this field from the log if queries hold secrets |
    /// | `peer` | the client's address, as its `Debug` shows it |
    /// | `status` | of the answer, if there is one |
    /// | `bytes` | how many bytes of the answer's body the connection has written, without headers and framing; the client need not have read them |
    /// | `time_us` | the microseconds from the head of the request to the end of the answer |
    /// | `outcome` | see below |
    ///
    /// | outcome | means |
    /// | --- | --- |
    /// | `answered` | the service has answered, and the connection has written all of it |
    /// | `cut_short` | the answer has begun and not ended: the client has gone, the body has failed, or a shutdown has dropped it |
    /// | `unanswered` | there is no answer: the client has reset the connection or the stream, or a shutdown has dropped the request |
    /// | `failed` | there is no answer: the service has returned an error |
    /// | `panicked` | 500: the handler has panicked |
    /// | `cancelled` | 503: the handler's task was cancelled before it began, or aborted |
    /// | `shed` | 503: the server was [late](Self::shed_after) |
    /// | `refused` | 400 or 501: the request is invalid; or 503: its connection has too many |
    ///
    /// Requests that hyper cannot parse have no event: hyper answers them before they are requests.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::Router;
    /// use pikake::http;
    /// use pikake::net::TcpListener;
    ///
    /// # pikake::sim::example(async {
    /// let listener = TcpListener::bind("127.0.0.1:8080").await?;
    /// let server = http::serve(listener, Router::new()).access_log(true);
    /// server.shutdown_when(async {}).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn access_log(self, logs: bool) -> Self {
        Self { logs, ..self }
    }

    /// Shuts the server down when this future completes; the server then returns its report.
    pub fn shutdown_when(self, asked: impl Future<Output = ()> + 'static) -> Self {
        Self { asked: Some(Box::pin(asked)), ..self }
    }

    /// Sets how long after the start of a shutdown requests are interrupted.
    pub fn soft_deadline(self, soft: Duration) -> Self {
        Self { soft, ..self }
    }

    /// Sets how long after the start of a shutdown requests are dropped.
    pub fn hard_deadline(self, hard: Duration) -> Self {
        Self { hard, ..self }
    }
}

impl<L, S, H> fmt::Debug for Server<L, S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("connections", &self.connections)
            .field("limits", &self.limits)
            .field("soft", &self.soft)
            .field("hard", &self.hard)
            .finish_non_exhaustive()
    }
}

impl<L, S, H, B> IntoFuture for Server<L, S, H>
where
    L: Listener + 'static,
    L::Connection: 'static,
    H: Handshake<L::Connection>,
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
            let Self {
                listener,
                service,
                handshake,
                connections,
                mut limits,
                soft,
                hard,
                asked,
                logs,
                place,
            } = self;
            let handshake = handshake.map_err(|error| Report::default().because(error))?;
            limits.last = limits.last.min(soft / 2);
            if limits.late.is_some() {
                // A kernel notes how late it is if it has peers, also if it is the only one.
                Peers::current_or_new();
            }
            let gate = Rc::new(Gate::new(logs, limits.late));
            let replicas = listener.replicas();
            let listener = Gated::new(listener, connections, gate.clone());
            let open = listener.open.clone();
            let enter = |replicas| takers::enter(replicas, service.clone());
            let _entered = replicas.as_ref().map(enter);
            let handler = {
                let gate = gate.clone();
                move |connection, peer| {
                    let (service, replicas, gate) =
                        (service.clone(), replicas.clone(), gate.clone());
                    let handshake = handshake.clone();
                    serve_connection(connection, handshake, peer, service, replicas, gate, limits)
                }
            };
            // In a task of its own, so that an interruption of this task does not reach the
            // connections.
            let accepting = serve_at(listener, connections, handler, place);
            let mut accepting =
                Builder::new().name("http server").spawn(accepting).cancel_on_drop();
            if let Some(interval) = limits.interval() {
                // Connections may go on without the server, and then within their limits.
                let watching = gate::watch(Rc::downgrade(&gate), gate.watch(), limits, interval);
                Builder::new().name("http limits").spawn(watching).detach();
            }
            let mut asked = asked.unwrap_or_else(|| Box::pin(pending()));
            let ended = poll_fn(|cx| match Pin::new(&mut accepting).poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending => asked.as_mut().poll(cx).map(|()| None),
            });
            let ended_by = match ended.await {
                None => None,
                Some(Err(TaskError::Interrupted(interrupted))) => Some(interrupted),
                // A kernel that shuts down cancels the accept loop as any task, and its
                // connections.
                Some(Err(TaskError::Cancelled(interrupted))) => {
                    return Ok(Report { ended_by: Some(interrupted), ..gate.report() });
                }
                Some(Err(error)) => return Err(gate.report().because(io::Error::other(error))),
                Some(Ok(Err(error))) => return Err(gate.report().because(error)),
                Some(Ok(Ok(Ended::Interrupted(why)))) => {
                    return Ok(Report { ended_by: Some(why), ..gate.report() });
                }
                // The listener was closed, and its connections have ended.
                Some(Ok(Ok(_))) => return Ok(gate.report()),
            };
            gate.shut();
            if !gate.is_accepting() {
                // Without room, closing the listener at once resets the connections in the backlog.
                drop(open.take());
            }
            Ok(Report { ended_by, ..gate.end(&mut accepting, soft, hard).await })
        })
    }
}

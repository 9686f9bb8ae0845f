//! Upgrades: a connection that another protocol takes over, such as WebSocket.
//!
//! ```text
//!    request ──▶ handler ──(1) accept──▶ response ──(2) 101, or 2xx to CONNECT──▶ task of the upgrade
//!                   │                       │                                          │
//!                   │ no `accept`           │ another status                           │ (3)
//!                   ▼                       ▼                                          ▼
//!               as any request     the closure is dropped                       the stream is closed
//! ```
//!
//! (1) [`Upgrade::accept`] stores the closure that will have the stream. (2) [`Pending::begin`]
//! starts a task when the response agrees, and the task waits for hyper to have written the
//! response's head. (3) The closure's future has ended. Until then the task is listed among the
//! requests of its connection, which makes the connection count as open and shows the task to a
//! shutdown.
//!
//! hyper demands a stream that is `Send`, so its own is a [`SendIo`](pikake_net::SendIo).

use std::cell::RefCell;
use std::fmt;
use std::future::{self, Future, poll_fn};
use std::io::{self, IoSlice};
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Extensions, Method, Request, Response, StatusCode, Version};
use hyper::ext::Protocol;
use hyper::rt::{Read as _, ReadBuf, Write as _};
use hyper::upgrade::OnUpgrade;
use pikake_net::{Read, Write};
use pikake_traps::{
    Bound, Builder, FutureWait, Interrupted, current, future_wait, future_wait_at, try_current,
};

use crate::figures::Peer;
use crate::peer::show_to_current;
use crate::requests::{RequestLine, Requests};

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The closure that gets the stream.
type Handler = Box<dyn FnOnce(Upgraded) -> BoxFuture>;

/// A request that asks for an upgrade, and the answer to that.
pub(crate) struct Pending {
    line: Arc<RequestLine>,
    version: Version,
    /// The protocol that the client asks for; `None` for a tunnel.
    protocol: Option<HeaderValue>,
    requests: Rc<Requests>,
    peer: Option<Peer>,
    /// hyper's half, until the upgrade begins.
    stream: RefCell<Option<OnUpgrade>>,
    handler: RefCell<Option<Handler>>,
}

/// A [`Pending`] among the extensions of its request, which must be `Send` and `Clone`.
#[derive(Clone)]
struct Extension(Arc<Bound<Rc<Pending>>>);

impl Pending {
    /// Takes hyper's upgrade out of a request and puts one of this crate in; `None` if the request
    /// asks for none.
    pub(crate) fn of<B>(
        request: &mut Request<B>,
        line: &Arc<RequestLine>,
        requests: &Rc<Requests>,
    ) -> Option<Rc<Self>> {
        let stream = request.extensions_mut().remove::<OnUpgrade>()?;
        let protocol = match request.extensions().get::<Protocol>() {
            Some(protocol) => HeaderValue::from_str(protocol.as_str()).ok(),
            None => request.headers().get(UPGRADE).and_then(first_of),
        };
        let connection = try_current().map(|task| task.id());
        let pending = Rc::new(Self {
            line: RequestLine::upgrade_of(line),
            version: request.version(),
            protocol,
            requests: requests.clone(),
            peer: connection.and_then(|connection| requests.figures.peer(connection)),
            stream: RefCell::new(Some(stream)),
            handler: RefCell::default(),
        });
        let extension = Extension(Arc::new(Bound::new(pending.clone())));
        request.extensions_mut().insert(extension);
        Some(pending)
    }

    /// Whether a response of this status ends HTTP on the connection or stream.
    fn is_agreed(&self, status: StatusCode) -> bool {
        match self.line.method == Method::CONNECT {
            true => status.is_success(),
            false => status == StatusCode::SWITCHING_PROTOCOLS,
        }
    }

    /// Starts the task of the upgrade, if a handler has accepted it and the response agrees.
    pub(crate) fn begin(&self, status: StatusCode) {
        let (stream, handler) = (self.stream.take(), self.handler.take());
        let (Some(stream), Some(handler)) = (stream, handler) else { return };
        if !self.is_agreed(status) {
            return;
        }
        self.requests.figures.upgrade_began();
        let listed = UpgradeGuard { requests: self.requests.clone(), line: self.line.clone() };
        let (peer, is_http2) = (self.peer.clone(), self.version == Version::HTTP_2);
        let task = Builder::new().name(self.line.to_string()).spawn(async move {
            if let Some(peer) = peer {
                show_to_current(peer);
            }
            match future_wait(stream).await {
                Ok(Ok(stream)) => {
                    if let Some(reason) = listed.requests.cancelled_for.get() {
                        current().task_ref().request_cancel(Interrupted::cancelled(reason));
                    }
                    handler(Upgraded::new(stream, is_http2)).await;
                }
                Ok(Err(error)) => {
                    tracing::debug!(upgrade = %listed.line, %error, "an upgrade failed");
                }
                Err(interrupted) => {
                    tracing::debug!(upgrade = %listed.line, %interrupted, "an upgrade was not begun");
                }
            }
        });
        self.requests.list_upgrade(task.task_ref().clone(), &self.line);
        task.detach();
    }
}

/// The first of the protocols of a header.
fn first_of(header: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_str(header.to_str().ok()?.split(',').next()?.trim()).ok()
}

/// Removes an upgrade from its connection's list on drop.
struct UpgradeGuard {
    requests: Rc<Requests>,
    line: Arc<RequestLine>,
}

impl Drop for UpgradeGuard {
    fn drop(&mut self) {
        self.requests.figures.upgrade_ended();
        self.requests.end(&self.line);
    }
}

/// Takes the upgrade out of a request of [`serve`](crate::serve). `None` if the request asks for
/// none, or if somebody has taken it.
///
/// A request asks for an upgrade by the headers `Connection: upgrade` and `Upgrade` of HTTP/1.1, by
/// the method `CONNECT`, or by an extended CONNECT of HTTP/2 (RFC 8441). The server announces the
/// last one to its clients, and browsers then use it for WebSockets. A route for WebSockets should
/// therefore take any method, not only `GET`.
///
/// # Examples
///
/// A server that sends back what it gets, over a protocol of its own:
///
/// ```
/// use http_body_util::Empty;
/// use hyper::body::Bytes;
/// use hyper::{Request, Response};
/// use pikake::http::{Incoming, Upgraded, upgrade};
/// use pikake::net::{Read, Write};
///
/// async fn echo(stream: Upgraded) {
///     let mut bytes = [0; 1024];
///     while let Ok(number @ 1..) = stream.read(&mut bytes).await {
///         if stream.write_all(&bytes[..number]).await.is_err() {
///             return;
///         }
///     }
///     // The client has ended its side, or the server is being shut down.
///     drop(stream.finish().await);
/// }
///
/// async fn handle(mut request: Request<Incoming>) -> Response<Empty<Bytes>> {
///     let wanted = upgrade(&mut request).filter(|wanted| wanted.protocol() == Some("echo"));
///     match wanted {
///         Some(upgrade) => upgrade.accept(echo),
///         None => Response::builder().status(400).body(Empty::new()).expect("a status"),
///     }
/// }
/// # drop(handle);
/// ```
///
/// # Panics
///
/// The [`Upgrade`] panics when it is used on another thread than that of its server, or in another
/// kernel.
pub fn upgrade<B>(request: &mut Request<B>) -> Option<Upgrade> {
    Upgrade::take(request.extensions_mut())
}

/// A request's wish for another protocol on its connection. See [`upgrade`].
///
/// Dropping it refuses the upgrade: the client reads the response, whatever its status, and a
/// connection of HTTP/1 takes further requests.
#[must_use = "an upgrade that is not accepted is refused"]
pub struct Upgrade(Arc<Bound<Rc<Pending>>>);

impl Upgrade {
    pub(crate) fn take(extensions: &mut Extensions) -> Option<Self> {
        let Extension(pending) = extensions.remove()?;
        Some(Self(pending))
    }

    /// The protocol that the client asks for, such as `websocket`: the first one of the header
    /// `Upgrade`, or the pseudo-header `:protocol` of HTTP/2. `None` for a tunnel by `CONNECT`,
    /// whose target is the request's URI.
    pub fn protocol(&self) -> Option<&str> {
        self.0.get().protocol.as_ref()?.to_str().ok()
    }

    /// Gives the stream to a handler, once the response is sent, and makes that response: the
    /// status 101 with its headers, or 200 to `CONNECT`.
    ///
    /// The caller adds what the protocol demands, such as `Sec-WebSocket-Accept`. If the service
    /// answers with another status, the upgrade is refused and the handler is dropped.
    ///
    /// The handler runs in a task of its own, called `upgrade GET /chat` for example. Until it has
    /// ended, its connection counts as open. The server's time limits do not apply to it. A client
    /// that goes away is an error or the end of the stream. A handler that panics closes the
    /// stream, and the panic is logged. [`peer`](crate::peer) is the client's address in the
    /// handler.
    ///
    /// # Cancellation
    ///
    /// A shutdown interrupts the handler at the soft deadline, or at its begin if that is later,
    /// with the reason [`SHUTTING_DOWN`](crate::SHUTTING_DOWN). The handler's read or write then
    /// fails with the interruption, which [`net::interruption`](pikake_net::interruption) finds.
    /// The handler may say goodbye, awaiting, until it is dropped at the hard deadline. WebSocket
    /// has the status 1001 for that.
    ///
    /// # Panics
    ///
    /// On another thread than that of the server, or in another kernel.
    pub fn accept<B, F>(self, handler: impl FnOnce(Upgraded) -> F + 'static) -> Response<B>
    where
        B: Default,
        F: Future<Output = ()> + 'static,
    {
        let pending = self.0.get();
        let handler: Handler = Box::new(|stream| Box::pin(handler(stream)));
        pending.handler.replace(Some(handler));
        let mut response = Response::new(B::default());
        if pending.line.method != Method::CONNECT {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.extend(pending.protocol.clone().map(|protocol| (UPGRADE, protocol)));
        }
        response
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgrade").finish_non_exhaustive()
    }
}

/// The stream of an upgraded connection. Made by [`Upgrade::accept`].
///
/// It implements the traits of streams of [`pikake_net`], of `tokio::io` and of `futures_io`. So
/// `async_tungstenite::WebSocketStream::from_raw_socket` takes it.
///
/// The drop closes the connection, or the stream of HTTP/2.
///
/// # Cancellation
///
/// Reads and writes are interruption points: an error whose source is the
/// [`Interrupted`](pikake_traps::Interrupted). An interrupted read has taken nothing, an
/// interrupted write has given nothing, and the stream may be used afterwards.
pub struct Upgraded {
    stream: RefCell<hyper::upgrade::Upgraded>,
    reading: Wait,
    writing: Wait,
}

impl Upgraded {
    fn new(stream: hyper::upgrade::Upgraded, is_http2: bool) -> Self {
        Self {
            stream: RefCell::new(stream),
            reading: Wait::new(is_http2),
            writing: Wait::new(is_http2),
        }
    }

    #[track_caller]
    fn poll_read_into(&self, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(to);
        let read = self.reading.poll(cx, |cx| {
            Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buffer.unfilled())
        });
        ready!(read)?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    #[track_caller]
    fn poll_write_from(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.writing.poll(cx, |cx| Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, data))
    }

    #[track_caller]
    fn poll_write_parts(
        &self,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writing
            .poll(cx, |cx| Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(cx, parts))
    }

    #[track_caller]
    fn poll_flush_all(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing.poll(cx, |cx| Pin::new(&mut *self.stream.borrow_mut()).poll_flush(cx))
    }

    #[track_caller]
    fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing.poll(cx, |cx| Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(cx))
    }
}

impl fmt::Debug for Upgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upgraded").finish_non_exhaustive()
    }
}

/// The wait of one direction of a stream. A stream of HTTP/1 waits for a socket, by a trap. One of
/// HTTP/2 waits for the task of its connection, which the kernel does not know, so its trap is
/// here.
struct Wait {
    is_foreign: bool,
    trap: RefCell<Option<FutureWait<future::Pending<()>>>>,
}

impl Wait {
    fn new(is_foreign: bool) -> Self {
        Self { is_foreign, trap: RefCell::default() }
    }

    #[track_caller]
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // Taken out, so that nothing is borrowed while the kernel calls a waker.
        let trap = self.trap.take();
        let polled = work(cx);
        if !self.is_foreign || polled.is_ready() {
            return polled;
        }
        // The operations wait at places of their own.
        let place = Location::caller();
        let mut trap = trap.unwrap_or_else(|| future_wait_at(future::pending(), place));
        if let Poll::Ready(Err(interrupted)) = Pin::new(&mut trap).poll(cx) {
            return Poll::Ready(Err(interrupted.into()));
        }
        self.trap.replace(Some(trap));
        Poll::Pending
    }
}

impl Read for Upgraded {
    #[track_caller]
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| self.poll_read_into(cx, buffer))
    }
}

impl Write for Upgraded {
    #[track_caller]
    fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| self.poll_write_from(cx, data))
    }

    #[track_caller]
    fn flush(&self) -> impl Future<Output = io::Result<()>> {
        poll_fn(|cx| self.poll_flush_all(cx))
    }

    #[track_caller]
    fn finish(&self) -> impl Future<Output = io::Result<()>> {
        poll_fn(|cx| self.poll_finish(cx))
    }
}

impl tokio::io::AsyncRead for Upgraded {
    #[track_caller]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let number = ready!(self.poll_read_into(cx, buffer.initialize_unfilled()))?;
        buffer.advance(number);
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Upgraded {
    #[track_caller]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_from(cx, data)
    }

    #[track_caller]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.borrow().is_write_vectored()
    }

    #[track_caller]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_all(cx)
    }

    #[track_caller]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(cx)
    }
}

impl futures_io::AsyncRead for Upgraded {
    #[track_caller]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_read_into(cx, buffer)
    }
}

impl futures_io::AsyncWrite for Upgraded {
    #[track_caller]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_from(cx, data)
    }

    #[track_caller]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_parts(cx, parts)
    }

    #[track_caller]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_all(cx)
    }

    #[track_caller]
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(cx)
    }
}

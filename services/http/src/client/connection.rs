//! A connection: hyper's sender, the task that moves its bytes, and the socket below.
//!
//! ```text
//!   dialed ──(1)──▶ idle ──(2)──▶ busy ──(3)──▶ idle
//!                    │             │
//!                    │ (5)         │ (4)
//!                    ▼             ▼
//!              ended politely    closed at once
//! ```
//!
//! (1) [`Connector::dial`](super::connector::Connector::dial). (2) a lease of the pool;
//! [`Connection::probe`] has found the socket silent and open. (3) [`Connection::until_idle`]:
//! request and response have been sent to their ends. (4) the drop of a connection. (5)
//! [`Connection::end`].

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use pikake_net::TcpStream;
use pikake_time::Ticks;
use pikake_traps::{Task, elapsed_since, future_wait, now, sleep, timeout_after};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::Body;

/// How long a connection that ends may take to say so, by TLS or HTTP/2.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// How often an ending connection is looked at.
const END_STEP: Duration = Duration::from_millis(50);

/// How much earlier than a server announces (`keep-alive: timeout=5`) a connection is no longer
/// used.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_secs(1);

/// hyper's handles for requests.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// A connection. Its drop closes the socket at once.
pub(crate) struct Connection {
    /// `None` when the connection ends.
    sender: Option<Sender>,
    driver: Task<()>,
    /// hyper owns the socket, and closes it when the connection ends.
    socket: Weak<TcpStream>,
    pub(crate) peer: SocketAddr,
    /// Whether [`probe`](Self::probe) has not been called.
    is_new: Cell<bool>,
    /// How many requests were sent.
    pub(crate) uses: Cell<u64>,
    /// For how long the server has said to keep the connection open, and when.
    kept_open: Cell<Option<(Ticks, Duration)>>,
}

impl Connection {
    pub(crate) fn new(
        sender: Sender,
        driver: Task<()>,
        socket: Weak<TcpStream>,
        peer: SocketAddr,
    ) -> Self {
        let sender = Some(sender);
        let (is_new, uses, kept_open) = (Cell::new(true), Cell::new(0), Cell::new(None));
        Self { sender, driver, socket, peer, is_new, uses, kept_open }
    }

    /// The sender, if the connection speaks HTTP/1.1.
    pub(crate) fn http1(&mut self) -> Option<&mut http1::SendRequest<Body>> {
        match &mut self.sender {
            Some(Sender::Http1(sender)) => Some(sender),
            _ => None,
        }
    }

    /// A sender, if the connection speaks HTTP/2.
    pub(crate) fn http2(&self) -> Option<http2::SendRequest<Body>> {
        match &self.sender {
            Some(Sender::Http2(sender)) => Some(sender.clone()),
            _ => None,
        }
    }

    /// Whether the connection is known to have ended, or to be about to.
    pub(crate) fn is_dead(&self) -> bool {
        let is_closed = match &self.sender {
            Some(Sender::Http1(sender)) => sender.is_closed(),
            Some(Sender::Http2(sender)) => sender.is_closed(),
            None => true,
        };
        let is_late = |(since, length)| elapsed_since(since) >= length;
        is_closed || self.kept_open.get().is_some_and(is_late)
    }

    /// Whether the connection is ready for a request, as far as its task has noticed.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.sender {
            Some(Sender::Http1(sender)) => sender.is_ready(),
            Some(Sender::Http2(sender)) => sender.is_ready(),
            None => false,
        }
    }

    /// Waits until the connection is ready for a request.
    pub(crate) async fn until_idle(&mut self) -> io::Result<()> {
        match &mut self.sender {
            Some(Sender::Http1(sender)) => {
                let ready = poll_fn(|cx| sender.poll_ready(cx));
                future_wait(ready).await?.map_err(io::Error::other)
            }
            Some(Sender::Http2(_)) => Ok(()),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Looks at the socket, since hyper's task may not have run since the server closed the
    /// connection. An idle HTTP/1.1 connection has nothing to read: data that waits is no answer to
    /// a request that is yet to be sent.
    ///
    /// A new connection is not looked at: TLS may still have tickets to read, which a server sends
    /// behind the handshake.
    ///
    /// The kernel knows of what came before its current turn, and answers without a call of the
    /// system.
    pub(crate) fn probe(&self) -> io::Result<()> {
        if self.is_new.replace(false) || matches!(self.sender, Some(Sender::Http2(_))) {
            return Ok(());
        }
        let Some(socket) = self.socket.upgrade() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        match socket.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server sends data on an idle connection",
            )),
        }
    }

    /// Notes that the server keeps the idle connection open for so long.
    pub(crate) fn note_keep_alive(&self, length: Duration) {
        self.kept_open.set(Some((now(), length.saturating_sub(KEEP_ALIVE_MARGIN))));
    }

    /// Ends an idle connection, by a message of TLS or HTTP/2 if possible.
    pub(crate) async fn end(mut self) {
        drop(self.sender.take());
        let ending = async {
            drop((&mut self.driver).await);
            // With HTTP/2, the socket belongs to another task of hyper's.
            while self.socket.strong_count() > 0 && sleep(END_STEP).await.is_ok() {}
        };
        // The drop closes what has not ended.
        let _ = timeout_after(END_TIMEOUT, ending).await;
    }
}

impl Connection {
    /// Closes the socket at once.
    pub(crate) fn close(&self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.close();
        }
        if !self.driver.is_finished() {
            self.driver.abort();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("uses", &self.uses)
            .finish_non_exhaustive()
    }
}

/// A socket in shared ownership, for hyper.
pub(crate) struct Carrier(pub(crate) Rc<TcpStream>);

impl AsyncRead for Carrier {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pikake_net::TcpListener;
    use pikake_traps::spawn;

    #[test]
    fn data_on_a_new_connection_is_no_error() {
        pikake::Kernel::new().unwrap().run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let socket = Rc::new(TcpStream::connect(address).await.unwrap());
            let (server, _) = listener.accept().await.unwrap();
            server.write_all(b"a ticket").await.unwrap();
            socket.readable().await.unwrap();
            let io = crate::Io::new(Carrier(Rc::new(TcpStream::connect(address).await.unwrap())));
            let (sender, driving) = http1::handshake(io).await.unwrap();
            let driver = spawn(async { drop(driving.await) });
            let sender = Sender::Http1(sender);
            let connection = Connection::new(sender, driver, Rc::downgrade(&socket), address);
            connection.probe().unwrap();
            assert_eq!(connection.probe().unwrap_err().kind(), io::ErrorKind::InvalidData);
        });
    }
}

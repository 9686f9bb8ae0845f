//! Handshakes beside an accept loop.
//!
//! A handshake waits for the client, so it cannot be a step of the accept loop: one silent client
//! would stop all others. Each handshake is a task, and the accept loop receives the streams in the
//! order in which their handshakes are completed:
//!
//! ```text
//!   listener ──accept──▶ room for a handshake? ──yes──▶ task: handshake ──▶ completed ──▶ accept
//!                                │ no                        │
//!                                ▼                           ▼
//!                       clients wait in the backlog   failed: logged, closed
//! ```
//!
//! Only a call of `accept` takes further connections. So a server at its limit also leaves new
//! clients in the backlog.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::panic::Location;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::{deadline_after, park, timeout_at};

use crate::error::interruption;
use crate::handlers::{Handlers, peer_of};
use crate::read_write::{Read, Write};
use crate::replicas::Replicas;
use crate::serve::Listener;
use crate::tcp::TcpStream;
use crate::tls::{TlsAcceptor, TlsStream};

/// How many handshakes of a [`TlsListener`] are under way at a time; further clients wait in the
/// backlog. A handshake needs a descriptor and some ten kilobytes, so this many silent clients cost
/// about ten megabytes.
pub const HANDSHAKES: usize = 1024;

/// How long a server that ends waits for the handshakes under way: several round trips over a usual
/// connection. Their clients may have sent a request already.
pub const HANDSHAKE_GRACE: Duration = Duration::from_secs(1);

/// The name of the tasks.
const HANDSHAKE_NAME: &str = "TLS handshake";

/// Connections whose handshake is complete, and that were not accepted yet.
type Completed<L> =
    RefCell<VecDeque<(TlsStream<<L as Listener>::Connection>, <L as Listener>::Address)>>;

/// A listener whose connections are TLS streams. Made by [`TlsAcceptor::listen`].
///
/// Handshakes run in tasks of their own, at most [`HANDSHAKES`] at a time, each within the timeout
/// of the acceptor. A client that is silent in its handshake delays no other client. A failed
/// handshake closes its connection and is logged (`tracing`, level `debug`).
///
/// Connections are accepted in the order in which their handshakes are completed. On TCP, small
/// writes are sent at once (`TCP_NODELAY`).
///
/// # Ending
///
/// A server that ends gracefully waits up to [`HANDSHAKE_GRACE`] for the handshakes under way.
/// Dropping the listener cancels them, and closes connections that were not accepted.
///
/// # Examples
///
/// ```no_run
/// use pikake::net::tls::{Identity, TlsAcceptor};
/// use pikake::net::{TcpListener, serve};
///
/// # async fn example() -> std::io::Result<()> {
/// let identity = Identity::from_pem_files("server.crt", "server.key")?;
/// let acceptor = TlsAcceptor::builder(identity).alpn(["http/1.1"]).build()?;
/// let listener = acceptor.listen(TcpListener::bind("0.0.0.0:443").await?);
/// serve(listener, 1000, async |stream, peer| {
///     if let Err(error) = stream.write_all(b"hello\n").await {
///         eprintln!("{peer}: {error}");
///     }
/// })
/// .await?;
/// # Ok(()) }
/// ```
pub struct TlsListener<L: Listener> {
    listener: L,
    acceptor: TlsAcceptor,
    handshakes: RefCell<Handlers>,
    completed: Rc<Completed<L>>,
    /// The end of the grace, once the server ends.
    until: Cell<Option<Deadline>>,
    /// Whether the listener below has no connection left, once the server ends.
    is_drained: Cell<bool>,
}

impl<L: Listener> TlsListener<L> {
    #[track_caller]
    pub(super) fn new(listener: L, acceptor: TlsAcceptor) -> Self {
        Self {
            listener,
            acceptor,
            handshakes: RefCell::new(Handlers::new(HANDSHAKES, HANDSHAKE_NAME, Location::caller())),
            completed: Rc::default(),
            until: Cell::default(),
            is_drained: Cell::default(),
        }
    }

    /// The listener below, as for its address.
    pub fn get_ref(&self) -> &L {
        &self.listener
    }
}

impl<L> TlsListener<L>
where
    L: Listener,
    L::Connection: Read + Write + 'static,
    L::Address: fmt::Debug + 'static,
{
    /// Waits for the next complete handshake; `None` if the server ends and none is under way.
    async fn next(
        &self,
        is_ending: bool,
    ) -> io::Result<Option<(TlsStream<L::Connection>, L::Address)>> {
        let ended_one = self.handshakes.borrow().shared.clone();
        loop {
            self.handshakes.borrow_mut().reap();
            let completed = self.completed.borrow_mut().pop_front();
            if completed.is_some() {
                return Ok(completed);
            }
            if is_ending && self.is_drained.get() && self.handshakes.borrow().is_empty() {
                return Ok(None);
            }
            let mut accepting = pin!(self.accept_below(is_ending));
            let mut ended = pin!(park(&ended_one.ended_one));
            poll_fn(|cx| {
                if let Poll::Ready(accepted) = accepting.as_mut().poll(cx) {
                    return Poll::Ready(accepted);
                }
                ended.as_mut().poll(cx).map_err(io::Error::from)
            })
            .await?;
        }
    }

    /// Accepts a connection if there is room, and begins its handshake.
    async fn accept_below(&self, is_ending: bool) -> io::Result<()> {
        if !self.handshakes.borrow().has_room() || is_ending && self.is_drained.get() {
            return pending().await;
        }
        let accepted = match is_ending {
            false => Some(self.listener.accept().await?),
            true => self.listener.accept_backlog().await?,
        };
        match accepted {
            Some((connection, address)) => self.begin(connection, address),
            None => self.is_drained.set(true),
        }
        Ok(())
    }

    fn begin(&self, connection: L::Connection, address: L::Address) {
        let tcp = (&connection as &dyn Any).downcast_ref::<TcpStream>();
        if let Some(Err(error)) = tcp.map(|tcp| tcp.set_nodelay(true)) {
            tracing::debug!(peer = ?address, %error, "a connection ended before its TLS handshake");
        }
        let (acceptor, completed) = (self.acceptor.clone(), self.completed.clone());
        let peer = peer_of(&address);
        self.handshakes.borrow_mut().start(peer, move || async move {
            match acceptor.accept(connection).await {
                Ok(stream) => completed.borrow_mut().push_back((stream, address)),
                // The listener was dropped.
                Err(error) if interruption(&error).is_some() => {}
                Err(error) => tracing::debug!(peer = ?address, %error, "a TLS handshake failed"),
            }
        });
    }
}

impl<L> Listener for TlsListener<L>
where
    L: Listener,
    L::Connection: Read + Write + 'static,
    L::Address: fmt::Debug + 'static,
{
    type Connection = TlsStream<L::Connection>;
    type Address = L::Address;

    async fn accept(&self) -> io::Result<(TlsStream<L::Connection>, L::Address)> {
        let next = self.next(false).await?;
        Ok(next.expect("only a server that ends has no next connection"))
    }

    async fn accept_backlog(&self) -> io::Result<Option<(TlsStream<L::Connection>, L::Address)>> {
        let until = self.until.get().unwrap_or_else(|| deadline_after(HANDSHAKE_GRACE));
        self.until.set(Some(until));
        timeout_at(until, self.next(true)).await.unwrap_or(Ok(None))
    }

    fn replicas(&self) -> Option<Replicas> {
        self.listener.replicas()
    }
}

impl<L: Listener + fmt::Debug> fmt::Debug for TlsListener<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener")
            .field("listener", &self.listener)
            .field("completed", &self.completed.borrow().len())
            .finish_non_exhaustive()
    }
}

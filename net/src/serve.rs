//! The accept loop, with a limit.
//!
//! [`serve`] is the accept loop of a server. It accepts a connection only when there is room, so
//! under load clients wait in the system's backlog and not in this process. Each handler runs in a
//! task of its own, so a panic ends only that connection. The end of the loop ends its tasks. When
//! the process is out of descriptors, the loop neither ends nor spins:
//!
//! ```text
//!            ┌───────────────────────────────────────────────┐
//!            ▼                                               │ (3) spawn the handler
//!       room for one? ──(1) yes──▶ accept ──(2) connection ──┘
//!         ▲  │ no                    │ ▲
//!         │  ▼                       │ │ (5) a pause is over, or a handler has ended
//!        wait until a                ▼ │
//!        handler ends        (4) out of descriptors or memory: pause
//! ```
//!
//! (1) [`Handlers::fewer_than`]. (2) [`Listener::accept`]. (3) [`Handlers::start`]. (4) and (5)
//! [`Handlers::pause`]. An interruption of any of these waits leads to [`Handlers::end`].

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net as unix;
use std::panic::Location;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_traps::{park, timeout_after};
use rustix::io::Errno;

use crate::ended::{Ended, is_closed};
use crate::error::interruption;
use crate::handlers::{HANDLER_NAME, Handlers, peer_of};
use crate::replicas::Replicas;
use crate::tcp::{TcpListener, TcpStream};
use crate::unix::{UnixListener, UnixStream};

/// The first pause when a connection could not be accepted for lack of descriptors or memory:
/// shorter than a person notices, longer than an attempt takes by three orders of magnitude.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(5);

/// The longest such pause; each is twice the one before. It bounds the delay of new connections
/// after the shortage has ended.
const SHORTAGE_PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// How long a server that ends waits for a connection from its backlog: enough for one poll of the
/// driver, which a kernel does after all tasks that are ready.
pub const BACKLOG_WAIT: Duration = Duration::from_millis(1);

/// A source of connections for [`serve`].
///
/// Implement it to add a step between listener and handler, as a filter. The next connection is
/// accepted only after [`accept`](Self::accept) has returned.
///
/// # Examples
///
/// ```
/// use pikake::net::{Listener, TcpListener, TcpStream};
/// use std::{io, net::SocketAddr};
///
/// /// Connections on which small writes are sent at once.
/// struct Prompt(TcpListener);
///
/// impl Listener for Prompt {
///     type Connection = TcpStream;
///     type Address = SocketAddr;
///
///     async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
///         let (stream, address) = self.0.accept().await?;
///         stream.set_nodelay(true)?;
///         Ok((stream, address))
///     }
/// }
/// ```
pub trait Listener {
    /// The type of a connection.
    type Connection;

    /// The type of a peer's address.
    type Address;

    /// Accepts a connection, waiting until there is one.
    ///
    /// # Cancellation
    ///
    /// An interruption point. A call that is dropped or interrupted takes none.
    ///
    /// # Errors
    ///
    /// A failure of the listener; an interruption; a lack of descriptors or memory, which is
    /// temporary.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Connection, Self::Address)>>;

    /// Accepts a connection that came before the server began to end; `None` if there is none left.
    /// A server that ends gracefully calls this until then, and drops the listener.
    ///
    /// By default, calls [`accept`](Self::accept) and waits for [`BACKLOG_WAIT`].
    ///
    /// # Cancellation
    ///
    /// As for [`accept`](Self::accept).
    ///
    /// # Errors
    ///
    /// As for [`accept`](Self::accept).
    fn accept_backlog(
        &self,
    ) -> impl Future<Output = io::Result<Option<(Self::Connection, Self::Address)>>> {
        async {
            match timeout_after(BACKLOG_WAIT, self.accept()).await {
                Ok(accepted) => accepted.map(Some),
                Err(_) => Ok(None),
            }
        }
    }

    /// The servers of other kernels for the same address, which may answer requests of these
    /// connections; `None`, the default, if there are none. A listener that wraps one of
    /// [`serve_on_all`](crate::serve_on_all) returns that one's.
    fn replicas(&self) -> Option<Replicas> {
        None
    }
}

impl Listener for TcpListener {
    type Connection = TcpStream;
    type Address = SocketAddr;

    #[track_caller]
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> {
        self.accept()
    }

    fn replicas(&self) -> Option<Replicas> {
        self.replicas.clone()
    }
}

impl Listener for UnixListener {
    type Connection = UnixStream;
    type Address = unix::SocketAddr;

    #[track_caller]
    fn accept(&self) -> impl Future<Output = io::Result<(UnixStream, unix::SocketAddr)>> {
        self.accept()
    }
}

macro_rules! listen_through {
    ($($pointer:ty),*) => {$(
        impl<L: Listener + ?Sized> Listener for $pointer {
            type Connection = L::Connection;
            type Address = L::Address;

            #[track_caller]
            fn accept(&self) -> impl Future<Output = io::Result<(L::Connection, L::Address)>> {
                (**self).accept()
            }

            #[track_caller]
            fn accept_backlog(
                &self,
            ) -> impl Future<Output = io::Result<Option<(L::Connection, L::Address)>>> {
                (**self).accept_backlog()
            }

            fn replicas(&self) -> Option<Replicas> {
                (**self).replicas()
            }
        }
    )*};
}

listen_through!(&L, Rc<L>);

/// Accepts connections and handles each in a task of its own, at most `limit` at a time.
///
/// While `limit` connections are being handled, no further one is accepted: clients wait in the
/// system's backlog. A handler that panics ends its own connection only; the panic is logged like
/// that of any task. If the process lacks descriptors or memory for a connection, `serve` logs that
/// once, and tries again after a pause (5 ms at first, a second at most) or when a handler has
/// ended.
///
/// # Ending
///
/// `serve` runs until one of these events:
///
/// * *An interruption*, as by a signal under `#[pikake::main(signals)]`. The listener is dropped,
///   which closes it unless it is shared. All handlers are cancelled, and `serve` returns when they
///   have ended. A second interruption aborts the remaining handlers: so
///   `timeout_after(longer, timeout_after(shorter, serve(..)))` gives the handlers the difference
///   of the two to clean up.
/// * *The listener was closed* by another task, or has failed. Handlers continue, and `serve`
///   returns when the last one has ended. So closing the listener stops a server without
///   interrupting requests.
/// * *A drop.* Handlers are cancelled, without a wait for their end.
///
/// To finish requests within deadlines, see [`serve_until`](crate::serve_until).
///
/// # Examples
///
/// ```
/// use pikake::net::{TcpListener, TcpStream, serve};
/// use std::net::SocketAddr;
///
/// async fn greet(stream: TcpStream, peer: SocketAddr) {
///     if let Err(error) = stream.write_all(b"hello\n").await {
///         eprintln!("{peer}: {error}");
///     }
/// }
///
/// # async fn example() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:7000").await?;
/// serve(listener, 1000, greet).await?;
/// # Ok(()) }
/// # let limit = std::time::Duration::from_secs(1);
/// # assert!(pikake::sim::example(pikake::timeout_after(limit, example())).is_err());
/// ```
///
/// # Cancellation
///
/// An interruption point; see above. `serve` has done its work then, and returns the interruption
/// in [`Ended`]; [`timeout_after`] around it reports `TimedOut` as always.
///
/// # Errors
///
/// The listener's error. An interruption and a closed listener are no errors, so a program that
/// returns after `serve(..).await?` exits with the code 0 when a signal ends it.
///
/// # Panics
///
/// If `limit` is zero, or when polled outside a task.
#[track_caller]
pub fn serve<L, H, F>(
    listener: L,
    limit: usize,
    handler: H,
) -> impl Future<Output = io::Result<Ended>>
where
    L: Listener,
    L::Connection: 'static,
    L::Address: 'static,
    H: Fn(L::Connection, L::Address) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    serve_at(listener, limit, handler, Location::caller())
}

/// [`serve`] for a library: the tasks of connections count as spawned at `place`, that of the
/// library's caller.
#[doc(hidden)]
pub fn serve_at<L, H, F>(
    listener: L,
    limit: usize,
    handler: H,
    place: &'static Location<'static>,
) -> impl Future<Output = io::Result<Ended>>
where
    L: Listener,
    L::Connection: 'static,
    L::Address: 'static,
    H: Fn(L::Connection, L::Address) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    assert!(limit > 0, "a server must be allowed at least one connection");
    let handler = Rc::new(handler);
    async move {
        let mut handlers = Handlers::new(limit, HANDLER_NAME, place);
        let error = loop {
            match next_connection(&listener, &mut handlers).await {
                Ok((connection, address)) => {
                    let handler = handler.clone();
                    handlers.start(peer_of(&address), move || handler(connection, address));
                }
                Err(error) => break error,
            }
        };
        drop(listener);
        let error = handlers.end(error).await;
        match interruption(&error) {
            Some(why) => Ok(Ended::Interrupted(why.clone())),
            None if is_closed(&error) => Ok(Ended::Closed),
            None => Err(error),
        }
    }
}

/// Waits until there is room for a connection, and accepts one.
pub(crate) async fn next_connection<L: Listener>(
    listener: &L,
    handlers: &mut Handlers,
) -> io::Result<(L::Connection, L::Address)> {
    handlers.fewer_than(handlers.limit).await?;
    let mut pause = SHORTAGE_PAUSE;
    loop {
        match accept_and_reap(listener, handlers).await {
            Err(error) if is_shortage(&error) => {
                handlers.shortage.report(&error);
                handlers.pause(pause).await?;
                pause = SHORTAGE_PAUSE_LIMIT.min(pause * 2);
            }
            result => return result,
        }
    }
}

/// Accepts a connection. Handlers that end meanwhile are reaped at once, so a panic is reported
/// when it happens and not with the next connection.
async fn accept_and_reap<L: Listener>(
    listener: &L,
    handlers: &mut Handlers,
) -> io::Result<(L::Connection, L::Address)> {
    let shared = handlers.shared.clone();
    let mut accepting = pin!(listener.accept());
    loop {
        handlers.reap();
        let mut ended = pin!(park(&shared.ended_one));
        let accepted = poll_fn(|cx| {
            if let Poll::Ready(accepted) = accepting.as_mut().poll(cx) {
                return Poll::Ready(Ok(Some(accepted)));
            }
            ended.as_mut().poll(cx).map_ok(|()| None)
        });
        if let Some(accepted) = accepted.await? {
            return accepted;
        }
    }
}

/// Whether an error of `accept` is a temporary lack of descriptors or memory.
fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let code = error.raw_os_error();
    SHORTAGES.iter().any(|shortage| code == Some(shortage.raw_os_error()))
        || error.kind() == io::ErrorKind::OutOfMemory
}

//! The accept loop, with a limit.
//!
//! [`serve`] is the loop that every server needs and that is easy to get wrong. A connection is
//! taken only when there is room for it, so that under load clients wait in the system's backlog
//! and not in this process. Each runs in a task of its own, so that one that panics takes nobody
//! with it. No task outlives the loop unasked. And when the process is out of descriptors, the loop
//! neither ends nor spins:
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
//! [`Handlers::pause`]. Every wait in the picture can be interrupted, which leads to [`Handlers::end`].

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net as unix;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_traps::park;
use rustix::io::Errno;

use crate::handlers::Handlers;
use crate::tcp::{TcpListener, TcpStream};
use crate::unix::{UnixListener, UnixStream};

/// The first pause when a connection could not be accepted for lack of descriptors or memory:
/// shorter than a person notices, longer than an attempt takes by three orders of magnitude.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(5);

/// The longest such pause; each is twice the one before. So long it takes at most until new
/// connections are taken after the shortage has ended.
const SHORTAGE_PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// What [`serve`] takes connections from.
///
/// Implement it to put something between listener and handler: a handshake, a filter. Remember that
/// the next connection is accepted only when this has returned.
///
/// # Examples
///
/// ```
/// use pikake_net::{Listener, TcpListener, TcpStream};
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
    /// A connection.
    type Connection;

    /// Where a connection comes from.
    type Address;

    /// Takes a connection, waiting until there is one.
    ///
    /// # Cancellation
    ///
    /// An interruption point; dropped or interrupted, it has taken none.
    ///
    /// # Errors
    ///
    /// Whatever ends the listener; an interruption; a lack of descriptors or memory, which passes.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Connection, Self::Address)>>;
}

impl Listener for TcpListener {
    type Connection = TcpStream;
    type Address = SocketAddr;

    #[track_caller]
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> {
        self.accept()
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
        }
    )*};
}

listen_through!(&L, Rc<L>);

/// Accepts connections and handles each in a task of its own, at most `limit` at a time.
///
/// While `limit` connections are being handled, no further one is accepted: clients wait in the
/// system's backlog. A handler that panics ends its own connection only; the panic is logged as
/// any task's is. Where the process lacks descriptors or memory for a connection, that is logged
/// once, and accepting is tried again after a pause (5 ms at first, a second at most) or as soon as
/// a handler has ended.
///
/// # Ending
///
/// It goes on until one of these happens:
///
/// * *It is interrupted.* Every handler is asked to end, and it returns when they have. If it is
///   interrupted again meanwhile, those that are left are aborted: so
///   `timeout_after(longer, timeout_after(shorter, serve(..)))` gives the handlers the difference
///   of the two to say goodbye.
/// * *The listener fails*, as it does when it is closed from elsewhere. Handlers go on, and it
///   returns when the last one has ended. This is how to stop without hurting anybody.
/// * *It is dropped.* Handlers are asked to end, and nobody waits for them.
///
/// To let requests come to their end, with deadlines, see [`serve_until`](crate::serve_until).
///
/// # Examples
///
/// ```
/// use pikake_net::{TcpListener, TcpStream, serve};
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
/// # assert!(pikake_sim::example(pikake_traps::timeout_after(limit, example())).is_err());
/// ```
///
/// # Cancellation
///
/// An interruption point; see above.
///
/// # Errors
///
/// The interruption ([`interruption`](crate::interruption) finds it), or the listener's error. It never returns `Ok`.
///
/// # Panics
///
/// When `limit` is zero; when polled outside a task.
pub fn serve<L, H, F>(
    listener: L,
    limit: usize,
    handler: H,
) -> impl Future<Output = io::Result<Infallible>>
where
    L: Listener,
    L::Connection: 'static,
    L::Address: 'static,
    H: Fn(L::Connection, L::Address) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    assert!(limit > 0, "a server that may handle no connection at a time never handles any");
    let handler = Rc::new(handler);
    async move {
        let mut handlers = Handlers::new(limit);
        let error = loop {
            match next_connection(&listener, &mut handlers).await {
                Ok((connection, address)) => {
                    let handler = handler.clone();
                    handlers.start(move || handler(connection, address));
                }
                Err(error) => break error,
            }
        };
        Err(handlers.end(error).await)
    }
}

/// Waits until there is room for a connection, and takes one.
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

/// Takes a connection. Handlers that end meanwhile are reaped at once, and not when the next
/// connection comes, so that a panic is reported when it happened.
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

/// Whether an error of `accept` says that the process or the machine lacks something which others
/// will give back.
fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let code = error.raw_os_error();
    SHORTAGES.iter().any(|shortage| code == Some(shortage.raw_os_error()))
        || error.kind() == io::ErrorKind::OutOfMemory
}

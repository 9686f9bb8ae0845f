//! Unix sockets: streams and listeners within one machine, named by paths.
//!
//! Binding a path creates a file, which stays when the listener is closed. This crate does not
//! remove it either, since the file may by then belong to another listener. The program removes it,
//! before the next `bind` or after the close.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::unix::net::SocketAddr;
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

use pikake_traps::{Direction, OpenSocket, SocketId, in_kernel, sleep};

use crate::error::{ReadExactError, ReuniteError, WriteAllError, in_context};
use crate::halves::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::listener::listening;
use crate::socket::{Socket, unix};
use crate::stream::{owned_halves, peeking, reading, whole, writing};
use crate::tcp::BACKLOG;

mod datagram;

pub use datagram::UnixDatagram;

/// The pause before a listener with a full backlog is tried again. No system reports when there is
/// room; a running listener makes room within a few steps.
const FULL_BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// The longest such pause; each is twice the one before.
const FULL_BACKLOG_PAUSE_LIMIT: Duration = Duration::from_millis(64);

/// A connection to another process of this machine.
#[derive(Debug)]
pub struct UnixStream {
    socket: Socket,
}

impl UnixStream {
    #[cfg(feature = "io-traits")]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Connects to the listener at a path.
    ///
    /// While the listener's backlog is full, `connect` waits and tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> std::io::Result<()> {
    /// # let _listener = pikake::net::UnixListener::bind("/run/app.sock")?;
    /// let stream = pikake::net::UnixStream::connect("/run/app.sock").await?;
    /// # Ok(()) }
    /// # pikake::sim::example(example()).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. An interruption or a drop closes the socket that was
    /// being connected.
    ///
    /// # Errors
    ///
    /// The system's error, with the path: [`NotFound`](io::ErrorKind::NotFound) if there is no such
    /// file, [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if its listener is closed;
    /// the interruption.
    ///
    /// # Panics
    ///
    /// If polled outside a task.
    #[track_caller]
    pub fn connect<P: AsRef<Path>>(path: P) -> impl Future<Output = io::Result<Self>> {
        let place = Location::caller();
        in_kernel(async move {
            let path = path.as_ref();
            let socket = connect(path, place).await;
            let socket = socket.map_err(|error| at_path(error, "connect to", path))?;
            Ok(Self { socket })
        })
    }

    /// Returns two streams that are connected to each other.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> std::io::Result<()> {
    /// let (one, other) = pikake::net::UnixStream::pair()?;
    /// one.write_all(b"hello").await?;
    /// # Ok(()) }
    /// # pikake::sim::example(example()).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The system's error, as when the process is out of descriptors.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = Socket::open_pair(OpenSocket::UnixStreamPair)?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// The process at the other end, as the system has noted when the stream was connected: a
    /// server can trust what it says of the user.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(target_os = "linux")]
    /// # pikake::run(async {
    /// use pikake::net::UnixStream;
    ///
    /// let (stream, _other) = UnixStream::pair()?;
    /// assert_eq!(stream.peer_credentials()?.pid, Some(std::process::id()));
    /// # Ok::<_, std::io::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) in a simulation, and on systems without
    /// `SO_PEERCRED`; the system's error; [`Closed`](pikake_traps::Closed).
    #[doc(alias = "peer_cred")]
    #[cfg(feature = "peer-credentials")]
    pub fn peer_credentials(&self) -> io::Result<pikake_traps::PeerCredentials> {
        self.socket.peer_credentials()
    }

    whole!(UnixStream, "pikake::net::UnixStream", SocketAddr, unix, std::os::unix::net::UnixStream);
}

owned_halves!(UnixStream);

async fn connect(path: &Path, place: &'static Location<'static>) -> io::Result<Socket> {
    let mut pause = FULL_BACKLOG_PAUSE;
    loop {
        match Socket::open(OpenSocket::UnixStream(path)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(pause).await?,
            Err(error) => return Err(error),
            Ok(socket) => {
                socket.connected(place).await?;
                return Ok(socket);
            }
        }
        pause = FULL_BACKLOG_PAUSE_LIMIT.min(pause * 2);
    }
}

pub(crate) fn at_path(error: io::Error, doing: &str, path: &Path) -> io::Error {
    let is_in_use = error.kind() == io::ErrorKind::AddrInUse;
    in_context(error, || {
        let advice = if is_in_use {
            " (the file exists; remove it first, if no process listens there any more)"
        } else {
            ""
        };
        format!("{doing} {}{advice}", path.display())
    })
}

/// A listener for connections at a path.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::UnixListener;
///
/// let listener = UnixListener::bind("/run/app.sock")?;
/// # let client = pikake::net::UnixStream::connect("/run/app.sock");
/// # pikake::spawn(async { client.await }).detach();
/// let (stream, _) = listener.accept().await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct UnixListener {
    socket: Socket,
}

impl UnixListener {
    fn new(socket: Socket) -> Self {
        Self { socket }
    }

    /// Listens at a path, which becomes a file. The file stays when the listener is closed.
    ///
    /// # Errors
    ///
    /// The system's error, with the path: [`AddrInUse`](io::ErrorKind::AddrInUse) if there is such
    /// a file, even without a listener.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        let path = path.as_ref();
        match Socket::open(OpenSocket::UnixListener(path, BACKLOG)) {
            Ok(socket) => Ok(Self::new(socket)),
            Err(error) => Err(at_path(error, "bind", path)),
        }
    }

    listening!(
        UnixStream,
        SocketAddr,
        unix,
        std::os::unix::net::UnixListener,
        r#"let listener = pikake::net::UnixListener::bind("/run/greeter")?;"#,
        r#"let client = pikake::net::UnixStream::connect("/run/greeter").await?;"#
    );
}

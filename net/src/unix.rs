//! Unix sockets: streams and listeners within one machine, named by paths.
//!
//! A listener's path is a file that the system makes and nobody removes: not the system, when the
//! listener is closed, and not this crate, since by then the file may be another listener's. Who
//! binds a path removes it, before or after.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::unix::net::SocketAddr;
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

use pikake_traps::{Direction, OpenSocket, sleep};

use crate::error::{ReadExactError, ReuniteError, WriteAllError, in_context};
use crate::halves::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::listener::listening;
use crate::socket::{Socket, unix};
use crate::stream::{owned_halves, reading, whole, writing};
use crate::tcp::BACKLOG;

/// How long to wait before a listener whose backlog is full is tried again. No system tells when
/// there is room; a listener that is alive makes some within a few steps.
const FULL_BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// The longest such pause; each is twice the one before.
const FULL_BACKLOG_PAUSE_LIMIT: Duration = Duration::from_millis(64);

/// A connection to another process of this machine.
#[derive(Debug)]
pub struct UnixStream {
    socket: Socket,
}

impl UnixStream {
    #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Connects to the listener at a path.
    ///
    /// While that listener's backlog is full, it waits and tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> std::io::Result<()> {
    /// # let _listener = pikake_net::UnixListener::bind("/run/app.sock")?;
    /// let stream = pikake_net::UnixStream::connect("/run/app.sock").await?;
    /// # Ok(()) }
    /// # pikake_sim::example(example()).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Interrupted or dropped, it closes the socket that was
    /// being connected.
    ///
    /// # Errors
    ///
    /// The system's, with the path: [`NotFound`](io::ErrorKind::NotFound) if there is no such
    /// file, [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if nobody listens any more;
    /// the interruption.
    ///
    /// # Panics
    ///
    /// When polled outside a task.
    #[track_caller]
    pub fn connect<P: AsRef<Path>>(path: P) -> impl Future<Output = io::Result<Self>> {
        let place = Location::caller();
        async move {
            let path = path.as_ref();
            let socket = connect(path, place).await;
            let socket = socket.map_err(|error| at_path(error, "connect to", path))?;
            Ok(Self { socket })
        }
    }

    /// Two streams that are connected to each other.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> std::io::Result<()> {
    /// let (one, other) = pikake_net::UnixStream::pair()?;
    /// one.write_all(b"hello").await?;
    /// # Ok(()) }
    /// # pikake_sim::example(example()).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The system's, as when the process is out of descriptors.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = Socket::open_pair(OpenSocket::UnixStreamPair)?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    whole!(UnixStream, "pikake_net::UnixStream", SocketAddr, unix, std::os::unix::net::UnixStream);
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

/// Takes connections at a path.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake_net::UnixListener;
///
/// let listener = UnixListener::bind("/run/app.sock")?;
/// # let client = pikake_net::UnixStream::connect("/run/app.sock");
/// # pikake_traps::spawn(async { client.await }).detach();
/// let (stream, _) = listener.accept().await?;
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct UnixListener {
    socket: Socket,
}

impl UnixListener {
    /// Listens at a path, which becomes a file. The file stays when the listener is closed.
    ///
    /// # Errors
    ///
    /// The system's, with the path: [`AddrInUse`](io::ErrorKind::AddrInUse) if there is such a
    /// file, whether or not anybody listens there.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        let path = path.as_ref();
        match Socket::open(OpenSocket::UnixListener(path, BACKLOG)) {
            Ok(socket) => Ok(Self { socket }),
            Err(error) => Err(at_path(error, "bind", path)),
        }
    }

    listening!(
        UnixStream,
        SocketAddr,
        unix,
        std::os::unix::net::UnixListener,
        r#"let listener = pikake_net::UnixListener::bind("/run/greeter")?;"#,
        r#"let client = pikake_net::UnixStream::connect("/run/greeter").await?;"#
    );
}

//! Unix datagram sockets: datagrams within one machine, without loss.

use std::future::Future;
use std::io;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use pikake_traps::OpenSocket;

use crate::datagram::datagrams;
use crate::socket::{Socket, unix, unix_path};
use crate::unix::at_path;

/// A Unix datagram socket.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::UnixDatagram;
///
/// # let _manager = UnixDatagram::bind("/run/notify.sock")?;
/// let socket = UnixDatagram::unbound()?;
/// socket.send_to(b"READY=1", "/run/notify.sock").await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct UnixDatagram {
    socket: Socket,
}

impl UnixDatagram {
    /// Opens a socket at a path, which becomes a file. The file stays when the socket is closed.
    ///
    /// # Errors
    ///
    /// As for [`UnixListener::bind`](crate::UnixListener::bind).
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        let path = path.as_ref();
        match Socket::open(OpenSocket::UnixDatagram(Some(path))) {
            Ok(socket) => Ok(Self { socket }),
            Err(error) => Err(at_path(error, "bind", path)),
        }
    }

    /// Opens a socket without an address, which can send but not be addressed.
    ///
    /// # Errors
    ///
    /// The system's error, as when the process is out of descriptors.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn unbound() -> io::Result<Self> {
        Socket::open(OpenSocket::UnixDatagram(None)).map(|socket| Self { socket })
    }

    /// Returns two sockets that are each other's peers.
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
        let (one, other) = Socket::open_pair(OpenSocket::UnixDatagramPair)?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// Gives the socket a peer: the socket at a path.
    ///
    /// # Errors
    ///
    /// The system's error, with the path: [`NotFound`](io::ErrorKind::NotFound) if there is no such
    /// file, [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) if its socket is closed;
    /// [`Closed`](pikake_traps::Closed).
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        let path = path.as_ref();
        let to = unix_path(path)?;
        self.socket.connect(&to).map_err(|error| at_path(error, "connect to", path))
    }

    /// Sends a datagram to the socket at a path, waiting until there is room.
    ///
    /// Systems report room at the receiver of a *connected* socket. Without a connection they
    /// report it only for this socket's own datagrams: if several senders may fill one receiver,
    /// use [`connect`](Self::connect) and [`send`](Self::send).
    ///
    /// # Cancellation
    ///
    /// As for [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send) and [`connect`](Self::connect), with the path.
    ///
    /// # Panics
    ///
    /// If polled outside a task of its kernel.
    #[track_caller]
    pub fn send_to<P: AsRef<Path>>(
        &self,
        data: &[u8],
        path: P,
    ) -> impl Future<Output = io::Result<usize>> {
        let sending = unix_path(path.as_ref()).map(|to| self.socket.send(data, Some(to)));
        async move {
            let sent = match sending {
                Ok(sending) => sending.await,
                Err(error) => Err(error),
            };
            sent.map_err(|error| at_path(error, "send to", path.as_ref()))
        }
    }

    datagrams!("pikake::net::UnixDatagram", SocketAddr, unix, std::os::unix::net::UnixDatagram);
}

//! The socket traps: open a socket, make an attempt, wait until the attempt succeeds or fails.
//!
//! The kernel decides how a socket is made; a program names it by a [`SocketId`]. An operation on a
//! socket is a value, an [`Attempt`]. So a new operation touches this enum and the drivers, and
//! nothing in between. An attempt that succeeds returns a number, and stores other results in a
//! slot of the value.
//!
//! *Readiness is a hint.* The kernel makes an attempt on a ready socket, and if the attempt would
//! block, the wait goes on. A kernel may also defer an attempt, if the task has spent its quota for
//! this step.
//!
//! *A closed socket's number is never used again*, so a late user gets an error and never another
//! connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net as unix;
use std::path::Path;
use std::time::Duration;

use crate::names::KernelId;
use crate::spare::Spare;

/// Names a socket of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketId {
    /// The kernel that opened the socket.
    pub kernel: KernelId,
    /// The index of the socket in the kernel's table.
    pub index: u32,
    /// Distinguishes the socket from earlier sockets with the same index.
    pub generation: u32,
}

/// One of a socket's two directions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Data to read, a connection to accept, the end of the stream, or an error.
    Read,
    /// Room to write, a connection made, or an error.
    Write,
}

/// The address of a socket of either family.
#[derive(Clone, Debug)]
pub enum Address {
    /// An internet address and port.
    Ip(SocketAddr),
    /// A path, an abstract name, or nothing. Boxed, because the address is four times as large as
    /// an attempt's other results.
    Unix(Box<unix::SocketAddr>),
}

/// A socket to open.
#[derive(Debug)]
pub enum OpenSocket<'a> {
    /// A TCP listener at an address, with a backlog of this many connections.
    TcpListener(SocketAddr, u32),
    /// A TCP listener that shares its address with others, also of other kernels: the system
    /// distributes connections (`SO_REUSEPORT`). A kernel without such listeners refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    SharedTcpListener(SocketAddr, u32),
    /// A TCP connection that is being made; wait with [`Attempt::Connected`].
    TcpStream(SocketAddr),
    /// A UDP socket at an address.
    Udp(SocketAddr),
    /// A Unix stream listener at a path that does not exist yet.
    UnixListener(&'a Path, u32),
    /// A Unix stream connection being made.
    UnixStream(&'a Path),
    /// A Unix datagram socket, with an address or without.
    UnixDatagram(Option<&'a Path>),
    /// Two Unix streams that are connected to each other.
    UnixStreamPair,
    /// Two Unix datagram sockets that are connected to each other.
    UnixDatagramPair,
    /// A descriptor from outside: a socket, a pipe, or another descriptor that the system can poll.
    /// A kernel whose sockets are no descriptors refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    Adopt(OwnedFd),
}

/// The process at the other end of a Unix stream, as the system has noted when the stream was
/// connected (`SO_PEERCRED`).
#[doc(alias = "UCred")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerCredentials {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The process, which may have ended since; `None` if this process cannot see it, as from
    /// another PID namespace.
    pub pid: Option<u32>,
}

/// A property of a socket that can be read and changed. Not every kind of socket has all
/// properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketOption {
    /// TCP: send small writes at once (`TCP_NODELAY`).
    NoDelay(bool),
    /// UDP: may send to a broadcast address (`SO_BROADCAST`).
    Broadcast(bool),
    /// The time that a close may take to send the remaining data; zero resets the connection
    /// (`SO_LINGER`).
    Linger(Option<Duration>),
    /// Probe an idle connection (`SO_KEEPALIVE`).
    KeepAlive(bool),
    /// Bytes the system keeps for reading (`SO_RCVBUF`). Linux doubles the number.
    ReceiveBuffer(usize),
    /// Bytes the system keeps for writing (`SO_SNDBUF`). Linux doubles the number.
    SendBuffer(usize),
}

/// An operation on a socket, as a value for the kernel and its driver.
///
/// An attempt never suspends. An attempt to move data, accept or connect may block; the caller then
/// waits until the socket is ready and repeats the attempt ([`socket_wait`](crate::socket_wait)).
/// Other attempts succeed or fail at once.
///
/// An attempt that succeeds returns the number of bytes that were moved, or received; 0 if it moves
/// none.
#[derive(Debug)]
pub enum Attempt<'a> {
    /// Whether an attempt in this direction is worthwhile, by the readiness that the kernel has
    /// noted.
    IsReady(Direction),
    /// Whether the descriptor is ready in this direction, by a poll of the system. For descriptors
    /// that are neither read nor written, such as pidfds.
    Poll(Direction),
    /// Take a connection from a listener, and store its socket and the address of the other side.
    Accept(&'a mut Option<(SocketId, Address)>),
    /// Whether a connection has been made, or has failed.
    Connected,
    /// Read from a stream; 0 bytes are the end of the stream, or the buffer was empty.
    Read(&'a mut [u8]),
    /// Read from a stream behind the bytes of a vector, as much as its capacity holds.
    ReadBuf(&'a mut Vec<u8>),
    /// Read from a stream into memory that need not be initialized.
    ReadSpare(Spare<'a>),
    /// Read from a stream into several buffers.
    ReadVectored(&'a mut dyn Buffers),
    /// Read from a stream or a datagram socket without taking the bytes.
    Peek(&'a mut [u8]),
    /// Write to a stream.
    Write(&'a [u8]),
    /// Write several buffers to a stream.
    WriteVectored(&'a [IoSlice<'a>]),
    /// Receive a datagram, and store its sender's address. Bytes that do not fit into the buffer
    /// are lost.
    Receive(&'a mut [u8], &'a mut Option<Address>),
    /// Send a datagram, to this address or to the socket's peer.
    Send(&'a [u8], Option<&'a Address>),
    /// Give a datagram socket a peer.
    Connect(&'a Address),
    /// End one or both directions of a stream.
    Shutdown(Shutdown),
    /// Store the socket's own address.
    LocalAddress(&'a mut Option<Address>),
    /// Store the address of the socket at the other end.
    PeerAddress(&'a mut Option<Address>),
    /// Store who has connected a Unix stream. A kernel that does not know refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    PeerCredentials(&'a mut Option<PeerCredentials>),
    /// Store the descriptor, which stays the kernel's until the socket is closed. A kernel whose
    /// sockets are no descriptors refuses, with [`Unsupported`](io::ErrorKind::Unsupported).
    Descriptor(&'a mut Option<RawFd>),
    /// Change a property.
    SetOption(SocketOption),
    /// Read the property that the variant names, and store it.
    GetOption(&'a mut SocketOption),
    /// Close the socket, and notify its waiters.
    Close,
}

/// The largest number of buffers in one attempt; systems refuse more (`IOV_MAX`). Further buffers
/// are left out before the attempt, so that a complete transfer does not count as a short one.
const MOST_BUFFERS: usize = 1024;

/// Several buffers to read into. Implemented only for the standard library's type, because the
/// kernel calls these methods while its tables are borrowed.
pub trait Buffers: fmt::Debug + sealed::Sealed {
    /// The number of bytes that one attempt can read.
    fn room(&self) -> usize;

    /// Calls `read` with the buffers of one attempt.
    ///
    /// # Errors
    ///
    /// The error of `read`.
    fn read_by(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize>;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for &mut [std::io::IoSliceMut<'_>] {}
}

impl Buffers for &mut [IoSliceMut<'_>] {
    fn room(&self) -> usize {
        self.iter().take(MOST_BUFFERS).map(|buffer| buffer.len()).sum()
    }

    fn read_by(
        &mut self,
        read: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let count = self.len().min(MOST_BUFFERS);
        read(&mut self[..count])
    }
}

/// The first buffers of data, as many as one attempt takes.
pub fn first_buffers<'a>(data: &'a [IoSlice<'a>]) -> &'a [IoSlice<'a>] {
    &data[..data.len().min(MOST_BUFFERS)]
}

impl Attempt<'_> {
    /// The direction in which the socket must be ready; `None`: the attempt needs no readiness.
    #[inline(always)]
    pub fn direction(&self) -> Option<Direction> {
        match self {
            Self::IsReady(direction) | Self::Poll(direction) => Some(*direction),
            Self::Connected | Self::Write(_) | Self::WriteVectored(_) | Self::Send(..) => {
                Some(Direction::Write)
            }
            Self::Accept(_)
            | Self::Read(_)
            | Self::ReadBuf(_)
            | Self::ReadSpare(_)
            | Self::ReadVectored(_)
            | Self::Peek(_)
            | Self::Receive(..) => Some(Direction::Read),
            Self::Connect(_)
            | Self::Shutdown(_)
            | Self::LocalAddress(_)
            | Self::PeerAddress(_)
            | Self::PeerCredentials(_)
            | Self::Descriptor(_)
            | Self::SetOption(_)
            | Self::GetOption(_)
            | Self::Close => None,
        }
    }
}

/// The result of opening a socket.
#[derive(Debug)]
pub enum Opened<S> {
    /// One socket.
    One(S),
    /// Two sockets, connected to each other.
    Pair(S, S),
}

impl<S> Opened<S> {
    /// Maps each socket.
    pub fn map<T>(self, mut name: impl FnMut(S) -> T) -> Opened<T> {
        match self {
            Self::One(socket) => Opened::One(name(socket)),
            Self::Pair(one, other) => Opened::Pair(name(one), name(other)),
        }
    }
}

/// The result of a name lookup.
pub type Addresses = io::Result<Vec<SocketAddr>>;

/// A socket was closed by this program, before or during its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the socket was closed on this side")
    }
}

impl std::error::Error for Closed {}

impl From<Closed> for io::Error {
    fn from(closed: Closed) -> Self {
        Self::new(io::ErrorKind::NotConnected, closed)
    }
}

/// Another task waits for the same direction of the same socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResourceBusy(pub Direction);

impl fmt::Display for ResourceBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.0 {
            Direction::Read => "read from",
            Direction::Write => "write to",
        };
        write!(
            f,
            "another task is waiting to {direction} this socket: one task at a time per direction"
        )
    }
}

impl std::error::Error for ResourceBusy {}

impl From<ResourceBusy> for io::Error {
    fn from(busy: ResourceBusy) -> Self {
        Self::new(io::ErrorKind::ResourceBusy, busy)
    }
}

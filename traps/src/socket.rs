//! The socket traps: open a socket, attempt something on it, wait until that can be done.
//!
//! What a socket *is* the kernel decides; above the door it is a [`SocketId`]. What is done with one is
//! a value, an [`Attempt`]: so a new operation touches this enum and the drivers, and nothing in
//! between. An attempt that succeeds gives a number; what else it gives, it puts where the value says.
//!
//! *Readiness is a hint.* A socket that is ready is attempted, and if that cannot be done after all
//! the wait goes on. A kernel may also put an attempt off, because the task has had its share for this step.
//!
//! *A closed socket's number is never used again*, so a late user meets an error and never
//! somebody else's connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net as unix;
use std::path::Path;
use std::time::Duration;

use crate::names::KernelId;

/// Names a socket of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketId {
    /// The kernel that opened it.
    pub kernel: KernelId,
    /// Where the kernel keeps it.
    pub index: u32,
    /// Tells it from the sockets that were kept there before.
    pub generation: u32,
}

/// One of a socket's two readinesses.
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
    /// A path, an abstract name, or nothing. In a box, since it is four times as large as what else an attempt
    /// brings.
    Unix(Box<unix::SocketAddr>),
}

/// What kind of socket to open.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenSocket<'a> {
    /// A TCP listener at an address, with room for so many connections not yet accepted.
    TcpListener(SocketAddr, u32),
    /// The same, of which there may be several at one address, also of several kernels: the system
    /// spreads connections over them (`SO_REUSEPORT`). A kernel that cannot refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    SharedTcpListener(SocketAddr, u32),
    /// A TCP connection being made; wait for it with [`Attempt::Connected`].
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
    /// A descriptor from outside: a socket, a pipe, or whatever else the system can wait for. A
    /// kernel whose sockets are no descriptors refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    Adopt(OwnedFd),
}

/// A property of a socket that can be read and changed. Not every kind has every one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SocketOption {
    /// TCP: send small writes at once (`TCP_NODELAY`).
    NoDelay(bool),
    /// UDP: may send to a broadcast address (`SO_BROADCAST`).
    Broadcast(bool),
    /// How long closing takes to send what is left; zero resets the connection (`SO_LINGER`).
    Linger(Option<Duration>),
    /// Probe an idle connection (`SO_KEEPALIVE`).
    KeepAlive(bool),
    /// Bytes the system keeps for reading (`SO_RCVBUF`). Linux gives twice what was asked for.
    ReceiveBuffer(usize),
    /// Bytes the system keeps for writing (`SO_SNDBUF`). Linux gives twice what was asked for.
    SendBuffer(usize),
}

/// Something to do on a socket, as a value: what the kernel is asked, and its driver.
///
/// None suspends by itself. What moves data, accepts or connects may not be possible now; whoever
/// asks then waits until the socket is ready and attempts it again ([`socket_wait`](crate::socket_wait)). The rest is done at
/// once.
///
/// An attempt that succeeds gives the number of bytes that were moved, or received; 0 if it moves none.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt<'a> {
    /// Whether an attempt in that direction is worthwhile, by what the kernel knows.
    IsReady(Direction),
    /// The same, by asking the system. For what is waited for and neither read nor written, as a
    /// process.
    Poll(Direction),
    /// Take a connection from a listener, and put there its socket and the address of the other side.
    Accept(&'a mut Option<(SocketId, Address)>),
    /// Whether a connection is made, and with what outcome.
    Connected,
    /// Read from a stream; 0 bytes are its end (or there was no room).
    Read(&'a mut [u8]),
    /// Read from a stream into several buffers.
    ReadVectored(&'a mut dyn Buffers),
    /// Read from a stream or a datagram socket without taking the bytes.
    Peek(&'a mut [u8]),
    /// Write to a stream.
    Write(&'a [u8]),
    /// Write several buffers to a stream.
    WriteVectored(&'a [IoSlice<'a>]),
    /// Receive a datagram, and put there where it came from. What does not fit into the buffer is lost.
    Receive(&'a mut [u8], &'a mut Option<Address>),
    /// Send a datagram, to the peer that the socket is connected to if no other is named.
    Send(&'a [u8], Option<&'a Address>),
    /// Give a datagram socket a peer.
    Connect(&'a Address),
    /// End one or both directions of a stream.
    Shutdown(Shutdown),
    /// Put there the socket's own address.
    LocalAddress(&'a mut Option<Address>),
    /// Put there the address of the socket at the other end.
    PeerAddress(&'a mut Option<Address>),
    /// Change a property.
    SetOption(SocketOption),
    /// Read the property that the variant names, and put it there.
    GetOption(&'a mut SocketOption),
    /// Close the socket. Those who wait for it are told.
    Close,
}

/// So many buffers an attempt takes; systems refuse more (`IOV_MAX`). The rest are left out before
/// an attempt is made, so that one which has done all it could is not taken for a short one.
const MOST_BUFFERS: usize = 1024;

/// Several buffers to read into. Implemented for what the standard library reads into, and for nothing
/// else: the kernel calls it with its tables in use.
pub trait Buffers: fmt::Debug + sealed::Sealed {
    /// How many bytes there is room for in one attempt.
    fn room(&self) -> usize;

    /// Calls `read` with the buffers of one attempt.
    ///
    /// # Errors
    ///
    /// What `read` reports.
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

/// As many buffers of data as one attempt takes.
pub fn first_buffers<'a>(data: &'a [IoSlice<'a>]) -> &'a [IoSlice<'a>] {
    &data[..data.len().min(MOST_BUFFERS)]
}

impl Attempt<'_> {
    /// The direction in which the socket must be ready; `None`: it is done or fails at once, whatever the
    /// socket is ready for.
    #[inline(always)]
    pub fn direction(&self) -> Option<Direction> {
        match self {
            Self::IsReady(direction) | Self::Poll(direction) => Some(*direction),
            Self::Connected | Self::Write(_) | Self::WriteVectored(_) | Self::Send(..) => {
                Some(Direction::Write)
            }
            Self::Accept(_)
            | Self::Read(_)
            | Self::ReadVectored(_)
            | Self::Peek(_)
            | Self::Receive(..) => Some(Direction::Read),
            Self::Connect(_)
            | Self::Shutdown(_)
            | Self::LocalAddress(_)
            | Self::PeerAddress(_)
            | Self::SetOption(_)
            | Self::GetOption(_)
            | Self::Close => None,
        }
    }
}

/// What was opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Opened<S> {
    /// One socket.
    One(S),
    /// Two, connected to each other.
    Pair(S, S),
}

impl<S> Opened<S> {
    /// The same, with the sockets named otherwise.
    pub fn map<T>(self, mut name: impl FnMut(S) -> T) -> Opened<T> {
        match self {
            Self::One(socket) => Opened::One(name(socket)),
            Self::Pair(one, other) => Opened::Pair(name(one), name(other)),
        }
    }
}

/// What a name lookup gives.
pub type Addresses = io::Result<Vec<SocketAddr>>;

/// A socket was closed, here, before or while it was used.
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

//! The socket traps: open, attempt, close.
//!
//! What a socket *is* the kernel decides; above the door it is a [`SocketId`]. None of these traps
//! suspends. An attempt that cannot be done now says [`WouldBlock`](io::ErrorKind::WouldBlock), and
//! the task then waits with [`read_wait`] or [`write_wait`] and tries again.
//!
//! *Readiness is a hint.* A wait that was answered says that an attempt is worthwhile, not that it
//! will succeed, so every wait stands in a loop with its attempt ([`when_ready`]). A kernel may also answer `WouldBlock` to an attempt it did not make,
//! because the task has had its share for this step.
//!
//! *A closed socket's number is never used again*, so whoever comes late meets an error and never
//! somebody else's connection.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net as unix;
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::door;
use crate::handler::{Refusal, TrapKind, Wait};
use crate::home::KernelId;
use crate::interrupt::Interrupted;
use crate::trap::{KernelTrap, Trap, kernel_trap_at};

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
    /// A path, an abstract name, or nothing.
    Unix(unix::SocketAddr),
}

/// What kind of socket to open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OpenSocket<'a> {
    /// A TCP listener at an address, with room for so many connections not yet accepted.
    TcpListener(SocketAddr, u32),
    /// The same, of which there may be several at one address, also of several kernels: the system
    /// spreads connections over them (`SO_REUSEPORT`). A kernel that cannot refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    SharedTcpListener(SocketAddr, u32),
    /// A TCP connection being made; wait for it with [`TrapKind::WriteWait`] and
    /// [`Sockets::connected`].
    TcpStream(SocketAddr),
    /// A UDP socket at an address.
    Udp(SocketAddr),
    /// A Unix stream listener at a path that does not exist yet.
    UnixListener(&'a Path, u32),
    /// A Unix stream connection being made.
    UnixStream(&'a Path),
    /// A Unix datagram socket, with an address or without.
    UnixDatagram(Option<&'a Path>),
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

/// The traps on sockets. None suspends.
///
/// All but `open`, `pair` and `adopt` fail with [`NotConnected`](io::ErrorKind::NotConnected) and
/// [`Closed`] inside when the socket is closed; attempts fail with
/// [`WouldBlock`](io::ErrorKind::WouldBlock) when they cannot be done now; the rest is what the
/// system reports.
#[expect(clippy::missing_errors_doc, reason = "said once, above, for all of them")]
pub trait Sockets {
    /// Opens a socket.
    fn open(&self, what: OpenSocket<'_>) -> io::Result<SocketId>;

    /// Opens two Unix sockets connected to each other: streams, or datagram sockets.
    fn pair(&self, datagram: bool) -> io::Result<(SocketId, SocketId)>;

    /// Takes over a descriptor from outside: a socket, a pipe, or whatever else the system can wait
    /// for. A kernel whose sockets are no descriptors refuses, with
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    fn adopt(&self, descriptor: OwnedFd) -> io::Result<SocketId>;

    /// Closes a socket. Its waiters are answered, and find it closed at their next attempt.
    fn close(&self, socket: SocketId) -> io::Result<()>;

    /// Whether a socket is open.
    fn is_open(&self, socket: SocketId) -> bool;

    /// Attempts to take a connection from a listener.
    fn accept(&self, socket: SocketId) -> io::Result<(SocketId, Address)>;

    /// Whether a connection is made: `WouldBlock` while it is being made, else its true outcome.
    fn connected(&self, socket: SocketId) -> io::Result<()>;

    /// Attempts to read from a stream; 0 is the end of the stream (or of no room in the buffers).
    fn read(&self, socket: SocketId, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Whether a descriptor is ready, without moving anything: `WouldBlock` while it is not. For
    /// what is waited for and neither read nor written, as a process; a kernel whose sockets are no
    /// descriptors need not know.
    fn poll(&self, socket: SocketId, direction: Direction) -> io::Result<()> {
        let _ = (socket, direction);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Attempts to read from a stream without taking the bytes.
    fn peek(&self, socket: SocketId, buffer: &mut [u8]) -> io::Result<usize>;

    /// Attempts to write to a stream.
    fn write(&self, socket: SocketId, buffers: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Attempts to receive a datagram; what does not fit into the buffer is lost.
    fn receive(&self, socket: SocketId, buffer: &mut [u8]) -> io::Result<(usize, Address)>;

    /// Attempts to send a datagram, to the peer the socket is connected to if no other is named.
    fn send(&self, socket: SocketId, data: &[u8], to: Option<&Address>) -> io::Result<usize>;

    /// Gives a datagram socket a peer.
    fn connect(&self, socket: SocketId, to: &Address) -> io::Result<()>;

    /// Ends one or both directions of a stream.
    fn shutdown(&self, socket: SocketId, how: Shutdown) -> io::Result<()>;

    /// The socket's own address.
    fn local_address(&self, socket: SocketId) -> io::Result<Address>;

    /// The address of the socket at the other end.
    fn peer_address(&self, socket: SocketId) -> io::Result<Address>;

    /// Changes a property.
    fn set_option(&self, socket: SocketId, option: SocketOption) -> io::Result<()>;

    /// Reads a property: the one named by the variant given.
    fn option(&self, socket: SocketId, which: SocketOption) -> io::Result<SocketOption>;
}

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

/// Calls a socket trap of the current kernel.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn sockets<R>(call: impl FnOnce(&dyn Sockets) -> R) -> R {
    door::with(|kernel| call(kernel.sockets()))
}

/// Calls a socket trap of the kernel that a socket belongs to, also outside its turn.
///
/// # Errors
///
/// [`Closed`], if that kernel has ended, or is not one of this thread.
pub fn sockets_of<R>(
    socket: SocketId,
    call: impl FnOnce(&dyn Sockets) -> io::Result<R>,
) -> io::Result<R> {
    door::reach(socket.kernel, |kernel| call(kernel.sockets()))
        .unwrap_or_else(|| Err(Closed.into()))
}

/// The trap that waits for a socket's readiness. See [`read_wait`] and [`write_wait`].
#[derive(Debug)]
pub struct ReadyTrap {
    socket: SocketId,
    direction: Direction,
    refusal: Cell<Option<Refusal>>,
    /// Whoever waits attempts something next, and learns then that the socket was closed.
    attempts: bool,
}

impl ReadyTrap {
    /// Waits for one direction of a socket.
    pub fn new(socket: SocketId, direction: Direction) -> Self {
        Self { socket, direction, refusal: Cell::new(None), attempts: false }
    }
}

impl ReadyTrap {
    fn is_closed(&self) -> bool {
        door::reach(self.socket.kernel, |kernel| !kernel.sockets().is_open(self.socket))
            .unwrap_or(true)
    }
}

impl Trap for ReadyTrap {
    type Answer = io::Result<()>;
    const KIND: TrapKind = TrapKind::ReadWait;

    fn wait(&mut self) -> Wait<'_> {
        let Self { socket, direction, refusal, .. } = self;
        Wait::Ready { socket: *socket, direction: *direction, refusal }
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result?;
        match self.refusal.take() {
            // Closing a socket answers its waiters.
            None if !self.attempts && self.is_closed() => Err(Closed.into()),
            None => Ok(()),
            Some(Refusal::Busy) => Err(ResourceBusy(self.direction).into()),
            Some(Refusal::Closed) => Err(Closed.into()),
        }
    }
}

/// Waits until an attempt to read, to receive or to accept is worthwhile.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`], [`ResourceBusy`] or [`Closed`], each inside an [`io::Error`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
pub fn read_wait(socket: SocketId) -> KernelTrap<ReadyTrap> {
    kernel_trap_at(ReadyTrap::new(socket, Direction::Read), Location::caller())
}

/// Waits until an attempt to write, to send or to finish connecting is worthwhile.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// As for [`read_wait`].
///
/// # Panics
///
/// When polled outside a task of the socket's kernel.
#[track_caller]
pub fn write_wait(socket: SocketId) -> KernelTrap<ReadyTrap> {
    kernel_trap_at(ReadyTrap::new(socket, Direction::Write), Location::caller())
}

/// Attempts something on a socket until it can be done, waiting in between.
///
/// `attempt` is called with the kernel's socket traps; `WouldBlock` means wait and try again.
///
/// # Cancellation
///
/// An interruption point wherever it waits. An attempt that succeeded is never interrupted.
///
/// # Errors
///
/// What `attempt` reports, and what [`read_wait`] does.
///
/// # Panics
///
/// When it has to wait and is polled outside a task of the socket's kernel.
#[track_caller]
pub fn when_ready<R, F>(socket: SocketId, direction: Direction, attempt: F) -> WhenReady<F>
where
    F: FnMut(&dyn Sockets) -> io::Result<R>,
{
    when_ready_at(socket, direction, attempt, Location::caller())
}

/// [`when_ready`], reported as awaited at `place`.
pub fn when_ready_at<R, F>(
    socket: SocketId,
    direction: Direction,
    attempt: F,
    place: &'static Location<'static>,
) -> WhenReady<F>
where
    F: FnMut(&dyn Sockets) -> io::Result<R>,
{
    WhenReady { socket, direction, attempt, wait: None, place }
}

/// The future of [`when_ready`].
#[must_use = "a future does nothing until it is awaited"]
pub struct WhenReady<F> {
    socket: SocketId,
    direction: Direction,
    attempt: F,
    wait: Option<KernelTrap<ReadyTrap>>,
    place: &'static Location<'static>,
}

// The attempt is only ever called, never pinned.
impl<F> Unpin for WhenReady<F> {}

impl<R, F: FnMut(&dyn Sockets) -> io::Result<R>> Future for WhenReady<F> {
    type Output = io::Result<R>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<R>> {
        let Self { socket, direction, attempt, wait, place } = &mut *self;
        loop {
            if let Some(waiting) = wait {
                let waited = ready!(Pin::new(waiting).poll(cx));
                *wait = None;
                waited?;
            }
            match sockets_of(*socket, &mut *attempt) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let trap = ReadyTrap { attempts: true, ..ReadyTrap::new(*socket, *direction) };
                    *wait = Some(kernel_trap_at(trap, place));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl<F> fmt::Debug for WhenReady<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WhenReady")
            .field("socket", &self.socket)
            .field("direction", &self.direction)
            .field("waits", &self.wait.is_some())
            .finish_non_exhaustive()
    }
}

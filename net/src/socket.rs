//! The socket inside all public socket types.
//!
//! A kernel knows a socket by its number. [`Socket`] owns the number: its drop closes the socket,
//! and it stays on its kernel's thread. It has all operations, of which the public types offer
//! some.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net as unix;
use std::panic::Location;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_traps::{
    Address, AsAttempt, Attempt, Direction, IsReady, KernelTrap, OpenSocket, Opened, SocketId,
    SocketOption, SocketTrap, Trap, attempt, kernel_trap_at, open_socket,
};

use crate::chunk::make_room;
use crate::error::{ReadExactError, WriteAllError};

pub(crate) struct Socket {
    id: SocketId,
    /// Makes the type `!Send`, since the kernel belongs to this thread.
    not_send: PhantomData<Rc<()>>,
    #[cfg(feature = "io-traits")]
    waits: crate::seam::Waits,
}

impl Socket {
    fn own(id: SocketId) -> Self {
        Self {
            id,
            not_send: PhantomData,
            #[cfg(feature = "io-traits")]
            waits: Default::default(),
        }
    }

    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    #[cfg(feature = "io-traits")]
    pub(crate) fn waits(&self) -> &crate::seam::Waits {
        &self.waits
    }

    /// Drops an abandoned wait of a poll-based trait, since a new operation of its direction
    /// begins.
    #[inline]
    fn begin(&self, direction: Option<Direction>) {
        #[cfg(feature = "io-traits")]
        if let Some(direction) = direction {
            self.waits.abandon(direction);
        }
        #[cfg(not(feature = "io-traits"))]
        let _ = direction;
    }

    #[track_caller]
    pub(crate) fn open(what: OpenSocket<'_>) -> io::Result<Self> {
        match open_socket(what)? {
            Opened::One(id) => Ok(Self::own(id)),
            other => wrong_answer(other),
        }
    }

    #[track_caller]
    pub(crate) fn open_pair(what: OpenSocket<'_>) -> io::Result<(Self, Self)> {
        match open_socket(what)? {
            Opened::Pair(one, other) => Ok((Self::own(one), Self::own(other))),
            other => wrong_answer(other),
        }
    }

    #[track_caller]
    pub(crate) fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        Self::open(OpenSocket::Adopt(descriptor))
    }

    /// Makes an attempt without waiting.
    pub(crate) fn attempt(&self, what: Attempt<'_>) -> io::Result<usize> {
        attempt(self.id, what)
    }

    /// Repeats an attempt until it no longer blocks. `attempt` returns the attempt on `with`, and
    /// `output` the result, given `with` and the number of bytes moved.
    #[inline]
    fn operation<T, R>(
        &self,
        place: &'static Location<'static>,
        with: T,
        attempt: impl FnMut(&mut T) -> Attempt<'_>,
        output: impl FnMut(&mut T, usize) -> R,
    ) -> KernelTrap<SocketTrap<impl AsAttempt<Output = R>>> {
        let mut operation = Operation { with, attempt, output };
        self.begin(AsAttempt::attempt(&mut operation).direction());
        kernel_trap_at(SocketTrap::new(self.id, operation), place)
    }

    /// Closes the socket. A second call has no effect.
    pub(crate) fn close(&self) {
        // `Close` fails if the socket was closed before, or if its kernel has ended and closed it.
        drop(self.attempt(Attempt::Close));
    }

    /// Ends one or both directions.
    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.attempt(Attempt::Shutdown(how)).map(drop)
    }

    /// Gives a datagram socket a peer.
    pub(crate) fn connect(&self, to: &Address) -> io::Result<()> {
        self.attempt(Attempt::Connect(to)).map(drop)
    }

    /// Waits until an attempt may succeed. A socket that was closed meanwhile is an error.
    #[track_caller]
    pub(crate) fn ready(&self, direction: Direction) -> impl Future<Output = io::Result<()>> {
        self.begin(Some(direction));
        kernel_trap_at(SocketTrap::new(self.id, IsReady(direction)), Location::caller())
    }

    /// Waits until an attempt to connect has succeeded or failed.
    pub(crate) fn connected(
        &self,
        place: &'static Location<'static>,
    ) -> impl Future<Output = io::Result<()>> {
        self.operation(place, (), |()| Attempt::Connected, |(), _| ())
    }

    #[track_caller]
    pub(crate) fn accept(&self) -> impl Future<Output = io::Result<(Self, Address)>> {
        let place = Location::caller();
        async move {
            loop {
                match self
                    .operation(place, None, |to| Attempt::Accept(to), |to, _| accepted(to))
                    .await
                {
                    Err(error) if is_connection_error(&error) => {}
                    result => return result,
                }
            }
        }
    }

    /// A connection from the backlog. `None` also for an error, which the next call reports again
    /// unless it was the connection's.
    pub(crate) fn try_accept(&self) -> Option<(Self, Address)> {
        let mut to = None;
        self.attempt(Attempt::Accept(&mut to)).ok().map(|_| accepted(&mut to))
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.attempt(Attempt::Read(buffer))
    }

    #[track_caller]
    #[inline]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        let is_empty = buffer.is_empty();
        let place = Location::caller();
        let trap = self.operation(place, buffer, |buffer| Attempt::Read(buffer), bytes);
        Reading { trap, is_empty }
    }

    #[track_caller]
    #[inline]
    pub(crate) fn read_buf(&self, buffer: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>> {
        make_room(buffer);
        self.operation(Location::caller(), buffer, |buffer| Attempt::ReadBuf(buffer), bytes)
    }

    #[track_caller]
    pub(crate) fn read_vectored(
        &self,
        buffers: &mut [IoSliceMut<'_>],
    ) -> impl Future<Output = io::Result<usize>> {
        let is_empty = has_no_room(buffers);
        let place = Location::caller();
        let trap = self.operation(place, buffers, |buffers| Attempt::ReadVectored(buffers), bytes);
        Reading { trap, is_empty }
    }

    #[track_caller]
    pub(crate) fn read_exact(
        &self,
        buffer: &mut [u8],
    ) -> impl Future<Output = Result<(), ReadExactError>> {
        let place = Location::caller();
        async move {
            let mut read = 0;
            while read < buffer.len() {
                let rest = &mut buffer[read..];
                match self.operation(place, rest, |rest| Attempt::Read(rest), bytes).await {
                    Ok(0) => return Err(ReadExactError::at_end(read)),
                    Ok(more) => read += more,
                    Err(source) => return Err(ReadExactError { read, source }),
                }
            }
            Ok(())
        }
    }

    #[track_caller]
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        self.operation(Location::caller(), buffer, |buffer| Attempt::Peek(buffer), bytes)
    }

    pub(crate) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.attempt(Attempt::Write(data))
    }

    #[track_caller]
    #[inline]
    pub(crate) fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        self.operation(Location::caller(), data, |data| Attempt::Write(data), bytes)
    }

    #[track_caller]
    pub(crate) fn write_vectored(
        &self,
        buffers: &[IoSlice<'_>],
    ) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        self.operation(place, buffers, |buffers| Attempt::WriteVectored(buffers), bytes)
    }

    #[track_caller]
    pub(crate) fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        let place = Location::caller();
        async move {
            let mut written = 0;
            while written < data.len() {
                let rest = &data[written..];
                match self.operation(place, rest, |rest| Attempt::Write(rest), bytes).await {
                    Ok(0) => return Err(WriteAllError::no_room(written)),
                    Ok(more) => written += more,
                    Err(source) => return Err(WriteAllError { written, source }),
                }
            }
            Ok(())
        }
    }

    #[track_caller]
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
    ) -> impl Future<Output = io::Result<(usize, Address)>> {
        self.operation(
            Location::caller(),
            (buffer, None),
            |(buffer, from)| Attempt::Receive(buffer, from),
            |(_, from), length| (length, filled_in(from)),
        )
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        data: &[u8],
        to: Option<Address>,
    ) -> impl Future<Output = io::Result<usize>> {
        self.send_at(Location::caller(), data, to)
    }

    /// As [`send`](Self::send), on behalf of code at another place.
    pub(crate) fn send_at(
        &self,
        place: &'static Location<'static>,
        data: &[u8],
        to: Option<Address>,
    ) -> impl Future<Output = io::Result<usize>> {
        self.operation(place, (data, to), |(data, to)| Attempt::Send(data, to.as_ref()), bytes)
    }

    pub(crate) fn local_address(&self) -> io::Result<Address> {
        let mut address = None;
        self.attempt(Attempt::LocalAddress(&mut address)).map(|_| filled_in(&mut address))
    }

    pub(crate) fn peer_address(&self) -> io::Result<Address> {
        let mut address = None;
        self.attempt(Attempt::PeerAddress(&mut address)).map(|_| filled_in(&mut address))
    }

    #[cfg(feature = "peer-credentials")]
    pub(crate) fn peer_credentials(&self) -> io::Result<pikake_traps::PeerCredentials> {
        let mut credentials = None;
        self.attempt(Attempt::PeerCredentials(&mut credentials))
            .map(|_| filled_in(&mut credentials))
    }

    pub(crate) fn set(&self, option: SocketOption) -> io::Result<()> {
        self.attempt(Attempt::SetOption(option)).map(drop)
    }

    pub(crate) fn option(&self, mut which: SocketOption) -> io::Result<SocketOption> {
        self.attempt(Attempt::GetOption(&mut which))?;
        Ok(which)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SocketId { kernel, index, generation } = self.id;
        write!(f, "socket {index}.{generation} of kernel {kernel}")
    }
}

/// An attempt to repeat until it no longer blocks. See [`Socket::operation`].
struct Operation<T, A, O> {
    with: T,
    attempt: A,
    output: O,
}

impl<T, A, O, R> AsAttempt for Operation<T, A, O>
where
    A: FnMut(&mut T) -> Attempt<'_>,
    O: FnMut(&mut T, usize) -> R,
{
    type Output = R;

    #[inline(always)]
    fn attempt(&mut self) -> Attempt<'_> {
        (self.attempt)(&mut self.with)
    }

    #[inline(always)]
    fn output(&mut self, moved: usize) -> R {
        (self.output)(&mut self.with, moved)
    }
}

/// A read. With empty buffers it returns at once, since the system would block.
struct Reading<T: Trap> {
    trap: KernelTrap<T>,
    is_empty: bool,
}

impl<T: Trap<Answer = io::Result<usize>>> Future for Reading<T> {
    type Output = io::Result<usize>;

    #[track_caller]
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.is_empty {
            return Poll::Ready(Ok(0));
        }
        Pin::new(&mut self.trap).poll(cx)
    }
}

pub(crate) fn has_no_room(buffers: &[IoSliceMut<'_>]) -> bool {
    buffers.iter().all(|buffer| buffer.is_empty())
}

fn accepted(to: &mut Option<(SocketId, Address)>) -> (Socket, Address) {
    let (id, address) = filled_in(to);
    (Socket::own(id), address)
}

#[inline(always)]
fn bytes<T>(_: &mut T, moved: usize) -> usize {
    moved
}

/// The result that the kernel filled in for a successful attempt.
pub(crate) fn filled_in<T>(result: &mut Option<T>) -> T {
    result.take().expect("a kernel fills in the result of a successful attempt (I1)")
}

#[cold]
fn wrong_answer(answer: impl fmt::Debug) -> ! {
    panic!("a kernel answered another request: {answer:?} (I1)")
}

/// Whether an error of `accept` concerns one connection that failed in the backlog, and not the
/// listener. Linux returns such errors; see accept(2).
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), ConnectionAborted | HostUnreachable | NetworkDown | NetworkUnreachable)
}

/// The address of an internet socket.
pub(crate) fn ip(address: Address) -> io::Result<SocketAddr> {
    match address {
        Address::Ip(address) => Ok(address),
        Address::Unix(_) => Err(wrong_family("an internet socket", "a Unix")),
    }
}

/// The address of a Unix socket.
pub(crate) fn unix(address: Address) -> io::Result<unix::SocketAddr> {
    match address {
        Address::Unix(address) => Ok(*address),
        Address::Ip(_) => Err(wrong_family("a Unix socket", "an internet")),
    }
}

/// The address of a path.
pub(crate) fn unix_path(path: &Path) -> io::Result<Address> {
    Ok(Address::Unix(Box::new(unix::SocketAddr::from_pathname(path)?)))
}

#[cold]
fn wrong_family(socket: &str, address: &str) -> io::Error {
    let message = format!("the kernel reported {address} address for {socket}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// The error of an answer with another property than the requested one.
#[cold]
pub(crate) fn wrong_option(option: SocketOption) -> io::Error {
    let message = format!("the kernel answered with another property: {option:?}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

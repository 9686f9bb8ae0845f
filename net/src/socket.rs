//! The socket that all the others are made of.
//!
//! A kernel knows a socket by its number, and a number can be copied. [`Socket`] is the number
//! with an owner: dropping it closes the socket, and it stays on its kernel's thread. Each
//! operation is written once, here; the public types choose which of them they offer.

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

use crate::error::{ReadExactError, WriteAllError};

pub(crate) struct Socket {
    id: SocketId,
    /// Its kernel is one of this thread.
    home: PhantomData<Rc<()>>,
    #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
    waits: crate::seam::Waits,
}

impl Socket {
    fn own(id: SocketId) -> Self {
        Self {
            id,
            home: PhantomData,
            #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
            waits: Default::default(),
        }
    }

    #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
    pub(crate) fn waits(&self) -> &crate::seam::Waits {
        &self.waits
    }

    /// Whoever polled this direction has given up, if another one waits for it now.
    #[inline]
    fn begin(&self, direction: Option<Direction>) {
        #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
        if let Some(direction) = direction {
            self.waits.give_up(direction);
        }
        #[cfg(not(any(feature = "tokio-io", feature = "futures-io")))]
        let _ = direction;
    }

    #[track_caller]
    pub(crate) fn open(what: OpenSocket<'_>) -> io::Result<Self> {
        match open_socket(what)? {
            Opened::One(id) => Ok(Self::own(id)),
            other => misanswered(other),
        }
    }

    #[track_caller]
    pub(crate) fn open_pair(what: OpenSocket<'_>) -> io::Result<(Self, Self)> {
        match open_socket(what)? {
            Opened::Pair(one, other) => Ok((Self::own(one), Self::own(other))),
            other => misanswered(other),
        }
    }

    #[track_caller]
    pub(crate) fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        Self::open(OpenSocket::Adopt(descriptor))
    }

    /// Attempts something without waiting.
    pub(crate) fn attempt(&self, what: Attempt<'_>) -> io::Result<usize> {
        attempt(self.id, what)
    }

    /// Attempts something until it can be done: `attempt` makes it of `with`, `output` takes from `with`
    /// what has come of it, and the number of bytes that were moved.
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

    /// Closes the socket; once is enough.
    pub(crate) fn close(&self) {
        // It fails if the socket was closed before, or its kernel has ended and closed it.
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

    /// Waits until an attempt is worthwhile. A socket that was closed meanwhile is an error.
    #[track_caller]
    pub(crate) fn ready(&self, direction: Direction) -> impl Future<Output = io::Result<()>> {
        self.begin(Some(direction));
        kernel_trap_at(SocketTrap::new(self.id, IsReady(direction)), Location::caller())
    }

    /// Waits until a connection is made, or has failed.
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
                    Err(error) if is_of_the_connection(&error) => {}
                    result => return result,
                }
            }
        }
    }

    /// A connection that is there already; `None` also for any error, which is there again when
    /// next asked for, or was the connection's.
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
            |(_, from), length| (length, put(from)),
        )
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        data: &[u8],
        to: Option<Address>,
    ) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        self.operation(place, (data, to), |(data, to)| Attempt::Send(data, to.as_ref()), bytes)
    }

    pub(crate) fn local_address(&self) -> io::Result<Address> {
        let mut address = None;
        self.attempt(Attempt::LocalAddress(&mut address)).map(|_| put(&mut address))
    }

    pub(crate) fn peer_address(&self) -> io::Result<Address> {
        let mut address = None;
        self.attempt(Attempt::PeerAddress(&mut address)).map(|_| put(&mut address))
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

/// Something to attempt until it can be done. See [`Socket::operation`].
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

/// Reads. Without room in the buffers there is nothing to wait for, and the system is not asked,
/// since it would wait.
struct Reading<T: Trap> {
    trap: KernelTrap<T>,
    is_empty: bool,
}

impl<T: Trap<Answer = io::Result<usize>>> Future for Reading<T> {
    type Output = io::Result<usize>;

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
    let (id, address) = put(to);
    (Socket::own(id), address)
}

#[inline(always)]
fn bytes<T>(_: &mut T, moved: usize) -> usize {
    moved
}

/// What the kernel has put there for an attempt that succeeded.
pub(crate) fn put<T>(place: &mut Option<T>) -> T {
    place.take().expect("a kernel puts there what an attempt gives (I1)")
}

#[cold]
fn misanswered(answer: impl fmt::Debug) -> ! {
    panic!("a kernel answers what it was asked, not with {answer:?} (I1)")
}

/// Whether an error of `accept` is that of a connection that failed while it waited to be
/// accepted, which says nothing about the next one. Linux hands out such errors; see accept(2).
fn is_of_the_connection(error: &io::Error) -> bool {
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

/// The address that a path is.
pub(crate) fn unix_path(path: &Path) -> io::Result<Address> {
    Ok(Address::Unix(Box::new(unix::SocketAddr::from_pathname(path)?)))
}

#[cold]
fn wrong_family(socket: &str, address: &str) -> io::Error {
    let message = format!("the kernel reported {address} address for {socket}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// A property that was read must be the one that was asked for.
#[cold]
pub(crate) fn wrong_option(option: SocketOption) -> io::Error {
    let message = format!("the kernel answered with another property: {option:?}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

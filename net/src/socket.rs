//! The socket that all the others are made of.
//!
//! A kernel knows a socket by its number, and a number can be copied. [`Socket`] is the number
//! with an owner: dropping it closes the socket, and it stays on its kernel's thread. Each
//! operation is written once, here; the public types choose which of them they offer.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net as unix;
use std::panic::Location;
use std::path::Path;
use std::rc::Rc;

use pikake_traps::{
    Address, Direction, OpenSocket, ReadyTrap, SocketId, SocketOption, Sockets, kernel_trap_at,
    sockets, sockets_of, when_ready, when_ready_at,
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
    fn begin(&self, direction: Direction) -> Direction {
        #[cfg(any(feature = "tokio-io", feature = "futures-io"))]
        self.waits.give_up(direction);
        direction
    }

    #[track_caller]
    pub(crate) fn open(what: OpenSocket<'_>) -> io::Result<Self> {
        sockets(|traps| traps.open(what)).map(Self::own)
    }

    #[track_caller]
    pub(crate) fn pair(datagram: bool) -> io::Result<(Self, Self)> {
        let (one, other) = sockets(|traps| traps.pair(datagram))?;
        Ok((Self::own(one), Self::own(other)))
    }

    #[track_caller]
    pub(crate) fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        sockets(|traps| traps.adopt(descriptor)).map(Self::own)
    }

    /// Calls a trap that does not suspend.
    pub(crate) fn call<R>(
        &self,
        call: impl FnOnce(&dyn Sockets, SocketId) -> io::Result<R>,
    ) -> io::Result<R> {
        sockets_of(self.id, |traps| call(traps, self.id))
    }

    /// Closes the socket; once is enough.
    pub(crate) fn close(&self) {
        // It fails if the socket was closed before, or its kernel has ended and closed it.
        drop(self.call(|traps, id| traps.close(id)));
    }

    #[track_caller]
    fn attempt<R>(
        &self,
        direction: Direction,
        mut attempt: impl FnMut(&dyn Sockets, SocketId) -> io::Result<R>,
    ) -> impl Future<Output = io::Result<R>> {
        let id = self.id;
        when_ready(id, self.begin(direction), move |traps| attempt(traps, id))
    }

    /// Waits until an attempt is worthwhile. A socket that was closed meanwhile is an error.
    #[track_caller]
    pub(crate) fn ready(&self, direction: Direction) -> impl Future<Output = io::Result<()>> {
        let place = Location::caller();
        async move {
            kernel_trap_at(ReadyTrap::new(self.id, self.begin(direction)), place).await?;
            self.call(|traps, id| traps.local_address(id)).map(drop)
        }
    }

    /// Waits until a connection is made, or has failed.
    pub(crate) async fn connected(&self, place: &'static Location<'static>) -> io::Result<()> {
        let attempt = |traps: &dyn Sockets| traps.connected(self.id);
        when_ready_at(self.id, Direction::Write, attempt, place).await
    }

    #[track_caller]
    pub(crate) fn accept(&self) -> impl Future<Output = io::Result<(Self, Address)>> {
        let place = Location::caller();
        async move {
            loop {
                let attempt = |traps: &dyn Sockets| traps.accept(self.id);
                match when_ready_at(self.id, Direction::Read, attempt, place).await {
                    Ok((id, address)) => return Ok((Self::own(id), address)),
                    Err(error) if is_of_the_connection(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// A connection that is there already; `None` also for any error, which is there again when
    /// next asked for, or was the connection's.
    pub(crate) fn try_accept(&self) -> Option<(Self, Address)> {
        let (id, address) = self.call(|traps, id| traps.accept(id)).ok()?;
        Some((Self::own(id), address))
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(|traps, id| read_into(traps, id, &mut [IoSliceMut::new(buffer)]))
    }

    #[track_caller]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        self.attempt(Direction::Read, |traps, id| {
            read_into(traps, id, &mut [IoSliceMut::new(buffer)])
        })
    }

    #[track_caller]
    pub(crate) fn read_vectored(
        &self,
        buffers: &mut [IoSliceMut<'_>],
    ) -> impl Future<Output = io::Result<usize>> {
        self.attempt(Direction::Read, |traps, id| read_into(traps, id, buffers))
    }

    #[track_caller]
    pub(crate) fn read_exact(
        &self,
        buffer: &mut [u8],
    ) -> impl Future<Output = Result<(), ReadExactError>> {
        let place = Location::caller();
        async move {
            self.begin(Direction::Read);
            let mut read = 0;
            while read < buffer.len() {
                let rest = &mut buffer[read..];
                let attempt =
                    |traps: &dyn Sockets| read_into(traps, self.id, &mut [IoSliceMut::new(rest)]);
                match when_ready_at(self.id, Direction::Read, attempt, place).await {
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
        self.attempt(Direction::Read, |traps, id| traps.peek(id, buffer))
    }

    pub(crate) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.call(|traps, id| traps.write(id, &[IoSlice::new(data)]))
    }

    #[track_caller]
    pub(crate) fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> {
        self.attempt(Direction::Write, |traps, id| traps.write(id, &[IoSlice::new(data)]))
    }

    #[track_caller]
    pub(crate) fn write_vectored(
        &self,
        buffers: &[IoSlice<'_>],
    ) -> impl Future<Output = io::Result<usize>> {
        self.attempt(Direction::Write, |traps, id| traps.write(id, buffers))
    }

    #[track_caller]
    pub(crate) fn write_all(&self, data: &[u8]) -> impl Future<Output = Result<(), WriteAllError>> {
        let place = Location::caller();
        async move {
            self.begin(Direction::Write);
            let mut written = 0;
            while written < data.len() {
                let rest = &data[written..];
                let attempt = |traps: &dyn Sockets| traps.write(self.id, &[IoSlice::new(rest)]);
                match when_ready_at(self.id, Direction::Write, attempt, place).await {
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
        self.attempt(Direction::Read, |traps, id| traps.receive(id, buffer))
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        data: &[u8],
        to: Option<Address>,
    ) -> impl Future<Output = io::Result<usize>> {
        self.attempt(Direction::Write, move |traps, id| traps.send(id, data, to.as_ref()))
    }

    pub(crate) fn local_address(&self) -> io::Result<Address> {
        self.call(|traps, id| traps.local_address(id))
    }

    pub(crate) fn peer_address(&self) -> io::Result<Address> {
        self.call(|traps, id| traps.peer_address(id))
    }

    pub(crate) fn set(&self, option: SocketOption) -> io::Result<()> {
        self.call(|traps, id| traps.set_option(id, option))
    }

    pub(crate) fn option(&self, which: SocketOption) -> io::Result<SocketOption> {
        self.call(|traps, id| traps.option(id, which))
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

/// Attempts to read. Without room in the buffers there is nothing to wait for, and the system is
/// not asked, since it would.
pub(crate) fn read_into(
    traps: &dyn Sockets,
    id: SocketId,
    buffers: &mut [IoSliceMut<'_>],
) -> io::Result<usize> {
    if buffers.iter().all(|buffer| buffer.is_empty()) {
        return Ok(0);
    }
    traps.read(id, buffers)
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
        Address::Unix(address) => Ok(address),
        Address::Ip(_) => Err(wrong_family("a Unix socket", "an internet")),
    }
}

/// The address that a path is.
pub(crate) fn unix_path(path: &Path) -> io::Result<Address> {
    unix::SocketAddr::from_pathname(path).map(Address::Unix)
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

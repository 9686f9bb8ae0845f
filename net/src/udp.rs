//! UDP.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;

use pikake_traps::{Address, OpenSocket, SocketOption, in_kernel};
#[cfg(feature = "dns")]
use pikake_traps::{Attempt, Direction};

use crate::address::{ToSocketAddrs, known_address, resolve};
use crate::datagram::datagrams;
use crate::error::in_context;
#[cfg(feature = "dns")]
use crate::socket::filled_in;
use crate::socket::{Socket, ip, wrong_option};

/// A UDP socket.
///
/// # Examples
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::UdpSocket;
/// use std::net::{Ipv4Addr, SocketAddr};
///
/// let socket = UdpSocket::bind("127.0.0.1:0").await?;
/// socket.send_to(b"ping", SocketAddr::from((Ipv4Addr::LOCALHOST, 7000))).await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
}

impl UdpSocket {
    /// Opens a socket at the first of a host's addresses that is available. With port 0 the system
    /// chooses a port.
    ///
    /// # Cancellation
    ///
    /// An interruption point while a name is looked up. A numeric address needs no wait.
    ///
    /// # Errors
    ///
    /// As for [`TcpListener::bind`](crate::TcpListener::bind).
    ///
    /// # Panics
    ///
    /// If called or polled outside a kernel.
    #[track_caller]
    pub fn bind<A: ToSocketAddrs>(to: A) -> impl Future<Output = io::Result<Self>> + use<A> {
        let resolving = resolve("bind", to);
        in_kernel(async move {
            let open = |address| Socket::open(OpenSocket::Udp(address));
            resolving.await?.first(open).map(|socket| Self { socket })
        })
    }

    /// Gives the socket a peer: the first of a host's addresses that it can send to.
    ///
    /// # Cancellation
    ///
    /// An interruption point while a name is looked up. A numeric address needs no wait.
    ///
    /// # Errors
    ///
    /// [`AddressErrors`](crate::AddressErrors) with every address that was tried; a name that has
    /// no address or is invalid; the interruption; [`Closed`](pikake_traps::Closed).
    ///
    /// # Panics
    ///
    /// When called with a name, or polled, outside a kernel.
    #[track_caller]
    pub fn connect<A: ToSocketAddrs>(&self, to: A) -> impl Future<Output = io::Result<()>> {
        let resolving = resolve("connect to", to);
        async move { resolving.await?.first(|address| self.socket.connect(&Address::Ip(address))) }
    }

    /// Sends a datagram to an address, or to the first address of a name, waiting until there is
    /// room.
    ///
    /// A name is looked up for each datagram. [`lookup_host`](crate::lookup_host) does so once for
    /// many.
    ///
    /// # Cancellation
    ///
    /// As for [`send`](Self::send). An interruption point while a name is looked up, too.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send), with the address; as
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) for a broadcast address, unless
    /// [`set_broadcast`](Self::set_broadcast) allowed it;
    /// [`AddressErrors`](crate::AddressErrors) for a name without an address.
    ///
    /// # Panics
    ///
    /// When called with a name outside a kernel, or polled outside a task of its kernel.
    #[track_caller]
    pub fn send_to<A: ToSocketAddrs>(
        &self,
        data: &[u8],
        to: A,
    ) -> impl Future<Output = io::Result<usize>> {
        let place = Location::caller();
        let known = known_address(&to);
        let resolving = known.is_none().then(|| resolve("send to", to));
        async move {
            let to = match (known, resolving) {
                (Some(address), _) => address,
                (None, Some(resolving)) => resolving.await?.first(Ok)?,
                (None, None) => unreachable!("an address that is not known is looked up"),
            };
            let sent = self.socket.send_at(place, data, Some(Address::Ip(to))).await;
            sent.map_err(|error| in_context(error, || format!("send to {to}")))
        }
    }

    /// Receives a datagram, if there is one. Never suspends.
    #[cfg(feature = "dns")]
    pub(crate) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut from = None;
        let length = self.socket.attempt(Attempt::Receive(buffer, &mut from))?;
        let from = filled_in(&mut from);
        Ok((length, ip(from)?))
    }

    /// Sends a datagram, if there is room. Never suspends.
    #[cfg(feature = "dns")]
    pub(crate) fn try_send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.attempt(Attempt::Send(data, Some(&Address::Ip(to))))
    }

    #[cfg(feature = "dns")]
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.ready(Direction::Read).await
    }

    #[cfg(feature = "dns")]
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket.ready(Direction::Write).await
    }

    /// Sets whether datagrams may be sent to broadcast addresses (`SO_BROADCAST`).
    ///
    /// # Errors
    ///
    /// [`Closed`](pikake_traps::Closed), or the system's error.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.socket.set(SocketOption::Broadcast(on))
    }

    /// Whether datagrams may be sent to broadcast addresses. Off for a new socket.
    ///
    /// # Errors
    ///
    /// [`Closed`](pikake_traps::Closed), or the system's error.
    pub fn broadcast(&self) -> io::Result<bool> {
        match self.socket.option(SocketOption::Broadcast(false))? {
            SocketOption::Broadcast(on) => Ok(on),
            other => Err(wrong_option(other)),
        }
    }

    datagrams!("pikake::net::UdpSocket", SocketAddr, ip, std::net::UdpSocket);
}

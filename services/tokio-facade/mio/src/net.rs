//! Sockets of the kernel.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net as unix;
use std::path::Path;

use pikake_traps::{Address, Attempt, OpenSocket, SocketOption};
use socket2::{Domain, SockAddr, Type};

use crate::socket::{Socket, is_simulated};

/// The traits of a type around a [`Socket`].
macro_rules! traits {
    ($($name:ident: $($direction:ident)*;)*) => {
        $(
            impl $crate::event::Source for $name {
                fn register(
                    &mut self,
                    registry: &$crate::Registry,
                    _: $crate::Token,
                    _: $crate::Interest,
                ) -> std::io::Result<()> {
                    self.0.register(registry)
                }

                fn reregister(
                    &mut self,
                    registry: &$crate::Registry,
                    _: $crate::Token,
                    _: $crate::Interest,
                ) -> std::io::Result<()> {
                    self.0.register(registry)
                }

                fn deregister(&mut self, _: &$crate::Registry) -> std::io::Result<()> {
                    Ok(())
                }
            }

            impl std::os::fd::AsRawFd for $name {
                #[track_caller]
                fn as_raw_fd(&self) -> std::os::fd::RawFd {
                    self.0.raw()
                }
            }

            impl std::os::fd::IntoRawFd for $name {
                #[track_caller]
                fn into_raw_fd(self) -> std::os::fd::RawFd {
                    std::os::fd::IntoRawFd::into_raw_fd(self.0.into_descriptor())
                }
            }

            impl std::os::fd::FromRawFd for $name {
                unsafe fn from_raw_fd(descriptor: std::os::fd::RawFd) -> Self {
                    // SAFETY: the caller gives an open descriptor, which is this one's from now on.
                    let owned = unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) };
                    Self($crate::socket::Socket::Fresh(owned))
                }
            }

            $($crate::net::traits! { @$direction $name })*
        )*
    };
    (@read $name:ident) => {
        impl std::io::Read for $name {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(to)
            }

            fn read_vectored(&mut self, to: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.0.read_vectored(to)
            }
        }

        impl std::io::Read for &$name {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(to)
            }

            fn read_vectored(&mut self, to: &mut [std::io::IoSliceMut<'_>]) -> std::io::Result<usize> {
                self.0.read_vectored(to)
            }
        }
    };
    (@write $name:ident) => {
        impl std::io::Write for $name {
            fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
                self.0.write(from)
            }

            fn write_vectored(&mut self, from: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.0.write_vectored(from)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        impl std::io::Write for &$name {
            fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
                self.0.write(from)
            }

            fn write_vectored(&mut self, from: &[std::io::IoSlice<'_>]) -> std::io::Result<usize> {
                self.0.write_vectored(from)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
    };
}

pub(crate) use traits;

/// A connection of TCP.
#[derive(Debug)]
pub struct TcpStream(Socket);

/// A listener of TCP.
#[derive(Debug)]
pub struct TcpListener(Socket);

/// A socket of UDP.
#[derive(Debug)]
pub struct UdpSocket(Socket);

/// A stream between processes.
#[derive(Debug)]
pub struct UnixStream(Socket);

/// A listener for streams between processes.
#[derive(Debug)]
pub struct UnixListener(Socket);

/// A datagram socket between processes.
#[derive(Debug)]
pub struct UnixDatagram(Socket);

traits! {
    TcpStream: read write;
    TcpListener:;
    UdpSocket:;
    UnixStream: read write;
    UnixListener:;
    UnixDatagram:;
}

/// Makes a type of a socket of the standard library, and gives it the calls that each has.
macro_rules! common {
    ($($name:ident: $std:ty, $address:ty, $convert:ident;)*) => {
        $(
            impl $name {
                /// A socket of the standard library, which must not block.
                pub fn from_std(socket: $std) -> Self {
                    Self(Socket::Fresh(socket.into()))
                }

                /// The address on this side.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn local_addr(&self) -> io::Result<$address> {
                    $convert(self.0.local_address()?)
                }

                /// The error that the socket has for its owner.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                    if is_simulated() {
                        return Ok(None);
                    }
                    self.0.by_system(|socket| socket.take_error())
                }

                /// Makes a call on the socket's descriptor.
                ///
                /// # Errors
                ///
                /// Those of the call.
                pub fn try_io<R>(&self, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
                    call()
                }
            }
        )*
    };
}

common! {
    TcpStream: std::net::TcpStream, SocketAddr, ip;
    TcpListener: std::net::TcpListener, SocketAddr, ip;
    UdpSocket: std::net::UdpSocket, SocketAddr, ip;
    UnixStream: unix::UnixStream, unix::SocketAddr, unix_address;
    UnixListener: unix::UnixListener, unix::SocketAddr, unix_address;
    UnixDatagram: unix::UnixDatagram, unix::SocketAddr, unix_address;
}

/// The calls of a socket that has a peer.
macro_rules! connected {
    ($($name:ident: $address:ty, $convert:ident;)*) => {
        $(
            impl $name {
                /// The address on the other side.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn peer_addr(&self) -> io::Result<$address> {
                    $convert(self.0.peer_address()?)
                }

                /// Ends one or both directions.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                    self.0.attempt(Attempt::Shutdown(how)).map(drop)
                }
            }
        )*
    };
}

connected! {
    TcpStream: SocketAddr, ip;
    UdpSocket: SocketAddr, ip;
    UnixStream: unix::SocketAddr, unix_address;
    UnixDatagram: unix::SocketAddr, unix_address;
}

/// Calls on the system's socket.
macro_rules! by_system {
    ($($name:ident { $($call:ident($($argument:ident: $type:ty),*) -> $output:ty = $inner:ident;)* })*) => {
        $(
            impl $name {
                $(
                    /// A call on the system's socket.
                    ///
                    /// # Errors
                    ///
                    /// The system's.
                    pub fn $call(&self, $($argument: $type),*) -> io::Result<$output> {
                        self.0.by_system(|socket| socket.$inner($($argument),*))
                    }
                )*
            }
        )*
    };
}

by_system! {
    TcpStream {
        ttl() -> u32 = ttl_v4;
        set_ttl(ttl: u32) -> () = set_ttl_v4;
    }
    TcpListener {
        ttl() -> u32 = ttl_v4;
        set_ttl(ttl: u32) -> () = set_ttl_v4;
    }
    UdpSocket {
        ttl() -> u32 = ttl_v4;
        set_ttl(ttl: u32) -> () = set_ttl_v4;
        multicast_loop_v4() -> bool = multicast_loop_v4;
        set_multicast_loop_v4(on: bool) -> () = set_multicast_loop_v4;
        multicast_ttl_v4() -> u32 = multicast_ttl_v4;
        set_multicast_ttl_v4(ttl: u32) -> () = set_multicast_ttl_v4;
        multicast_loop_v6() -> bool = multicast_loop_v6;
        set_multicast_loop_v6(on: bool) -> () = set_multicast_loop_v6;
        join_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> () = join_multicast_v4;
        join_multicast_v6(group: &Ipv6Addr, interface: u32) -> () = join_multicast_v6;
        leave_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> () = leave_multicast_v4;
        leave_multicast_v6(group: &Ipv6Addr, interface: u32) -> () = leave_multicast_v6;
    }
}

/// Datagrams.
macro_rules! datagrams {
    ($($name:ident: $convert:ident -> $address:ty;)*) => {
        $(
            impl $name {
                /// Sends a datagram to the peer.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn send(&self, data: &[u8]) -> io::Result<usize> {
                    self.0.attempt(Attempt::Send(data, None))
                }

                /// Receives a datagram.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn recv(&self, to: &mut [u8]) -> io::Result<usize> {
                    self.0.attempt(Attempt::Receive(to, &mut None))
                }

                /// Receives a datagram, and says who sent it.
                ///
                /// # Errors
                ///
                /// The system's.
                pub fn recv_from(&self, to: &mut [u8]) -> io::Result<(usize, $address)> {
                    let mut from = None;
                    let length = self.0.attempt(Attempt::Receive(to, &mut from))?;
                    Ok((length, $convert(from.ok_or_else(no_address)?)?))
                }
            }
        )*
    };
}

datagrams! {
    UdpSocket: ip -> SocketAddr;
    UnixDatagram: unix_address -> unix::SocketAddr;
}

impl TcpStream {
    /// Begins to connect.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Socket::open(OpenSocket::TcpStream(address)).map(Self)
    }

    /// Begins to connect this socket; in a simulated kernel a new one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn connect_by(socket: OwnedFd, address: SocketAddr) -> io::Result<Self> {
        if is_simulated() {
            return Self::connect(address);
        }
        let socket = socket2::Socket::from(socket);
        socket.set_nonblocking(true)?;
        start(socket.connect(&address.into()))?;
        Socket::connecting(socket.into()).map(Self)
    }

    /// Reads without taking the bytes.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
        self.0.attempt(Attempt::Peek(to))
    }

    /// Whether small writes are sent at once.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn nodelay(&self) -> io::Result<bool> {
        let mut option = SocketOption::NoDelay(false);
        self.0.attempt(Attempt::GetOption(&mut option))?;
        Ok(option == SocketOption::NoDelay(true))
    }

    /// Has small writes sent at once.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_nodelay(&self, at_once: bool) -> io::Result<()> {
        self.0.attempt(Attempt::SetOption(SocketOption::NoDelay(at_once))).map(drop)
    }
}

impl TcpListener {
    /// A listener at an address.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Socket::open(OpenSocket::TcpListener(address, 1024)).map(Self)
    }

    /// Has this socket listen, which has its address; in a simulated kernel a new one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen_by(socket: OwnedFd, address: SocketAddr, backlog: u32) -> io::Result<Self> {
        if is_simulated() {
            return Socket::open(OpenSocket::TcpListener(address, backlog)).map(Self);
        }
        let socket = socket2::Socket::from(socket);
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Self(Socket::Fresh(socket.into())))
    }

    /// Takes a connection.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, address) = self.0.accept()?;
        Ok((TcpStream(socket), ip(address)?))
    }
}

impl UdpSocket {
    /// A socket at an address.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Socket::open(OpenSocket::Udp(address)).map(Self)
    }

    /// Gives the socket a peer.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        self.0.attempt(Attempt::Connect(&Address::Ip(address))).map(drop)
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn send_to(&self, data: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.0.attempt(Attempt::Send(data, Some(&Address::Ip(address))))
    }

    /// Receives a datagram without taking it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
        self.0.attempt(Attempt::Peek(to))
    }

    /// Receives a datagram without taking it, and says who sent it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn peek_from(&self, to: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        // Marks the socket as not ready, if so.
        let length = self.0.attempt(Attempt::Peek(to))?;
        let mut none = [];
        let (_, address) = self.0.by_system(|socket| socket.peek_from(&mut none))?;
        Ok((length, address.as_socket().ok_or_else(no_address)?))
    }

    /// Whether the socket may send to a broadcast address.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn broadcast(&self) -> io::Result<bool> {
        let mut option = SocketOption::Broadcast(false);
        self.0.attempt(Attempt::GetOption(&mut option))?;
        Ok(option == SocketOption::Broadcast(true))
    }

    /// Lets the socket send to a broadcast address.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.0.attempt(Attempt::SetOption(SocketOption::Broadcast(on))).map(drop)
    }
}

impl UnixStream {
    /// Begins to connect.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn connect_addr(address: &unix::SocketAddr) -> io::Result<Self> {
        if let Some(path) = address.as_pathname() {
            return Socket::open(OpenSocket::UnixStream(path)).map(Self);
        }
        let socket =
            socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        start(socket.connect(&named(address)?))?;
        Socket::connecting(socket.into()).map(Self)
    }

    /// Two streams that are connected to each other.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn pair() -> io::Result<(Self, Self)> {
        if is_simulated() {
            let (one, other) = Socket::open_pair(OpenSocket::UnixStreamPair)?;
            return Ok((Self(one), Self(other)));
        }
        let (one, other) = unix::UnixStream::pair()?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok((Self::from_std(one), Self::from_std(other)))
    }
}

impl UnixListener {
    /// A listener at an address.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn bind_addr(address: &unix::SocketAddr) -> io::Result<Self> {
        let is_inside = pikake_traps::door::current_kernel().is_some();
        if let Some(path) = address.as_pathname().filter(|_| is_inside) {
            return Socket::open(OpenSocket::UnixListener(path, 1024)).map(Self);
        }
        let socket =
            socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        socket.bind(&named(address)?)?;
        socket.listen(1024)?;
        Ok(Self(Socket::Fresh(socket.into())))
    }

    /// Takes a connection.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn accept(&self) -> io::Result<(UnixStream, unix::SocketAddr)> {
        let (socket, address) = self.0.accept()?;
        Ok((UnixStream(socket), unix_address(address)?))
    }
}

impl UnixDatagram {
    /// A socket at a path.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Socket::open(OpenSocket::UnixDatagram(Some(path.as_ref()))).map(Self)
    }

    /// A socket without an address.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn unbound() -> io::Result<Self> {
        Socket::open(OpenSocket::UnixDatagram(None)).map(Self)
    }

    /// Two sockets that are connected to each other.
    ///
    /// # Errors
    ///
    /// The system's.
    #[track_caller]
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = Socket::open_pair(OpenSocket::UnixDatagramPair)?;
        Ok((Self(one), Self(other)))
    }

    /// Gives the socket a peer.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.0.attempt(Attempt::Connect(&at_path(path.as_ref())?)).map(drop)
    }

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn send_to(&self, data: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.0.attempt(Attempt::Send(data, Some(&at_path(path.as_ref())?)))
    }
}

/// A connection that is being made is no error.
fn start(connected: io::Result<()>) -> io::Result<()> {
    match connected {
        Err(error)
            if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
        {
            Ok(())
        }
        result => result,
    }
}

fn ip(address: Address) -> io::Result<SocketAddr> {
    match address {
        Address::Ip(address) => Ok(address),
        Address::Unix(_) => Err(no_address()),
    }
}

fn unix_address(address: Address) -> io::Result<unix::SocketAddr> {
    match address {
        Address::Unix(address) => Ok(*address),
        Address::Ip(_) => Err(no_address()),
    }
}

fn at_path(path: &Path) -> io::Result<Address> {
    Ok(Address::Unix(Box::new(unix::SocketAddr::from_pathname(path)?)))
}

/// An address, as the system takes it.
fn named(address: &unix::SocketAddr) -> io::Result<SockAddr> {
    use std::os::linux::net::SocketAddrExt;
    if let Some(path) = address.as_pathname() {
        return SockAddr::unix(path);
    }
    let name = address.as_abstract_name().unwrap_or_default();
    SockAddr::unix(std::os::unix::ffi::OsStrExt::from_bytes([b"\0", name].concat().as_slice())
        as &std::ffi::OsStr)
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel gave no address of this family")
}

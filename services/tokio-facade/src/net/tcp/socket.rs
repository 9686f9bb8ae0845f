//! A TCP socket before it is connected or listens.
//!
//! Its options are set on the system's socket. A simulated kernel has no such sockets: there the
//! connection or the listener is opened without the options.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::listener::TcpListener;
use super::stream::TcpStream;

/// A TCP socket that has not been connected, and does not listen.
#[derive(Debug)]
pub struct TcpSocket {
    inner: Socket,
    /// The address of a listener in a simulated kernel.
    bound: std::sync::OnceLock<SocketAddr>,
}

/// Methods of the system's socket.
macro_rules! forwarded {
    ($($name:ident($($argument:ident: $type:ty),*) -> $output:ty = $inner:ident;)*) => {
        $(
            /// See the method of this name in the documentation of tokio.
            ///
            /// # Errors
            ///
            /// The system's.
            pub fn $name(&self, $($argument: $type),*) -> io::Result<$output> {
                self.inner.$inner($($argument),*)
            }
        )*
    };
}

/// Methods of the system's socket about the size of a buffer.
macro_rules! sizes {
    ($($set:ident, $get:ident = $inner_set:ident, $inner_get:ident;)*) => {
        $(
            /// See the method of this name in the documentation of tokio.
            ///
            /// # Errors
            ///
            /// The system's.
            pub fn $set(&self, size: u32) -> io::Result<()> {
                self.inner.$inner_set(size as usize)
            }

            /// See the method of this name in the documentation of tokio.
            ///
            /// # Errors
            ///
            /// The system's.
            pub fn $get(&self) -> io::Result<u32> {
                self.inner.$inner_get().map(|size| size as u32)
            }
        )*
    };
}

impl TcpSocket {
    /// A socket of IPv4.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn new_v4() -> io::Result<Self> {
        Self::new(Domain::IPV4)
    }

    /// A socket of IPv6.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn new_v6() -> io::Result<Self> {
        Self::new(Domain::IPV6)
    }

    fn new(domain: Domain) -> io::Result<Self> {
        let inner = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        Ok(Self::around(inner))
    }

    fn around(inner: Socket) -> Self {
        Self { inner, bound: std::sync::OnceLock::new() }
    }

    /// A socket that was made by other means, and is not connected.
    pub fn from_std_stream(stream: std::net::TcpStream) -> Self {
        Self::around(stream.into())
    }

    forwarded! {
        set_keepalive(keep: bool) -> () = set_keepalive;
        keepalive() -> bool = keepalive;
        set_reuseaddr(reuse: bool) -> () = set_reuse_address;
        reuseaddr() -> bool = reuse_address;
        set_reuseport(reuse: bool) -> () = set_reuse_port;
        reuseport() -> bool = reuse_port;
        set_linger(length: Option<Duration>) -> () = set_linger;
        linger() -> Option<Duration> = linger;
        set_nodelay(at_once: bool) -> () = set_tcp_nodelay;
        nodelay() -> bool = tcp_nodelay;
        tclass_v6() -> u32 = tclass_v6;
        set_tclass_v6(class: u32) -> () = set_tclass_v6;
        tos_v4() -> u32 = tos_v4;
        tos() -> u32 = tos_v4;
        set_tos_v4(service: u32) -> () = set_tos_v4;
        set_tos(service: u32) -> () = set_tos_v4;
        device() -> Option<Vec<u8>> = device;
        bind_device(name: Option<&[u8]>) -> () = bind_device;
        take_error() -> Option<io::Error> = take_error;
    }

    sizes! {
        set_send_buffer_size, send_buffer_size = set_send_buffer_size, send_buffer_size;
        set_recv_buffer_size, recv_buffer_size = set_recv_buffer_size, recv_buffer_size;
    }

    /// Has a drop reset the connection.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.inner.set_linger(Some(Duration::ZERO))
    }

    /// The socket's own address.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        if let Some(bound) = self.bound.get() {
            return Ok(*bound);
        }
        let unknown = || io::Error::new(io::ErrorKind::InvalidInput, "not an internet address");
        self.inner.local_addr()?.as_socket().ok_or_else(unknown)
    }

    /// Gives the socket an address.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        if pikake_traps::door::current_kernel().is_some() && pikake_traps::system().is_err() {
            let _ = self.bound.set(address);
            return Ok(());
        }
        self.inner.bind(&address.into())
    }

    /// Connects the socket.
    ///
    /// # Errors
    ///
    /// The system's.
    pub async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = mio::net::TcpStream::connect_by(self.inner.into(), address)?;
        TcpStream::connect_mio(stream).await
    }

    /// Makes the socket a listener, with this length of its queue.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        let address = self.local_addr()?;
        TcpListener::new(mio::net::TcpListener::listen_by(self.inner.into(), address, backlog)?)
    }
}

impl AsRawFd for TcpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl IntoRawFd for TcpSocket {
    fn into_raw_fd(self) -> RawFd {
        self.inner.into_raw_fd()
    }
}

impl FromRawFd for TcpSocket {
    unsafe fn from_raw_fd(descriptor: RawFd) -> Self {
        // SAFETY: the caller gives an open descriptor, which is this socket's from now on.
        Self::around(Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }
}

//! Sockets of the kernel, in tokio's names.

pub mod tcp;

tokio_files! {
    "../../../../target/tokio-source/src/net/addr.rs" mod addr;
    "../../../../target/tokio-source/src/net/lookup_host.rs" mod lookup_host;
    "../../../../target/tokio-source/src/net/udp.rs" mod udp;
    "../../../../target/tokio-source/src/net/unix/mod.rs" pub mod unix;
}

pub(crate) use addr::to_socket_addrs;
pub use addr::ToSocketAddrs;
pub use lookup_host::lookup_host;
pub use tcp::listener::TcpListener;
pub use tcp::socket::TcpSocket;
pub use tcp::stream::TcpStream;
pub use udp::UdpSocket;
pub use unix::datagram::socket::UnixDatagram;
pub use unix::listener::UnixListener;
pub use unix::socket::UnixSocket;
pub use unix::stream::UnixStream;

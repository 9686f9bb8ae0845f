//! The other end of a connection, as a server knows it.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use pikake_net::{MemoryStream, PeerCredentials, Read, TcpStream, UnixStream, Write};

/// The other end of a connection.
///
/// # Examples
///
/// A server on a Unix socket that takes calls of its own user only:
///
/// ```
/// use pikake::rpc::{Answer, Peer, Server};
///
/// fn is_trusted(peer: &Peer, own_uid: u32) -> bool {
///     peer.credentials.is_some_and(|credentials| credentials.uid == own_uid)
/// }
///
/// let server = Server::new().intercept(async |call, next| match is_trusted(&call.peer, 1000) {
///     true => next.await,
///     false => Answer::refused("this server is of another user"),
/// });
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Peer {
    /// The address, as text.
    pub address: String,
    /// The address of a client over TCP, also below TLS.
    pub socket_addr: Option<SocketAddr>,
    /// The process, of a Unix socket; `None` for other streams, in simulations, and where the
    /// system does not know.
    pub credentials: Option<PeerCredentials>,
    /// The certificates that the peer has sent, as DER: the first is the peer's, the next one signs
    /// it, and so on. The peer has proved that it has the key of the first. Empty without TLS, and
    /// if the server asked for none.
    pub certificates: Vec<Vec<u8>>,
}

impl Peer {
    /// A peer of which only the address is known.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            socket_addr: None,
            credentials: None,
            certificates: Vec::new(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

/// A stream on which a server answers calls.
///
/// Implement it for a stream of one's own that says more of its other end.
pub trait Transport: Read + Write + 'static {
    /// The other end. Called once for each connection, after the handshake of TLS.
    fn peer(&self) -> Peer;

    /// Has the stream send small packets at once, where it would otherwise wait for more bytes.
    /// Called once for each connection. By default it does nothing.
    ///
    /// # Errors
    ///
    /// The system's.
    fn send_at_once(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for TcpStream {
    fn peer(&self) -> Peer {
        let socket_addr = self.peer_addr().ok();
        let address = socket_addr.map_or_else(|| "TCP".to_owned(), |address| address.to_string());
        Peer { socket_addr, ..Peer::new(address) }
    }

    fn send_at_once(&self) -> io::Result<()> {
        self.set_nodelay(true)
    }
}

impl Transport for UnixStream {
    fn peer(&self) -> Peer {
        match self.peer_credentials() {
            Ok(credentials) => {
                let address = match credentials {
                    PeerCredentials { uid, pid: Some(pid), .. } => {
                        format!("process {pid} of user {uid}")
                    }
                    PeerCredentials { uid, .. } => format!("a process of user {uid}"),
                };
                Peer { credentials: Some(credentials), ..Peer::new(address) }
            }
            Err(_) => Peer::new("a Unix socket"),
        }
    }
}

impl Transport for MemoryStream {
    fn peer(&self) -> Peer {
        Peer::new("memory")
    }
}

#[cfg(feature = "tls")]
impl<S: Transport> Transport for pikake_net::tls::TlsStream<S> {
    fn peer(&self) -> Peer {
        let certificates = self.peer_certificates();
        Peer {
            certificates: certificates.iter().map(|certificate| certificate.to_vec()).collect(),
            ..self.get_ref().peer()
        }
    }

    fn send_at_once(&self) -> io::Result<()> {
        self.get_ref().send_at_once()
    }
}

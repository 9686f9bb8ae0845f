//! What precedes HTTP on a connection: nothing, or a TLS handshake.

use std::future::Future;
use std::io;

#[cfg(feature = "tls")]
use pikake_net::tls::{Identity, TlsAcceptor, TlsAcceptorBuilder, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite};

/// What precedes HTTP on a connection `C`.
pub trait Handshake<C>: Clone + 'static {
    /// The stream that carries HTTP.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Waits until the stream carries HTTP.
    fn establish(&self, connection: C) -> impl Future<Output = io::Result<Self::Stream>>;
}

/// HTTP from the first byte.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl<C: AsyncRead + AsyncWrite + Unpin + 'static> Handshake<C> for Plain {
    type Stream = C;

    async fn establish(&self, connection: C) -> io::Result<C> {
        Ok(connection)
    }
}

/// The protocols that a server speaks over TLS, best first, for
/// [`TlsAcceptorBuilder::alpn`](pikake_net::tls::TlsAcceptorBuilder::alpn).
#[cfg(feature = "tls")]
pub const ALPN: [&str; 2] = ["h2", "http/1.1"];

/// HTTP over TLS.
#[cfg(feature = "tls")]
#[derive(Clone, Debug)]
pub struct Tls(TlsAcceptor);

#[cfg(feature = "tls")]
impl<C> Handshake<C> for Tls
where
    C: pikake_net::Read + pikake_net::Write + 'static,
    TlsStream<C>: AsyncRead + AsyncWrite + Unpin,
{
    type Stream = TlsStream<C>;

    async fn establish(&self, connection: C) -> io::Result<TlsStream<C>> {
        self.0.accept(connection).await
    }
}

/// An identity, or more of a configuration, for [`Server::tls`](crate::Server::tls).
#[cfg(feature = "tls")]
pub trait IntoTls {
    /// Builds what accepts TLS.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), if the key does not match the certificate.
    fn into_tls(self) -> io::Result<Tls>;
}

/// Offers [`ALPN`].
#[cfg(feature = "tls")]
impl IntoTls for Identity {
    fn into_tls(self) -> io::Result<Tls> {
        TlsAcceptor::builder(self).into_tls()
    }
}

/// Offers [`ALPN`].
#[cfg(feature = "tls")]
impl IntoTls for TlsAcceptorBuilder {
    fn into_tls(self) -> io::Result<Tls> {
        self.alpn(ALPN).build().map(Tls)
    }
}

/// Offers what the acceptor was built to offer.
#[cfg(feature = "tls")]
impl IntoTls for TlsAcceptor {
    fn into_tls(self) -> io::Result<Tls> {
        Ok(Tls(self))
    }
}

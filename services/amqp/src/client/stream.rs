//! The transport of a connection: TCP, or TLS over TCP.
//!
//! A stream can read some and write all bytes. Dropping the stream closes it.

#[cfg(feature = "tls")]
mod tls;

use std::io;
use std::time::Duration;

use pikake_net::TcpStream;
#[cfg(feature = "tls")]
use pikake_net::tls::TlsStream;

use crate::client::address::Address;
use crate::error::Error;

/// The transport of a connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects. `limit` bounds the TLS handshake.
    pub(crate) async fn connect(address: &Address, limit: Duration) -> Result<Self, Error> {
        match address.is_tls() {
            true => Self::connect_tls(address, limit).await,
            false => Ok(Self::Tcp(tcp(address).await?)),
        }
    }

    #[cfg(feature = "tls")]
    async fn connect_tls(address: &Address, limit: Duration) -> Result<Self, Error> {
        let connector = tls::connector(&address.query().tls, limit).await?;
        let stream = tcp(address).await?;
        let made = tls::handshake(&connector, address, stream).await;
        Ok(Self::Tls(made.map_err(|source| address.connect_error(source))?.into()))
    }

    #[cfg(not(feature = "tls"))]
    async fn connect_tls(_: &Address, _: Duration) -> Result<Self, Error> {
        let what = "the broker's URL: amqps:// needs TLS, but this client is built without its \
                    feature `tls`";
        Err(Error::Invalid(what.to_owned()))
    }

    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer).await,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer).await.map_err(tls::with_advice),
        }
    }

    pub(crate) async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => Ok(stream.write_all(data).await?),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Ok(stream.write_all(data).await?),
        }
    }
}

async fn tcp(address: &Address) -> Result<TcpStream, Error> {
    let connecting = async {
        let stream = TcpStream::connect((address.host(), address.port())).await?;
        // The writer already batches, so Nagle's algorithm would only delay.
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    connecting.await.map_err(|source| address.connect_error(source))
}

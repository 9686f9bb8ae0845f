//! The transport of a connection to Redis: TCP, or TLS over TCP. A stream can read some and write
//! all bytes, and is closed when it is dropped.

use std::io;

use pikake_net::TcpStream;
#[cfg(feature = "tls")]
use pikake_net::tls::TlsStream;

use super::address::Address;

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &address.tls {
            // The files are read anew for each connection, since certificates are renewed while
            // programs run.
            let connector = tls::connector(tls).await?;
            let stream = tcp(address).await?;
            return Ok(Self::Tls(Box::new(connector.connect(&address.host, stream).await?)));
        }
        Ok(Self::Tcp(tcp(address).await?))
    }

    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer).await,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer).await,
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

async fn tcp(address: &Address) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((&*address.host, address.port)).await?;
    // The writer already batches, so Nagle's algorithm would only delay.
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(feature = "tls")]
mod tls {
    use std::io;
    use std::path::Path;

    use pikake_net::in_context;
    use pikake_net::tls::{Identity, TlsConnector};
    use pikake_traps::{TaskError, blocking};

    use crate::results::redis::address::Tls;

    pub(super) async fn connector(tls: &Tls) -> io::Result<TlsConnector> {
        let tls = tls.clone();
        match blocking(move || build(&tls)).await {
            Ok(built) => built,
            Err(TaskError::Interrupted(why)) => Err(why.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn build(tls: &Tls) -> io::Result<TlsConnector> {
        let read = |name, path: &Path| {
            std::fs::read(path)
                .map_err(|error| in_context(error, || format!("`{name}={}`", path.display())))
        };
        let builder = TlsConnector::builder();
        let builder = match &tls.roots {
            _ if tls.is_unverified => builder.dangerous_unverified(),
            Some(path) => builder.roots_pem(&read("ssl_ca_certs", path)?)?,
            None => builder.platform_roots()?,
        };
        let Some(certificate) = &tls.certificate else { return builder.build() };
        let key = tls.key.as_deref().unwrap_or(certificate);
        let identity =
            Identity::from_pem(&read("ssl_certfile", certificate)?, &read("ssl_keyfile", key)?)?;
        builder.identity(identity).build()
    }
}

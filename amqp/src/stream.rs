//! What a connection runs over: the seam for TLS.
//!
//! All that the driver asks of a stream is here: read some, write all, close. To add TLS is to add a
//! variant that is connected by `connect` for an `amqps://` address, and a line in each method.

use std::io;

use pikake_net::TcpStream;

use crate::address::Address;

/// What a connection runs over.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        if address.is_tls() {
            let what = "amqps:// needs TLS, which this client is not built with";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let stream = TcpStream::connect((address.host(), address.port())).await?;
        // What is written together is written at once; to wait for more would only delay it.
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer).await,
        }
    }

    pub(crate) async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => Ok(stream.write_all(data).await?),
        }
    }
}

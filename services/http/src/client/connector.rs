//! Dialing: a socket, the proxy's tunnel, TLS with ALPN, and hyper's handshake.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use pikake_net::{Resolver, TcpStream};
use pikake_traps::{Builder, Task, timeout_after};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::{Carrier, Connection, Sender};
use super::route::{Route, Via};
#[cfg(feature = "tls")]
use super::secure::Tls;
#[cfg(feature = "tls")]
use super::tunnel::open_tunnel;
use crate::{Executor, Io, Timer};

/// How long a busy HTTP/2 connection may be silent before the client sends a ping.
const PING_AFTER: Duration = Duration::from_secs(20);

/// How long the server may take to answer a ping before the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Which versions of HTTP the client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Versions {
    /// Over TLS whichever the server chooses, HTTP/1.1 otherwise.
    Both,
    Http1,
    Http2,
}

/// Why a connection could not be made. Clones share the cause, since several requests may wait for
/// one connection.
#[derive(Clone, Debug)]
pub(crate) struct DialError(Arc<io::Error>);

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for DialError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// A stream that carries HTTP, and whether as HTTP/2.
struct Carried {
    stream: Box<dyn Stream>,
    is_http2: bool,
}

#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) versions: Versions,
    pub(crate) timeout: Duration,
    pub(crate) resolver: Option<Resolver>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Tls,
}

impl Connector {
    /// Makes a connection, within the timeout.
    pub(crate) async fn dial(&self, route: &Route) -> Result<Connection, DialError> {
        let dialed = timeout_after(self.timeout, self.dial_now(route)).await;
        Ok(dialed.unwrap_or_else(|_| {
            let text = format!("no connection to {route} within {:?}", self.timeout);
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        })?)
    }

    async fn dial_now(&self, route: &Route) -> io::Result<Connection> {
        let (host, port) = match &route.via {
            Via::Tunnel(proxy) => (proxy.host.as_str(), proxy.port),
            Via::Direct | Via::Forward(_) => (route.host.as_str(), route.port),
        };
        let socket = match &self.resolver {
            Some(resolver) => resolver.connect((host, port)).await?,
            None => TcpStream::connect((host, port)).await?,
        };
        socket.set_nodelay(true)?;
        let peer = socket.peer_addr()?;
        let socket = Rc::new(socket);
        let probe = Rc::downgrade(&socket);
        let Carried { stream, is_http2 } = self.carry(socket, route).await?;
        let io = Io::new(stream);
        let (sender, driver) = if is_http2 {
            let mut builder = http2::Builder::new(Executor);
            builder.timer(Timer::new());
            builder.keep_alive_interval(PING_AFTER).keep_alive_timeout(PING_TIMEOUT);
            let (sender, driving) = builder.handshake(io).await.map_err(io::Error::other)?;
            (Sender::Http2(sender), drive(driving))
        } else {
            let (sender, driving) = http1::handshake(io).await.map_err(io::Error::other)?;
            (Sender::Http1(sender), drive(driving))
        };
        Ok(Connection::new(sender, driver, probe, peer))
    }

    #[cfg(feature = "tls")]
    async fn carry(&self, socket: Rc<TcpStream>, route: &Route) -> io::Result<Carried> {
        match &route.via {
            Via::Tunnel(proxy) if proxy.is_tls => {
                let outer =
                    self.tls.connectors().await?.to_proxy.connect(&proxy.host, socket).await?;
                open_tunnel(&outer, proxy, &route.authority()).await?;
                self.secure(outer, route).await
            }
            Via::Tunnel(proxy) => {
                open_tunnel(&socket, proxy, &route.authority()).await?;
                self.secure(socket, route).await
            }
            Via::Forward(_) if route.is_tls => {
                let stream =
                    self.tls.connectors().await?.to_proxy.connect(&route.host, socket).await?;
                Ok(Carried { stream: Box::new(stream), is_http2: false })
            }
            Via::Direct if route.is_tls => self.secure(socket, route).await,
            Via::Direct | Via::Forward(_) => Ok(self.plain(socket, route)),
        }
    }

    #[cfg(not(feature = "tls"))]
    async fn carry(&self, socket: Rc<TcpStream>, route: &Route) -> io::Result<Carried> {
        if route.is_tls {
            let text = "https:// needs the feature `tls`";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(self.plain(socket, route))
    }

    fn plain(&self, socket: Rc<TcpStream>, route: &Route) -> Carried {
        // Proxies forward HTTP/1.1.
        let is_http2 = self.versions == Versions::Http2 && route.via == Via::Direct;
        Carried { stream: Box::new(Carrier(socket)), is_http2 }
    }

    /// TLS to the server. ALPN chooses the version.
    #[cfg(feature = "tls")]
    async fn secure<S>(&self, stream: S, route: &Route) -> io::Result<Carried>
    where
        S: pikake_net::Read + pikake_net::Write + 'static,
    {
        let stream = self.tls.connectors().await?.to_server.connect(&route.host, stream).await?;
        let is_http2 = stream.alpn_protocol().as_deref() == Some(b"h2");
        if self.versions == Versions::Http2 && !is_http2 {
            let text = format!("{route} does not speak HTTP/2");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(Carried { stream: Box::new(stream), is_http2 })
    }
}

/// Spawns the task that moves a connection's bytes. It ends, and closes the socket, with the
/// connection.
fn drive<F, E>(driving: F) -> Task<()>
where
    F: Future<Output = Result<(), E>> + 'static,
    E: fmt::Display,
{
    let work = async move {
        if let Err(error) = driving.await {
            tracing::debug!(%error, "an HTTP connection ended");
        }
    };
    Builder::new().name("http connection").spawn(work)
}

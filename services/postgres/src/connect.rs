//! Connecting: the hosts in order, until one has the session that is asked for; and requests to
//! cancel.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_net::{TcpStream, UnixStream};
use pikake_traps::{Interrupted, future_wait, shield, timeout_after};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Notification, SimpleQueryMessage};

use crate::config::{Config, Server};
use crate::error::{ConnectError, Error, Fate, Refusal};
use crate::wire::{Negotiation, Seen, Transport, Wire};

/// The half of a connection that moves bytes. Nothing happens on the connection unless it is
/// polled.
pub(crate) trait Driver {
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>>;
}

impl<S: Transport> Driver for tokio_postgres::Connection<S, Wire<S>> {
    fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<AsyncMessage, tokio_postgres::Error>>> {
        Self::poll_message(self, cx)
    }
}

/// A session with a server.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) seen: Rc<Seen>,
    pub(crate) server: Server,
    /// Notifications that came while requests were awaited.
    pub(crate) notifications: VecDeque<Notification>,
}

/// Why there is no session with a host.
enum Failure {
    Refused(Refusal),
    Interrupted(Interrupted),
    /// No host can be connected to with this configuration.
    Config(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match pikake_net::interruption(&error) {
            Some(why) => Self::Interrupted(why.clone()),
            None => Self::Refused(Refusal::Io(error.into())),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Interrupted { why, .. } => Self::Interrupted(why),
            Error::Config(_) => Self::Config(error),
            other => Self::Refused(Refusal::Server(other)),
        }
    }
}

impl From<Interrupted> for Failure {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

impl Session {
    /// Connects to the first host that has the session asked for.
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        let mut attempts = Vec::new();
        for server in config.servers()? {
            let name = server.to_string();
            let opening = timeout_after(config.limit(), Self::open_on(config, server)).await;
            let refusal = match opening {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(Failure::Interrupted(why))) => return Err(why.into()),
                Ok(Err(Failure::Config(error))) => return Err(error),
                Ok(Err(Failure::Refused(refusal))) => refusal,
                Err(_) => Refusal::TimedOut,
            };
            attempts.push((name, refusal));
        }
        Err(Error::Connect(ConnectError { attempts }))
    }

    async fn open_on(config: &Config, mut server: Server) -> Result<Self, Failure> {
        let seen = Seen::new();
        let negotiation = negotiation(config, &server, &seen, false)?;
        let (client, driver): (_, Box<dyn Driver>) = match &mut server {
            Server::Tcp { address, port, .. } => {
                let stream = tcp(address, *port).await?;
                // Requests to cancel go to the same server, also if the name has several.
                *address = stream.peer_addr()?.ip().to_string();
                let (client, driver) = start(config, stream, negotiation).await?;
                (client, Box::new(driver))
            }
            Server::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let (client, driver) = start(config, stream, negotiation).await?;
                (client, Box::new(driver))
            }
        };
        let mut session = Self { client, driver, seen, server, notifications: VecDeque::new() };
        let wants_writes = match config.target() {
            TargetSessionAttrs::ReadWrite => true,
            TargetSessionAttrs::ReadOnly => false,
            _ => return Ok(session),
        };
        match session.is_read_only().await? == wants_writes {
            true => Err(Failure::Refused(Refusal::OtherSession)),
            false => Ok(session),
        }
    }

    async fn is_read_only(&mut self) -> Result<bool, Error> {
        let rows =
            self.request(async |client| client.simple_query("SHOW transaction_read_only").await);
        let is_on = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
            _ => false,
        };
        Ok(rows.await?.iter().any(is_on))
    }

    /// Awaits a request while nothing else drives the connection.
    pub(crate) async fn request<T>(
        &mut self,
        request: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let Self { client, driver, notifications, .. } = self;
        let mut request = pin!(request(client));
        let driven = poll_fn(|cx| {
            // The first poll of a request puts it into the driver's queue.
            if let Poll::Ready(answer) = request.as_mut().poll(cx) {
                return Poll::Ready(
                    answer.map_err(|error| Error::from_driver(error, Fate::Unknown)),
                );
            }
            loop {
                match driver.poll_message(cx) {
                    Poll::Ready(Some(Ok(AsyncMessage::Notification(it)))) => {
                        notifications.push_back(it)
                    }
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Err(Error::from_end(error)));
                    }
                    Poll::Ready(None) => return Poll::Ready(Err(Error::lost(None))),
                    Poll::Pending => break,
                }
            }
            let answer = request.as_mut().poll(cx);
            answer.map_err(|error| Error::from_driver(error, Fate::Unknown))
        });
        // An interruption inside the driver would end the connection.
        future_wait(shield(driven)).await?
    }
}

async fn tcp(address: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((address, port)).await?;
    // A request is one write, and waits for its answer.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The login on a stream.
async fn start<S: Transport>(
    config: &Config,
    stream: S,
    negotiation: Negotiation,
) -> Result<(Client, tokio_postgres::Connection<S, Wire<S>>), Error> {
    let driver_config = config.for_driver();
    let started = future_wait(driver_config.connect_raw(stream, negotiation)).await?;
    started.map_err(|error| Error::from_driver(error, Fate::Undone))
}

/// A negotiation for a connection to a server. Unix sockets have no TLS.
fn negotiation(
    config: &Config,
    server: &Server,
    seen: &Rc<Seen>,
    waits_for_end: bool,
) -> Result<Negotiation, Error> {
    #[cfg(not(feature = "tls"))]
    if let Server::Tcp { .. } = server {
        config.check_tls()?;
    }
    Ok(Negotiation {
        #[cfg(feature = "tls")]
        encryption: match server {
            Server::Tcp { name, .. } => config.encryption(name)?,
            Server::Unix(_) => None,
        },
        seen: seen.clone(),
        waits_for_end,
    })
}

/// Asks a server to cancel what a session runs, and waits until the server has passed that on.
///
/// The server closes the connection of such a request after it has signalled the session. From then
/// on, the request cannot hit a later statement.
pub(crate) async fn cancel(
    config: &Config,
    server: &Server,
    token: &CancelToken,
) -> Result<(), Error> {
    let negotiation = negotiation(config, server, &Seen::new(), true)?;
    let lost = |error: io::Error| match pikake_net::interruption(&error) {
        Some(why) => Error::from(why.clone()),
        None => {
            let attempts = vec![(server.to_string(), Refusal::Io(error.into()))];
            Error::Connect(ConnectError { attempts })
        }
    };
    let sent = match server {
        Server::Tcp { address, port, .. } => {
            let stream = tcp(address, *port).await.map_err(lost)?;
            future_wait(token.cancel_query_raw(stream, negotiation)).await?
        }
        Server::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(lost)?;
            future_wait(token.cancel_query_raw(stream, negotiation)).await?
        }
    };
    sent.map_err(|error| Error::from_driver(error, Fate::Undone))
}

//! How a database is reached: hosts, login, TLS, and what a pool's connections do.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

#[cfg(feature = "tls")]
use pikake_net::tls::TlsConnector;
use pikake_traps::random;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

use crate::error::Error;

/// The default of [`Config::statement_cache`].
pub const STATEMENT_CACHE: usize = 100;

/// How long one host may take to connect, if the configuration has no `connect_timeout`.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is reset when a connection comes back to its pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Reset {
    /// Everything that a program may leave in a session: transactions, cursors, settings and roles,
    /// temporary tables, advisory locks, `LISTEN`, the values of sequences, and statements of
    /// `PREPARE` in SQL. Statements that the connection itself has prepared stay.
    ///
    /// The pool sends one message for this when the lease is dropped, so that locks are free soon,
    /// and does not wait for the answer. The next holder's first statement waits for it, if it has
    /// not come by then. If the reset fails, the connection is closed, and that statement is not
    /// sent: its error is [`Error::Lost`] with [`Undone`](crate::Fate::Undone). An idle connection
    /// is replaced.
    ///
    /// Only a connection over which its holder has sent nothing is not reset. Nothing else proves
    /// that a session is untouched: the server reports transactions and some settings, but not that
    /// a `SELECT` has called `set_config` or `pg_advisory_lock`. For the same reason the pool does
    /// not know of a `PREPARE` that a function has run by `EXECUTE`; such a statement stays.
    #[default]
    Session,
    /// Transactions and cancelled statements. The pool sends nothing if none was left.
    ///
    /// For programs that set nothing in a session outside of transactions.
    Transaction,
}

/// How a database is reached.
///
/// Parsed from a URL or from `key=value` pairs, as libpq's. See [`tokio_postgres::Config`] for the
/// keys; those for TCP keepalive have no effect.
///
/// # Examples
///
/// ```
/// use pikake::postgres::Config;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: Config =
///     "postgres://shop@db1,db2/shop?target_session_attrs=read-write&application_name=api".parse()?;
/// let config = config.statement_cache(20);
/// # drop(config);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Config {
    inner: tokio_postgres::Config,
    statement_cache: usize,
    reset: Reset,
    #[cfg(feature = "tls")]
    tls: Option<TlsConnector>,
}

impl From<tokio_postgres::Config> for Config {
    fn from(mut inner: tokio_postgres::Config) -> Self {
        if inner.get_application_name().is_none() {
            let program = std::env::current_exe().ok();
            let name = program.as_deref().and_then(|program| program.file_name());
            if let Some(name) = name.and_then(|name| name.to_str()) {
                inner.application_name(name);
            }
        }
        Self {
            inner,
            statement_cache: STATEMENT_CACHE,
            reset: Reset::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let inner = text.parse::<tokio_postgres::Config>();
        inner.map(Self::from).map_err(|error| {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            Error::Config(format!("{error}{}", source.unwrap_or_default()))
        })
    }
}

impl Config {
    /// The name that the server shows for these connections. The default is the program's name.
    pub fn application_name(mut self, name: &str) -> Self {
        self.inner.application_name(name);
        self
    }

    /// Uses TLS: if the server offers it, or with `sslmode=require` always. Without this call,
    /// connections are plain.
    ///
    /// The connector verifies the server's certificate, for the name of the host, in both modes.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: TlsConnector) -> Self {
        self.tls = Some(connector);
        self
    }

    /// Sets how many prepared statements each connection keeps. The default is [`STATEMENT_CACHE`].
    ///
    /// With 0, a connection prepares each statement anew.
    pub fn statement_cache(mut self, capacity: usize) -> Self {
        self.statement_cache = capacity;
        self
    }

    /// Sets what is reset when a connection comes back to its pool. The default is
    /// [`Reset::Session`].
    pub fn reset(mut self, reset: Reset) -> Self {
        self.reset = reset;
        self
    }

    pub(crate) fn capacity(&self) -> usize {
        self.statement_cache
    }

    pub(crate) fn resets(&self) -> Reset {
        self.reset
    }

    pub(crate) fn target(&self) -> TargetSessionAttrs {
        self.inner.get_target_session_attrs()
    }

    pub(crate) fn limit(&self) -> Duration {
        self.inner.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT)
    }

    /// The configuration for the driver, whose TLS is always
    /// [`Negotiation`](crate::wire::Negotiation).
    pub(crate) fn for_driver(&self) -> tokio_postgres::Config {
        let mut inner = self.inner.clone();
        inner.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        inner
    }

    /// How TLS is begun with a server of this name.
    #[cfg(feature = "tls")]
    pub(crate) fn encryption(&self, name: &str) -> Result<Option<crate::wire::Encryption>, Error> {
        let is_required = self.inner.get_ssl_mode() == SslMode::Require;
        match (&self.tls, self.inner.get_ssl_mode()) {
            (_, SslMode::Disable) => Ok(None),
            (None, SslMode::Require) => Err(needs_tls("call `Config::tls`")),
            (None, _) => Ok(None),
            (Some(connector), _) => {
                let is_direct = self.inner.get_ssl_negotiation() == SslNegotiation::Direct;
                let connector = match is_direct {
                    // Without this name, the server refuses a handshake that begins without a
                    // question.
                    true => connector.with_alpn(["postgresql"]),
                    false => connector.clone(),
                };
                let name = name.to_owned();
                Ok(Some(crate::wire::Encryption { connector, name, is_required, is_direct }))
            }
        }
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn check_tls(&self) -> Result<(), Error> {
        match self.inner.get_ssl_mode() {
            SslMode::Require => Err(needs_tls("turn on the feature `tls`")),
            _ => Ok(()),
        }
    }

    /// The hosts in the order in which they are tried.
    pub(crate) fn servers(&self) -> Result<Vec<Server>, Error> {
        let wrong = |text: &str| Err(Error::Config(text.to_owned()));
        let (hosts, addresses) = (self.inner.get_hosts(), self.inner.get_hostaddrs());
        let ports = self.inner.get_ports();
        let count = hosts.len().max(addresses.len());
        if count == 0 {
            return wrong("the configuration of the database has no host");
        }
        if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
            return wrong("the configuration of the database has not as many hosts as addresses");
        }
        if ports.len() > 1 && ports.len() != count {
            return wrong("the configuration of the database has not as many ports as hosts");
        }
        let mut servers = Vec::new();
        for at in 0..count {
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
            let address = addresses.get(at).map(ToString::to_string);
            servers.push(match (hosts.get(at), address) {
                (Some(Host::Unix(folder)), _) => {
                    Server::Unix(folder.join(format!(".s.PGSQL.{port}")))
                }
                (Some(Host::Tcp(name)), address) => {
                    let address = address.unwrap_or_else(|| name.clone());
                    Server::Tcp { name: name.clone(), address, port }
                }
                (None, address) => {
                    let address = address.unwrap_or_default();
                    Server::Tcp { name: address.clone(), address, port }
                }
            });
        }
        if self.inner.get_load_balance_hosts() == LoadBalanceHosts::Random {
            random::shuffle(&mut servers);
        }
        Ok(servers)
    }
}

const DEFAULT_PORT: u16 = 5432;

fn needs_tls(how: &str) -> Error {
    Error::Config(format!("`sslmode=require` needs TLS: {how}"))
}

/// Without the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, statement_cache, reset, .. } = self;
        f.debug_struct("Config")
            .field("inner", inner)
            .field("statement_cache", statement_cache)
            .field("reset", reset)
            .finish_non_exhaustive()
    }
}

/// A host of the configuration.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    /// `address` is the name, unless the configuration has an address; in a session, that of the
    /// server.
    Tcp {
        name: String,
        address: String,
        port: u16,
    },
    Unix(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { name, port, .. } => write!(f, "{name}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

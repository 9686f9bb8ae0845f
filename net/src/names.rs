//! Sources of names for a resolver.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use pikake_traps::lookup;

/// The answer of a source of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameAnswer {
    /// The addresses, best first. Empty if there is no such name, or it has no address.
    pub addresses: Vec<IpAddr>,
    /// How long the answer is valid; `None` if the source does not say.
    pub ttl: Option<Duration>,
}

/// A source of names: the system, or DNS servers.
///
/// # Examples
///
/// ```
/// use pikake::net::{NameAnswer, NameSource};
/// use std::{future::Future, io, net::Ipv4Addr, pin::Pin};
///
/// /// Every name is this machine.
/// struct Loopback;
///
/// impl NameSource for Loopback {
///     fn look_up(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>> {
///         let addresses = vec![Ipv4Addr::LOCALHOST.into()];
///         Box::pin(async { Ok(NameAnswer { addresses, ttl: None }) })
///     }
/// }
/// ```
pub trait NameSource {
    /// Looks a name up.
    ///
    /// # Errors
    ///
    /// The lookup failed. A name that does not exist is an answer, not an error.
    fn look_up(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>>;
}

/// The system's lookup (`getaddrinfo`) on a helper thread, by files, name servers and other
/// configured sources. It returns no TTL, and does not distinguish an unknown name from a failed
/// lookup. In a simulation, the world's table of hosts.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemNames;

impl NameSource for SystemNames {
    fn look_up(&self, host: &str) -> Pin<Box<dyn Future<Output = io::Result<NameAnswer>>>> {
        let looked_up = lookup(host, 0);
        Box::pin(async move {
            let mut addresses = Vec::new();
            for address in looked_up.await? {
                // The system repeats an address for each kind of socket.
                if !addresses.contains(&address.ip()) {
                    addresses.push(address.ip());
                }
            }
            Ok(NameAnswer { addresses, ttl: None })
        })
    }
}

/// A name could not be looked up.
///
/// As an [`io::Error`] it has the kind of its cause.
#[derive(Clone, Debug)]
pub struct NameError {
    host: Arc<str>,
    source: Arc<io::Error>,
}

impl NameError {
    pub(crate) fn new(host: &str, source: io::Error) -> Self {
        Self { host: host.into(), source: source.into() }
    }

    /// The name.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The kind of the cause: [`NotFound`](io::ErrorKind::NotFound) if the source says that there
    /// is no such name; [`TimedOut`](io::ErrorKind::TimedOut) if there was no answer in time.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "look up {}: {}", self.host, self.source)
    }
}

impl std::error::Error for NameError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

impl From<NameError> for io::Error {
    fn from(error: NameError) -> Self {
        Self::new(error.kind(), error)
    }
}

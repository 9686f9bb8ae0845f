//! Conversion of strings and tuples to socket addresses.
//!
//! A numeric address is parsed. Anything else is a name, and its lookup is a trap, so a simulated
//! kernel answers it from its world.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::Location;

use pikake_traps::lookup_at;

use crate::error::AddressErrors;

/// A type that names a host and a port.
///
/// The trait is implemented for [`SocketAddr`], for a host with a port (`(&str, u16)`, `(String,
/// u16)`, `(IpAddr, u16)`), for `"host:port"` in one string, and for references to these. It is
/// sealed.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use pikake::net::TcpStream;
/// use std::net::Ipv6Addr;
///
/// TcpStream::connect("example.org:80").await?;
/// TcpStream::connect(("example.org", 80)).await?;
/// TcpStream::connect("[::1]:80").await?;
/// TcpStream::connect((std::net::IpAddr::from(Ipv6Addr::LOCALHOST), 80)).await?;
/// # Ok(()) }
/// ```
pub trait ToSocketAddrs: sealed::Sealed {}

impl<T: sealed::Sealed> ToSocketAddrs for T {}

/// An address or a name to connect or bind to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Known(SocketAddr),
    Name(String, u16),
    Invalid(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(address) => address.fmt(f),
            Self::Name(host, port) => write!(f, "{host}:{port}"),
            Self::Invalid(text) => write!(f, "{text:?}"),
        }
    }
}

mod sealed {
    pub trait Sealed {
        fn target(&self) -> super::Target;
    }
}

use sealed::Sealed;

impl Sealed for SocketAddr {
    fn target(&self) -> Target {
        Target::Known(*self)
    }
}

impl Sealed for (IpAddr, u16) {
    fn target(&self) -> Target {
        let (host, port) = *self;
        Target::Known(SocketAddr::new(host, port))
    }
}

impl Sealed for (&str, u16) {
    fn target(&self) -> Target {
        let (host, port) = *self;
        match host.parse() {
            Ok(host) => Target::Known(SocketAddr::new(host, port)),
            Err(_) => Target::Name(host.to_owned(), port),
        }
    }
}

impl Sealed for (String, u16) {
    fn target(&self) -> Target {
        let (host, port) = self;
        (host.as_str(), *port).target()
    }
}

impl Sealed for str {
    fn target(&self) -> Target {
        if let Ok(address) = self.parse() {
            return Target::Known(address);
        }
        let parts = self.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match parts.map(|(host, port)| (host, port.parse())) {
            Some((host, Ok(port))) => (host, port).target(),
            _ => Target::Invalid(self.to_owned()),
        }
    }
}

impl Sealed for String {
    fn target(&self) -> Target {
        self.as_str().target()
    }
}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn target(&self) -> Target {
        (**self).target()
    }
}

/// The address that `to` is, if it is no name.
pub(crate) fn known_address(to: &impl ToSocketAddrs) -> Option<SocketAddr> {
    match to.target() {
        Target::Known(address) => Some(address),
        Target::Name(..) | Target::Invalid(_) => None,
    }
}

/// Looks the addresses of a host up, for what takes only addresses. `connect`, `bind` and `send_to`
/// take names.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// let addresses: Vec<_> = pikake::net::lookup_host(("localhost", 7000)).await?.collect();
/// assert!(addresses.iter().all(|address| address.ip().is_loopback()));
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point, unless the address is numeric.
///
/// # Errors
///
/// [`AddressErrors`](crate::AddressErrors) for a name that has no address or is invalid; the
/// interruption.
///
/// # Panics
///
/// When called with a name outside a kernel.
#[track_caller]
pub fn lookup_host<A: ToSocketAddrs>(
    host: A,
) -> impl Future<Output = io::Result<impl Iterator<Item = SocketAddr>>> {
    let resolving = resolve("look up", host);
    async move { Ok(resolving.await?.addresses.into_iter()) }
}

/// A target's addresses, and the errors of those that were tried.
pub(crate) struct Resolved {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) errors: AddressErrors,
}

impl Resolved {
    /// The result of `work` for the first address with which it succeeds.
    pub(crate) fn first<R>(
        self,
        mut work: impl FnMut(SocketAddr) -> io::Result<R>,
    ) -> io::Result<R> {
        let Self { addresses, mut errors } = self;
        for address in addresses {
            match work(address) {
                Ok(done) => return Ok(done),
                Err(error) => errors.add(address, error),
            }
        }
        Err(errors.into())
    }
}

/// Finds the addresses of `to`. Errors begin with `doing`, as `connect to` or `bind`.
#[track_caller]
pub(crate) fn resolve<A: ToSocketAddrs>(
    doing: &'static str,
    to: A,
) -> impl Future<Output = io::Result<Resolved>> + use<A> {
    let place = Location::caller();
    resolve_by(doing, to, move |host, port| lookup_at(&host, port, place))
}

/// As [`resolve`], with `look_up` for names.
pub(crate) fn resolve_by<A: ToSocketAddrs, L, F>(
    doing: &'static str,
    to: A,
    look_up: L,
) -> impl Future<Output = io::Result<Resolved>> + use<A, L, F>
where
    L: FnOnce(String, u16) -> F,
    F: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let target = to.target();
    async move {
        let errors = AddressErrors::new(format!("{doing} {target}"));
        let addresses = match target {
            Target::Known(address) => Ok(vec![address]),
            Target::Name(host, port) => look_up(host, port).await,
            Target::Invalid(_) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not an address; write \"host:port\", as in \"127.0.0.1:80\", \"[::1]:80\" or \
                 \"example.org:80\"",
            )),
        };
        match addresses {
            Ok(addresses) => Ok(Resolved { addresses, errors }),
            Err(error) => Err(errors.with_cause(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Target {
        Target::Known(text.parse().unwrap())
    }

    fn name(host: &str, port: u16) -> Target {
        Target::Name(host.into(), port)
    }

    #[test]
    fn numeric_addresses_are_parsed_and_names_kept() {
        assert_eq!("127.0.0.1:80".target(), known("127.0.0.1:80"));
        assert_eq!("[::1]:80".target(), known("[::1]:80"));
        assert_eq!(("::1", 80).target(), known("[::1]:80"));
        assert_eq!("localhost:80".to_owned().target(), name("localhost", 80));
        assert_eq!(("localhost".to_owned(), 80).target(), name("localhost", 80));
        assert_eq!((IpAddr::from([127, 0, 0, 1]), 80).target(), known("127.0.0.1:80"));
    }

    #[test]
    fn text_without_host_and_port_is_invalid() {
        for text in ["", "localhost", ":80", "localhost:", "localhost:http", "localhost:65536"] {
            assert_eq!(text.target(), Target::Invalid(text.into()));
        }
    }
}

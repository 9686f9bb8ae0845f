//! The way to a server: what the connections of the pool are kept by.

use std::fmt;
use std::rc::Rc;

use url::{Host, Url};

use super::proxy::Proxy;

/// Where a connection leads, and by which proxy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Route {
    pub(crate) is_tls: bool,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) via: Via,
}

/// By which proxy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Via {
    Direct,
    /// The connection ends at the proxy, which forwards requests to any server. Host and port are
    /// the proxy's.
    Forward(Rc<Proxy>),
    /// The proxy passes bytes on, after a `CONNECT`.
    Tunnel(Rc<Proxy>),
}

/// The host without the brackets of an IPv6 address, and the port.
pub(crate) fn host_and_port(url: &Url) -> Option<(String, u16)> {
    let host = match url.host()? {
        Host::Domain(name) => name.to_owned(),
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    };
    Some((host, url.port_or_known_default()?))
}

/// Whether two URLs have one origin: scheme, host and port.
pub(crate) fn is_same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host() == other.host()
        && one.port_or_known_default() == other.port_or_known_default()
}

impl Route {
    /// The route to the host of an `http` or `https` URL; `None` if the URL is none.
    pub(crate) fn new(url: &Url, proxy: Option<Rc<Proxy>>) -> Option<Self> {
        let is_tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let (host, port) = host_and_port(url)?;
        Some(match proxy {
            None => Self { is_tls, host, port, via: Via::Direct },
            Some(proxy) if is_tls => Self { is_tls, host, port, via: Via::Tunnel(proxy) },
            Some(proxy) => Self {
                is_tls: proxy.is_tls,
                host: proxy.host.clone(),
                port: proxy.port,
                via: Via::Forward(proxy),
            },
        })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// As the name of the route's pool.
impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())?;
        match &self.via {
            Via::Direct => Ok(()),
            Via::Forward(_) => f.write_str(" (a proxy)"),
            Via::Tunnel(proxy) => write!(f, " by the proxy {proxy}"),
        }
    }
}

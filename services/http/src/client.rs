//! An HTTP client whose connections are kept.
//!
//! ```no_run
//! use pikake::http::Client;
//! use pikake::timeout_after;
//! use std::time::Duration;
//!
//! #[pikake::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::new();
//!     let asking = async {
//!         let response = client.get("http://localhost:8080/users/7").send().await?;
//!         response.error_for_status()?.json::<Vec<String>>().await
//!     };
//!     let names = timeout_after(Duration::from_secs(5), asking).await??;
//!     println!("{names:?}");
//!     Ok(())
//! }
//! ```
//!
//! | to | use |
//! | --- | --- |
//! | ask | [`Client::get`], [`post`](Client::post) and others; [`Client::request`] for any method |
//! | add headers, a query, a body, credentials | [`RequestBuilder`] |
//! | send a stream | [`Body::from_stream`] |
//! | read the body as a whole, as text or JSON | [`Response::bytes`], [`text`](Response::text), [`json`](Response::json) |
//! | read it as it comes | [`Response::chunk`] |
//! | limit its length | [`Response::limit`] |
//! | limit the time of a request | [`timeout_after`](pikake_traps::timeout_after) around it |
//! | set limits, a proxy, certificates | [`Client::builder`] |
//!
//! # Connections
//!
//! A connection that has served its request is kept, for [`IDLE_TIMEOUT`] or as long as the server
//! announces. A client never has more than [`CONNECTIONS_PER_HOST`] to a host, and further requests
//! wait for one. Over TLS the server chooses the version by ALPN. All requests to a host that
//! speaks HTTP/2 share one connection.
//!
//! A kept connection is looked at before it is used: one that the server has closed, or on which it
//! has sent data that nobody asked for, is closed. A server may still close a connection at the
//! very moment. The request is then sent again, once and on another connection, if its method is
//! idempotent (RFC 9110, section 9.2.2) and no byte of a response had come. A request that the
//! server has not seen is always sent again.
//!
//! Names with several addresses are connected to by happy eyeballs (RFC 8305), see
//! [`TcpStream::connect`](pikake_net::TcpStream::connect).
//!
//! # Interruption and timeouts
//!
//! All waits are interruption points, so a deadline of any scope around a request applies to it. An
//! interrupted request leaves no connection in an unknown state: by HTTP/1.1 the connection is
//! closed, by HTTP/2 the stream is reset. The drop of a [`Response`] whose body has not been read
//! does the same. Connections are made in tasks of the client, within [`CONNECT_TIMEOUT`]. A
//! request that goes away meanwhile leaves its connection to the next one.
//!
//! # Redirects
//!
//! Up to [`REDIRECTS`] are followed. 301 and 302 turn POST into GET, and 303 all methods but HEAD;
//! 307 and 308 send the request again, with its body unless that is a stream. The headers
//! `authorization` and `cookie` are dropped when scheme, host or port change.
//!
//! # Proxies
//!
//! The variables `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case,
//! are read when a client is made, unless [`ClientBuilder::proxy`] or
//! [`no_proxy`](ClientBuilder::no_proxy) is called. `NO_PROXY` is a list of names, which include
//! their subdomains, of addresses and networks (`10.0.0.0/8`), each with or without a port, or `*`.
//! `https` URLs are asked for by `CONNECT`, others by the proxy itself.
//!
//! # Encodings
//!
//! The client asks for gzip and deflate, and decodes them as the body
//! comes. A request that sets `accept-encoding` itself gets the body as it was sent. So does a
//! request with a `range`, which asks for `identity`.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::Method;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use pikake_net::Resolver;
#[cfg(feature = "tls")]
use pikake_net::tls::TlsConnector;
use pikake_pool::WAIT;

mod body;
mod connection;
mod connections;
mod connector;
mod decode;
mod error;
mod exchange;
mod proxy;
mod redirect;
mod request;
mod response;
mod route;
#[cfg(feature = "tls")]
mod secure;
#[cfg(feature = "tls")]
mod tunnel;

pub use body::Body;
pub use error::{Error, ErrorKind};
pub use request::RequestBuilder;
pub use response::{Response, ResponseBody};
pub use url::Url;

use crate::BoxError;
use connections::{Connections, Limits};
use connector::{Connector, Versions};
use proxy::Proxies;

/// How many connections a client has to all hosts, unless set otherwise.
pub const CONNECTIONS: usize = 1000;

/// How many connections a client has to one host, unless set otherwise.
pub const CONNECTIONS_PER_HOST: usize = 100;

/// How long an idle connection is kept, unless set otherwise. Many servers close theirs after a
/// minute or two.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection may take to be made, with lookup, proxy and TLS, unless set otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How many redirects of one request are followed, unless set otherwise.
pub const REDIRECTS: usize = 10;

struct Options {
    /// For requests that do not set them.
    headers: HeaderMap,
    proxies: Proxies,
    redirects: usize,
}

struct Inner {
    options: Options,
    connections: Rc<Connections>,
}

/// An HTTP client. Clones share its connections, and the drop of the last one closes them.
///
/// A client belongs to its kernel. A program with several kernels makes one for each.
///
/// # Examples
///
/// ```no_run
/// use pikake::http::Client;
/// use std::collections::BTreeMap;
///
/// # async fn example() -> Result<(), pikake::http::client::Error> {
/// let client = Client::new();
/// let user = BTreeMap::from([("name", "Ada")]);
/// let made = client.post("http://localhost:8080/users").json(&user).send().await?;
/// println!("{} {:?}", made.status(), made.headers().get("location"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client(Rc<Inner>);

impl Client {
    /// A client with the default options.
    pub fn new() -> Self {
        Self::builder().make(HeaderMap::new())
    }

    /// Returns a builder, to set options.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            headers: Ok(HeaderMap::new()),
            proxies: None,
            redirects: REDIRECTS,
            limits: Limits {
                connections: CONNECTIONS,
                per_host: CONNECTIONS_PER_HOST,
                idle: IDLE_TIMEOUT,
                wait: Some(WAIT),
            },
            connect_timeout: CONNECT_TIMEOUT,
            versions: Versions::Both,
            resolver: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Begins a request. The URL is checked when the request is sent.
    pub fn request(&self, method: Method, url: impl AsRef<str>) -> RequestBuilder {
        RequestBuilder::new(self.clone(), method, url.as_ref())
    }

    /// Begins a GET request.
    pub fn get(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// Begins a HEAD request.
    pub fn head(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::HEAD, url)
    }

    /// Begins a POST request.
    pub fn post(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// Begins a PUT request.
    pub fn put(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// Begins a PATCH request.
    pub fn patch(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::PATCH, url)
    }

    /// Begins a DELETE request.
    pub fn delete(&self, url: impl AsRef<str>) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }

    /// Ends the client: idle connections are closed, no request begins any more, and requests that
    /// run may take so long to end.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The client stays closed, and connections in use are closed when they
    /// come back.
    pub async fn close(&self, within: Duration) {
        self.0.connections.close(within).await;
    }
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("connections", &self.0.connections).finish_non_exhaustive()
    }
}

/// Sets the options of a [`Client`]. Made by [`Client::builder`].
///
/// # Examples
///
/// ```
/// use pikake::http::Client;
/// use std::time::Duration;
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::builder()
///     .user_agent("crawler/1.0 (+https://example.org/crawler)")
///     .default_header("accept-language", "en")
///     .connections_per_host(2)
///     .idle_timeout(Duration::from_secs(20))
///     .redirects(3)
///     .no_proxy()
///     .build()?;
/// # Ok(()) }
/// # example().unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientBuilder {
    headers: Result<HeaderMap, BoxError>,
    proxies: Option<Result<Proxies, String>>,
    redirects: usize,
    limits: Limits,
    connect_timeout: Duration,
    versions: Versions,
    resolver: Option<Resolver>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConnector>,
}

impl ClientBuilder {
    /// Sets a header of all requests that do not set it themselves.
    pub fn default_header<N, V>(mut self, name: N, value: V) -> Self
    where
        N: TryInto<HeaderName, Error: Into<BoxError>>,
        V: TryInto<HeaderValue, Error: Into<BoxError>>,
    {
        self.headers = self.headers.and_then(|mut headers| {
            let value = value.try_into().map_err(Into::into)?;
            headers.insert(name.try_into().map_err(Into::into)?, value);
            redirect::hide_secrets(&mut headers);
            Ok(headers)
        });
        self
    }

    /// Sets the header `user-agent`, instead of `pikake/` and the version.
    pub fn user_agent(self, name: &str) -> Self {
        self.default_header(USER_AGENT, name)
    }

    /// Sets how many redirects of one request are followed, instead of [`REDIRECTS`]. With 0, the
    /// redirect itself is the response.
    pub fn redirects(self, redirects: usize) -> Self {
        Self { redirects, ..self }
    }

    /// Sets a proxy for all URLs, as `http://name:password@host:3128`, instead of those of the
    /// environment.
    ///
    /// `except` is a list as in `NO_PROXY`; it may be empty.
    pub fn proxy(self, url: &str, except: &str) -> Self {
        Self { proxies: Some(Proxies::all(url, except)), ..self }
    }

    /// Uses no proxy, whatever the environment says.
    pub fn no_proxy(self) -> Self {
        Self { proxies: Some(Ok(Proxies::default())), ..self }
    }

    /// Sets how many connections there may be to all hosts, instead of [`CONNECTIONS`]. Those of
    /// HTTP/2 do not count.
    ///
    /// # Panics
    ///
    /// If the number is zero.
    #[track_caller]
    pub fn connections(mut self, connections: usize) -> Self {
        assert!(connections > 0, "a client has at least one connection");
        self.limits.connections = connections;
        self
    }

    /// Sets how many connections there may be to one host, instead of [`CONNECTIONS_PER_HOST`]. By
    /// HTTP/2 there is one.
    ///
    /// # Panics
    ///
    /// If the number is zero.
    #[track_caller]
    pub fn connections_per_host(mut self, connections: usize) -> Self {
        assert!(connections > 0, "a client has at least one connection to a host");
        self.limits.per_host = connections;
        self
    }

    /// Sets how long an idle connection is kept, instead of [`IDLE_TIMEOUT`].
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.limits.idle = timeout;
        self
    }

    /// Sets how long a request waits for a free connection when the limits are reached, instead of
    /// 30 seconds. `None`: until it is interrupted.
    pub fn wait(mut self, wait: Option<Duration>) -> Self {
        self.limits.wait = wait;
        self
    }

    /// Sets how long a connection may take to be made, instead of [`CONNECT_TIMEOUT`].
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Looks names up by this resolver, as one that caches.
    pub fn resolver(self, resolver: Resolver) -> Self {
        Self { resolver: Some(resolver), ..self }
    }

    /// Speaks HTTP/1.1 alone.
    pub fn http1_only(self) -> Self {
        Self { versions: Versions::Http1, ..self }
    }

    /// Speaks HTTP/2 alone, also without TLS ("prior knowledge").
    pub fn http2_only(self) -> Self {
        Self { versions: Versions::Http2, ..self }
    }

    /// Sets the root certificates and the identity, instead of the platform's roots. The client
    /// offers its own protocols by ALPN.
    #[cfg(feature = "tls")]
    pub fn tls(self, connector: TlsConnector) -> Self {
        Self { tls: Some(connector), ..self }
    }

    /// Makes the client.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): an invalid header, or a proxy whose URL is
    /// invalid. Errors in the environment are errors of the requests that they concern.
    pub fn build(mut self) -> io::Result<Client> {
        let invalid = |error: BoxError| io::Error::new(io::ErrorKind::InvalidInput, error);
        let headers =
            std::mem::replace(&mut self.headers, Ok(HeaderMap::new())).map_err(invalid)?;
        match &self.proxies {
            Some(Err(error)) => Err(invalid(error.clone().into())),
            Some(Ok(_)) | None => Ok(self.make(headers)),
        }
    }

    fn make(self, mut headers: HeaderMap) -> Client {
        let agent = HeaderValue::from_static(concat!("pikake/", env!("CARGO_PKG_VERSION")));
        headers.entry(USER_AGENT).or_insert(agent);
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(decode::ACCEPTED));
        let proxies = self.proxies.and_then(Result::ok);
        let options = Options {
            headers,
            proxies: proxies.unwrap_or_else(Proxies::from_environment),
            redirects: self.redirects,
        };
        let connector = Connector {
            versions: self.versions,
            timeout: self.connect_timeout,
            resolver: self.resolver,
            #[cfg(feature = "tls")]
            tls: secure::Tls::new(self.tls.as_ref(), self.versions),
        };
        let connections = Rc::new(Connections::new(connector, self.limits));
        Client(Rc::new(Inner { options, connections }))
    }
}

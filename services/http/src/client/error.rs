//! The error of a request: at which stage, of which request, and why.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use http::{Method, StatusCode};
use pikake_traps::Interrupted;
use url::Url;

use crate::BoxError;

/// The stage at which a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request cannot be sent: its URL or a header is invalid. Nothing was sent.
    Request,
    /// No connection: a name without an address, a socket, TLS or the proxy. Nothing was sent.
    Connect,
    /// No connection became free in time, or the client's pool is closed. Nothing was sent.
    Pool,
    /// The connection failed before the head of the response, or that head is invalid. Or the body
    /// of the request failed on its way, or there was no connection to send the request again. The
    /// server may have acted on the request.
    Exchange,
    /// The server redirects too often, to an invalid URL, or to where the request cannot be sent.
    Redirect,
    /// The body of the response was cut, or is invalid.
    Body,
    /// The body of the response is longer than [`Response::limit`](super::Response::limit) allows.
    TooLong,
    /// The body of the response is not what was asked for, as invalid JSON.
    Decode,
    /// The response has this status, see
    /// [`Response::error_for_status`](super::Response::error_for_status).
    Status(StatusCode),
    /// The task was interrupted while it waited.
    Interrupted,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request => f.write_str("the request is invalid"),
            Self::Connect => f.write_str("no connection"),
            Self::Pool => f.write_str("no free connection"),
            Self::Exchange => f.write_str("no response"),
            Self::Redirect => f.write_str("the redirect is not followed"),
            Self::Body => f.write_str("the body of the response failed"),
            Self::TooLong => f.write_str("the body of the response is too long"),
            Self::Decode => f.write_str("the body of the response cannot be decoded"),
            Self::Status(status) => write!(f, "the status is {status}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

struct Inner {
    kind: ErrorKind,
    method: Method,
    url: Option<Url>,
    source: Option<BoxError>,
}

/// A request that failed.
///
/// # Examples
///
/// ```no_run
/// use pikake::http::Client;
/// use pikake::http::client::ErrorKind;
///
/// # async fn example() {
/// match Client::new().get("http://localhost:1").send().await {
///     Ok(response) => println!("{}", response.status()),
///     Err(error) if error.kind() == ErrorKind::Connect => println!("the server is down: {error}"),
///     Err(error) => println!("{error}"), // GET http://localhost:1/: …
/// }
/// # }
/// ```
// Boxed, since a result with it is moved often.
pub struct Error(Box<Inner>);

impl Error {
    pub(crate) fn new(kind: ErrorKind, method: &Method, url: Option<&Url>) -> Self {
        let (method, url) = (method.clone(), url.cloned());
        Self(Box::new(Inner { kind, method, url, source: None }))
    }

    /// With a cause. If the cause is an interruption, that is the kind.
    pub(crate) fn because(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        if self.interruption().is_some() {
            self.0.kind = ErrorKind::Interrupted;
        }
        self
    }

    /// The stage at which the request failed.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The URL that was asked for, after redirects; `None` if it could not be parsed.
    pub fn url(&self) -> Option<&Url> {
        self.0.url.as_ref()
    }

    /// The status of the response, if the error is one of [`ErrorKind::Status`].
    pub fn status(&self) -> Option<StatusCode> {
        match self.0.kind {
            ErrorKind::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The interruption that ended the wait, if one did.
    pub fn interruption(&self) -> Option<&Interrupted> {
        pikake_net::interruption(self.0.source.as_deref()?)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, method, url, source } = &*self.0;
        match url {
            Some(url) => write!(f, "{method} {url}: {kind}")?,
            None => write!(f, "{method}: {kind}")?,
        }
        // hyper says its causes by `source` alone.
        let mut cause = source.as_deref().map(|source| source as &(dyn StdError + 'static));
        let mut said = String::new();
        while let Some(error) = cause {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, method, url, source } = &*self.0;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("method", method)
            .field("url", &url.as_ref().map(Url::as_str))
            .field("source", source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::other(error)
    }
}

//! A page for browsers: its files, its token, and the headers of its answers.
//!
//! Other users and other pages must not see or do anything:
//!
//! * each address of a page begins with a random token, without which every answer is 404;
//! * what changes something is a POST with the token in a header, which pages of other origins
//!   cannot send;
//! * the policy of a page admits nothing but its own files, and no frame around it.

use std::fmt;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use pikake::http::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// The page loads its own files, sends requests to its own server, and does nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The headers of each answer. The address has the token, so no other server may see it as a
/// referrer.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The header that has the token in a request that changes something.
const TOKEN_HEADER: &str = "x-pikake-token";

/// The greatest length of a request's body in bytes.
const BODY_LIMIT: usize = 4096;

/// The length of a random token in bytes.
const TOKEN_LENGTH: usize = 16;

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A file of a page: its name, its media type, and its text.
#[derive(Debug)]
pub(crate) struct Asset {
    pub(crate) name: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) text: &'static str,
}

pub(crate) const HTML: &str = "text/html; charset=utf-8";
pub(crate) const CSS: &str = "text/css; charset=utf-8";
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The text that a browser must know to be answered.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; TOKEN_LENGTH];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Takes the same time for each text of the token's length, so that nobody can find the token
    /// byte by byte.
    fn is(&self, text: &[u8]) -> bool {
        let token = self.0.as_bytes();
        let differences = token.iter().zip(text).fold(0, |all, (a, b)| all | (a ^ b));
        token.len() == text.len() && std::hint::black_box(differences) == 0
    }

    /// The path behind the token; an error if the request does not know the token.
    pub(crate) fn path_behind<'a>(&self, head: &'a Parts) -> Result<&'a str, Refusal> {
        let path = head.uri.path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let (token, path) = path.ok_or(NOT_FOUND)?;
        if self.is(token.as_bytes()) { Ok(path) } else { Err(NOT_FOUND) }
    }

    /// Checks that a request that changes something is a POST with the token, and that any other
    /// one is a GET.
    pub(crate) fn allow(&self, head: &Parts, is_change: bool) -> Result<(), Refusal> {
        let is_method = match is_change {
            true => head.method == Method::POST,
            false => head.method == Method::GET || head.method == Method::HEAD,
        };
        if !is_method {
            return Err(Refusal::Status(StatusCode::METHOD_NOT_ALLOWED, "not with this method"));
        }
        let token = head.headers.get(TOKEN_HEADER).map_or(&b""[..], HeaderValue::as_bytes);
        if is_change && !self.is(token) {
            return Err(Refusal::Status(
                StatusCode::FORBIDDEN,
                "the header x-pikake-token is missing or wrong",
            ));
        }
        Ok(())
    }
}

impl std::str::FromStr for Token {
    type Err = String;

    /// Reads a token that somebody has chosen: part of an address, and not to be guessed.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match text.len() >= TOKEN_LENGTH && text.bytes().all(is_letter) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "a token has at least {TOKEN_LENGTH} letters, digits, `-` and `_`, and is hard to guess"
            )),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a request gets no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request is not one of this server's.
    Status(StatusCode, &'static str),
    /// The request is malformed.
    Malformed(String),
    /// The other side, which the page is about, refuses.
    Refused(String),
    /// The other side cannot be reached.
    Unreachable(String),
}

pub(crate) const NOT_FOUND: Refusal = Refusal::Status(StatusCode::NOT_FOUND, "nothing is here");

impl Refusal {
    pub(crate) fn respond(self) -> Response<Full<Bytes>> {
        let (status, error) = match self {
            Self::Status(status, text) => return respond(status, TEXT, text),
            Self::Malformed(error) => (StatusCode::BAD_REQUEST, error),
            Self::Refused(error) => (StatusCode::UNPROCESSABLE_ENTITY, error),
            Self::Unreachable(error) => (StatusCode::BAD_GATEWAY, error),
        };
        respond_json(status, &json!({ "error": error }))
    }
}

/// Reads the body of a request, a JSON document.
pub(crate) async fn read_json<T: DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let body = Limited::new(body, BODY_LIMIT).collect().await;
    let body = body.map_err(|error| Refusal::Malformed(error.to_string()))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| Refusal::Malformed(error.to_string()))
}

/// Whether the host is this machine by a name that no DNS server can give to it. The port may be
/// another one, since it may be forwarded.
pub(crate) fn has_loopback_host(head: &Parts) -> bool {
    let named = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = head.uri.authority().map(|authority| authority.as_str()).or(named) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

pub(crate) fn respond(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

pub(crate) fn respond_json(status: StatusCode, value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(text) => respond(status, JSON, text),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, error.to_string()),
    }
}

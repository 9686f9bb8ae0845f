//! Building a request and sending it.

use std::fmt::Display;

use http::Method;
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, Entry, HeaderMap, HeaderName, HeaderValue, RANGE,
};
use serde::Serialize;
use url::Url;

use super::Client;
use super::body::Body;
use super::error::{Error, ErrorKind};
use super::exchange::{Answer, Outgoing, exchange};
use super::proxy::{basic, take_credentials};
use super::redirect::{follow, hide_secrets};
use super::response::{Response, drain};
use super::route::Route;
use crate::BoxError;

/// A request that is being built. Made by [`Client::get`] and its like; [`send`](Self::send) sends
/// it.
///
/// The first invalid part is the error of [`send`](Self::send), so the calls can be chained.
///
/// # Examples
///
/// ```no_run
/// use pikake::http::Client;
///
/// # async fn example() -> Result<(), pikake::http::client::Error> {
/// let client = Client::new();
/// let found = client
///     .get("http://localhost:8080/search")
///     .query(&[("q", "pikake"), ("page", "2")])
///     .header("accept", "text/plain")
///     .bearer_auth("token")
///     .send()
///     .await?
///     .error_for_status()?
///     .text()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until `send` is called"]
pub struct RequestBuilder {
    client: Client,
    method: Method,
    built: Result<(Url, HeaderMap, Body), Error>,
}

impl RequestBuilder {
    pub(crate) fn new(client: Client, method: Method, url: &str) -> Self {
        let built = match Url::parse(url) {
            Ok(mut url) => {
                let mut headers = HeaderMap::new();
                if let Some(credentials) = take_credentials(&mut url) {
                    headers.insert(AUTHORIZATION, credentials);
                }
                Ok((url, headers, Body::default()))
            }
            Err(error) => {
                // The error must not repeat the text, which may have a password.
                let cause = format!("the URL: {error}");
                Err(Error::new(ErrorKind::Request, &method, None).because(cause))
            }
        };
        Self { client, method, built }
    }

    fn with(
        mut self,
        work: impl FnOnce(&mut Url, &mut HeaderMap, &mut Body) -> Result<(), BoxError>,
    ) -> Self {
        if let Ok((url, headers, body)) = &mut self.built {
            match work(url, headers, body) {
                Ok(()) => hide_secrets(headers),
                Err(error) => {
                    let invalid = Error::new(ErrorKind::Request, &self.method, Some(url));
                    self.built = Err(invalid.because(error));
                }
            }
        }
        self
    }

    /// Adds a header, beside others of that name.
    pub fn header<N, V>(self, name: N, value: V) -> Self
    where
        N: TryInto<HeaderName, Error: Into<BoxError>>,
        V: TryInto<HeaderValue, Error: Into<BoxError>>,
    {
        self.with(|_, headers, _| {
            headers.append(
                name.try_into().map_err(Into::into)?,
                value.try_into().map_err(Into::into)?,
            );
            Ok(())
        })
    }

    /// Sets headers, instead of others of their names.
    pub fn headers(self, more: HeaderMap) -> Self {
        self.with(|_, headers, _| {
            headers.extend(more);
            Ok(())
        })
    }

    /// Authenticates by name and password (RFC 7617).
    pub fn basic_auth(self, name: impl Display, password: impl Display) -> Self {
        self.with(|_, headers, _| {
            headers.insert(AUTHORIZATION, basic(&name.to_string(), &password.to_string()));
            Ok(())
        })
    }

    /// Authenticates by a token (RFC 6750).
    pub fn bearer_auth(self, token: impl Display) -> Self {
        self.with(|_, headers, _| {
            headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {token}"))?);
            Ok(())
        })
    }

    /// Adds pairs to the URL's query: a map, a list of pairs, or a struct.
    pub fn query<T: Serialize + ?Sized>(self, pairs: &T) -> Self {
        self.with(|url, _, _| {
            let encoded = serde_urlencoded::to_string(pairs)?;
            if encoded.is_empty() {
                return Ok(());
            }
            let query = match url.query().filter(|query| !query.is_empty()) {
                Some(before) => format!("{before}&{encoded}"),
                None => encoded,
            };
            url.set_query(Some(&query));
            Ok(())
        })
    }

    /// Sets the body: text, bytes, or a stream, see [`Body`].
    pub fn body(self, new: impl Into<Body>) -> Self {
        self.with(|_, _, body| {
            *body = new.into();
            Ok(())
        })
    }

    /// Sets the body to a value as JSON, with its `content-type` unless one is set.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Self {
        self.with(|_, headers, body| {
            *body = serde_json::to_vec(value)?.into();
            set_type(headers, "application/json");
            Ok(())
        })
    }

    /// Sets the body to pairs as a form of HTML, with its `content-type` unless one is set.
    pub fn form<T: Serialize + ?Sized>(self, pairs: &T) -> Self {
        self.with(|_, headers, body| {
            *body = serde_urlencoded::to_string(pairs)?.into();
            set_type(headers, "application/x-www-form-urlencoded");
            Ok(())
        })
    }

    /// Sends the request, follows redirects, and waits for the head of the response.
    ///
    /// Around it, [`timeout_after`](pikake_traps::timeout_after) limits how long that may take;
    /// around the reading of the body as well, how long all may take.
    ///
    /// # Cancellation
    ///
    /// An interruption point. An interruption or a drop closes the HTTP/1.1 connection, or resets
    /// the stream of the HTTP/2 one. The server may have acted on the request. A connection that
    /// was being made is kept for the next request.
    ///
    /// # Errors
    ///
    /// [`Error`], for any status as well if [`error_for_status`](Response::error_for_status) asks
    /// for that.
    ///
    /// # Panics
    ///
    /// If polled outside a task.
    pub async fn send(self) -> Result<Response, Error> {
        let Self { client, method, built } = self;
        let (url, mut headers, body) = built?;
        let options = &client.0.options;
        if headers.contains_key(RANGE) {
            // A part of an encoded body cannot be decoded.
            headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        }
        let decodes = !headers.contains_key(ACCEPT_ENCODING);
        for (name, value) in &options.headers {
            if let Entry::Vacant(vacant) = headers.entry(name) {
                vacant.insert(value.clone());
            }
        }
        let mut outgoing = Outgoing { method, url, headers, body: Some(body), sent: None };
        if outgoing.method == Method::CONNECT {
            let error = outgoing.error(ErrorKind::Request);
            return Err(error.because("a client sends CONNECT to its proxies alone"));
        }
        let mut redirects = 0;
        loop {
            let invalid = |kind: ErrorKind, text: String| Err(outgoing.error(kind).because(text));
            let proxy = match options.proxies.of(&outgoing.url) {
                Ok(proxy) => proxy,
                Err(error) => return invalid(ErrorKind::Connect, error),
            };
            let Some(route) = Route::new(&outgoing.url, proxy) else {
                return invalid(ErrorKind::Request, "the URL is neither http nor https".into());
            };
            let answer = exchange(&client.0.connections, &route, &mut outgoing).await?;
            if options.redirects == 0 {
                return Ok(Response::new(answer, outgoing, decodes));
            }
            let head = &answer.response;
            match follow(&mut outgoing, head.status(), head.headers()) {
                Ok(false) => return Ok(Response::new(answer, outgoing, decodes)),
                Ok(true) => {}
                Err(error) => return Err(outgoing.error(ErrorKind::Redirect).because(error)),
            }
            outgoing.sent = Some(ErrorKind::Redirect);
            redirects += 1;
            if redirects > options.redirects {
                let text = format!("there are more than {}", options.redirects);
                return Err(outgoing.error(ErrorKind::Redirect).because(text));
            }
            let Answer { response, hold, .. } = answer;
            if let Err(interrupted) = drain(response.into_body(), hold).await {
                return Err(outgoing.error(ErrorKind::Interrupted).because(interrupted));
            }
        }
    }
}

fn set_type(headers: &mut HeaderMap, value: &'static str) {
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(value));
}

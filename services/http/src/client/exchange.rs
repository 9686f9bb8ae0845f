//! One request on one connection, and on another one if that is safe.
//!
//! A server may close an idle connection at the moment the client uses it. The request is then sent
//! again, on another connection:
//!
//! | the request failed | sent again |
//! | --- | --- |
//! | before hyper sent a byte of it, or the server says that it did nothing (`REFUSED_STREAM`, `GOAWAY`) | always |
//! | on a connection that had served requests, before any byte of a response | once, if its method is idempotent (RFC 9110, section 9.2.2) |
//! | on a new connection, or by an invalid response | never |
//!
//! A body that is a stream is sent again only if no part of it was taken.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
};
use http::{Method, Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use pikake_pool::GetError;
use pikake_traps::{Interrupted, future_wait};
use url::{Position, Url};

use super::body::Body;
use super::connections::{Connections, InFlight, Lease, TakeError, Taken};
use super::error::{Error, ErrorKind};
use super::route::{Route, Via};

/// How often a request is sent that no server has acted on.
const UNSENT_ATTEMPTS: usize = 4;

/// A request that can be sent several times.
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// `None`: a stream that was sent.
    pub(crate) body: Option<Body>,
    /// The kind of an error that would say that nothing was sent, once something was.
    pub(crate) sent: Option<ErrorKind>,
}

impl Outgoing {
    pub(crate) fn error(&self, kind: ErrorKind) -> Error {
        let kind = match (kind, self.sent) {
            (ErrorKind::Request | ErrorKind::Connect | ErrorKind::Pool, Some(sent)) => sent,
            (kind, _) => kind,
        };
        Error::new(kind, &self.method, Some(&self.url))
    }
}

/// The connection of a response whose body has not ended. Its drop closes an HTTP/1.1 connection,
/// and resets the stream of an HTTP/2 one.
pub(crate) enum Hold {
    Http1(Held),
    Http2(InFlight),
}

impl Hold {
    /// Gives the connection back, since the body has ended.
    pub(crate) fn give_back(self) {
        match self {
            Self::Http1(mut held) => drop(held.0.take()),
            Self::Http2(in_flight) => drop(in_flight),
        }
    }
}

/// A lease whose drop closes the connection.
pub(crate) struct Held(Option<Lease>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            lease.close();
            Lease::discard(lease);
        }
    }
}

/// The head of a response, and the connection that its body comes by.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) hold: Hold,
    pub(crate) peer: SocketAddr,
}

/// Why a request failed on a connection.
enum Failure {
    Interrupted(Interrupted),
    /// With the request, if no byte of it was sent.
    Broken {
        error: hyper::Error,
        unsent: Option<Request<Body>>,
        is_reused: bool,
    },
    /// The shared connection ended before the request was sent.
    Gone(Request<Body>),
}

/// Sends a request by any connection, and waits for the head of the response.
pub(crate) async fn exchange(
    connections: &Rc<Connections>,
    route: &Route,
    outgoing: &mut Outgoing,
) -> Result<Answer, Error> {
    let (mut attempts, mut is_repeated) = (1, false);
    loop {
        let taken = match connections.take(route).await {
            Ok(taken) => taken,
            Err(error) => return Err(take_error(outgoing, error)),
        };
        let is_http2 = matches!(taken, Taken::Http2(_));
        let request = assemble(outgoing, route, is_http2)?;
        let failure = match taken {
            Taken::Http1(lease) => send_by_http1(lease, request).await,
            Taken::Http2(in_flight) => send_by_http2(in_flight, request).await,
        };
        let failure = match failure {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        let mut take_back = |request: Request<Body>| {
            outgoing.body.get_or_insert_with(|| request.into_body());
        };
        attempts += 1;
        match failure {
            Failure::Interrupted(interrupted) => {
                return Err(outgoing.error(ErrorKind::Interrupted).because(interrupted));
            }
            Failure::Gone(request) => {
                take_back(request);
                if attempts > UNSENT_ATTEMPTS {
                    let error = io::Error::from(io::ErrorKind::NotConnected);
                    return Err(outgoing.error(ErrorKind::Exchange).because(error));
                }
            }
            Failure::Broken { error, unsent, is_reused } => {
                let is_unsent = unsent.is_some();
                match unsent {
                    Some(request) => take_back(request),
                    None => outgoing.sent = Some(ErrorKind::Exchange),
                }
                let may_repeat = match () {
                    () if outgoing.body.is_none() => false,
                    () if is_unsent || was_refused(&error) => attempts <= UNSENT_ATTEMPTS,
                    () => {
                        let is_first = !std::mem::replace(&mut is_repeated, true);
                        is_first
                            && is_reused
                            && was_closed(&error)
                            && outgoing.method.is_idempotent()
                    }
                };
                if !may_repeat {
                    let is_body = error.is_user();
                    let kind = if is_body { ErrorKind::Request } else { ErrorKind::Exchange };
                    return Err(outgoing.error(kind).because(error));
                }
                tracing::debug!(url = %outgoing.url, %error, "a request is sent again");
            }
        }
    }
}

async fn send_by_http1(mut lease: Lease, request: Request<Body>) -> Result<Answer, Failure> {
    let (peer, is_reused) = (lease.peer, lease.uses.get() > 0);
    lease.uses.set(lease.uses.get() + 1);
    let sender = lease.http1().expect("the pool's leases speak HTTP/1.1");
    let sending = sender.try_send_request(request);
    let held = Held(Some(lease));
    match future_wait(sending).await {
        Ok(Ok(response)) => {
            if let (Some(length), Some(lease)) = (kept_open(response.headers()), &held.0) {
                lease.note_keep_alive(length);
            }
            Ok(Answer { response, hold: Hold::Http1(held), peer })
        }
        Ok(Err(mut failed)) => {
            let unsent = failed.take_message();
            Err(Failure::Broken { error: failed.into_error(), unsent, is_reused })
        }
        Err(interrupted) => Err(Failure::Interrupted(interrupted)),
    }
}

async fn send_by_http2(in_flight: InFlight, request: Request<Body>) -> Result<Answer, Failure> {
    let Some((mut sender, peer, is_reused)) = in_flight.sender() else {
        return Err(Failure::Gone(request));
    };
    match future_wait(sender.try_send_request(request)).await {
        Ok(Ok(response)) => Ok(Answer { response, hold: Hold::Http2(in_flight), peer }),
        Ok(Err(mut failed)) => {
            let unsent = failed.take_message();
            Err(Failure::Broken { error: failed.into_error(), unsent, is_reused })
        }
        Err(interrupted) => Err(Failure::Interrupted(interrupted)),
    }
}

fn take_error(outgoing: &Outgoing, error: TakeError) -> Error {
    match error {
        GetError::Interrupted(interrupted) => {
            outgoing.error(ErrorKind::Interrupted).because(interrupted)
        }
        GetError::Create(failed) => {
            let error = outgoing.error(ErrorKind::Connect);
            match failed.error {
                Some(cause) => error.because((*cause).clone()),
                None => error.because(failed.to_string()),
            }
        }
        GetError::Verify(error) => outgoing.error(ErrorKind::Connect).because((*error).clone()),
        error => outgoing.error(ErrorKind::Pool).because(error.to_string()),
    }
}

/// Whether the server says that it did nothing for the request.
fn was_refused(error: &hyper::Error) -> bool {
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
    let is_leaving = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_remote() && (is_refused || is_leaving)
}

/// Whether the connection was closed without a response.
fn was_closed(error: &hyper::Error) -> bool {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return true;
    }
    let is_end = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::NotConnected
                | io::ErrorKind::UnexpectedEof
        )
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let found = error.downcast_ref::<io::Error>();
        let in_http2 = error.downcast_ref::<h2::Error>().and_then(h2::Error::get_io);
        if found.or(in_http2).is_some_and(is_end) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// How long the server keeps the connection open: the `timeout` of the header `keep-alive`.
fn kept_open(headers: &HeaderMap) -> Option<Duration> {
    const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
    let parameters = headers.get(KEEP_ALIVE)?.to_str().ok()?.split(',');
    let mut pairs = parameters.filter_map(|parameter| parameter.split_once('='));
    let (_, seconds) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

/// The request for hyper. A body of bytes is copied, a stream is taken.
fn assemble(
    outgoing: &mut Outgoing,
    route: &Route,
    is_http2: bool,
) -> Result<Request<Body>, Error> {
    let url = &outgoing.url;
    let authority = &url[Position::BeforeHost..Position::AfterPort];
    let path = &url[Position::BeforePath..Position::AfterQuery];
    let mut headers = HeaderMap::with_capacity(outgoing.headers.len() + 2);
    let is_forwarded = matches!(route.via, Via::Forward(_));
    let host = outgoing.headers.get(HOST);
    let uri: Result<Uri, _> = if is_http2 {
        let authority = host.and_then(|host| host.to_str().ok()).unwrap_or(authority);
        Uri::builder().scheme(url.scheme()).authority(authority).path_and_query(path).build()
    } else {
        match host {
            Some(host) => headers.insert(HOST, host.clone()),
            None => match HeaderValue::from_str(authority) {
                Ok(host) => headers.insert(HOST, host),
                Err(error) => return Err(outgoing.error(ErrorKind::Request).because(error)),
            },
        };
        if is_forwarded {
            Uri::builder().scheme(url.scheme()).authority(authority).path_and_query(path).build()
        } else {
            Uri::builder().path_and_query(path).build()
        }
    };
    let uri = match uri {
        Ok(uri) => uri,
        Err(error) => return Err(outgoing.error(ErrorKind::Request).because(error)),
    };
    for (name, value) in &outgoing.headers {
        let is_of_connection = is_http2 && *name == CONNECTION;
        if *name != HOST && *name != TRANSFER_ENCODING && !is_of_connection {
            headers.append(name, value.clone());
        }
    }
    if let Via::Forward(proxy) = &route.via {
        if let Some(authorization) = &proxy.authorization {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
    }
    let copy = outgoing.body.as_ref().and_then(Body::try_clone);
    let body = copy.or_else(|| outgoing.body.take()).unwrap_or_default();
    if let Err(error) = set_length(&mut headers, &outgoing.method, &body, is_http2) {
        return Err(outgoing.error(ErrorKind::Request).because(error));
    }
    let mut request = Request::new(body);
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = if is_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    *request.headers_mut() = headers;
    Ok(request)
}

/// Says how long the body is. hyper believes the headers: by a false length, the server would take
/// the next request for a part of this one.
fn set_length(
    headers: &mut HeaderMap,
    method: &Method,
    body: &Body,
    is_http2: bool,
) -> Result<(), String> {
    let known = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    let mut given = headers.get_all(CONTENT_LENGTH).iter();
    if let Some(first) = given.next() {
        let length = first.to_str().ok().and_then(|text| text.parse::<u64>().ok());
        return match (length, given.next()) {
            (Some(length), None) if known.is_none_or(|known| known == length) => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
                Ok(())
            }
            _ => Err("its content-length is not the length of its body".into()),
        };
    }
    match known {
        // hyper says nothing of a body that is empty (RFC 9110, section 8.6).
        Some(0) if matches!(*method, Method::POST | Method::PUT | Method::PATCH) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        // hyper would leave out the body of a GET.
        None if !is_http2 => {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_announces_a_timeout() {
        for (value, expected) in [
            ("timeout=5", Some(5)),
            ("timeout=5, max=100", Some(5)),
            ("max=100, Timeout = 7", Some(7)),
            ("max=100", None),
            ("timeout=soon", None),
            ("5", None),
        ] {
            let headers = [(HeaderName::from_static("keep-alive"), value.parse().unwrap())];
            let found = kept_open(&HeaderMap::from_iter(headers));
            assert_eq!(found, expected.map(Duration::from_secs), "{value}");
        }
    }

    fn assembled(url: &str, route: &Route, is_http2: bool) -> Request<Body> {
        let url = Url::parse(url).unwrap();
        let headers = HeaderMap::from_iter([(CONNECTION, HeaderValue::from_static("close"))]);
        let body = Some(Body::default());
        let mut outgoing = Outgoing { method: Method::GET, url, headers, body, sent: None };
        assemble(&mut outgoing, route, is_http2).unwrap()
    }

    #[test]
    fn target_depends_on_version_and_proxy() {
        let url = "http://host:81/a%20b?c=d&e#part";
        let parsed = Url::parse(url).unwrap();
        let direct = Route::new(&parsed, None).unwrap();
        let request = assembled(url, &direct, false);
        assert_eq!(request.uri().to_string(), "/a%20b?c=d&e");
        assert_eq!(request.headers()[HOST], "host:81");
        assert!(request.headers().contains_key(CONNECTION));
        let request = assembled(url, &direct, true);
        assert_eq!(request.uri().to_string(), "http://host:81/a%20b?c=d&e");
        assert!(request.headers().is_empty());
        let proxy =
            Rc::new(super::super::proxy::Proxy::parse("http://me:word@proxy:3128").unwrap());
        let proxied = Route::new(&parsed, Some(proxy)).unwrap();
        let request = assembled(url, &proxied, false);
        assert_eq!(request.uri().to_string(), "http://host:81/a%20b?c=d&e");
        assert_eq!(request.headers()[HOST], "host:81");
        assert!(request.headers().contains_key(PROXY_AUTHORIZATION));
        assert_eq!((proxied.host.as_str(), proxied.port), ("proxy", 3128));
        let six = Url::parse("http://[::1]/").unwrap();
        let route = Route::new(&six, None).unwrap();
        assert_eq!(assembled("http://[::1]/", &route, false).headers()[HOST], "[::1]");
        assert_eq!((route.host.as_str(), route.port), ("::1", 80));
    }

    #[test]
    fn length_is_that_of_the_body() {
        let frames = Body::from_frames::<Body>;
        let stream = || Body::from_stream(futures::stream::iter([Ok::<_, io::Error>("some")]));
        let no_length = "content-length is not";
        for (method, given, body, expected) in [
            (Method::GET, vec![], Body::default(), Ok((None, None))),
            (Method::POST, vec![], Body::default(), Ok((Some("0"), None))),
            (Method::POST, vec![], frames(Body::default()), Ok((Some("0"), None))),
            (Method::GET, vec!["0"], Body::default(), Ok((Some("0"), None))),
            (Method::GET, vec!["5"], Body::default(), Err(no_length)),
            (Method::POST, vec!["5"], Body::default(), Err(no_length)),
            (Method::POST, vec!["5"], frames(Body::default()), Err(no_length)),
            (Method::POST, vec!["4"], "some".into(), Ok((Some("4"), None))),
            (Method::POST, vec!["+4"], "some".into(), Ok((Some("4"), None))),
            (Method::POST, vec!["5"], "some".into(), Err(no_length)),
            (Method::POST, vec!["3"], frames("some".into()), Err(no_length)),
            (Method::POST, vec!["4", "4"], "some".into(), Err(no_length)),
            (Method::POST, vec!["4, 4"], "some".into(), Err(no_length)),
            (Method::POST, vec!["-1"], stream(), Err(no_length)),
            (Method::POST, vec!["5"], stream(), Ok((Some("5"), None))),
            (Method::POST, vec![], stream(), Ok((None, Some("chunked")))),
            (Method::GET, vec![], stream(), Ok((None, Some("chunked")))),
        ] {
            let case = format!("{method} {given:?} {body:?}");
            let url = Url::parse("http://host/").unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("gzip"));
            for length in given {
                headers.append(CONTENT_LENGTH, length.parse().unwrap());
            }
            let route = Route::new(&url, None).unwrap();
            let body = Some(body);
            let mut outgoing = Outgoing { method, url, headers, body, sent: None };
            match (assemble(&mut outgoing, &route, false), expected) {
                (Ok(request), Ok(expected)) => {
                    let header = |name| request.headers().get(name).map(|it| it.to_str().unwrap());
                    assert_eq!(
                        (header(CONTENT_LENGTH), header(TRANSFER_ENCODING)),
                        expected,
                        "{case}"
                    );
                }
                (Err(error), Err(text)) => {
                    assert_eq!(error.kind(), ErrorKind::Request, "{case}");
                    assert!(error.to_string().contains(text), "{error}");
                }
                (found, _) => panic!("{case}: {found:?}"),
            }
        }
    }
}

//! Requests that are refused before the service is called, though hyper has parsed them.
//!
//! hyper refuses what it cannot parse, and closes a connection on which `Content-Length` and
//! `Transfer-Encoding` come together (RFC 9112, section 6.1). It looks neither at `Host` nor at the
//! form of the target, and at the last transfer coding only. Two servers that disagree about the
//! site or the end of a request can be played off against each other, so these rules hold, with
//! their sections of RFC 9112:
//!
//! | request | rule | section |
//! | --- | --- | --- |
//! | any | at most one `Host`, and it is a host with an optional port | 3.2 |
//! | HTTP/1.1 | one `Host`, also if the target has an authority (which then counts) | 3.2 |
//! | target without an authority | `Host` may be empty | 3.2 |
//! | target with an authority | the authority is valid, and `Host` is not empty | 3.2.2 |
//! | HTTP/1 with an authority as target | the method is `CONNECT`, which has no other target | 3.2.3 |
//! | HTTP/2 with `CONNECT` | there is an `:authority` | RFC 9113, 8.5 |
//! | target `*` | the method is `OPTIONS` | 3.2.4 |
//! | with `Transfer-Encoding` | the only coding is `chunked`; else 501 | 6.1 |
//! | HTTP/2 with `:authority` and `Host` | both name the same host and port | RFC 9113, 8.3.1 |
//!
//! Names with percent-encoded bytes are refused, as `http` refuses them in targets.

use std::net::Ipv6Addr;
use std::rc::Rc;
use std::str::FromStr;

use http::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;

use crate::reply::Reply;
use crate::requests::Requests;

/// The fault of a request that is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    /// For the log.
    pub(crate) why: &'static str,
}

/// The fault of a request; `None` for one that is not refused.
pub(crate) fn fault<B: Body>(request: &Request<B>) -> Option<Fault> {
    let bad = |why| Fault { status: StatusCode::BAD_REQUEST, why };
    of_target(request).or_else(|| of_host(request)).map(bad).or_else(|| {
        let status = StatusCode::NOT_IMPLEMENTED;
        of_codings(request).map(|why| Fault { status, why })
    })
}

fn of_target<B>(request: &Request<B>) -> Option<&'static str> {
    let (uri, method) = (request.uri(), request.method());
    if uri.authority().is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return Some("the target's authority is invalid");
    }
    let is_authority = uri.authority().is_some() && uri.scheme().is_none();
    let is_of_connect = match request.version() {
        // Extended CONNECT (RFC 8441) has a scheme.
        Version::HTTP_2 => method != Method::CONNECT || uri.authority().is_some(),
        _ => is_authority == (method == Method::CONNECT),
    };
    let is_of_method = is_of_connect && (uri.path() != "*" || method == Method::OPTIONS);
    (!is_of_method).then_some("the method has no such target")
}

fn of_host<B>(request: &Request<B>) -> Option<&'static str> {
    let target = request.uri().authority();
    let mut hosts = request.headers().get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return (request.version() == Version::HTTP_11).then_some("there is no Host");
    };
    if hosts.next().is_some() {
        return Some("there are several Hosts");
    }
    if host.is_empty() {
        return target.map(|_| "Host is empty, and the target has an authority");
    }
    if !is_host(host.as_bytes()) {
        return Some("Host is invalid");
    }
    let differs = request.version() == Version::HTTP_2
        && target.is_some_and(|target| !is_same(request.uri(), target, host));
    differs.then_some("Host and :authority differ")
}

fn of_codings<B: Body>(request: &Request<B>) -> Option<&'static str> {
    // hyper reads a body of any other request by its length.
    if request.body().is_end_stream() {
        return None;
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    let first = codings.next()?;
    let is_chunked = first.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    (!is_chunked).then_some("there is a transfer coding beside chunked")
}

/// Whether this is a host and perhaps a port (RFC 3986, section 3.2), without a user and without
/// percent-encoded bytes.
fn is_host(text: &[u8]) -> bool {
    let length = match text.first() {
        Some(b'[') => text.iter().position(|&byte| byte == b']').map_or(0, |end| end + 1),
        _ => text.iter().take_while(|&&byte| OF_NAME[usize::from(byte)]).count(),
    };
    let (host, port) = text.split_at(length);
    let is_host = match host {
        [b'[', address @ .., _] => Ipv6Addr::from_str(&String::from_utf8_lossy(address)).is_ok(),
        name => !name.is_empty(),
    };
    is_host
        && match port {
            [b':', port @ ..] => port.iter().try_fold(0, add_digit).is_some(),
            port => port.is_empty(),
        }
}

/// A number of a port with one more digit.
fn add_digit(number: u16, &digit: &u8) -> Option<u16> {
    let digit = char::from(digit).to_digit(10)?;
    number.checked_mul(10)?.checked_add(u16::try_from(digit).ok()?)
}

/// Whether names of hosts have a byte: the unreserved ones and the delimiters of RFC 3986.
const OF_NAME: [bool; 256] = {
    let mut of_name = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        of_name[byte as usize] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut others: &[u8] = b"-._~!$&'()*+,;=";
    while let [other, rest @ ..] = others {
        of_name[*other as usize] = true;
        others = rest;
    }
    of_name
};

/// Whether an authority and a `Host` name the same host and port.
fn is_same(target: &Uri, one: &Authority, host: &HeaderValue) -> bool {
    let Ok(other) = Authority::try_from(host.as_bytes()) else { return false };
    let usual = if target.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(usual);
    one.host().eq_ignore_ascii_case(other.host()) && port(one) == port(&other)
}

/// The answer to a request that is refused. A connection of HTTP/1 ends with it, since what follows
/// may not be what the client has meant.
pub(crate) fn answer<B: Body>(fault: Fault, requests: &Rc<Requests>) -> Response<Reply<B>> {
    let mut response = Reply::empty(fault.status, requests);
    if !requests.is_http2.get() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Empty;

    use super::*;

    fn fault_of(version: Version, target: &str, hosts: &[&str]) -> Option<&'static str> {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        fault(&request.body(Empty::<Bytes>::new()).unwrap()).map(|fault| fault.why)
    }

    #[test]
    fn host_is_a_name_or_an_address_and_a_port() {
        for host in ["a", "A.example", "a_b~!;=", "1.2.3.4", "[::1]", "a:80", "a:", "[::1]:8080"] {
            assert_eq!(fault_of(Version::HTTP_11, "/", &[host]), None, "{host}");
        }
        let invalid = [
            "a b",
            "a/b",
            "a?b",
            "a#b",
            "a@b",
            "@a",
            "a\\b",
            "a\"b",
            "a,b:80:80",
            "a:x",
            "a:+80",
            "a:65536",
            ":80",
            "a:80:80",
            "[::1",
            "::1",
            "[::1]x",
            "[::g]",
            "[]",
            "a[b]",
            "a%00",
            "http://a",
            "a\tb",
            "<a>",
        ];
        for host in invalid {
            assert_eq!(fault_of(Version::HTTP_11, "/", &[host]), Some("Host is invalid"), "{host}");
        }
    }

    /// hyper's client sends none without.
    #[test]
    fn connect_over_http2_has_an_authority() {
        let of = |target: &str| {
            let request = Request::connect(target).version(Version::HTTP_2);
            fault(&request.body(Empty::<Bytes>::new()).unwrap()).map(|fault| fault.why)
        };
        assert_eq!(of("/"), Some("the method has no such target"));
        for target in ["a:1", "https://a/chat"] {
            assert_eq!(of(target), None, "{target}");
        }
    }

    #[test]
    fn hosts_are_compared_with_authorities_over_http2_only() {
        let same = [
            ("http://a/", "a"),
            ("http://a/", "A:80"),
            ("http://a:/", "a"),
            ("https://a/", "a:443"),
            ("https://[::1]:1/", "[::1]:1"),
        ];
        for (target, host) in same {
            assert_eq!(fault_of(Version::HTTP_2, target, &[host]), None, "{target} {host}");
        }
        for (target, host) in [("http://a/", "b"), ("http://a/", "a:81"), ("https://a/", "a:80")] {
            let differ = Some("Host and :authority differ");
            assert_eq!(fault_of(Version::HTTP_2, target, &[host]), differ, "{target} {host}");
            assert_eq!(fault_of(Version::HTTP_11, target, &[host]), None, "{target} {host}");
        }
    }
}

//! Redirects: which request follows a response (RFC 9110, section 15.4).

use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION,
    CONTENT_TYPE, COOKIE, Entry, HOST, HeaderMap, HeaderName, LOCATION, PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
};
use http::{Method, StatusCode};
use url::Url;

use super::body::Body;
use super::exchange::Outgoing;
use super::proxy::take_credentials;
use super::route::is_same_origin;

/// The headers that carry credentials.
static SECRETS: [HeaderName; 3] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];

/// Keeps the credentials in headers out of texts for people.
pub(crate) fn hide_secrets(headers: &mut HeaderMap) {
    for name in &SECRETS {
        if let Entry::Occupied(mut values) = headers.entry(name) {
            values.iter_mut().for_each(|value| value.set_sensitive(true));
        }
    }
}

/// Rewrites a request to the one that follows a response. `false`: the response is the answer.
///
/// 301 and 302 turn POST into GET, and 303 everything but HEAD. 307 and 308 repeat the request,
/// unless its body is a stream, which cannot be read again. Credentials do not cross origins.
pub(crate) fn follow(
    request: &mut Outgoing,
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<bool, String> {
    let becomes_get = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => request.method == Method::POST,
        StatusCode::SEE_OTHER => request.method != Method::HEAD && request.method != Method::GET,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => false,
        _ => return Ok(false),
    };
    let Some(location) = headers.get(LOCATION) else { return Ok(false) };
    let is_sent_again =
        becomes_get || request.body.as_ref().is_some_and(|body| body.as_bytes().is_some());
    if !is_sent_again {
        return Ok(false);
    }
    let mut next = target(&request.url, location.as_bytes())?;
    let credentials = take_credentials(&mut next);
    let headers = &mut request.headers;
    if becomes_get {
        request.method = Method::GET;
        request.body = Some(Body::default());
        for about_body in [
            CONTENT_ENCODING,
            CONTENT_LANGUAGE,
            CONTENT_LENGTH,
            CONTENT_LOCATION,
            CONTENT_TYPE,
            TRANSFER_ENCODING,
        ] {
            headers.remove(about_body);
        }
    }
    // It was the name of the server before.
    headers.remove(HOST);
    if !is_same_origin(&request.url, &next) {
        for secret in &SECRETS {
            headers.remove(secret);
        }
    }
    if let Some(credentials) = credentials {
        headers.insert(AUTHORIZATION, credentials);
    }
    request.url = next;
    Ok(true)
}

/// The URL of a location, with the fragment of the URL before if it has none of its own. The error
/// does not repeat the location, which may have a password.
fn target(from: &Url, location: &[u8]) -> Result<Url, String> {
    let text = std::str::from_utf8(location).map_err(|_| "its location is no URL".to_owned())?;
    let mut next = from.join(text).map_err(|error| format!("its location: {error}"))?;
    if !matches!(next.scheme(), "http" | "https") {
        return Err(format!(
            "the scheme {} of its location is neither http nor https",
            next.scheme()
        ));
    }
    if next.fragment().is_none() {
        next.set_fragment(from.fragment());
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(method: Method, url: &str, body: Body) -> Outgoing {
        let headers = [
            (AUTHORIZATION, "secret"),
            (COOKIE, "secret"),
            (CONTENT_TYPE, "text/plain"),
            (HOST, "virtual"),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name, value.parse().unwrap()));
        let url = Url::parse(url).unwrap();
        Outgoing { method, url, headers: headers.collect(), body: Some(body), sent: None }
    }

    fn followed(request: &mut Outgoing, status: u16, location: &str) -> Result<bool, String> {
        let headers = HeaderMap::from_iter([(LOCATION, location.parse().unwrap())]);
        follow(request, StatusCode::from_u16(status).unwrap(), &headers)
    }

    #[test]
    fn methods_are_rewritten_by_status() {
        let methods = ["GET", "HEAD", "POST", "PUT", "DELETE"];
        for (status, expected) in [
            (300, None),
            (301, Some(["GET", "HEAD", "GET", "PUT", "DELETE"])),
            (302, Some(["GET", "HEAD", "GET", "PUT", "DELETE"])),
            (303, Some(["GET", "HEAD", "GET", "GET", "GET"])),
            (304, None),
            (305, None),
            (307, Some(methods)),
            (308, Some(methods)),
        ] {
            for (at, method) in methods.iter().enumerate() {
                let method: Method = method.parse().unwrap();
                let mut request = outgoing(method, "http://a/b/c?d", Body::from("body"));
                let is_followed = followed(&mut request, status, "../e").unwrap();
                assert_eq!(is_followed, expected.is_some(), "{status}");
                let Some(expected) = expected else { continue };
                assert_eq!(request.method, expected[at], "{status}");
                assert_eq!(request.url.as_str(), "http://a/e");
                let is_get_now = expected[at] == "GET" && methods[at] != "GET";
                let sends_body = request.body.unwrap().as_bytes() == Some(b"body");
                assert_eq!(sends_body, !is_get_now, "{status} {}", methods[at]);
                assert_eq!(request.headers.contains_key(CONTENT_TYPE), !is_get_now);
                assert!(!request.headers.contains_key(HOST));
            }
        }
    }

    #[test]
    fn credentials_stay_within_the_origin() {
        for (from, to, is_kept) in [
            ("http://a/", "/other", true),
            ("http://a/", "http://a:80/", true),
            ("http://a/", "http://A/", true),
            ("http://a/", "http://a:81/", false),
            ("http://a/", "https://a/", false),
            ("https://a/", "http://a/", false),
            ("http://a/", "http://sub.a/", false),
            ("http://a/", "//b/", false),
        ] {
            let mut request = outgoing(Method::GET, from, Body::default());
            assert!(followed(&mut request, 302, to).unwrap());
            for secret in [AUTHORIZATION, COOKIE] {
                assert_eq!(request.headers.contains_key(&secret), is_kept, "{from} {to} {secret}");
            }
        }
    }

    #[test]
    fn locations_are_resolved_or_refused() {
        for (from, location, to) in [
            ("http://a/b#part", "c", Ok("http://a/c#part")),
            ("http://a/b#part", "c#own", Ok("http://a/c#own")),
            ("http://a/b", "?q=1", Ok("http://a/b?q=1")),
            ("http://a/b", "//c/d", Ok("http://c/d")),
            ("http://a/b", "", Ok("http://a/b")),
            ("http://a/b", "ftp://c/", Err("neither http nor https")),
            ("http://a/b", "file:///etc/passwd", Err("neither http nor https")),
            ("http://a/b", "javascript:alert(1)", Err("neither http nor https")),
            ("http://a/b", "http://", Err("its location")),
            ("http://a/b", "http://me:word@c:99999/", Err("its location")),
            ("http://a/b", "ftp://me:word@c/", Err("the scheme ftp")),
        ] {
            let mut request = outgoing(Method::GET, from, Body::default());
            match (followed(&mut request, 302, location), to) {
                (Ok(true), Ok(to)) => assert_eq!(request.url.as_str(), to),
                (Err(error), Err(part)) => {
                    assert!(error.contains(part) && !error.contains("word"), "{error}");
                }
                (found, _) => panic!("{location}: {found:?} {}", request.url),
            }
        }
        let mut request = outgoing(Method::GET, "http://a/", Body::default());
        assert!(followed(&mut request, 302, "http://me:word@b/").unwrap());
        assert_eq!(request.url.as_str(), "http://b/");
        assert_eq!(request.headers[AUTHORIZATION], crate::client::proxy::basic("me", "word"));
    }

    #[test]
    fn stream_is_not_sent_again() {
        let stream = || {
            let bytes = Body::from("body");
            Body::from_frames(bytes)
        };
        let mut request = outgoing(Method::PUT, "http://a/", stream());
        assert!(!followed(&mut request, 307, "/b").unwrap());
        assert_eq!(request.url.as_str(), "http://a/");
        let mut request = outgoing(Method::PUT, "http://a/", stream());
        assert!(followed(&mut request, 303, "/b").unwrap());
    }
}

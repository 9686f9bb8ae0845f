//! What programs ask of a client, against axum on pikake's server.

use axum::Router;
use axum::body::Body as AxumBody;
use axum::extract::{Json, Query, RawQuery};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures::stream;
use http_body_util::BodyExt;
use pikake::http::axum::Peer;
use pikake::http::client::{Body, ErrorKind};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use super::{client, run, site};

#[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
struct User {
    name: String,
    age: u32,
}

async fn echo(
    method: Method,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> String {
    let header = |name| headers.get(name).map_or("-", |value| value.to_str().unwrap());
    format!(
        "{method} ?{} {} {} {} {:?}",
        query.unwrap_or_default(),
        header(header::CONTENT_TYPE),
        header(header::AUTHORIZATION),
        header(header::CONTENT_LENGTH),
        String::from_utf8_lossy(&body),
    )
}

fn router() -> Router {
    let chunks = || async {
        let parts =
            ["first ", "second ", "third"].map(|part| Ok::<_, io::Error>(Bytes::from(part)));
        AxumBody::from_stream(stream::iter(parts))
    };
    let peer = async |Peer(peer): Peer<SocketAddr>| peer.to_string();
    let headers = async |headers: HeaderMap| {
        let mut names: Vec<_> = headers
            .iter()
            .filter(|(name, _)| *name != header::HOST)
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        names.sort();
        names.join("\n")
    };
    Router::new()
        .route("/", get(async || "hello"))
        .route("/echo", any(echo))
        .route("/headers", get(headers))
        .route("/peer", any(peer))
        .route("/chunks", get(chunks))
        .route(
            "/json",
            post(async |Json(user): Json<User>| Json(User { age: user.age + 1, ..user })),
        )
        .route(
            "/query",
            get(async |Query(all): Query<BTreeMap<String, String>>| format!("{all:?}")),
        )
        .route("/none", get(async || StatusCode::NO_CONTENT))
        .route("/teapot", get(async || (StatusCode::IM_A_TEAPOT, "short and stout")))
        .route("/bom", get(async || &b"\xef\xbb\xbftext \xff"[..]))
}

#[test]
fn bodies_are_read_whole_and_in_parts() {
    run(async || {
        let (site, client) = (site(router()).await, client());
        let url = |path: &str| format!("{}{path}", site.url);
        let response = client.get(&site.url).send().await.unwrap();
        assert_eq!((response.status(), response.content_length()), (StatusCode::OK, Some(5)));
        assert_eq!(response.text().await.unwrap(), "hello");
        let whole = client.get(url("/chunks")).send().await.unwrap().bytes().await.unwrap();
        assert_eq!(whole, "first second third");
        let mut response = client.get(url("/chunks")).send().await.unwrap();
        assert_eq!(response.content_length(), None);
        let mut all = Vec::new();
        while let Some(part) = response.chunk().await.unwrap() {
            all.extend_from_slice(&part);
        }
        assert_eq!(all, b"first second third");
        assert_eq!(response.chunk().await.unwrap(), None);
        let body = client.get(url("/chunks")).send().await.unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), "first second third");
        let empty = client.get(url("/none")).send().await.unwrap();
        assert_eq!(empty.status(), StatusCode::NO_CONTENT);
        assert_eq!(empty.bytes().await.unwrap(), "");
        let head = client.head(&site.url).send().await.unwrap();
        assert_eq!(head.headers()[header::CONTENT_LENGTH], "5");
        assert_eq!(head.text().await.unwrap(), "");
        let text = client.get(url("/bom")).send().await.unwrap().text().await.unwrap();
        assert_eq!(text, "text \u{fffd}");
    });
}

#[test]
fn request_carries_query_body_and_credentials() {
    run(async || {
        let (site, client) = (site(router()).await, client());
        let echo = format!("{}/echo", site.url);
        let ask = async |request: pikake::http::client::RequestBuilder| {
            request.send().await.unwrap().text().await.unwrap()
        };
        let query = [("a", "b c"), ("d", "é&")];
        assert_eq!(
            ask(client.get(format!("{echo}?x=1")).query(&query)).await,
            "GET ?x=1&a=b+c&d=%C3%A9%26 - - - \"\""
        );
        let none: [(&str, &str); 0] = [];
        assert_eq!(ask(client.delete(&echo).query(&none)).await, "DELETE ? - - - \"\"");
        assert_eq!(ask(client.post(&echo)).await, "POST ? - - 0 \"\"");
        assert_eq!(
            ask(client.post(&echo).form(&query)).await,
            "POST ? application/x-www-form-urlencoded - 17 \"a=b+c&d=%C3%A9%26\""
        );
        assert_eq!(
            ask(client.put(&echo).header("content-type", "text/x").body("text")).await,
            "PUT ? text/x - 4 \"text\""
        );
        assert_eq!(
            ask(client.patch(&echo).json("text")).await,
            "PATCH ? application/json - 6 \"\\\"text\\\"\""
        );
        assert_eq!(
            ask(client.get(&echo).basic_auth("Aladdin", "open sesame")).await,
            "GET ? - Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ== - \"\""
        );
        assert_eq!(
            ask(client.get(&echo).bearer_auth("token")).await,
            "GET ? - Bearer token - \"\""
        );
        let with_password = echo.replace("http://", "http://Aladdin:open%20sesame@");
        assert_eq!(
            ask(client.get(with_password)).await,
            "GET ? - Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ== - \"\""
        );
        let user = User { name: "Ada".into(), age: 36 };
        let response = client.post(format!("{}/json", site.url)).json(&user).send().await.unwrap();
        assert_eq!(response.json::<User>().await.unwrap(), User { age: 37, ..user });
    });
}

#[test]
fn streams_are_sent_as_they_come() {
    run(async || {
        let (site, client) = (site(router()).await, client());
        let echo = format!("{}/echo", site.url);
        let parts = ["some ", "parts"].map(Ok::<_, io::Error>);
        let sent = client.post(&echo).body(Body::from_stream(stream::iter(parts))).send();
        assert_eq!(sent.await.unwrap().text().await.unwrap(), "POST ? - - - \"some parts\"");
        // A stream may wait for the kernel.
        let slow = stream::unfold(0, async |at| {
            pikake::sleep(super::ms(5)).await.unwrap();
            (at < 3).then(|| (Ok::<_, io::Error>(at.to_string()), at + 1))
        });
        let sent = client.post(&echo).body(Body::from_stream(slow)).send();
        assert_eq!(sent.await.unwrap().text().await.unwrap(), "POST ? - - - \"012\"");
        let parts = stream::iter([Ok::<_, io::Error>("asked")]);
        let sent = client.get(&echo).body(Body::from_stream(parts)).send();
        assert_eq!(sent.await.unwrap().text().await.unwrap(), "GET ? - - - \"asked\"");
        let known = Body::from_frames(http_body_util::Full::new(Bytes::from("known")));
        let sent = client.post(&echo).body(known).send();
        assert_eq!(sent.await.unwrap().text().await.unwrap(), "POST ? - - 5 \"known\"");
        let failing = ["some"].map(Ok).into_iter().chain([Err(io::Error::other("no more"))]);
        let sent = client.post(&echo).body(Body::from_stream(stream::iter(failing))).send();
        let error = sent.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exchange);
        assert!(error.to_string().contains("no more"), "{error}");
    });
}

#[test]
fn default_headers_yield_to_those_of_a_request() {
    run(async || {
        let site = site(router()).await;
        let url = format!("{}/headers", site.url);
        let client = pikake::http::Client::builder()
            .no_proxy()
            .user_agent("test/1")
            .default_header("x-one", "default")
            .default_header("x-two", "default")
            .build()
            .unwrap();
        let request = client.get(&url).header("x-two", "own").header("x-two", "second");
        let text = request.header("accept-encoding", "identity").send().await.unwrap();
        assert_eq!(
            text.text().await.unwrap(),
            "accept-encoding: identity\naccept: */*\nuser-agent: test/1\nx-one: default\nx-two: own\n\
             x-two: second"
        );
        let text = super::client().get(&url).send().await.unwrap().text().await.unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let expected =
            format!("accept-encoding: gzip, deflate\naccept: */*\nuser-agent: pikake/{version}");
        assert_eq!(text, expected);
        let part = super::client().get(&url).header("range", "bytes=0-9").send().await.unwrap();
        assert!(part.text().await.unwrap().starts_with("accept-encoding: identity\n"));
        let builder = pikake::http::Client::builder().default_header("in valid", "x");
        assert!(builder.build().is_err());
    });
}

#[test]
fn statuses_and_invalid_requests_are_errors() {
    run(async || {
        let (site, client) = (site(router()).await, client());
        let url = format!("{}/teapot", site.url);
        let response = client.get(&url).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
        let error = response.error_for_status().unwrap_err();
        assert_eq!(error.status(), Some(StatusCode::IM_A_TEAPOT));
        assert_eq!(error.to_string(), format!("GET {url}: the status is 418 I'm a teapot"));
        let json = client.get(&url).send().await.unwrap().json::<User>().await.unwrap_err();
        assert_eq!(json.kind(), ErrorKind::Decode);
        for (request, part) in [
            (client.get("no url"), "relative URL without a base"),
            (client.get("ftp://host/"), "neither http nor https"),
            (client.get(&url).header("in valid", "x"), "invalid HTTP header name"),
            (client.get(&url).header("x", "a\nb"), "failed to parse header value"),
            (client.get(&url).query("no pairs"), "only maps and structs"),
            (client.request(Method::CONNECT, &url), "CONNECT"),
            (client.get(&url).header("content-length", "5"), "content-length is not"),
        ] {
            let error = request.send().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Request, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
        let error = client.get("http://127.0.0.1:1/").send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    });
}

#[test]
fn texts_have_no_credentials() {
    run(async || {
        let error = client().get("http://me:secret@host:99999/").send().await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        let request = client()
            .get("http://me:secret@host/")
            .header("cookie", "secret")
            .header("cookie", "a second secret")
            .headers(
                [(header::PROXY_AUTHORIZATION, "secret".parse().unwrap())].into_iter().collect(),
            );
        let builder = pikake::http::Client::builder().default_header("authorization", "secret");
        let texts = format!("{request:?} {builder:?}");
        assert!(!texts.contains("secret") && texts.contains("Sensitive"), "{texts}");
    });
}

#[test]
fn connection_is_used_again_after_each_kind_of_body() {
    run(async || {
        let (site, client) = (site(router()).await, client());
        let ask = async |path: &str| {
            let request = client.get(format!("{}{path}", site.url)).send();
            request.await.unwrap().text().await.unwrap()
        };
        let peer = ask("/peer").await;
        for path in ["/", "/chunks", "/none", "/teapot", "/echo"] {
            ask(path).await;
            assert_eq!(ask("/peer").await, peer, "after {path}");
        }
        let sent = client.post(format!("{}/peer", site.url)).body("with a body").send();
        assert_eq!(sent.await.unwrap().text().await.unwrap(), peer);
        let head = client.head(&site.url).send().await.unwrap();
        drop(head);
        assert_eq!(ask("/peer").await, peer, "a response without a body ends with its head");
        let unread = client.get(format!("{}/chunks", site.url)).send().await.unwrap();
        drop(unread);
        assert_ne!(ask("/peer").await, peer, "a body that is not read closes its connection");
    });
}

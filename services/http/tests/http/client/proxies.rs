//! Proxies: forwarded requests, tunnels, and proxies that refuse or misbehave.

use std::cell::RefCell;
use std::rc::Rc;

use axum::Router;
use axum::routing::get;
use pikake::http::Client;
use pikake::http::client::ErrorKind;
use pikake::net::{TcpStream, Write, copy_bidirectional};

use super::https::{secure_site, trusting};
use super::{Conn, Scripted, run, scripted};

/// A proxy that opens tunnels, and answers other requests itself. It notes the heads of the
/// requests.
async fn proxy() -> (Scripted, Rc<RefCell<Vec<String>>>) {
    let heads = Rc::<RefCell<Vec<String>>>::default();
    let noted = heads.clone();
    let server = scripted(move |conn| {
        let heads = noted.clone();
        async move {
            while let Some(head) = conn.request().await {
                heads.borrow_mut().push(head.clone());
                let Some(target) = head.strip_prefix("CONNECT ") else {
                    conn.answer("from the proxy").await;
                    continue;
                };
                let target = target.split(' ').next().unwrap().to_owned();
                let Ok(server) = TcpStream::connect(target.as_str()).await else {
                    conn.send("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await;
                    continue;
                };
                conn.send("HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n").await;
                drop(copy_bidirectional(&conn.stream, &server).await);
                return;
            }
        }
    })
    .await;
    (server, heads)
}

fn by(proxy: &str, except: &str) -> Client {
    Client::builder().proxy(proxy, except).build().unwrap()
}

#[test]
fn http_is_forwarded_in_absolute_form() {
    run(async || {
        let (proxy, heads) = proxy().await;
        let client = by(&proxy.url.replace("http://", "http://me:word@"), "direct.test");
        for url in ["http://one.test/a?b", "http://two.test:81/c"] {
            let text = client.get(url).send().await.unwrap().text().await.unwrap();
            assert_eq!(text, "from the proxy");
        }
        let heads = heads.take();
        assert!(
            heads[0].starts_with("GET http://one.test/a?b HTTP/1.1\nhost: one.test\n"),
            "{heads:?}"
        );
        assert!(heads[1].starts_with("GET http://two.test:81/c HTTP/1.1\nhost: two.test:81\n"));
        assert!(
            heads.iter().all(|head| head.contains("proxy-authorization: Basic bWU6d29yZA==\n"))
        );
        assert_eq!(proxy.accepted.get(), 1, "hosts share the connection to the proxy");
        let error = client.get("http://direct.test./").send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    });
}

#[test]
fn https_goes_through_a_tunnel() {
    run(async || {
        let site =
            secure_site(Router::new().route("/", get(async || "behind")), &["h2", "http/1.1"])
                .await;
        let (proxy, heads) = proxy().await;
        let client = trusting(&site, Client::builder().proxy(&proxy.url, ""));
        for _ in 0..3 {
            let response = client.get(&site.url).send().await.unwrap();
            assert_eq!(response.version(), axum::http::Version::HTTP_2);
            assert_eq!(response.text().await.unwrap(), "behind");
        }
        let heads = heads.take();
        let authority = site.url.strip_prefix("https://").unwrap();
        assert_eq!(heads, [format!("CONNECT {authority} HTTP/1.1\nhost: {authority}\n\n")]);
        let first = trusting(&site, Client::builder().proxy(&proxy.url, "").http1_only());
        for _ in 0..3 {
            let response = first.get(&site.url).send().await.unwrap();
            assert_eq!(response.version(), axum::http::Version::HTTP_11);
            assert_eq!(response.text().await.unwrap(), "behind");
        }
        assert_eq!(proxy.accepted.get(), 2);
        let error = client.get("https://localhost:1/").send().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(error.to_string().contains("502 Bad Gateway"), "{error}");
    });
}

#[test]
fn proxy_over_tls_opens_tunnels() {
    run(async || {
        let site =
            secure_site(Router::new().route("/", get(async || "behind")), &["http/1.1"]).await;
        // A tunnel by TLS within a tunnel by TLS.
        let listener = pikake::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = site.acceptor(&[]);
        let serving = pikake::spawn(async move {
            let listener = acceptor.listen(listener);
            let handler = |stream, _| async move {
                let stream = pikake::net::BufReader::new(stream);
                let mut target = String::new();
                while let Some(line) = stream.next_line().await.unwrap() {
                    if let Some(rest) = line.strip_prefix("CONNECT ") {
                        target = rest.split(' ').next().unwrap().to_owned();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let server = TcpStream::connect(target.as_str()).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                drop(copy_bidirectional(&stream, &server).await);
            };
            drop(pikake::net::serve(listener, 10, handler).await);
        });
        let _serving = super::Guard(serving);
        let proxied = Client::builder().proxy(&format!("https://localhost:{port}"), "");
        let client = trusting(&site, proxied);
        let text = client.get(&site.url).send().await.unwrap().text().await.unwrap();
        assert_eq!(text, "behind");
    });
}

#[test]
fn misbehaving_proxies_are_errors() {
    run(async || {
        for (answer, part) in [
            ("", "without an answer"),
            ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407 Proxy Authentication"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", "before the tunnel is used"),
            ("nonsense\r\n\r\n", "\"nonsense\""),
            ("HTTP/1.1 2\u{e9}0 OK\r\n\r\n", "it answers CONNECT"),
            (&"x".repeat(100_000), "no end within"),
        ] {
            let answer = answer.to_owned();
            let server = scripted(move |conn: Conn| {
                let answer = answer.clone();
                async move {
                    conn.request().await;
                    conn.send(answer).await;
                }
            })
            .await;
            let error = by(&server.url, "").get("https://host.test/").send().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Connect);
            assert!(error.to_string().contains(part), "{error}");
        }
        for url in ["socks5://host:1", "", "http://", "http://:pass@"] {
            assert!(Client::builder().proxy(url, "").build().is_err(), "{url}");
        }
    });
}

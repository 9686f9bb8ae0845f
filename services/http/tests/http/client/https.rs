//! HTTPS: the version that ALPN chooses, shared HTTP/2 connections, certificates; and encodings.

use axum::Router;
use axum::http::{HeaderMap, Version, header};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use pikake::http::axum::{Peer, local};
use pikake::http::client::{ClientBuilder, ErrorKind};
use pikake::http::{Client, serve};
use pikake::net::TcpListener;
use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector};
use pikake::task::in_parallel;
use pikake::{sleep, spawn, timeout_after};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use std::future::IntoFuture;
use std::io::Write;
use std::net::SocketAddr;

use super::{Guard, LONG, client, ms, run, site};

/// A server over TLS, whose drop ends it.
pub(crate) struct SecureSite {
    pub(crate) url: String,
    certificate: String,
    key: String,
    server: Box<dyn std::any::Any>,
}

impl SecureSite {
    pub(crate) fn acceptor(&self, alpn: &[&str]) -> TlsAcceptor {
        let identity =
            Identity::from_pem(self.certificate.as_bytes(), self.key.as_bytes()).unwrap();
        TlsAcceptor::builder(identity).alpn(alpn.iter().copied()).build().unwrap()
    }

    fn begin(&mut self, listener: TcpListener, router: Router, alpn: &[&str]) {
        let server = serve(listener, router).tls(self.acceptor(alpn));
        let server = server.soft_deadline(ms(1)).hard_deadline(ms(2));
        self.server = Box::new(Guard(spawn(server.into_future())));
    }

    /// Ends the server, and begins another one at its address.
    async fn restart(&mut self, router: Router, alpn: &[&str]) {
        self.server = Box::new(());
        let (_, port) = self.url.rsplit_once(':').unwrap();
        let listener = loop {
            match TcpListener::bind(format!("127.0.0.1:{port}")).await {
                Ok(listener) => break listener,
                Err(_) => sleep(ms(5)).await.unwrap(),
            }
        };
        self.begin(listener, router, alpn);
    }
}

pub(crate) async fn secure_site(router: Router, alpn: &[&str]) -> SecureSite {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (certificate.self_signed(&key).unwrap().pem(), key.serialize_pem());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let mut site = SecureSite { url, certificate, key, server: Box::new(()) };
    site.begin(listener, router, alpn);
    site
}

pub(crate) fn trusting(site: &SecureSite, builder: ClientBuilder) -> Client {
    let connector = TlsConnector::builder().roots_pem(site.certificate.as_bytes()).unwrap();
    builder.tls(connector.build().unwrap()).build().unwrap()
}

fn router() -> Router {
    let peer = async |version: Version, Peer(peer): Peer<SocketAddr>| {
        format!("{version:?} {}", peer.port())
    };
    let hang = || async {
        drop(sleep(LONG).await);
        "never"
    };
    Router::new()
        .route("/", get(peer))
        .route("/hang", get(local(hang)))
        .route("/slow", get(local(async || sleep(ms(20)).await.map_or("told", |()| "slow"))))
        .route("/host", get(async |headers: HeaderMap| format!("{:?}", headers.get(header::HOST))))
        .route("/much", get(async || vec![b'x'; 3 << 20]))
}

#[test]
fn server_chooses_the_version() {
    run(async || {
        for (alpn, builder, expected) in [
            (&["h2", "http/1.1"][..], Client::builder(), Some("HTTP/2.0")),
            (&["http/1.1"], Client::builder(), Some("HTTP/1.1")),
            (&[], Client::builder(), Some("HTTP/1.1")),
            (&["h2", "http/1.1"], Client::builder().http1_only(), Some("HTTP/1.1")),
            (&["h2", "http/1.1"], Client::builder().http2_only(), Some("HTTP/2.0")),
            (&["http/1.1"], Client::builder().http2_only(), None),
        ] {
            let site = secure_site(router(), alpn).await;
            let client = trusting(&site, builder.no_proxy());
            let mut ports = Vec::new();
            for _ in 0..3 {
                match client.get(&site.url).send().await {
                    Ok(response) => {
                        let text = response.text().await.unwrap();
                        let (version, port) = text.split_once(' ').unwrap();
                        assert_eq!(Some(version), expected, "{alpn:?}");
                        ports.push(port.to_owned());
                    }
                    Err(error) => assert_eq!((error.kind(), expected), (ErrorKind::Connect, None)),
                }
            }
            ports.dedup();
            assert_eq!(ports.len(), usize::from(expected.is_some()), "{alpn:?}");
        }
    });
}

#[test]
fn server_that_learns_http2_is_asked_by_one_connection() {
    run(async || {
        let mut site = secure_site(router(), &["http/1.1"]).await;
        let (client, url) = (trusting(&site, Client::builder().no_proxy()), site.url.clone());
        let ask = async || client.get(&url).send().await.unwrap().text().await.unwrap();
        assert!(ask().await.starts_with("HTTP/1.1"));
        site.restart(router(), &["h2"]).await;
        // The first server may still answer by the kept connection.
        let first = loop {
            match ask().await {
                text if text.starts_with("HTTP/2.0") => break text,
                _ => sleep(ms(5)).await.unwrap(),
            }
        };
        assert_eq!(ask().await, first);
    });
}

#[test]
fn requests_share_one_http2_connection() {
    run(async || {
        let site = secure_site(router(), &["h2"]).await;
        let client = trusting(&site, Client::builder().no_proxy());
        let ask = |path: &str| {
            let request = client.get(format!("{}{path}", site.url)).send();
            async { request.await.unwrap().text().await.unwrap() }
        };
        // All at once, and the first to come dials.
        let texts = in_parallel((0..50).map(|_| ask("/"))).await.unwrap();
        let mut texts: Vec<_> = texts.into_iter().map(Result::unwrap).collect();
        texts.dedup();
        assert_eq!(texts.len(), 1);
        assert_eq!(ask("/much").await.len(), 3 << 20);
        // The end of one stream leaves the others alone.
        let slow = spawn(ask("/slow"));
        let hanging = client.get(format!("{}/hang", site.url)).send();
        assert!(timeout_after(ms(5), hanging).await.is_err());
        let unread = client.get(format!("{}/much", site.url)).send().await.unwrap();
        drop(unread);
        assert_eq!(slow.await.unwrap(), "slow");
        assert_eq!(ask("/").await, texts[0]);
        assert!(ask("/host").await.contains("None"));
    });
}

#[test]
fn http2_works_without_tls_by_prior_knowledge() {
    run(async || {
        let site = site(router()).await;
        let client = Client::builder().no_proxy().http2_only().build().unwrap();
        for _ in 0..3 {
            let response = client.get(&site.url).send().await.unwrap();
            assert_eq!(response.version(), Version::HTTP_2);
            assert!(response.text().await.unwrap().starts_with("HTTP/2.0"));
        }
    });
}

#[pikake::sim(seeds = 3)]
async fn idle_http2_connection_is_closed_after_its_time() {
    let site = secure_site(router(), &["h2"]).await;
    let client = trusting(&site, Client::builder().no_proxy().idle_timeout(ms(60)));
    let ask = async || client.get(&site.url).send().await.unwrap().text().await.unwrap();
    let first = ask().await;
    assert_eq!(ask().await, first);
    // It may be used again shortly before, so it takes up to two intervals.
    sleep(ms(400)).await.unwrap();
    assert_ne!(ask().await, first);
}

#[test]
fn restarted_http2_server_is_found_again() {
    run(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let begin = |listener| {
            let server = serve(listener, router()).soft_deadline(ms(1)).hard_deadline(ms(2));
            Guard(spawn(server.into_future()))
        };
        let client = Client::builder().no_proxy().http2_only().build().unwrap();
        let mut server = Some(begin(listener));
        for _ in 0..3 {
            let request = client.post(format!("http://{address}/slow")).send();
            assert_eq!(request.await.unwrap().status(), 405);
            drop(server.take());
            server = loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => break Some(begin(listener)),
                    Err(_) => sleep(ms(5)).await.unwrap(),
                }
            };
        }
    });
}

#[test]
fn untrusted_certificate_is_an_error() {
    run(async || {
        let (site, other) =
            (secure_site(router(), &["h2"]).await, secure_site(router(), &["h2"]).await);
        let client = trusting(&other, Client::builder().no_proxy());
        // All that wait for the connection learn of it.
        let asking = (0..5).map(|_| client.get(&site.url).send());
        for error in in_parallel(asking).await.unwrap() {
            let error = error.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Connect);
            assert!(error.to_string().contains("certificate"), "{error}");
        }
        let url = site.url.replace("localhost", "127.0.0.1");
        let client = trusting(&site, Client::builder().no_proxy());
        assert_eq!(client.get(url).send().await.unwrap_err().kind(), ErrorKind::Connect);
        let plain = site.url.replace("https", "http");
        assert_eq!(client.get(plain).send().await.unwrap_err().kind(), ErrorKind::Exchange);
    });
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn encoded_bodies_are_decoded() {
    run(async || {
        let text = b"some text ".repeat(10_000);
        let (zipped, whole) = (gzip(&text), text.clone());
        let deflated = {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&text).unwrap();
            encoder.finish().unwrap()
        };
        let encoded = |encoding: &'static str, body: Vec<u8>| {
            let body = Bytes::from(body);
            get(async move || ([(header::CONTENT_ENCODING, encoding)], body.clone()))
        };
        let cut = zipped[..zipped.len() - 5].to_vec();
        let router = Router::new()
            .route("/gzip", encoded("gzip", zipped.clone()))
            .route("/deflate", encoded("deflate", deflated))
            .route("/cut", encoded("gzip", cut))
            .route("/false", encoded("gzip", b"not at all".to_vec()))
            .route("/other", encoded("zstd", b"as it is".to_vec()))
            .route("/part", encoded("gzip", zipped[5..50].to_vec()))
            .route("/bomb", encoded("gzip", gzip(&vec![0; 8 << 20])))
            .route("/empty", encoded("gzip", Vec::new()));
        let (site, client) = (site(router).await, client());
        let get = |path: &str| client.get(format!("{}{path}", site.url)).send();
        for path in ["/gzip", "/deflate"] {
            let response = get(path).await.unwrap();
            assert_eq!(response.headers().get(header::CONTENT_ENCODING), None);
            assert_eq!(response.content_length(), None);
            assert_eq!(response.bytes().await.unwrap(), whole, "{path}");
        }
        for path in ["/cut", "/false"] {
            let error = get(path).await.unwrap().bytes().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Decode, "{path}");
        }
        assert_eq!(get("/other").await.unwrap().text().await.unwrap(), "as it is");
        assert_eq!(get("/empty").await.unwrap().text().await.unwrap(), "");
        let head = client.head(format!("{}/gzip", site.url)).send().await.unwrap();
        assert_eq!(head.bytes().await.unwrap(), "");
        let raw = client.get(format!("{}/gzip", site.url)).header("accept-encoding", "gzip");
        assert_eq!(raw.send().await.unwrap().bytes().await.unwrap(), zipped);
        let part = client.get(format!("{}/part", site.url)).header("range", "bytes=5-49");
        assert_eq!(part.send().await.unwrap().bytes().await.unwrap(), zipped[5..50]);
        let mut bomb = get("/bomb").await.unwrap().limit(1 << 20);
        let mut taken = 0;
        let error = loop {
            match bomb.chunk().await {
                Ok(part) => taken += part.unwrap().len(),
                Err(error) => break error,
            }
        };
        assert!(taken <= 1 << 20);
        assert_eq!(error.kind(), ErrorKind::TooLong);
    });
}

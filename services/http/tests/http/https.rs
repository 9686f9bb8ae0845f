//! HTTPS: the protocols, handshakes that fail or do not end, and shutdowns during handshakes.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use axum::Router;
use axum::http::Version;
use axum::response::Response;
use axum::routing::{any, get};
use bytes::Bytes;
use h2::ext::Protocol;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper::header::HOST;
use pikake::http::axum::Peer;
use pikake::http::axum::local;
use pikake::http::{ALPN, Executor, Io, Report, ServeError, Upgrade, Upgraded, serve};
use pikake::net::tls::{Identity, TlsAcceptor, TlsConnector, TlsStream};
use pikake::net::{Listener, MemoryStream, Read, TcpListener, TcpStream, Write, interruption};
use pikake::sync::Event;
use pikake::time::{elapsed_since, now};
use pikake::{Task, future_wait, sleep, spawn, timeout_after};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};

const SECOND: Duration = Duration::from_secs(1);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// More than a shutdown waits for an idle connection.
const MOMENT: Duration = Duration::from_millis(200);

/// A certificate of `localhost`, and its key, as PEM.
fn certificate() -> (String, String) {
    // Its signatures have one length, as simulations need.
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    (certificate.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

struct Site {
    address: SocketAddr,
    certificate: String,
    stop: Rc<Event>,
    server: Task<Result<Report, ServeError>>,
}

async fn hello(version: Version, Peer(peer): Peer<SocketAddr>) -> String {
    format!("{version:?} from {}", peer.ip())
}

/// Sends the bytes back, and says goodbye when it is interrupted.
async fn echo(stream: Upgraded) {
    let mut bytes = [0; 1000];
    loop {
        match stream.read(&mut bytes).await {
            Ok(0) => break,
            Ok(length) => stream.write_all(&bytes[..length]).await.unwrap(),
            Err(error) => {
                assert!(interruption(&error).is_some(), "{error}");
                stream.write_all(b"bye").await.unwrap();
                break;
            }
        }
    }
    stream.finish().await.unwrap();
}

async fn slow() -> &'static str {
    sleep(SECOND).await.map_or("interrupted", |()| "slow")
}

/// A listener that has one connection.
struct Single(Cell<Option<MemoryStream>>);

impl Listener for Single {
    type Connection = MemoryStream;
    type Address = ();

    async fn accept(&self) -> io::Result<(MemoryStream, ())> {
        let Some(stream) = self.0.take() else { return pending().await };
        Ok((stream, ()))
    }
}

/// A server with these many connections.
async fn site(connections: usize) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (certificate, key) = certificate();
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let acceptor = TlsAcceptor::builder(identity).handshake_timeout(HANDSHAKE_TIMEOUT);
    let upgraded = async |upgrade: Upgrade| -> Response { upgrade.accept(echo) };
    let router = Router::new()
        .route("/", get(hello))
        .route("/slow", get(local(slow)))
        .route("/echo", any(upgraded));
    let stop = Rc::<Event>::default();
    let stopping = stop.clone();
    let server = serve(listener, router)
        .tls(acceptor)
        .connections(connections)
        .soft_deadline(2 * SECOND)
        .shutdown_when(async move { drop(stopping.wait().await) });
    Site { address, certificate, stop, server: spawn(server.into_future()) }
}

impl Site {
    async fn connect(&self, name: &str, alpn: &[&str]) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::builder().roots_pem(self.certificate.as_bytes())?;
        let connector = connector.alpn(alpn.iter().copied()).build()?;
        connector.connect(name, TcpStream::connect(self.address).await?).await
    }

    /// The answer to a request by the protocol that the server chooses.
    async fn ask(&self, path: &str, alpn: &[&str]) -> String {
        let stream = self.connect("localhost", alpn).await.unwrap();
        let uri = format!("https://localhost{path}");
        let request =
            Request::get(uri).header(HOST, "localhost").body(Empty::<Bytes>::new()).unwrap();
        let is_http2 = stream.alpn_protocol().as_deref() == Some(b"h2");
        let answer = if is_http2 {
            let (mut sender, connection) =
                http2::handshake(Executor, Io::new(stream)).await.unwrap();
            spawn(connection).detach();
            sender.send_request(request).await
        } else {
            let (mut sender, connection) = http1::handshake(Io::new(stream)).await.unwrap();
            spawn(connection).detach();
            sender.send_request(request).await
        };
        let body = answer.unwrap().into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    async fn end(self) -> Report {
        self.stop.set();
        self.server.await.unwrap().unwrap()
    }
}

/// More than a record of TLS holds.
const MUCH: usize = 40_000;

/// Upgrades a connection over HTTP/1.1, and then one stream of HTTP/2. Each echoes until a shutdown
/// interrupts its handler, and ends in order, by TLS's own announcement.
async fn upgrades_both_versions() {
    let site = site(10).await;
    let stream = site.connect("localhost", &["http/1.1"]).await.unwrap();
    let head = "GET /echo HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    stream.write_all(format!("{head}early").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
    let mut early = [0; 5];
    stream.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    stream.write_all(&[b'x'; MUCH]).await.unwrap();
    let mut much = vec![0; MUCH];
    stream.read_exact(&mut much).await.unwrap();
    assert!(much == [b'x'; MUCH]);

    let carrier = site.connect("localhost", &["h2"]).await.unwrap();
    let (mut client, connection) = h2::client::handshake(carrier).await.unwrap();
    spawn(async { drop(connection.await) }).detach();
    // The server's settings come before its first answer.
    let request = Request::get("https://localhost/").body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    let mut request = Request::connect("https://localhost/echo");
    request.extensions_mut().unwrap().insert(Protocol::from_static("echo"));
    let (response, mut sending) = client.send_request(request.body(()).unwrap(), false).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    sending.send_data(Bytes::from_static(b"over http/2"), false).unwrap();
    let mut receiving = response.into_body();
    assert_eq!(receiving.data().await.unwrap().unwrap(), "over http/2");

    site.stop.set();
    let mut goodbye = [0; 3];
    stream.read_exact(&mut goodbye).await.unwrap();
    assert_eq!(&goodbye, b"bye");
    assert_eq!(stream.read(&mut goodbye).await.unwrap(), 0);
    assert_eq!(receiving.data().await.unwrap().unwrap(), "bye");
    while let Some(part) = receiving.data().await {
        assert_eq!(part.unwrap(), "");
    }
    let report = site.end().await;
    assert_eq!((report.answered, report.upgraded), (3, 2), "{report}");
    assert_eq!((report.upgrades_interrupted(), report.upgrades_dropped()), (2, 0), "{report}");
}

#[pikake::sim(seeds = 3)]
async fn upgrade_echoes_over_tls_and_says_goodbye() {
    upgrades_both_versions().await;
}

#[test]
fn upgrade_echoes_over_tls_on_real_sockets() {
    pikake::run(async {
        timeout_after(20 * SECOND, future_wait(upgrades_both_versions())).await.unwrap().unwrap();
    });
}

async fn speaks_both_versions() {
    let site = site(10).await;
    for (alpn, version) in [
        (&["h2", "http/1.1"][..], "HTTP/2.0"),
        (&["http/1.1", "h2"], "HTTP/2.0"),
        (&["http/1.1"], "HTTP/1.1"),
        (&[], "HTTP/1.1"),
    ] {
        assert_eq!(site.ask("/", alpn).await, format!("{version} from 127.0.0.1"));
    }
    let refused = site.connect("localhost", &["spdy/3"]).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
    let report = site.end().await;
    assert_eq!((report.answered, report.interrupted.len()), (4, 0));
}

/// A client that ends its side of TLS with its request.
async fn half_closed(site: &Site, path: &str) -> String {
    let stream = site.connect("localhost", &["http/1.1"]).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.finish().await.unwrap();
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        all.extend(&buffer[..length]);
    }
    String::from_utf8(all).unwrap()
}

async fn half_closed_requests(count: usize) {
    let site = site(100).await;
    for (path, body) in [("/", "from 127.0.0.1"), ("/slow", "interrupted")] {
        let clients = (0..count).map(|_| half_closed(&site, path));
        for answer in futures::future::join_all(clients).await {
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            assert!(answer.ends_with(body), "{path}: {answer}");
        }
    }
    site.end().await;
}

#[test]
fn half_closed_requests_are_answered() {
    pikake::run(async {
        let test = future_wait(half_closed_requests(50));
        timeout_after(20 * SECOND, test).await.unwrap().unwrap();
    });
}

#[pikake::sim(seeds = 10)]
async fn half_closed_requests_are_answered_in_any_order() {
    half_closed_requests(2).await;
}

#[pikake::sim(seeds = 3)]
async fn client_chooses_the_version_in_the_handshake() {
    speaks_both_versions().await;
}

#[test]
fn client_chooses_the_version_on_real_sockets() {
    pikake::run(async {
        timeout_after(20 * SECOND, future_wait(speaks_both_versions())).await.unwrap().unwrap();
    });
}

#[pikake::sim(seeds = 3)]
async fn failed_handshakes_end_only_their_connections() {
    let site = site(10).await;
    let refused = site.connect("elsewhere", &ALPN).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{refused}");
    let plain = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    for nonsense in [plain.as_bytes(), &[0x16, 3, 1, 0xff, 0xff, 0], &[0xff; 20_000]] {
        let client = TcpStream::connect(site.address).await.unwrap();
        drop(client.write_all(nonsense).await);
        drop(client.shutdown(std::net::Shutdown::Write));
        let mut answer = [0; 1000];
        while let Ok(length @ 1..) = client.read(&mut answer).await {
            assert!(!answer[..length].starts_with(b"HTTP"));
        }
    }
    assert_eq!(site.ask("/", &ALPN).await, "HTTP/2.0 from 127.0.0.1");
    assert_eq!(site.end().await.answered, 1);
}

/// A client that begins no handshake delays none of the others, up to the number of connections.
#[pikake::sim(seeds = 3)]
async fn silent_client_holds_its_place_until_the_handshake_times_out() {
    let site = site(2).await;
    let silent = TcpStream::connect(site.address).await.unwrap();
    let since = now();
    for _ in 0..5 {
        assert_eq!(site.ask("/", &["http/1.1"]).await, "HTTP/1.1 from 127.0.0.1");
    }
    assert!(elapsed_since(since) < SECOND);
    let other = TcpStream::connect(site.address).await.unwrap();
    assert_eq!(site.ask("/", &["http/1.1"]).await, "HTTP/1.1 from 127.0.0.1");
    let took = elapsed_since(since);
    assert!(took >= HANDSHAKE_TIMEOUT && took < 2 * HANDSHAKE_TIMEOUT, "{took:?}");
    drop((silent, other));
}

#[pikake::sim(seeds = 3)]
async fn shutdown_ends_handshakes_and_waits_for_requests() {
    let site = Rc::new(site(10).await);
    let silent = TcpStream::connect(site.address).await.unwrap();
    let half = TcpStream::connect(site.address).await.unwrap();
    half.write_all(&[0x16, 3, 1]).await.unwrap();
    let asking = spawn({
        let site = site.clone();
        async move { site.ask("/slow", &ALPN).await }
    });
    sleep(SECOND / 2).await.unwrap();
    let since = now();
    site.stop.set();
    for client in [silent, half] {
        assert!(matches!(client.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    }
    assert!(elapsed_since(since) < MOMENT);
    assert_eq!(asking.await.unwrap(), "slow");
    let report = Rc::into_inner(site).unwrap().end().await;
    assert_eq!((report.answered, report.interrupted.len(), report.dropped.len()), (1, 0, 0));
    assert!(elapsed_since(since) < SECOND);
}

#[pikake::sim(seeds = 1)]
async fn key_of_another_certificate_is_an_error_of_the_server() {
    let (certificate, _) = certificate();
    let (_, key) = self::certificate();
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let failed = serve(listener, Router::new()).tls(identity).await.unwrap_err();
    assert_eq!(failed.source.kind(), io::ErrorKind::InvalidInput, "{failed}");
}

/// What is encrypted and not sent is a part of a response, so the client has the time of a request.
#[pikake::sim(seeds = 1)]
async fn slow_client_reads_the_end_of_a_response() {
    const LENGTH: usize = 60_000;
    let (near, far) = MemoryStream::pair(1000);
    let (certificate, key) = certificate();
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let router = Router::new().route("/", get(async || vec![b'x'; LENGTH]));
    let server = serve(Single(Cell::new(Some(far))), router)
        .tls(identity)
        .header_timeout(2 * SECOND)
        .stall_timeout(30 * SECOND);
    let server = spawn(server.into_future());
    let connector = TlsConnector::builder().roots_pem(certificate.as_bytes()).unwrap();
    let client = connector.build().unwrap().connect("localhost", near).await.unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let (mut read, mut buffer) = (0, [0; 3000]);
    loop {
        match client.read(&mut buffer).await {
            Ok(0) => break,
            Ok(length) => read += length,
            Err(error) => panic!("after {read} bytes: {error}"),
        }
        sleep(SECOND).await.unwrap();
    }
    assert!(read > LENGTH, "{read}");
    server.abort();
}

/// A handshake that completes after the end belongs to no connection that anyone waits for.
#[pikake::sim(seeds = 3)]
async fn late_handshakes_do_not_outlive_the_hard_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (certificate, key) = certificate();
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    let listener = TlsAcceptor::builder(identity).build().unwrap().listen(listener);
    let hang = local(async || sleep(1000 * SECOND).await.map_or("interrupted", |()| "done"));
    let server = serve(listener, Router::new().route("/", get(hang)))
        .soft_deadline(SECOND / 20)
        .hard_deadline(SECOND / 10);
    let server = spawn(server.into_future());
    let client = TcpStream::connect(address).await.unwrap();
    sleep(SECOND).await.unwrap();
    let since = now();
    server.request_cancel("enough");
    let asking = spawn(async move {
        sleep(SECOND / 2).await?;
        let connector = TlsConnector::builder().roots_pem(certificate.as_bytes())?.build()?;
        let client = connector.connect("localhost", client).await?;
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        client.read(&mut [0; 100]).await
    });
    let report = server.await.unwrap().unwrap();
    assert_eq!(report.answered, 0);
    assert!(elapsed_since(since) < SECOND / 5, "{:?}", elapsed_since(since));
    assert!(!matches!(asking.await.unwrap(), Ok(1..)));
}

/// A connection that carries HTTP only since the shutdown has a moment of its own for a request.
#[pikake::sim(seeds = 5)]
async fn handshake_during_a_shutdown_is_followed_by_a_request() {
    let site = site(10).await;
    let carrier = TcpStream::connect(site.address).await.unwrap();
    sleep(MOMENT).await.unwrap();
    site.stop.set();
    sleep(Duration::from_millis(80)).await.unwrap();
    let connector = TlsConnector::builder().roots_pem(site.certificate.as_bytes()).unwrap();
    let stream = connector.build().unwrap().connect("localhost", carrier).await.unwrap();
    sleep(Duration::from_millis(40)).await.unwrap();
    let (mut sender, connection) = http1::handshake(Io::new(stream)).await.unwrap();
    spawn(connection).detach();
    let request = Request::get("https://localhost/")
        .header(HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .unwrap();
    assert!(sender.send_request(request).await.is_ok());
}

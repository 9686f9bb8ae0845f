//! Upgrades: WebSockets, tunnels, and what becomes of them at a shutdown.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use async_tungstenite::tungstenite::handshake::derive_accept_key;
use async_tungstenite::tungstenite::protocol::{CloseFrame, Role, frame::coding::CloseCode};
use async_tungstenite::tungstenite::{self, Message};
use async_tungstenite::{WebSocketStream, client_async};
use axum::Router;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use futures::StreamExt;
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use hyper::{Request, StatusCode};
use pikake::http::axum::{Local, local};
use pikake::http::{Report, ServeError, Upgrade, Upgraded, peer, serve};
use pikake::net::{Read, TcpListener, TcpStream, Write, interruption};
use pikake::sync::Event;
use pikake::traps::figures::{Value, collect};
use pikake::{Task, future_wait, shield, sleep, spawn, timeout_after};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const SECOND: Duration = Duration::from_secs(1);
const SOFT: Duration = Duration::from_secs(10);
const HARD: Duration = Duration::from_secs(20);
/// Less than a shutdown waits for requests.
const MOMENT: Duration = Duration::from_millis(20);
/// Longer than any time limit of the server.
const LONG: Duration = Duration::from_secs(3600);

/// The events of a test, in their order.
#[derive(Clone, Default)]
struct Seen(Rc<RefCell<Vec<String>>>);

impl Seen {
    fn note(&self, event: impl ToString) {
        self.0.borrow_mut().push(event.to_string());
    }

    fn events(&self) -> Vec<String> {
        self.0.borrow().clone()
    }
}

/// Notes its drop.
struct NotedOnDrop(Seen);

impl Drop for NotedOnDrop {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

/// Sends text back, and says goodbye when it is interrupted.
async fn echo(stream: Upgraded, seen: Seen) {
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) if text.as_str() == "peer" => {
                let peer = peer::<SocketAddr>().map(|peer| peer.ip().to_string());
                socket.send(Message::text(peer.unwrap_or_default())).await.unwrap();
            }
            Some(Ok(Message::Text(text))) if text.as_str() == "panic" => panic!("as it must be"),
            Some(Ok(message @ Message::Text(_))) => socket.send(message).await.unwrap(),
            Some(Ok(_)) => {}
            Some(Err(tungstenite::Error::Io(error))) if interruption(&error).is_some() => {
                seen.note(interruption(&error).unwrap());
                let reason = CloseFrame { code: CloseCode::Away, reason: "bye".into() };
                socket.close(Some(reason)).await.unwrap();
                seen.note("said goodbye");
                return;
            }
            Some(Err(error)) => return seen.note(error),
            None => return seen.note("closed"),
        }
    }
}

/// Sends the bytes back.
async fn echo_bytes(stream: Upgraded, seen: Seen) {
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes).await {
            Ok(0) => break seen.note("end"),
            Ok(number) => stream.write_all(&bytes[..number]).await.unwrap(),
            Err(error) => {
                seen.note(&error);
                if interruption(&error).is_none() {
                    return;
                }
                stream.write_all(b"bye").await.unwrap();
                break;
            }
        }
    }
    // The client may have gone.
    drop(stream.finish().await);
}

/// Sends the bytes back, by the traits of `tokio::io`.
async fn echo_by_tokio(mut stream: Upgraded) {
    loop {
        let mut bytes = [0; 1024];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut buffer)).await.unwrap();
        let mut left = buffer.filled();
        if left.is_empty() {
            poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await.unwrap();
            return;
        }
        while !left.is_empty() {
            let write = poll_fn(|cx| AsyncWrite::poll_write(Pin::new(&mut stream), cx, left));
            left = &left[write.await.unwrap()..];
        }
        poll_fn(|cx| AsyncWrite::poll_flush(Pin::new(&mut stream), cx)).await.unwrap();
    }
}

fn router(seen: Seen) -> Router {
    let noting = Local::new(seen);
    let seen = noting.clone();
    let socket = async move |upgrade: Upgrade, headers: HeaderMap| {
        let seen = seen.clone();
        let mut response: Response = upgrade.accept(move |stream| echo(stream, Seen::clone(&seen)));
        if let Some(key) = headers.get("sec-websocket-key") {
            let key = derive_accept_key(key.as_bytes());
            response.headers_mut().insert("sec-websocket-accept", key.parse().unwrap());
        }
        response
    };
    let seen = noting.clone();
    let refused = async move |upgrade: Upgrade| {
        let held = NotedOnDrop(Seen::clone(&seen));
        let _: Response = upgrade.accept(async move |_| {
            held.0.note("begun");
        });
        (StatusCode::FORBIDDEN, "not you")
    };
    let seen = noting.clone();
    let stubborn = async move |upgrade: Upgrade| -> Response {
        let held = NotedOnDrop(Seen::clone(&seen));
        upgrade.accept(async move |_stream| {
            held.0.note("begun");
            drop(shield(sleep(LONG)).await);
        })
    };
    let seen = noting.clone();
    let late = async move |upgrade: Upgrade| -> Response {
        let seen = seen.clone();
        seen.note(sleep(LONG).await.unwrap_err());
        upgrade.accept(move |stream| echo_bytes(stream, Seen::clone(&seen)))
    };
    let seen = noting;
    let tunnel = async move |upgrade: Upgrade| -> Response {
        let seen = seen.clone();
        seen.note(upgrade.protocol().unwrap_or("a tunnel"));
        upgrade.accept(move |stream| echo_bytes(stream, Seen::clone(&seen)))
    };
    Router::new()
        .route("/", any(async |method: Method| format!("hello, {method}")))
        .route("/chat", any(local(socket)))
        .route("/refused", any(local(refused)))
        .route("/stubborn", any(local(stubborn)))
        .route("/late", any(local(late)))
        .route("/bytes", any(local(tunnel.clone())))
        .route(
            "/tokio",
            any(async |upgrade: Upgrade| -> Response { upgrade.accept(echo_by_tokio) }),
        )
        .fallback(local(tunnel))
}

struct Site {
    address: SocketAddr,
    seen: Seen,
    stop: Rc<Event>,
    server: Task<Result<Report, ServeError>>,
}

/// A server with room for this number of connections.
async fn site(connections: usize) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, stop) = (Seen::default(), Rc::<Event>::default());
    let stopping = stop.clone();
    let server = serve(listener, router(seen.clone()))
        .connections(connections)
        .header_timeout(SECOND)
        .stall_timeout(SECOND)
        .soft_deadline(SOFT)
        .hard_deadline(HARD)
        .shutdown_when(async move { drop(stopping.wait().await) });
    Site { address, seen, stop, server: spawn(server.into_future()) }
}

type Socket = WebSocketStream<TcpStream>;

impl Site {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn socket(&self, path: &str) -> Socket {
        let url = format!("ws://{}{path}", self.address);
        let stream = self.connect().await;
        future_wait(client_async(url, stream)).await.unwrap().unwrap().0
    }

    /// A connection upgraded to plain bytes.
    async fn bytes(&self, path: &str) -> TcpStream {
        let stream = self.connect().await;
        upgrade(&stream, path).await;
        stream
    }

    async fn http2(&self) -> h2::client::SendRequest<Bytes> {
        let (mut client, connection) = h2::client::handshake(self.connect().await).await.unwrap();
        spawn(async { drop(connection.await) }).detach();
        // The server's settings come before its first answer.
        let request = Request::get(format!("http://{}/", self.address)).body(()).unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
        assert!(client.is_extended_connect_protocol_enabled());
        client
    }

    /// A stream of HTTP/2 upgraded to plain bytes, by an extended CONNECT.
    async fn http2_bytes(
        &self,
        client: &mut h2::client::SendRequest<Bytes>,
    ) -> (SendStream<Bytes>, RecvStream) {
        let mut request = Request::connect(format!("http://{}/bytes", self.address));
        request.extensions_mut().unwrap().insert(Protocol::from_static("bytes"));
        let (response, sending) = client.send_request(request.body(()).unwrap(), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        (sending, response.into_body())
    }

    async fn end(self) -> Report {
        self.stop.set();
        self.server.await.unwrap().unwrap()
    }
}

/// Upgrades a connection to plain bytes.
async fn upgrade(stream: &TcpStream, path: &str) {
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: bytes, more\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let head = read_head(stream).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("\r\nupgrade: bytes\r\n"), "{head}");
}

/// Reads a head, byte by byte, so that nothing behind it is read.
async fn read_head(stream: &TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

async fn read_text(stream: &TcpStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn ask(socket: &mut Socket, text: &str) -> String {
    socket.send(Message::text(text)).await.unwrap();
    socket.next().await.unwrap().unwrap().to_text().unwrap().to_owned()
}

fn run(test: impl AsyncFnOnce()) {
    pikake::run(async { timeout_after(SOFT, future_wait(test())).await.unwrap().unwrap() });
}

fn open_upgrades() -> Value {
    let figures = collect();
    figures.into_iter().find(|figure| figure.name == "pikake_http_upgrades").unwrap().value
}

/// From the answer of the request to the end of the handler, whatever becomes of it.
#[test]
fn figures_count_open_upgrades() {
    run(async || {
        let site = site(10).await;
        let stream = site.bytes("/bytes").await;
        let mut client = site.http2().await;
        let (sending, receiving) = site.http2_bytes(&mut client).await;
        assert!(matches!(open_upgrades(), Value::Gauge(2)), "{:?}", open_upgrades());
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        let mut socket = site.socket("/chat").await;
        socket.send(Message::text("panic")).await.unwrap();
        assert!(!matches!(socket.next().await, Some(Ok(_))));
        while !matches!(open_upgrades(), Value::Gauge(1)) {
            sleep(MOMENT).await.unwrap();
        }
        drop((sending, receiving, client));
        assert_eq!(site.end().await.upgraded, 3);
        assert!(matches!(open_upgrades(), Value::Gauge(0)), "{:?}", open_upgrades());
    });
}

/// Far more than the time limits pass without a byte.
#[pikake::sim(seeds = 3)]
async fn websocket_echoes_and_has_no_time_limit() {
    let site = site(10).await;
    let mut socket = site.socket("/chat").await;
    assert_eq!(ask(&mut socket, "one").await, "one");
    sleep(LONG).await.unwrap();
    assert_eq!(ask(&mut socket, "two").await, "two");
    assert_eq!(ask(&mut socket, "peer").await, "127.0.0.1");
    socket.close(None).await.unwrap();
    while socket.next().await.is_some() {}
    let seen = site.seen.clone();
    let report = site.end().await;
    assert_eq!(report.to_string(), "1 requests were answered, 1 upgraded");
    assert_eq!(seen.events(), ["closed"]);
}

/// The client sends bytes of the other protocol before it has read the response.
#[pikake::sim(seeds = 3)]
async fn bytes_behind_the_request_reach_the_handler() {
    let site = site(10).await;
    let stream = site.connect().await;
    let head = "GET /bytes HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: bytes\r\n\r\n";
    stream.write_all(format!("{head}early").as_bytes()).await.unwrap();
    assert!(read_head(&stream).await.starts_with("HTTP/1.1 101 "));
    assert_eq!(read_text(&stream, 5).await, "early");
}

#[pikake::sim(seeds = 3)]
async fn connect_is_a_tunnel() {
    let site = site(10).await;
    let stream = site.connect().await;
    let head = "CONNECT example.org:80 HTTP/1.1\r\nhost: example.org:80\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let head = read_head(&stream).await;
    assert!(head.starts_with("HTTP/1.1 200 ") && !head.contains("content-length"), "{head}");
    stream.write_all(b"through").await.unwrap();
    assert_eq!(read_text(&stream, 7).await, "through");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    sleep(SECOND).await.unwrap();
    assert_eq!(site.seen.events(), ["a tunnel", "end"]);
    assert_eq!(site.end().await.upgraded, 1);
}

#[pikake::sim(seeds = 3)]
async fn extended_connect_upgrades_a_stream_of_http2() {
    let site = site(10).await;
    let mut client = site.http2().await;
    let (mut sending, mut receiving) = site.http2_bytes(&mut client).await;
    sleep(LONG).await.unwrap();
    sending.send_data(Bytes::from_static(b"over http/2"), false).unwrap();
    assert_eq!(receiving.data().await.unwrap().unwrap(), "over http/2");
    // Other streams go on beside it.
    let request = Request::get(format!("http://{}/", site.address)).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    sending.send_data(Bytes::new(), true).unwrap();
    // The end has a frame of its own.
    assert_eq!(receiving.data().await.unwrap().unwrap(), "");
    assert!(receiving.data().await.is_none());
    assert_eq!(site.seen.events(), ["bytes", "end"]);
    let report = site.end().await;
    assert_eq!(report.to_string(), "3 requests were answered, 1 upgraded");
}

#[pikake::sim(seeds = 3)]
async fn upgraded_connection_counts_as_open() {
    let site = site(1).await;
    let mut socket = site.socket("/chat").await;
    assert_eq!(ask(&mut socket, "one").await, "one");
    let second = site.connect().await;
    second.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut byte = [0];
    assert!(timeout_after(LONG, second.read(&mut byte)).await.is_err());
    drop(socket);
    assert_eq!(second.read(&mut byte).await.unwrap(), 1);
}

#[pikake::sim(seeds = 3)]
async fn shutdown_lets_upgrades_say_goodbye() {
    let site = site(10).await;
    let mut socket = site.socket("/chat").await;
    assert_eq!(ask(&mut socket, "one").await, "one");
    let mut client = site.http2().await;
    let (_sending, mut receiving) = site.http2_bytes(&mut client).await;
    let before = pikake::time::now();
    site.stop.set();
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else {
        panic!("the server says goodbye");
    };
    assert_eq!((frame.code, frame.reason.as_str()), (CloseCode::Away, "bye"));
    assert!(pikake::time::elapsed_since(before) >= SOFT);
    assert_eq!(receiving.data().await.unwrap().unwrap(), "bye");
    let peer = socket.get_ref().local_addr().unwrap();
    drop(socket);
    let (address, seen) = (site.address, site.seen.clone());
    let report = site.end().await;
    assert_eq!(report.upgraded, 2);
    assert_eq!((report.upgrades_interrupted(), report.upgrades_dropped()), (2, 0));
    let text = report.to_string();
    assert!(text.contains(&format!("interrupted: upgrade GET /chat from {peer}")), "{text}");
    assert!(text.contains(&format!("upgrade CONNECT http://{address}/bytes from")), "{text}");
    let told = "cancelled: the server is being shut down";
    let mut events = seen.events();
    events.sort();
    assert_eq!(events, ["bytes", told, told, "said goodbye"]);
}

#[pikake::sim(seeds = 3)]
async fn hard_deadline_drops_upgrades() {
    let site = site(10).await;
    let stream = site.bytes("/stubborn").await;
    let seen = site.seen.clone();
    let ended = spawn(site.end());
    assert!(stream.read(&mut [0]).await.is_ok_and(|read| read == 0));
    assert_eq!(seen.events(), ["begun", "dropped"]);
    let report = ended.await.unwrap();
    assert_eq!((report.upgrades_interrupted(), report.upgrades_dropped()), (1, 1));
    assert!(report.to_string().contains("; dropped: upgrade GET /stubborn from 127.0.0.1:"));
}

/// The server waits a moment for requests that were under way when its shutdown began. An upgrade
/// by one of them has the time up to the soft deadline, as any request.
#[pikake::sim(seeds = 5)]
async fn upgrade_during_a_shutdown_lasts_until_the_soft_deadline() {
    let site = site(10).await;
    let stream = site.connect().await;
    let mut client = site.http2().await;
    site.stop.set();
    sleep(MOMENT).await.unwrap();
    let stopped = pikake::time::now();
    upgrade(&stream, "/bytes").await;
    let (mut sending, mut receiving) = site.http2_bytes(&mut client).await;
    sleep(SOFT / 2).await.unwrap();
    stream.write_all(b"still").await.unwrap();
    assert_eq!(read_text(&stream, 5).await, "still");
    sending.send_data(Bytes::from_static(b"here"), false).unwrap();
    assert_eq!(receiving.data().await.unwrap().unwrap(), "here");
    assert_eq!(read_text(&stream, 3).await, "bye");
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    assert_eq!(receiving.data().await.unwrap().unwrap(), "bye");
    let after = pikake::time::elapsed_since(stopped);
    assert!(after >= SOFT - MOMENT && after < SOFT + SECOND, "{after:?}");
    let report = site.end().await;
    assert_eq!((report.answered, report.upgraded), (3, 2), "{report}");
    assert_eq!((report.upgrades_interrupted(), report.upgrades_dropped()), (2, 0), "{report}");
}

/// The handler accepts the upgrade after it was interrupted. So the upgrade is interrupted at its
/// begin, for the same reason.
#[pikake::sim(seeds = 5)]
async fn upgrade_after_the_soft_deadline_says_goodbye_at_once() {
    let site = site(10).await;
    let stream = site.connect().await;
    let seen = site.seen.clone();
    let stop = site.stop.clone();
    let stopping = spawn(async move {
        sleep(SECOND).await.unwrap();
        stop.set();
    });
    upgrade(&stream, "/late").await;
    let interrupted = pikake::time::now();
    assert_eq!(read_text(&stream, 3).await, "bye");
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    let report = site.end().await;
    assert!(pikake::time::elapsed_since(interrupted) < SECOND);
    let told = "cancelled: the server is being shut down";
    assert_eq!(seen.events(), [told, told]);
    assert_eq!((report.answered, report.upgraded), (1, 1), "{report}");
    assert_eq!((report.interrupted.len(), report.dropped.len()), (1, 0), "{report}");
    stopping.await.unwrap();
}

/// A handler may accept an upgrade and answer with another status all the same.
#[pikake::sim(seeds = 3)]
async fn refused_upgrade_leaves_the_connection_usable() {
    let site = site(10).await;
    let stream = site.connect().await;
    for (path, status) in [("/refused", 403), ("/", 200), ("/bytes", 400), ("/refused", 403)] {
        let wish = if status == 400 { "" } else { "connection: upgrade\r\nupgrade: bytes\r\n" };
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{wish}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let head = read_head(&stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
        read_text(&stream, length.parse().unwrap()).await;
    }
    assert_eq!(site.seen.events(), ["dropped", "dropped"]);
    // Nothing is upgraded at the end of the connection either.
    drop(stream);
    let report = site.end().await;
    assert_eq!(report.to_string(), "4 requests were answered");
}

/// Over real sockets, since a panic of a task fails a simulation.
#[test]
fn panic_of_a_handler_closes_its_connection() {
    run(async || {
        let site = site(1).await;
        let mut socket = site.socket("/chat").await;
        socket.send(Message::text("panic")).await.unwrap();
        assert!(!matches!(socket.next().await, Some(Ok(_))));
        // There is room again.
        let mut other = site.socket("/chat").await;
        assert_eq!(ask(&mut other, "one").await, "one");
    });
}

/// The handler reads the end, and is not interrupted.
#[pikake::sim(seeds = 3)]
async fn client_that_goes_away_ends_the_stream() {
    let site = site(10).await;
    let stream = site.bytes("/bytes").await;
    stream.write_all(b"last").await.unwrap();
    assert_eq!(read_text(&stream, 4).await, "last");
    drop(stream);
    sleep(SECOND).await.unwrap();
    assert_eq!(site.seen.events(), ["bytes", "end"]);
    let mut client = site.http2().await;
    let (sending, receiving) = site.http2_bytes(&mut client).await;
    drop((sending, receiving, client));
    sleep(SECOND).await.unwrap();
    assert_eq!(site.seen.events().len(), 4, "{:?}", site.seen.events());
    assert_eq!(site.end().await.interrupted, []);
}

/// A drop of the server interrupts upgrades as it does requests.
#[pikake::sim(seeds = 3)]
async fn drop_of_the_server_interrupts_upgrades() {
    let site = site(10).await;
    let mut socket = site.socket("/chat").await;
    assert_eq!(ask(&mut socket, "one").await, "one");
    site.server.abort();
    let goodbye = socket.next().await;
    assert!(matches!(goodbye, Some(Ok(Message::Close(Some(_))))), "{goodbye:?}");
    drop(socket);
    sleep(SECOND).await.unwrap();
    assert_eq!(site.seen.events().last().unwrap(), "said goodbye");
}

#[test]
fn websocket_echoes_over_real_sockets() {
    run(async || {
        let site = site(10).await;
        let mut socket = site.socket("/chat").await;
        let text = "x".repeat(300_000);
        assert!(ask(&mut socket, &text).await == text);
        socket.close(None).await.unwrap();
        drop(socket);
        let report = site.end().await;
        assert_eq!(report.to_string(), "1 requests were answered, 1 upgraded");
    });
}

#[pikake::sim(seeds = 3)]
async fn upgraded_stream_has_the_traits_of_tokio() {
    let site = site(10).await;
    let stream = site.bytes("/tokio").await;
    stream.write_all(b"tokio").await.unwrap();
    assert_eq!(read_text(&stream, 5).await, "tokio");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

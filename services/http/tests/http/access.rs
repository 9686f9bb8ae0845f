//! The access log: an event for each request.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt::{Debug, Write};
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures::{StreamExt, stream};
use h2::Reason;
use h2::ext::Protocol;
use hyper::Request;
use pikake::http::axum::local;
use pikake::http::{Upgrade, Upgraded, peer, serve, serve_on_all};
use pikake::net::{Listener, Replicas, TcpListener, TcpStream};
use pikake::sim::Sim;
use pikake::traps::KernelId;
use pikake::{Bound, KernelHandle, Task, other_kernels, sleep, spawn, yield_now};
use tower_service::Service;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

const MOMENT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3600);
const ADDRESS: &str = "127.0.0.1:80";

/// The lines of the access log, without times and ports, and the times.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<String>, Vec<u64>)>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().0)
    }
}

#[derive(Default)]
struct Line {
    text: String,
    time: Option<u64>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let space = if self.text.is_empty() { "" } else { " " };
        write!(self.text, "{space}{}={value:?}", field.name()).unwrap();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "peer" => assert!(value.starts_with("127.0.0.1:"), "{value}"),
            _ => self.record_debug(field, &format_args!("{value}")),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "time_us" => self.time = Some(value),
            _ => self.record_debug(field, &value),
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "pikake::http::access"
    }

    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::INFO);
        let mut line = Line::default();
        event.record(&mut line);
        let (lines, times) = &mut *self.0.lock().unwrap();
        lines.push(line.text);
        times.extend(line.time);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Runs a test with a log.
fn with_log(test: impl FnOnce(Log)) {
    let log = Log::default();
    // While there is a single dispatcher, a thread that meets a call site first asks its own one
    // only: another test would turn the site off for all.
    let _second = tracing::Dispatch::new(Log::default());
    tracing::subscriber::with_default(log.clone(), || test(log.clone()));
}

/// Keeps the stream of an upgrade.
async fn keep(_stream: Upgraded) {
    drop(sleep(LONG).await);
}

fn router() -> Router {
    let slow = async || sleep(2 * MOMENT).await.map_or("told", |()| "slow");
    let hang = async || sleep(LONG).await.map_or("told", |()| "never");
    let endless = async || {
        let first = stream::once(ready(Ok::<_, Infallible>("first")));
        Body::from_stream(first.chain(stream::pending()))
    };
    let parts = async || {
        let parts = stream::iter(["one", "two", "three"].map(Ok::<_, Infallible>));
        ([("content-length", "11")], Body::from_stream(parts))
    };
    Router::new()
        .route("/", any(async || "hello"))
        .route("/echo", post(async |body: String| body))
        .route("/slow", get(local(slow)))
        .route("/hang", get(local(hang)))
        .route("/endless", get(endless))
        .route("/parts", get(parts))
        .route("/upgrade", any(async |upgrade: Upgrade| -> Response { upgrade.accept(keep) }))
        .route("/panic", get(async || -> &str { panic!("as it must be") }))
}

/// A server that ends with the drop of its task.
async fn start(address: &str) -> (SocketAddr, Task<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, router()).access_log(true).shed_after(10 * MOMENT);
    (address, spawn(async move { drop(server.await) }))
}

/// Sends requests on one connection, one after the other, and then closes it.
async fn ask(address: SocketAddr, requests: &[&str]) {
    let client = TcpStream::connect(address).await.unwrap();
    for request in requests {
        client.write_all(request.as_bytes()).await.unwrap();
        sleep(5 * MOMENT).await.unwrap();
    }
    client.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    sleep(MOMENT).await.unwrap();
}

fn request(line: &str) -> String {
    let (line, body) = line.split_once('\n').unwrap_or((line, ""));
    let length = body.len();
    format!("{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[test]
fn each_request_has_an_event_at_its_end() {
    with_log(|log| {
        pikake::sim::example(async {
            let (address, _server) = start(ADDRESS).await;
            let lines = [
                "GET /?name=x&y",
                "HEAD /",
                "POST /echo\nsome text",
                "GET /absent",
                "GET /parts",
                "GET /slow",
                "GET /endless",
            ];
            let requests = lines.map(request);
            ask(address, &requests.each_ref().map(String::as_str)).await;
            ask(address, &[&request("GET /hang")]).await;
        });
        let expected = [
            "method=GET path=/ query=name=x&y version=HTTP/1.1 status=200 bytes=5 outcome=answered",
            "method=HEAD path=/ version=HTTP/1.1 status=200 bytes=0 outcome=answered",
            "method=POST path=/echo version=HTTP/1.1 status=200 bytes=9 outcome=answered",
            "method=GET path=/absent version=HTTP/1.1 status=404 bytes=0 outcome=answered",
            "method=GET path=/parts version=HTTP/1.1 status=200 bytes=11 outcome=answered",
            "method=GET path=/slow version=HTTP/1.1 status=200 bytes=4 outcome=answered",
            "method=GET path=/endless version=HTTP/1.1 status=200 bytes=5 outcome=cut_short",
            "method=GET path=/hang version=HTTP/1.1 bytes=0 outcome=unanswered",
        ];
        assert_eq!(log.lines(), expected);
        let times = log.0.lock().unwrap().1.clone();
        // In virtual time: from the head to the end of the body, or of the client.
        let moments: Vec<_> = times.iter().map(|time| time / 20_000).collect();
        assert_eq!(moments, [0, 0, 0, 0, 0, 2, 5, 5], "{times:?}");
    });
}

#[test]
fn panic_and_shed_request_have_events() {
    with_log(|log| {
        pikake::run(async {
            let (address, _server) = start("127.0.0.1:0").await;
            let client = TcpStream::connect(address).await.unwrap();
            client.write_all(request("GET /panic").as_bytes()).await.unwrap();
            client.read(&mut [0; 1000]).await.unwrap();
            client.write_all(request("GET /").as_bytes()).await.unwrap();
            thread::sleep(10 * MOMENT);
            client.read(&mut [0; 1000]).await.unwrap();
            let client = TcpStream::connect(address).await.unwrap();
            let (mut client, connection) = h2::client::handshake(client).await.unwrap();
            spawn(async { drop(connection.await) }).detach();
            let request = Request::get("http://x/").body(()).unwrap();
            let (response, _) = client.send_request(request, true).unwrap();
            // The connection's task sends it.
            yield_now().await.unwrap();
            thread::sleep(10 * MOMENT);
            assert_eq!(response.await.unwrap().status(), 503);
            sleep(MOMENT).await.unwrap();
        });
        let expected = [
            "method=GET path=/panic version=HTTP/1.1 status=500 bytes=0 outcome=panicked",
            "method=GET path=/ version=HTTP/1.1 status=503 bytes=0 outcome=shed",
            "method=GET path=/ version=HTTP/2.0 status=503 bytes=0 outcome=shed",
        ];
        assert_eq!(log.lines(), expected);
    });
}

/// An upgrade is logged when its answer is sent, and not at the end of its stream.
#[test]
fn refused_requests_and_upgrades_have_events() {
    with_log(|log| {
        pikake::sim::example(async {
            let (address, _server) = start(ADDRESS).await;
            ask(address, &["GET /no-host HTTP/1.1\r\n\r\n"]).await;
            let client = TcpStream::connect(address).await.unwrap();
            let upgrade = "connection: upgrade\r\nupgrade: own";
            let request = format!("GET /upgrade HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            sleep(MOMENT).await.unwrap();
            let expected = [
                "method=GET path=/no-host version=HTTP/1.1 status=400 bytes=0 outcome=refused",
                "method=GET path=/upgrade version=HTTP/1.1 status=101 bytes=0 outcome=answered",
            ];
            assert_eq!(log.lines(), expected);
        });
        assert!(log.lines().is_empty());
    });
}

/// Streams of one connection of HTTP/2, which end in all ways that its client can bring about.
#[test]
fn streams_of_http2_have_events() {
    with_log(|log| {
        pikake::sim::example(async {
            let (address, _server) = start(ADDRESS).await;
            let client = TcpStream::connect(address).await.unwrap();
            let (mut client, connection) = h2::client::handshake(client).await.unwrap();
            spawn(async { drop(connection.await) }).detach();
            let mut send = |line: &str, host: Option<&str>| {
                let (method, path) = line.split_once(' ').unwrap();
                let request = Request::builder().method(method).uri(format!("http://x{path}"));
                let mut request = match host {
                    Some(host) => request.header("host", host),
                    None => request,
                };
                if method == "CONNECT" {
                    request = request.extension(Protocol::from_static("own"));
                }
                let is_whole = matches!(method, "GET" | "HEAD");
                client.send_request(request.body(()).unwrap(), is_whole).unwrap()
            };
            let (response, _) = send("GET /?name=x&y", None);
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "hello");
            let (response, _) = send("HEAD /", None);
            response.await.unwrap();
            let (response, mut sending) = send("POST /echo", None);
            sending.send_data(Bytes::from_static(b"some text"), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "some text");
            let (response, _) = send("GET /", Some("y"));
            response.await.unwrap();
            let (response, mut endless) = send("GET /endless", None);
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "first");
            endless.send_reset(Reason::CANCEL);
            sleep(MOMENT).await.unwrap();
            let (response, _) = send("GET /hang", None);
            sleep(MOMENT).await.unwrap();
            drop(response);
            sleep(MOMENT).await.unwrap();
            let (response, _stream) = send("CONNECT /upgrade", None);
            let response = response.await.unwrap();
            sleep(MOMENT).await.unwrap();
            let expected = [
                "method=GET path=/ query=name=x&y version=HTTP/2.0 status=200 bytes=5 outcome=answered",
                "method=HEAD path=/ version=HTTP/2.0 status=200 bytes=0 outcome=answered",
                "method=POST path=/echo version=HTTP/2.0 status=200 bytes=9 outcome=answered",
                "method=GET path=/ version=HTTP/2.0 status=400 bytes=0 outcome=refused",
                "method=GET path=/endless version=HTTP/2.0 status=200 bytes=5 outcome=cut_short",
                "method=GET path=/hang version=HTTP/2.0 bytes=0 outcome=unanswered",
                "method=CONNECT path=/upgrade version=HTTP/2.0 status=200 bytes=0 outcome=answered",
            ];
            assert_eq!(log.lines(), expected);
            drop(response);
        });
        assert!(log.lines().is_empty());
    });
}

/// The clients that the kernels of a server have accepted.
type Accepted = Arc<Mutex<HashMap<SocketAddr, KernelId>>>;

/// A listener that notes which kernel has accepted a client.
struct Noting(TcpListener, Accepted);

impl Listener for Noting {
    type Connection = TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> std::io::Result<(TcpStream, SocketAddr)> {
        let (stream, client) = self.0.accept().await?;
        self.1.lock().unwrap().insert(client, KernelHandle::current().id());
        Ok((stream, client))
    }

    fn replicas(&self) -> Option<Replicas> {
        self.0.replicas()
    }
}

/// The ways in which requests of [`moving_router`] end, with their events.
const MOVED: [(&str, &str); 5] = [
    ("/short", "status=200 bytes=5 outcome=answered"),
    ("/long", "status=200 bytes=9 outcome=answered"),
    ("/broken", "status=200 bytes=6 outcome=cut_short"),
    ("/panic", "status=500 bytes=0 outcome=panicked"),
    ("/hang", "bytes=0 outcome=unanswered"),
];

/// Notes the paths of requests that other kernels answer than those of their connections.
fn moving_router(accepted: Accepted, moved: Arc<Mutex<BTreeSet<&'static str>>>) -> Router {
    let mut router = Router::new();
    for (path, _) in MOVED {
        let (accepted, moved) = (accepted.clone(), moved.clone());
        let handler = async move || {
            let home = accepted.lock().unwrap()[&peer::<SocketAddr>().unwrap()];
            if home != KernelHandle::current().id() {
                moved.lock().unwrap().insert(path);
            }
            let last = if path == "/broken" { Err("as it must be") } else { Ok("end") };
            let parts = stream::iter([Ok("one"), Ok("two"), last]).then(async |part| {
                sleep(MOMENT).await.unwrap();
                part
            });
            let mut parts = Bound::new(Box::pin(parts));
            let parts = stream::poll_fn(move |cx| parts.get_mut().poll_next_unpin(cx));
            match path {
                "/short" => Body::from("hello"),
                "/panic" => resume_unwind(Box::new("as it must be")),
                "/hang" => {
                    drop(sleep(LONG).await);
                    Body::empty()
                }
                _ => Body::from_stream(parts),
            }
        };
        router = router.route(path, get(local(handler)));
    }
    router
}

/// Requests that another kernel answers have the same events as others, on the kernel of their
/// connection.
#[test]
fn requests_that_move_have_events() {
    with_log(|log| {
        let moved = Arc::<Mutex<BTreeSet<_>>>::default();
        let is_enough = || moved.lock().unwrap().len() == MOVED.len();
        for seed in (0..200).take_while(|_| !is_enough()) {
            let mut sim = Sim::new(seed);
            let noted = moved.clone();
            let world = move || {
                let noted = noted.clone();
                async move {
                    let accepted = Accepted::default();
                    let server = serve_on_all(ADDRESS, &other_kernels(), move |listener| {
                        let router = moving_router(accepted.clone(), noted.clone());
                        serve(Noting(listener, accepted.clone()), router).access_log(true)
                    });
                    let server = spawn(server);
                    sleep(MOMENT).await.unwrap();
                    let requests = MOVED.map(|(path, _)| request(&format!("GET {path}")));
                    let clients = requests.map(|request| {
                        spawn(async move {
                            let client = TcpStream::connect(ADDRESS).await.unwrap();
                            client.write_all(request.as_bytes()).await.unwrap();
                            sleep(20 * MOMENT).await.unwrap();
                            client.set_linger(Some(Duration::ZERO)).unwrap();
                        })
                    });
                    for client in clients {
                        client.await.unwrap();
                    }
                    sleep(MOMENT).await.unwrap();
                    server.abort();
                }
            };
            sim.tolerate_panics().client("server", world).kernels("server", 3);
            sim.run().unwrap();
            let expected = MOVED
                .map(|(path, ended)| format!("method=GET path={path} version=HTTP/1.1 {ended}"));
            let mut lines = log.lines();
            lines.sort();
            let mut expected = expected.to_vec();
            expected.sort();
            assert_eq!(lines, expected, "seed {seed}");
        }
        assert!(is_enough(), "{moved:?}");
    });
}

/// A service that fails.
#[derive(Clone)]
struct Failing;

impl<R> Service<R> for Failing {
    type Response = hyper::Response<Body>;
    type Error = &'static str;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: R) -> Self::Future {
        ready(Err("as it must be"))
    }
}

#[test]
fn request_of_a_failed_service_has_an_event() {
    with_log(|log| {
        pikake::sim::example(async {
            let listener = TcpListener::bind(ADDRESS).await.unwrap();
            let address = listener.local_addr().unwrap();
            spawn(serve(listener, Failing).access_log(true).into_future()).detach();
            ask(address, &[&request("GET /")]).await;
        });
        let expected = "method=GET path=/ version=HTTP/1.1 bytes=0 outcome=failed";
        assert_eq!(log.lines(), [expected]);
    });
}

#[test]
fn server_has_no_access_log_by_default() {
    with_log(|log| {
        pikake::sim::example(async {
            let listener = TcpListener::bind(ADDRESS).await.unwrap();
            let address = listener.local_addr().unwrap();
            spawn(serve(listener, router()).into_future()).detach();
            ask(address, &[&request("GET /")]).await;
        });
        assert!(log.lines().is_empty());
    });
}

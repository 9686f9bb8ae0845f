//! The HTTP server: a request is a task, a disconnect interrupts it, and a shutdown waits for it.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, HOST};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper::{Request, StatusCode};
use pikake::http::axum::{Peer, local};
use pikake::http::{CLIENT_GONE, Executor, Io, Report, SHUTTING_DOWN, ServeError, peer, serve};
use pikake::net::{Listener, TcpListener, TcpStream};
use pikake::sim::{Cause, Sim};
use pikake::sync::Event;
use pikake::traps::trigger::{Kind, Triggers};
use pikake::{Bound, Interrupted, Task, future_wait, shield, sleep, spawn, timed, timeout_after};

const MOMENT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(3600);
/// A limit for anything that should happen.
const SOON: Duration = Duration::from_secs(20);

/// The events of a handler that waits for ever.
#[derive(Clone, Default)]
struct Seen {
    events: Rc<RefCell<Vec<String>>>,
    changed: Rc<Event>,
}

impl Seen {
    fn note(&self, event: impl ToString) {
        self.events.borrow_mut().push(event.to_string());
        self.changed.set();
    }

    async fn wait_for(&self, count: usize) {
        let waiting = async {
            while self.events.borrow().len() < count {
                self.changed.clear();
                self.changed.wait().await.unwrap();
            }
        };
        timeout_after(SOON, waiting).await.expect("it happens soon");
    }
}

/// Handlers of each kind there is.
fn router(seen: Seen) -> Router {
    // Bound, since axum demands that what its handlers hold is `Send`.
    let stuck = Arc::new(Bound::new(seen));
    let stubborn = stuck.clone();
    let hang = move || {
        let seen = stuck.get().clone();
        Bound::future(async move {
            seen.note("begun");
            let told = sleep(LONG).await.unwrap_err();
            sleep(MOMENT).await.unwrap();
            seen.note(format_args!("cleaned up after: {told}"));
            "cut short"
        })
    };
    let ignore = move || {
        let seen = stubborn.get().clone();
        Bound::future(async move {
            seen.note("begun");
            drop(shield(sleep(LONG)).await);
            "never"
        })
    };
    let slow = || Bound::future(async { sleep(MOMENT).await.map_or("told", |()| "slow") });
    let peer = async |Peer(peer): Peer<std::net::SocketAddr>| peer.to_string();
    Router::new()
        .route("/", get(async || "hello"))
        .route("/hang", get(hang))
        .route("/ignore", get(ignore))
        .route("/slow", get(slow))
        .route("/peer", get(peer))
        .route("/panic", get(async || -> &str { panic!("as it must be") }))
}

struct Site {
    address: std::net::SocketAddr,
    seen: Seen,
    stop: Rc<Event>,
    server: Task<Result<Report, ServeError>>,
}

/// A server with a soft deadline of a moment and a hard one of five.
async fn site() -> Site {
    site_that_waits(MOMENT).await
}

/// A server with that soft deadline.
async fn site_that_waits(soft: Duration) -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, stop) = (Seen::default(), Rc::<Event>::default());
    let stopping = stop.clone();
    let server = serve(listener, router(seen.clone()))
        .header_timeout(MOMENT * 10)
        .soft_deadline(soft)
        .hard_deadline(soft + MOMENT * 20)
        .shutdown_when(async move { drop(stopping.wait().await) });
    Site { address, seen, stop, server: spawn(server.into_future()) }
}

impl Site {
    async fn http1(&self) -> http1::SendRequest<Empty<Bytes>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http1::handshake(Io::new(stream)).await.unwrap();
        spawn(connection).detach();
        sender
    }

    async fn http2(&self) -> http2::SendRequest<Empty<Bytes>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) = http2::handshake(Executor, Io::new(stream)).await.unwrap();
        spawn(connection).detach();
        sender
    }

    fn request(&self, path: &str) -> Request<Empty<Bytes>> {
        let request = Request::get(format!("http://{}{path}", self.address));
        request.header(HOST, self.address.to_string()).body(Empty::new()).unwrap()
    }

    async fn ask(
        &self,
        client: &mut http1::SendRequest<Empty<Bytes>>,
        path: &str,
    ) -> hyper::Result<(StatusCode, String)> {
        let response = client.send_request(self.request(path)).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec()).unwrap()))
    }
}

fn run(test: impl AsyncFnOnce()) {
    pikake::run(async { timeout_after(SOON, future_wait(test())).await.unwrap().unwrap() });
}

#[test]
fn requests_are_answered_and_counted() {
    run(async || {
        let site = site_that_waits(SOON).await;
        let mut client = site.http1().await;
        let ok = |text: &str| (StatusCode::OK, text.to_owned());
        assert_eq!(site.ask(&mut client, "/").await.unwrap(), ok("hello"));
        assert_eq!(site.ask(&mut client, "/slow").await.unwrap(), ok("slow"));
        let (_, peer) = site.ask(&mut client, "/peer").await.unwrap();
        assert!(peer.starts_with("127.0.0.1:"), "{peer}");
        let mut http2 = site.http2().await;
        let response = http2.send_request(site.request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        site.stop.set();
        let report = site.server.await.unwrap().unwrap();
        assert_eq!(
            (report.answered, &*report.interrupted, &*report.dropped),
            (4, &[][..], &[][..])
        );
        // Closed, not left alone.
        let refused = TcpStream::connect(site.address).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Other tests of this process have slow requests as well.
#[test]
fn slow_request_is_a_trigger() {
    let triggers = Triggers::begin(MOMENT);
    run(async || {
        let site = site().await;
        let mut client = site.http1().await;
        for path in ["/?marked", "/slow?marked"] {
            site.ask(&mut client, path).await.unwrap();
        }
    });
    let (fired, _) = triggers.take();
    let marked = fired.iter().filter(|(_, about)| about.contains("marked"));
    let marked: Vec<(Kind, &str)> = marked.map(|(kind, about)| (*kind, about.as_str())).collect();
    let [(Kind::SlowRequest, about)] = marked[..] else { panic!("{marked:?}") };
    assert!(about.contains("/slow?marked (200 OK): "), "{about}");
}

#[test]
fn handler_panic_answers_500_on_a_living_connection() {
    run(async || {
        let site = site().await;
        let mut client = site.http1().await;
        let (status, _) = site.ask(&mut client, "/panic").await.unwrap();
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(site.ask(&mut client, "/").await.unwrap().1, "hello");
    });
}

#[test]
fn client_disconnect_interrupts_the_handler() {
    run(async || {
        let site = site().await;
        let mut client = site.http1().await;
        let request = client.send_request(site.request("/hang"));
        let asking = spawn(async move {
            drop(request.await);
        });
        site.seen.wait_for(1).await;
        drop(client);
        asking.cancel().await.unwrap();
        site.seen.wait_for(2).await;
        let expected = format!("cleaned up after: cancelled: {CLIENT_GONE}");
        assert_eq!(*site.seen.events.borrow(), ["begun", &expected]);
        // Others are served as before.
        let mut other = site.http1().await;
        assert_eq!(site.ask(&mut other, "/").await.unwrap().1, "hello");
    });
}

#[test]
fn stream_reset_interrupts_only_its_handler() {
    run(async || {
        let site = site().await;
        let mut client = site.http2().await;
        let mut resetting = client.clone();
        let request = site.request("/hang");
        let asking = spawn(async move { resetting.send_request(request).await.is_ok() });
        site.seen.wait_for(1).await;
        // Dropped, the request is reset.
        asking.abort();
        site.seen.wait_for(2).await;
        let expected = format!("cleaned up after: cancelled: {CLIENT_GONE}");
        assert_eq!(*site.seen.events.borrow(), ["begun", &expected]);
        let response = client.send_request(site.request("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    });
}

#[pikake::sim(seeds = 3)]
async fn shutdown_waits_then_interrupts_then_drops_handlers() {
    let site = Rc::new(site().await);
    let ask = |path: &'static str| {
        let site = site.clone();
        spawn(async move {
            let mut client = site.http1().await;
            site.ask(&mut client, path).await.map(|(_, text)| text)
        })
    };
    let mut idle = site.http1().await;
    assert_eq!(site.ask(&mut idle, "/").await.unwrap().1, "hello");
    let (told, dropped) = (ask("/hang"), ask("/ignore"));
    site.seen.wait_for(2).await;
    site.stop.set();
    // It may answer, since it ends before the hard deadline.
    assert_eq!(told.await.unwrap().unwrap(), "cut short");
    assert!(dropped.await.unwrap().is_err());
    assert!(site.ask(&mut idle, "/").await.is_err());
    let site = Rc::into_inner(site).unwrap();
    let report = site.server.await.unwrap().unwrap();
    let left = |left: &[pikake::http::Left]| {
        let mut names: Vec<_> = left.iter().map(|left| left.request.clone()).collect();
        names.sort();
        names
    };
    let name = |path| Some(format!("GET http://{}{path}", site.address));
    assert_eq!(left(&report.interrupted), [name("/hang"), name("/ignore")]);
    assert_eq!(left(&report.dropped), [name("/ignore")]);
    let expected = format!("cleaned up after: cancelled: {SHUTTING_DOWN}");
    assert_eq!(site.seen.events.borrow().last(), Some(&expected));
}

#[test]
fn interruption_shuts_down_and_returns_the_report() {
    run(async || {
        let site = site().await;
        let mut client = site.http1().await;
        assert_eq!(site.ask(&mut client, "/").await.unwrap().1, "hello");
        let request = client.send_request(site.request("/hang"));
        site.seen.wait_for(1).await;
        site.server.request_cancel("enough");
        assert_eq!(request.await.unwrap().status(), StatusCode::OK);
        let report = site.server.await.unwrap().unwrap();
        assert_eq!((report.answered, report.interrupted.len()), (2, 1));
        assert_eq!(report.ended_by, Some(Interrupted::cancelled("enough")));
        assert_eq!(report.cut_short_by, None);
    });
}

#[pikake::sim(seeds = 3)]
async fn second_interruption_drops_the_rest_and_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = spawn(async move {
        let client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET /ignore HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        client.read(&mut [0; 8]).await
    });
    let serving = serve(listener, router(Seen::default())).into_future();
    let outer = timed(MOMENT * 6, timed(MOMENT * 3, serving)).await;
    let inner = outer.output.unwrap();
    assert!(inner.expired && outer.expired);
    let report = inner.output.unwrap().unwrap();
    assert_eq!(report.dropped[0].request.as_deref(), Some("GET /ignore"));
    assert!(report.ended_by.is_some_and(|first| first.is_timeout()));
    assert!(report.cut_short_by.is_some_and(|second| second.is_timeout()));
    assert!(matches!(client.await.unwrap(), Ok(0) | Err(_)));
}

#[pikake::sim(seeds = 3)]
async fn timeout_around_a_server_shuts_it_down_and_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let serving = serve(listener, router(Seen::default())).into_future();
    assert!(timeout_after(MOMENT, serving).await.is_err());
}

#[test]
fn failed_listener_is_an_error() {
    run(async || {
        struct Broken;
        impl Listener for Broken {
            type Connection = TcpStream;
            type Address = std::net::SocketAddr;
            async fn accept(&self) -> std::io::Result<(TcpStream, std::net::SocketAddr)> {
                Err(ErrorKind::NotConnected.into())
            }
        }
        let failed = serve(Broken, router(Seen::default())).await.unwrap_err();
        assert_eq!(failed.source.kind(), ErrorKind::NotConnected);
        assert_eq!(failed.report, Report::default());
    });
}

#[pikake::sim(seeds = 3)]
async fn slow_heads_are_disconnected_others_are_served() {
    let site = site().await;
    let silent = TcpStream::connect(site.address).await.unwrap();
    let slow = TcpStream::connect(site.address).await.unwrap();
    let trickling = async {
        let mut buffer = [0; 64];
        for byte in b"GET / HTTP/1.1\r\nx: y\r\n".iter().cycle() {
            if slow.write_all(&[*byte]).await.is_err() {
                return;
            }
            let answer = timeout_after(MOMENT, slow.read(&mut buffer)).await;
            if let Ok(Ok(0) | Err(_)) = answer {
                return;
            }
        }
    };
    let silence = async {
        assert!(matches!(silent.read(&mut [0; 64]).await, Ok(0) | Err(_)));
    };
    let mut client = site.http1().await;
    assert_eq!(site.ask(&mut client, "/").await.unwrap().1, "hello");
    futures::join!(trickling, silence);
}

/// hyper takes the announced bytes of a response, and does not ask whether there are more.
#[pikake::sim(seeds = 1)]
async fn used_connection_is_not_idle_if_responses_have_a_length() {
    const SECOND: Duration = Duration::from_secs(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async || {
        let parts = stream::iter(["hel", "lo"]).map(Ok::<_, std::io::Error>);
        ([(CONTENT_LENGTH, 5)], Body::from_stream(parts))
    };
    let server = serve(listener, Router::new().route("/", get(answer))).header_timeout(8 * SECOND);
    let server = spawn(server.into_future());
    let client = TcpStream::connect(address).await.unwrap();
    for number in 0..20 {
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let length = client.read(&mut [0; 1000]).await.unwrap();
        assert!(length > 0, "the connection is closed at request {number}");
        sleep(3 * SECOND).await.unwrap();
    }
    server.abort();
}

/// A client that has sent its request and ended its side of the connection.
async fn half_closed(address: std::net::SocketAddr, path: &str) -> String {
    send_and_end(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await
}

/// The answers to a client that has sent this and ended its side of the connection.
async fn send_and_end(address: std::net::SocketAddr, requests: &str) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(requests.as_bytes()).await.unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        answer.extend(&buffer[..length]);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn half_closed_requests_are_answered() {
    run(async || {
        let site = site().await;
        for path in ["/", "/hang"] {
            let clients = (0..50).map(|_| half_closed(site.address, path));
            for answer in futures::future::join_all(clients).await {
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {answer}");
                let body = if path == "/" { "hello" } else { "cut short" };
                assert!(answer.ends_with(body), "{path}: {answer}");
            }
        }
        assert!(half_closed(site.address, "/panic").await.starts_with("HTTP/1.1 500"));
        let told = format!("cleaned up after: cancelled: {CLIENT_GONE}");
        let events = site.seen.events.borrow();
        assert_eq!(events.iter().filter(|event| **event == told).count(), 50);
    });
}

/// In a simulation, and so with all orders of the request, the end, and the handler's steps.
#[pikake::sim(seeds = 50)]
async fn a_half_closed_request_is_answered_in_any_order() {
    let site = site().await;
    assert!(half_closed(site.address, "/").await.ends_with("hello"));
    assert!(half_closed(site.address, "/hang").await.ends_with("cut short"));
}

/// The answer of a handler that waits, to a client that ended its side, by the server's patience.
#[pikake::sim(seeds = 3)]
async fn a_half_closed_client_is_told_after_a_time_or_never() {
    let ask = async |grace: Option<Duration>| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, router(Seen::default())).client_end_grace(grace);
        let server = spawn(server.into_future()).cancel_on_drop();
        let answer = half_closed(address, "/slow").await;
        drop(server);
        answer.rsplit('\n').next().unwrap().to_owned()
    };
    assert_eq!(ask(Some(Duration::ZERO)).await, "told");
    assert_eq!(ask(Some(MOMENT / 2)).await, "told");
    assert_eq!(ask(Some(MOMENT * 2)).await, "slow");
    assert_eq!(ask(None).await, "slow");
}

/// Requests that were sent before the end of the client's side, in a row.
#[pikake::sim(seeds = 10)]
async fn all_requests_before_the_end_are_answered() {
    let site = site().await;
    let request = |path| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let requests = [request("/"), request("/hang"), request("/"), request("/hang")].concat();
    let all = send_and_end(site.address, &requests).await;
    let bodies: Vec<_> = all.split("\r\n\r\n").skip(1).map(|part| &part[..5]).collect();
    assert_eq!(bodies, ["hello", "cut s", "hello", "cut s"], "{all}");
}

/// A response that goes on is sent as far as it is there, and one that waits is ended.
#[pikake::sim(seeds = 3)]
async fn a_half_closed_client_has_what_there_is_of_a_stream() {
    struct Dropped(Rc<Event>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set();
        }
    }

    const PART: usize = 100_000;
    let is_over = Rc::new(Event::default());
    let guarded = is_over.clone();
    let endless = local(move || {
        let guard = Bound::new(Dropped(guarded.clone()));
        let first = stream::repeat(vec![b'x'; PART]).take(10).map(Ok::<_, std::io::Error>);
        let waits = stream::once(async move {
            let _guard = guard;
            std::future::pending().await
        });
        std::future::ready(Body::from_stream(first.chain(waits)))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(endless));
    let server = spawn(serve(listener, router).into_future()).cancel_on_drop();
    let answer = half_closed(address, "/").await;
    assert!(answer.len() > 10 * PART, "{}", answer.len());
    is_over.wait().await.unwrap();
    drop(server);
}

/// A handler has the whole body that was sent before the end of the client's side, and so has the
/// client if it is sent back.
#[pikake::sim(seeds = 20)]
async fn a_body_before_the_end_is_read_to_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/length", post(async |body: Bytes| body.len().to_string()))
        .route("/echo", post(async |body: Body| body));
    let server = spawn(serve(listener, router).into_future()).cancel_on_drop();
    let chunks = "5\r\nhello\r\n".repeat(20);
    let ask = async |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
        send_and_end(address, &(head + &chunks + "0\r\n\r\n")).await
    };
    let length = ask("/length").await;
    assert!(length.starts_with("HTTP/1.1 200") && length.ends_with("100"), "{length}");
    let echo = ask("/echo").await;
    assert!(echo.matches("hello").count() == 20 && echo.ends_with("0\r\n\r\n"), "{echo}");
    drop(server);
}

/// A server that is dropped leaves no task, however long its limits are.
#[pikake::sim(seeds = 3)]
async fn a_dropped_server_leaves_nothing() {
    let count = || pikake::traps::inspect::kernel_figures().tasks;
    let before = count();
    for is_used in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = serve(listener, router(Seen::default())).header_timeout(LONG);
        let server = spawn(server.into_future());
        sleep(MOMENT).await.unwrap();
        if is_used {
            assert!(half_closed(address, "/").await.ends_with("hello"));
        }
        server.abort();
        sleep(MOMENT).await.unwrap();
        assert_eq!(count(), before);
    }
}

/// An idle server has no timer, which would hide a deadlock from a simulation.
#[test]
fn an_idle_server_hides_no_deadlock() {
    let mut sim = Sim::new(1);
    sim.client("stuck", || async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = spawn(serve(listener, router(Seen::default())).into_future());
        Event::new().wait().await.unwrap();
        drop(server);
    });
    assert_eq!(sim.run().unwrap_err().cause, Cause::Deadlock);
}

#[pikake::sim(seeds = 3)]
async fn the_clients_address_is_known_in_the_handler_alone() {
    use std::net::SocketAddr;
    let handler = local(async || {
        let own = peer::<SocketAddr>().is_some();
        let later = sleep(MOMENT).await.is_ok() && peer::<SocketAddr>().is_some();
        let other_type = peer::<String>().is_some();
        let in_a_task = spawn(async { peer::<SocketAddr>().is_some() }).await.unwrap();
        format!("{own} {later} {other_type} {in_a_task}")
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = serve(listener, Router::new().route("/", get(handler)));
    let server = server.client_end_grace(None).into_future();
    let server = spawn(server).cancel_on_drop();
    assert!(half_closed(address, "/").await.ends_with("true true false false"));
    assert_eq!(peer::<SocketAddr>(), None);
    drop(server);
}

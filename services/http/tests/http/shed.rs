//! Requests that come to a late server are answered 503, without their service.
//!
//! A handler or a test that blocks its thread makes the kernel late by at least that time. A kernel
//! that has nothing to do is late by much less than [`DELAY`].

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use hyper::{Method, Request};
use pikake::http::{Reports, serve, serve_on_all};
use pikake::kernel::inspect::kernel_figures;
use pikake::kernel::{Kernels, POLL_EVERY_STEPS};
use pikake::net::{Listener, Replicas, TcpListener, TcpStream};
use pikake::traps::figures::{Value, collect};
use pikake::traps::{KernelId, Peers};
use pikake::{KernelHandle, sleep, spawn, yield_now};

/// How late a request may begin.
const DELAY: Duration = Duration::from_millis(500);
const MOMENT: Duration = Duration::from_millis(10);

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

async fn ask(client: &TcpStream) {
    client.write_all(REQUEST).await.unwrap();
}

/// The status of an answer, and whether it says when to ask again.
async fn answer(client: &TcpStream) -> (u16, bool) {
    let (mut answer, mut buffer) = (String::new(), [0; 1000]);
    while !answer.contains("\r\n\r\n") {
        let length = client.read(&mut buffer).await.unwrap();
        assert!(length > 0, "{answer}");
        answer += std::str::from_utf8(&buffer[..length]).unwrap();
    }
    (answer[9..12].parse().unwrap(), answer.contains("\r\nretry-after: 1\r\n"))
}

/// The answer to a request that comes while the kernel's thread is blocked for this long.
async fn answer_after(client: &TcpStream, block: Duration) -> (u16, bool) {
    ask(client).await;
    thread::sleep(block);
    answer(client).await
}

/// Counts its calls, and answers without a body.
fn router(calls: Arc<AtomicUsize>) -> Router {
    let call = async move || {
        calls.fetch_add(1, Ordering::Relaxed);
    };
    Router::new().route("/", get(call))
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn late_request_is_shed() {
    pikake::run(async {
        let (listener, address) = listen().await;
        let calls = Arc::<AtomicUsize>::default();
        let server = serve(listener, router(calls.clone())).shed_after(DELAY);
        let server = spawn(server.into_future());
        let client = TcpStream::connect(address).await.unwrap();
        // The connection stays, and the server sheds only for as long as it is late.
        assert_eq!(answer_after(&client, Duration::ZERO).await, (200, false));
        assert_eq!(answer_after(&client, DELAY).await, (503, true));
        assert_eq!(answer_after(&client, MOMENT).await, (200, false));
        assert_eq!(answer_after(&client, DELAY).await, (503, true));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        let name = "pikake_http_shed_requests";
        let figure = collect().into_iter().find(|figure| figure.name == name).unwrap().value;
        assert!(matches!(figure, Value::Counter(2)), "{figure:?}");
        server.request_cancel("enough");
        let report = server.await.unwrap().unwrap();
        assert_eq!((report.answered, report.shed), (2, 2));
        let text = report.to_string();
        assert!(text.starts_with("2 requests were answered, 2 were shed"), "{text}");
    });
}

/// The kernel notes no lateness.
#[test]
fn late_request_is_answered_by_default() {
    pikake::run(async {
        let (listener, address) = listen().await;
        let server = spawn(serve(listener, router(Arc::default())).into_future());
        let client = TcpStream::connect(address).await.unwrap();
        assert_eq!(answer_after(&client, DELAY).await, (200, false));
        assert!(Peers::current().is_none());
        server.request_cancel("enough");
        assert_eq!(server.await.unwrap().unwrap().shed, 0);
    });
}

#[test]
fn shed_request_ends_connection_of_shutdown() {
    pikake::run(async {
        let (listener, address) = listen().await;
        let server = serve(listener, router(Arc::default())).shed_after(DELAY);
        let server = spawn(server.into_future());
        let client = TcpStream::connect(address).await.unwrap();
        assert_eq!(answer_after(&client, Duration::ZERO).await, (200, false));
        ask(&client).await;
        server.request_cancel("enough");
        thread::sleep(DELAY);
        assert_eq!(answer(&client).await, (503, true));
        assert_eq!(client.read(&mut [0; 9]).await.unwrap_or_default(), 0);
        let report = server.await.unwrap().unwrap();
        assert_eq!((report.answered, report.shed), (1, 1));
    });
}

/// A listener whose kernel polls its driver after each accept, before it begins the connection's
/// task: more tasks are ready then than it steps between two polls.
struct Polled(TcpListener);

impl Listener for Polled {
    type Connection = TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accepted = self.0.accept().await?;
        (0..2 * POLL_EVERY_STEPS).for_each(|_| spawn(async {}).detach());
        Ok(accepted)
    }
}

/// The request waits in the system's backlog, and the kernel is on time again when the connection's
/// task begins.
#[test]
fn request_that_comes_with_its_connection_is_shed() {
    pikake::run(async {
        let (listener, address) = listen().await;
        let server = serve(Polled(listener), router(Arc::default())).shed_after(DELAY);
        let server = spawn(server.into_future());
        let connect = |request: &[u8]| {
            let mut client = std::net::TcpStream::connect(address).unwrap();
            client.write_all(request).unwrap();
            client.set_nonblocking(true).unwrap();
            TcpStream::from_std(client).unwrap()
        };
        assert_eq!(answer(&connect(REQUEST)).await, (200, false));
        sleep(MOMENT).await.unwrap();
        // In one step, in which the server accepts nobody.
        let (client, later) = (connect(REQUEST), connect(b""));
        thread::sleep(DELAY);
        assert_eq!(answer(&client).await, (503, true));
        // A request that comes after its connection has not waited.
        assert_eq!(answer_after(&later, Duration::ZERO).await, (200, false));
        server.request_cancel("enough");
        let report = server.await.unwrap().unwrap();
        assert_eq!((report.answered, report.shed), (2, 1), "{report}");
    });
}

/// Each stream that comes late is answered, also one whose body has not ended, and the connection
/// stays.
#[test]
fn late_streams_of_http2_are_shed() {
    pikake::run(async {
        let (listener, address) = listen().await;
        let calls = Arc::<AtomicUsize>::default();
        let server = serve(listener, router(calls.clone())).shed_after(DELAY);
        let server = spawn(server.into_future());
        let client = TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(client).await.unwrap();
        spawn(async { drop(connection.await) }).detach();
        let mut send = |method: Method, is_whole| {
            let request = Request::builder().method(method).uri(format!("http://{address}/"));
            client.send_request(request.body(()).unwrap(), is_whole).unwrap()
        };
        let (response, _) = send(Method::GET, true);
        assert_eq!(response.await.unwrap().status(), 200);
        let late = [(Method::GET, true), (Method::POST, false), (Method::GET, true)];
        let late = late.map(|(method, is_whole)| send(method, is_whole));
        // The connection's task sends them.
        yield_now().await.unwrap();
        thread::sleep(DELAY);
        for (response, _sending) in late {
            let response = response.await.unwrap();
            assert_eq!(response.status(), 503);
            assert_eq!(response.headers()["retry-after"], "1");
            assert!(response.into_body().is_end_stream());
        }
        let (response, _) = send(Method::GET, true);
        assert_eq!(response.await.unwrap().status(), 200);
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        server.request_cancel("enough");
        let report = server.await.unwrap().unwrap();
        assert_eq!((report.answered, report.shed), (2, 3), "{report}");
    });
}

/// The clients that kernels have accepted.
type Accepted = Arc<Mutex<Vec<(SocketAddr, KernelId)>>>;

/// A listener that notes which kernel has accepted a client.
struct Noting(TcpListener, Accepted);

impl Listener for Noting {
    type Connection = TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, client) = self.0.accept().await?;
        self.1.lock().unwrap().push((client, KernelHandle::current().id()));
        Ok((stream, client))
    }

    fn replicas(&self) -> Option<Replicas> {
        self.0.replicas()
    }
}

/// Four requests come together, on connections of one kernel of two, which is a little late and
/// offers them. Each kernel begins one. The kernel whose handler ends first comes to the other two
/// when they have waited for too long. Returns the reports, and the number of offers that the other
/// kernel took.
fn shed_two_of_four(is_home_slow: bool) -> (Reports, u64) {
    pikake::run(async {
        let others = Kernels::start(1).unwrap();
        let home = KernelHandle::current().id();
        let (accepted, addresses) = (Accepted::default(), Arc::<Mutex<Vec<_>>>::default());
        let (noted, bound) = (accepted.clone(), addresses.clone());
        let both = Arc::new(Barrier::new(2));
        let make = move |listener: TcpListener| {
            bound.lock().unwrap().push(listener.local_addr().unwrap());
            let handler = async move || {
                both.wait();
                let is_slow = is_home_slow == (KernelHandle::current().id() == home);
                thread::sleep(DELAY * if is_slow { 4 } else { 1 } + MOMENT);
            };
            serve(Noting(listener, noted), Router::new().route("/", get(handler))).shed_after(DELAY)
        };
        let handles = others.handles();
        let server = spawn(async move { serve_on_all("127.0.0.1:0", &handles, make).await });
        // Both kernels serve from then on.
        let address = loop {
            if let [address, _] = addresses.lock().unwrap()[..] {
                break address;
            }
            sleep(MOMENT).await.unwrap();
        };
        let (mut clients, mut unused) = (Vec::new(), Vec::new());
        while clients.len() < 4 {
            let client = TcpStream::connect(address).await.unwrap();
            let own = client.local_addr().unwrap();
            let find = || accepted.lock().unwrap().iter().find(|seen| seen.0 == own).copied();
            let accepted_by = loop {
                match find() {
                    Some((_, kernel)) => break kernel,
                    None => sleep(MOMENT / 10).await.unwrap(),
                }
            };
            if accepted_by == home { clients.push(client) } else { unused.push(client) }
        }
        for client in &clients {
            ask(client).await;
        }
        thread::sleep(MOMENT);
        let mut answers = Vec::new();
        for client in &clients {
            answers.push(answer(client).await);
        }
        answers.sort();
        assert_eq!(answers, [(200, false), (200, false), (503, true), (503, true)]);
        server.request_cancel("enough");
        let reports = server.await.unwrap().unwrap();
        let taken = || async { kernel_figures().peers.unwrap().offers_taken };
        (reports, others.handles()[0].call(taken).await.unwrap())
    })
}

#[test]
fn kernel_of_the_connection_sheds_what_nobody_took() {
    let (reports, taken) = shed_two_of_four(false);
    assert_eq!(taken, 1);
    let [home, other] = &reports.kernels[..] else { panic!("{reports}") };
    assert_eq!((home.answered, home.shed, other.shed), (2, 2, 0), "{reports}");
}

/// The server of the connection counts what the other kernel sheds.
#[test]
fn other_kernel_sheds_what_waited_for_it() {
    let (reports, taken) = shed_two_of_four(true);
    assert_eq!(taken, 3);
    let [home, other] = &reports.kernels[..] else { panic!("{reports}") };
    assert_eq!((home.answered, home.shed, other.shed), (2, 2, 0), "{reports}");
    assert_eq!(reports.total().shed, 2);
}

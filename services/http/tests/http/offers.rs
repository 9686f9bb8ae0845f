//! Requests that come while their kernel is late, and are answered by another one.
//!
//! Two requests meet: each handler blocks its kernel until both have begun. So exactly one of them
//! is answered by the other kernel, and both must look the same to their clients.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{any, get};
use futures::{Stream, StreamExt, stream};
use pikake::http::axum::local;
use pikake::http::{Reports, Upgrade, peer, serve, serve_on_all};
use pikake::net::{self, Listener, Replicas, TcpListener};
use pikake::traps::KernelId;
use pikake::{Bound, KernelHandle, Kernels, sleep};

const SOON: Duration = Duration::from_secs(30);
/// Enough for a kernel to take a request, unless the machine is too busy.
const ALONE: Duration = Duration::from_secs(1);
/// Longer than the lateness with which a kernel offers requests.
const LATE: Duration = Duration::from_millis(5);
const MOMENT: Duration = Duration::from_millis(2);
/// The parts of a long body.
const PARTS: usize = 20;

/// What the handlers of all kernels share.
struct Shared {
    met: Mutex<usize>,
    meets: Condvar,
    was_alone: AtomicBool,
    events: Sender<String>,
}

impl Shared {
    /// Blocks the thread until another handler does. Notes if none does: the other kernel had no
    /// time.
    fn meet(&self) {
        let mut met = self.met.lock().unwrap();
        *met += 1;
        self.meets.notify_all();
        let until = met.next_multiple_of(2);
        let met = self.meets.wait_timeout_while(met, ALONE, |met| *met < until).unwrap();
        let (mut met, wait) = met;
        if wait.timed_out() {
            *met -= 1;
            self.was_alone.store(true, Ordering::SeqCst);
        }
    }
}

/// A body whose waits are not `Send`.
fn local_body<T: Into<Bytes> + 'static>(
    parts: impl Stream<Item = std::io::Result<T>> + 'static,
) -> Body {
    let mut parts = Bound::new(Box::pin(parts));
    Body::from_stream(stream::poll_fn(move |cx| parts.get_mut().poll_next_unpin(cx)))
}

fn router(shared: Arc<Shared>) -> Router {
    let short = shared.clone();
    let short = async move || {
        short.meet();
        // Of the same length for all kernels.
        format!("{:>8}", KernelHandle::current().id().to_string())
    };
    let long = shared.clone();
    let long = async move || {
        long.meet();
        let parts = stream::unfold(0, async |number| {
            sleep(Duration::from_micros(500)).await.ok()?;
            let part = Ok::<_, std::io::Error>(format!("{number},"));
            (number < PARTS).then_some((part, number + 1))
        });
        local_body(parts)
    };
    let broken = shared.clone();
    let broken = async move || {
        broken.meet();
        local_body(stream::unfold(0, async |number| {
            let part = match number {
                0 => Ok("first"),
                1 => sleep(MOMENT).await.map(|()| "second").map_err(std::io::Error::other),
                _ => Err(std::io::Error::other("broken")),
            };
            Some((part, number + 1))
        }))
    };
    let echo = shared.clone();
    let echo = async move |request: Request| {
        echo.meet();
        Bytes::from_request(request, &()).await
    };
    let panics = shared.clone();
    let panics = async move || -> String {
        panics.meet();
        panic!("as it must be")
    };
    let client = shared.clone();
    let client = async move || {
        client.meet();
        peer::<SocketAddr>().map_or("unknown".into(), |peer| peer.to_string())
    };
    let child = shared.clone();
    let child = async move || {
        child.meet();
        let child = pikake::spawn(async { peer::<SocketAddr>().is_some() });
        child.await.unwrap().to_string()
    };
    let unread = shared.clone();
    let unread = async move || {
        unread.meet();
        let body = stream::poll_fn(move |_| -> Poll<Option<std::io::Result<Bytes>>> {
            unread.events.send("polled".to_owned()).unwrap();
            Poll::Ready(None)
        });
        (StatusCode::NOT_MODIFIED, local_body(body))
    };
    let waits = shared.clone();
    let waits = async move || {
        waits.meet();
        let why = sleep(SOON * 100).await.unwrap_err();
        sleep(MOMENT).await.unwrap(); // a cleanup
        waits.events.send(why.reason().unwrap_or_default().to_owned()).unwrap();
        "gone"
    };
    let upgraded = async |upgrade: Upgrade| -> Response {
        thread::sleep(MOMENT); // longer than a kernel needs to take another request
        upgrade.accept(async |stream| {
            let id = KernelHandle::current().id().to_string();
            drop(net::Write::write_all(&stream, id.as_bytes()).await);
        })
    };
    Router::new()
        .route("/meet", any(short))
        .route("/long", get(long))
        .route("/broken", get(broken))
        .route("/echo", get(echo))
        .route("/panics", get(panics))
        .route("/client", get(client))
        .route("/child", get(local(child)))
        .route("/unread", get(unread))
        .route("/waits", get(local(waits)))
        .route("/upgrade", get(upgraded))
}

/// A listener that says which kernel has accepted a client.
struct Noting(TcpListener, Sender<(SocketAddr, KernelId)>);

impl Listener for Noting {
    type Connection = pikake::net::TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> std::io::Result<(pikake::net::TcpStream, SocketAddr)> {
        let (stream, client) = self.0.accept().await?;
        let _ = self.1.send((client, KernelHandle::current().id()));
        Ok((stream, client))
    }

    fn replicas(&self) -> Option<Replicas> {
        self.0.replicas()
    }
}

/// A server on two kernels, and clients whose connections are all on one of them.
struct Site {
    server: JoinHandle<Reports>,
    main: KernelHandle,
    /// The kernel of the connections.
    home: KernelHandle,
    clients: [Client; 2],
    shared: Arc<Shared>,
    events: Receiver<String>,
    asked: u64,
}

impl Site {
    fn new() -> Self {
        let (bound, addresses) = channel();
        let (ready, readies) = channel();
        let ((events, seen), (accepted, accepts)) = (channel(), channel());
        let (met, meets, was_alone) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { met, meets, was_alone, events });
        let all = shared.clone();
        let server = thread::spawn(move || {
            pikake::run(async move {
                let others = Kernels::start(1).unwrap();
                ready.send([KernelHandle::current(), others.handles().remove(0)]).unwrap();
                let reports = serve_on_all("127.0.0.1:0", &others.handles(), move |listener| {
                    bound.send(listener.local_addr().unwrap()).unwrap();
                    serve(Noting(listener, accepted), router(shared))
                });
                reports.await.unwrap()
            })
        });
        let kernels = readies.recv_timeout(SOON).unwrap();
        // Both kernels serve from then on.
        let [address, _] = [(); 2].map(|()| addresses.recv_timeout(SOON).unwrap());
        let mut clients = [Vec::new(), Vec::new()];
        let (home, clients) = loop {
            let client = Client::new(address);
            let (accepted, at) = accepts.recv_timeout(SOON).unwrap();
            assert_eq!(accepted, client.0.local_addr().unwrap());
            let at = kernels.iter().position(|kernel| kernel.id() == at).unwrap();
            clients[at].push(client);
            if clients[at].len() == 2 {
                let clients = clients[at].drain(..).collect::<Vec<_>>();
                break (kernels[at].clone(), clients.try_into().ok().unwrap());
            }
        };
        let [main, _] = kernels;
        Self { server, main, home, clients, shared: all, events: seen, asked: 0 }
    }

    /// Two answers to the same request, which comes while its kernel is late.
    fn meet(&mut self, request: &str) -> [Answer; 2] {
        loop {
            self.ask(request);
            let answers = self.clients.each_mut().map(|client| client.answer(request));
            // A report counts no panics.
            self.asked += answers.iter().filter(|answer| answer.status != 500).count() as u64;
            if !self.shared.was_alone.swap(false, Ordering::SeqCst) {
                return answers;
            }
        }
    }

    fn ask(&mut self, request: &str) {
        let ((held, is_held), (release, released)) = (channel(), channel::<()>());
        let hold: Box<dyn FnOnce() + Send> = Box::new(move || {
            held.send(()).unwrap();
            released.recv_timeout(SOON).unwrap();
        });
        self.home.call_there(hold).unwrap();
        is_held.recv_timeout(SOON).unwrap();
        self.clients.iter_mut().for_each(|client| client.ask(request));
        thread::sleep(LATE);
        release.send(()).unwrap();
    }

    /// Ends the server, and returns what the handlers have sent.
    fn end(self) -> Receiver<String> {
        self.main.interrupt("enough").unwrap();
        let reports = self.server.join().unwrap();
        let total = reports.total();
        assert_eq!(total.answered, self.asked, "{reports}");
        assert!(total.interrupted.is_empty() && total.dropped.is_empty(), "{reports}");
        self.events
    }
}

/// A connection that is kept.
struct Client(TcpStream);

#[derive(PartialEq, Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
    /// The connection ended before the body.
    is_cut: bool,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self(stream)
    }

    /// Sends a request; what follows the first line is the body.
    fn ask(&mut self, request: &str) {
        let (line, body) = request.split_once('\n').unwrap_or((request, ""));
        let length = body.len();
        let upgrade = match line.ends_with("/upgrade") {
            true => "connection: upgrade\r\nupgrade: id\r\n",
            false => "",
        };
        let head = format!("{line} HTTP/1.1\r\nhost: x\r\n{upgrade}content-length: {length}");
        let request = format!("{head}\r\n\r\n{body}");
        self.0.write_all(request.as_bytes()).unwrap();
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            if self.0.read(&mut byte).unwrap() == 0 {
                return None;
            }
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Some(String::from_utf8(line).unwrap())
    }

    fn answer(&mut self, request: &str) -> Answer {
        let mut head = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            if !line.starts_with("date") {
                head.push(line);
            }
        }
        let Some(status) = head.first() else {
            // The error of a body may come before its head is written.
            return Answer { status: 0, head: String::new(), body: String::new(), is_cut: true };
        };
        let status = status[9..12].parse().unwrap();
        let find = |name: &str| head.iter().find_map(|line| line.strip_prefix(name));
        let (mut body, mut is_cut) = (Vec::new(), false);
        let length = find("content-length: ").map(|length| length.parse::<usize>().unwrap());
        if request.starts_with("HEAD") || status == 304 {
        } else if let Some(length) = length {
            body.resize(length, 0);
            self.0.read_exact(&mut body).unwrap();
        } else {
            assert_eq!(find("transfer-encoding: "), Some("chunked"));
            loop {
                let Some(length) = self.line() else {
                    is_cut = true;
                    break;
                };
                let length = usize::from_str_radix(&length, 16).unwrap();
                let mut part = vec![0; length];
                self.0.read_exact(&mut part).unwrap();
                body.append(&mut part);
                self.line();
                if length == 0 {
                    break;
                }
            }
        }
        let body = String::from_utf8(body).unwrap();
        Answer { status, head: head.join("\n"), body, is_cut }
    }
}

#[test]
fn late_request_is_answered_by_another_kernel() {
    let mut site = Site::new();
    let [one, other] = site.meet("GET /meet");
    assert_ne!(one.body, other.body);
    assert_eq!((one.status, one.head), (200, other.head));
    site.end();
}

#[test]
fn answer_looks_the_same_from_another_kernel() {
    let mut site = Site::new();
    let numbers: String = (0..PARTS).map(|number| format!("{number},")).collect();
    let long = "x".repeat(100_000);
    for (request, status, body) in [
        ("GET /long".to_owned(), 200, &*numbers),
        ("HEAD /meet".to_owned(), 200, ""),
        (format!("GET /echo\n{long}"), 200, &long),
        ("GET /panics".to_owned(), 500, ""),
    ] {
        let [one, other] = site.meet(&request);
        assert_eq!((one.status, &*one.body, one.is_cut), (status, body, false), "{request:.20}");
        assert_eq!(one, other, "{request:.20}");
    }
    let [one, other] = site.meet("GET /client");
    for (answer, client) in [one, other].into_iter().zip(&site.clients) {
        assert_eq!(answer.body, client.0.local_addr().unwrap().to_string());
    }
    site.end();
}

/// The error of a body ends its connection, so that its client sees it.
#[test]
fn broken_body_of_another_kernel_is_cut() {
    let mut site = Site::new();
    for answer in site.meet("GET /broken") {
        assert!(answer.is_cut, "{answer:?}");
    }
    site.end();
}

#[test]
fn client_that_has_gone_interrupts_its_handler_on_another_kernel() {
    let mut site = Site::new();
    site.ask("GET /waits");
    site.asked += 2;
    for client in &site.clients {
        client.0.shutdown(Shutdown::Both).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(site.events.recv_timeout(SOON).unwrap(), pikake::http::CLIENT_GONE);
    }
    site.end();
}

/// The stream cannot cross, and so the request does not.
#[test]
fn request_for_an_upgrade_is_not_offered() {
    let mut site = Site::new();
    site.ask("GET /upgrade");
    site.asked += 2;
    for client in &mut site.clients {
        assert!(client.line().unwrap().starts_with("HTTP/1.1 101 "));
        while !client.line().unwrap().is_empty() {}
        let mut kernel = String::new();
        client.0.read_to_string(&mut kernel).unwrap();
        assert_eq!(kernel, site.home.id().to_string());
    }
    site.end();
}

#[test]
fn task_of_a_handler_sees_no_peer_on_any_kernel() {
    let mut site = Site::new();
    let answers = site.meet("GET /child").map(|answer| answer.body);
    assert_eq!(answers, ["false", "false"]);
    site.end();
}

/// hyper does not poll the body of such an answer, and neither does the other kernel.
#[test]
fn body_of_304_is_polled_on_no_kernel() {
    let mut site = Site::new();
    let [one, other] = site.meet("GET /unread");
    assert_eq!((one.status, &one), (304, &other));
    // The ends of both kernels come after all that the requests have started.
    let events = site.end();
    assert_eq!(events.try_iter().count(), 0);
}

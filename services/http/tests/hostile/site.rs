//! A server with short deadlines, whose tasks, waits and sockets are counted around each test.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use pikake::http::{Report, ServeError, serve};
use pikake::net::{TcpListener, TcpStream};
use pikake::sync::Event;
use pikake::{Bound, Kernel, Task, shield, sleep, spawn, timeout_after};

/// How long the server waits for a client that owes it something.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// A limit for anything that should happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How many connections the server has at a time.
pub(crate) const CONNECTIONS: usize = 30;
/// More than the buffers of two sockets hold.
pub(crate) const MUCH: usize = 32 << 20;
/// Less than a buffer of a socket holds.
pub(crate) const PAGE: usize = 60_000;
/// How long a handler takes over its cleaning up.
const CLEAN_UP: Duration = Duration::from_millis(100);

pub(crate) fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

/// The counts of running and past handlers.
#[derive(Default)]
pub(crate) struct Handlers {
    pub(crate) running: Cell<usize>,
    pub(crate) most: Cell<usize>,
    pub(crate) begun: Cell<usize>,
    pub(crate) told: Cell<usize>,
}

/// The counts of tasks, waits, sockets and descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Count {
    tasks: usize,
    waits: usize,
    sockets: usize,
    descriptors: usize,
}

pub(crate) struct Site<'a> {
    kernel: &'a Kernel,
    pub(crate) address: SocketAddr,
    pub(crate) handlers: Rc<Handlers>,
    pub(crate) stop: Rc<Event>,
    pub(crate) server: Task<Result<Report, ServeError>>,
    before: Count,
}

pub(crate) fn router(handlers: &Rc<Handlers>) -> Router {
    let bound = Arc::new(Bound::new(handlers.clone()));
    // Waits until it is told, and then for a while more.
    let hang = move || {
        let handlers = bound.get().clone();
        Bound::future(async move {
            handlers.running.set(handlers.running.get() + 1);
            handlers.begun.set(handlers.begun.get() + 1);
            handlers.most.set(handlers.most.get().max(handlers.running.get()));
            if sleep(LONG).await.is_err() {
                handlers.told.set(handlers.told.get() + 1);
            }
            drop(shield(sleep(CLEAN_UP)).await);
            handlers.running.set(handlers.running.get() - 1);
        })
    };
    let slow = || Bound::future(async { sleep(PATIENCE * 3).await.map_or("told", |()| "slow") });
    let much = Bytes::from(vec![b'x'; MUCH]);
    Router::new()
        .route("/", get(async || "hello"))
        .route("/hang", get(hang))
        .route("/slow", get(slow))
        .route("/page", get(async || vec![b'x'; PAGE]))
        .route("/none", get(async || axum::http::StatusCode::NO_CONTENT))
        .route("/much", get(async move || much.clone()))
        .route("/upload", post(async |body: Bytes| body.len().to_string()))
}

/// How many sockets the process has; what else there is, such as a kernel's timer, comes as needed.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|entry| {
        let Ok(kind) = std::fs::read_link(entry.as_ref().unwrap().path()) else { return false };
        kind.to_string_lossy().starts_with("socket:")
    })
    .count()
}

/// Lets the tests run one after the other: descriptors are counted, and they are the process's.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Site<'_> {
    /// Runs a test against a server, and checks what is left of it.
    pub(crate) fn run(test: impl AsyncFnOnce(&Site<'_>)) {
        let _alone = alone();
        let kernel = Kernel::new().unwrap();
        kernel.run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (handlers, stop) = (Rc::<Handlers>::default(), Rc::<Event>::default());
            let stopping = stop.clone();
            let server = serve(listener, router(&handlers))
                .connections(CONNECTIONS)
                .header_timeout(PATIENCE)
                .stall_timeout(PATIENCE)
                .shutdown_when(async move { drop(stopping.wait().await) });
            let server = spawn(server.into_future());
            let before = Count { tasks: 0, waits: 0, sockets: 0, descriptors: 0 };
            let mut site = Site { kernel: &kernel, address, handlers, stop, server, before };
            site.is_serving().await;
            sleep(ms(20)).await.unwrap();
            site.before = site.count();
            test(&site).await;
            site.is_serving().await;
            site.settles().await;
            site.stop.set();
            let report = site.server.await.unwrap().unwrap();
            assert_eq!((&*report.interrupted, &*report.dropped), (&[][..], &[][..]), "{report}");
        });
        kernel.shutdown();
        assert_eq!((kernel.task_count(), kernel.socket_count()), (0, 0));
    }

    fn count(&self) -> Count {
        Count {
            tasks: self.kernel.task_count(),
            waits: self.kernel.wait_count(),
            sockets: self.kernel.socket_count(),
            descriptors: descriptors(),
        }
    }

    /// Waits until something is as it should be.
    async fn comes<T: PartialEq + std::fmt::Debug>(&self, wanted: T, state: impl Fn() -> T) {
        let since = Instant::now();
        while state() != wanted {
            assert!(since.elapsed() < SOON, "{:?} never became {wanted:?}", state());
            sleep(ms(5)).await.unwrap();
        }
    }

    /// Nothing is there that was not there before.
    pub(crate) async fn settles(&self) {
        self.comes(self.before, || self.count()).await;
    }

    /// The server has let go of its clients, whether they have let go or not.
    pub(crate) async fn lets_go(&self) {
        self.comes(self.before.tasks, || self.kernel.task_count()).await;
    }

    pub(crate) async fn handlers_run(&self, count: usize) {
        self.comes(count, || self.handlers.running.get()).await;
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        timeout_after(SOON, TcpStream::connect(self.address)).await.unwrap().unwrap()
    }

    /// A client that has sent this.
    pub(crate) async fn sends(&self, data: impl AsRef<[u8]>) -> TcpStream {
        let client = self.connect().await;
        client.write_all(data.as_ref()).await.unwrap();
        client
    }

    /// A client that behaves is answered.
    pub(crate) async fn is_serving(&self) {
        let client = self.sends("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let answer = rest(&client).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    }
}

/// Reads until the connection is closed or reset, which has to be soon.
pub(crate) async fn rest(client: &TcpStream) -> String {
    let mut all = Vec::new();
    let reading = async {
        let mut buffer = [0; 4096];
        loop {
            match client.read(&mut buffer).await {
                Ok(0) => return,
                Ok(length) => all.extend(&buffer[..length]),
                Err(error) => {
                    let kind = error.kind();
                    let closed = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                    assert!(closed.contains(&kind), "{error}");
                    return;
                }
            }
        }
    };
    timeout_after(SOON, reading).await.expect("the server closes the connection soon");
    String::from_utf8_lossy(&all).into_owned()
}

/// Closes a connection with a reset, and whatever is on its way is lost.
pub(crate) fn reset(client: TcpStream) {
    client.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Sends a byte now and then until the connection is closed.
pub(crate) async fn dribble(client: &TcpStream, data: &[u8]) {
    let since = Instant::now();
    for byte in data.iter().cycle() {
        assert!(since.elapsed() < SOON, "the server never closes the connection");
        let mut buffer = [0; 512];
        let heard = timeout_after(ms(20), client.read(&mut buffer)).await;
        if matches!(heard, Ok(Ok(0) | Err(_))) || client.write_all(&[*byte]).await.is_err() {
            break;
        }
    }
}

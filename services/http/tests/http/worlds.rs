//! The HTTP server in simulated worlds, and with an interruption at every suspension.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use pikake::http::{CLIENT_GONE, Executor, Io, serve};
use pikake::net::{Listener, TcpListener, TcpStream, UnixStream};
use pikake::sync::Event;
use pikake::testing::Injector;
use pikake::traps::{WaitQueue, park};
use pikake::{Bound, sleep, spawn, task_group, timeout_after};

const MOMENT: Duration = Duration::from_millis(20);
const SECOND: Duration = Duration::from_secs(1);

fn router() -> Router {
    let slow = || Bound::future(async { sleep(3 * SECOND).await.map_or("told", |()| "slow") });
    Router::new()
        .route("/", get(async || "hello"))
        .route("/slow", get(slow))
        .route("/length", post(async |body: Bytes| body.len().to_string()))
}

fn request(path: &str, body: &'static [u8]) -> Request<Full<Bytes>> {
    let request = Request::builder().uri(format!("http://server{path}")).header(HOST, "server");
    let method = if body.is_empty() { "GET" } else { "POST" };
    request.method(method).body(Full::from(body)).unwrap()
}

async fn text(answer: hyper::Response<hyper::body::Incoming>) -> String {
    assert_eq!(answer.status(), StatusCode::OK);
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[pikake::sim(seeds = 10)]
async fn http_uses_the_virtual_time_of_simulation() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Rc::<Event>::default();
    let stopping = stop.clone();
    let server = serve(listener, router())
        .header_timeout(8 * SECOND)
        .stall_timeout(2 * SECOND)
        .shutdown_when(async move { drop(stopping.wait().await) });
    let server = spawn(server.into_future());

    let stream = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = http1::handshake(Io::new(stream)).await.unwrap();
    spawn(connection).detach();
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut other, connection) = http2::handshake(Executor, Io::new(stream)).await.unwrap();
    spawn(connection).detach();
    let silent = TcpStream::connect(address).await.unwrap();
    for (path, body, expected) in
        [("/", &b""[..], "hello"), ("/slow", b"", "slow"), ("/length", &[7; 100_000], "100000")]
    {
        assert_eq!(text(client.send_request(request(path, body)).await.unwrap()).await, expected);
        assert_eq!(text(other.send_request(request(path, body)).await.unwrap()).await, expected);
    }
    // A body that does not come.
    let stalls = TcpStream::connect(address).await.unwrap();
    let head = b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n";
    stalls.write_all(head).await.unwrap();
    let since = pikake::time::now();
    assert_eq!(stalls.read(&mut [0; 8]).await.unwrap(), 0);
    let took = pikake::time::elapsed_since(since);
    assert!(took >= 2 * SECOND && took <= 3 * SECOND + MOMENT, "{took:?}");
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
    while !client.is_closed() || !other.is_closed() {
        sleep(MOMENT).await.unwrap();
    }
    let took = pikake::time::elapsed_since(since);
    assert!(took >= 8 * SECOND && took <= 15 * SECOND, "{took:?}");

    stop.set();
    let report = server.await.unwrap().unwrap();
    assert_eq!(report.answered, 6);
    let refused = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

/// Where clients of a process come in.
#[derive(Clone, Default)]
struct Door(Rc<(RefCell<VecDeque<UnixStream>>, WaitQueue)>);

impl Door {
    fn connect(&self) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        self.0.0.borrow_mut().push_back(server);
        self.0.1.wake(1);
        client
    }
}

impl Listener for Door {
    type Connection = UnixStream;
    type Address = &'static str;

    async fn accept(&self) -> io::Result<(UnixStream, &'static str)> {
        loop {
            if let Some(client) = self.0.0.borrow_mut().pop_front() {
                return Ok((client, "a client"));
            }
            park(&self.0.1).await?;
        }
    }
}

#[test]
fn interrupted_server_leaves_nothing_behind() {
    let report = Injector::new().patience(MOMENT / 10).run(
        || async {
            let door = Door::default();
            let (begun, ended) = (Rc::<Cell<u32>>::default(), Rc::<Cell<u32>>::default());
            let counted = Arc::new(Bound::new((begun.clone(), ended.clone())));
            let counting = move || {
                let (begun, ended) = counted.get().clone();
                Bound::future(async move {
                    begun.set(begun.get() + 1);
                    drop(sleep(MOMENT).await);
                    sleep(MOMENT).await.unwrap();
                    ended.set(ended.get() + 1);
                    "done"
                })
            };
            let client = |stream: UnixStream| async move {
                let (mut sender, connection) = http1::handshake(Io::new(stream)).await.unwrap();
                spawn(connection).detach();
                if let Ok(answer) = sender.send_request(request("/", b"")).await {
                    assert_eq!(text(answer).await, "done");
                }
            };
            let stop = Rc::<Event>::default();
            let (stopping, stopper) = (stop.clone(), stop.clone());
            let clients = door.clone();
            spawn(async move {
                for _ in 0..2 {
                    spawn(client(clients.connect())).detach();
                    sleep(MOMENT / 2).await.unwrap();
                }
                sleep(MOMENT * 3).await.unwrap();
                stopper.set();
            })
            .detach();
            let router = Router::new().route("/", get(counting));
            let server = serve(door, router)
                .soft_deadline(SECOND)
                .hard_deadline(2 * SECOND)
                .shutdown_when(async move { drop(stopping.wait().await) });
            let report = server.await.unwrap();
            (report.answered, report.ended_by.is_some(), begun.get(), ended.get())
        },
        |run| {
            let (answered, is_interrupted, begun, ended) = run.output.unwrap();
            assert!(!is_interrupted || run.interruption.is_some());
            assert_eq!(begun, ended, "a handler has outlived its server, or was dropped");
            assert!(u64::from(ended) >= answered);
            if run.interruption.is_none() {
                assert_eq!(answered, 2);
            }
        },
    );
    assert!(report.suspensions >= 1 && report.cancels >= 1, "{report:?}");
}

#[test]
fn handler_of_interrupted_client_answers_or_is_interrupted() {
    let report = Injector::new().patience(MOMENT / 10).run(
        || async {
            let door = Door::default();
            let told = Rc::<RefCell<Vec<String>>>::default();
            let noted = Arc::new(Bound::new(told.clone()));
            let handler = move |body: Bytes| {
                let told = noted.get().clone();
                Bound::future(async move {
                    let end = sleep(MOMENT).await;
                    told.borrow_mut().push(end.map_or_else(|e| e.to_string(), |()| "done".into()));
                    body.len().to_string()
                })
            };
            let router = Router::new().route("/", post(handler));
            let serving = door.clone();
            let answer = task_group(async |group| {
                let server = group.spawn(async move {
                    drop(serve(serving, router).soft_deadline(SECOND).await);
                    Ok::<_, io::Error>(())
                });
                let stream = door.connect();
                let (mut sender, connection) = http1::handshake(Io::new(stream)).await.unwrap();
                let connection = spawn(connection).cancel_on_drop();
                let asking = async {
                    let sent = sender.send_request(request("/", b"abc"));
                    pikake::future_wait(sent).await.map_err(io::Error::from)
                };
                let answer = asking.await;
                drop((sender, connection));
                sleep(MOMENT).await.ok();
                server.request_cancel("over");
                Ok::<_, io::Error>(answer.is_ok_and(|answer| answer.is_ok()))
            });
            let answer = timeout_after(100 * SECOND, answer).await;
            (answer.is_ok_and(|answer| answer.is_ok_and(|answered| answered)), told.take())
        },
        |run| {
            let (was_answered, told) = run.output.as_ref().unwrap();
            let gone = format!("cancelled: {CLIENT_GONE}");
            assert!(told.iter().all(|end| [&*gone, "done"].contains(&&**end)), "{told:?}");
            assert!(told.len() <= 1 && (!was_answered || *told == ["done"]), "{told:?}");
        },
    );
    assert!(report.suspensions > 2 && report.cancels > 2, "{report:?}");
}

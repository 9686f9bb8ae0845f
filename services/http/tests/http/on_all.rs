//! One server on several kernels.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::routing::{any, get};
use pikake::http::axum::{Local, local};
use pikake::http::{
    Report, Reports, SHUTTING_DOWN, ServeError, Upgrade, Upgraded, serve, serve_on_all,
};
use pikake::kernel::Kernels;
use pikake::net::{Listener, Read, TcpListener, TcpStream, Write, interruption};
use pikake::{Interrupted, KernelHandle, future_wait, other_kernels, sleep, spawn, timeout_after};

const MOMENT: Duration = Duration::from_millis(20);
/// A limit for anything that should happen.
const SOON: Duration = Duration::from_secs(20);
const KERNELS: usize = 3;
/// How many requests run when the server is interrupted.
const SLOW: usize = 10;
/// More connections than it takes the system to choose each kernel.
const MOST: usize = 1000;

fn run(test: impl AsyncFnOnce(&Kernels)) {
    pikake::run(async {
        let others = Kernels::start(KERNELS - 1).unwrap();
        timeout_after(SOON, future_wait(test(&others))).await.unwrap().unwrap();
    });
}

async fn get_path(address: SocketAddr, path: &str) -> io::Result<String> {
    let client = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await?;
    let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
    while let length @ 1.. = client.read(&mut buffer).await? {
        all.extend(&buffer[..length]);
    }
    let answer = String::from_utf8_lossy(&all).into_owned();
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// State of one kernel, which is not `Send`; and a count of the slow requests that have begun.
fn router_that_counts(begun: Arc<AtomicUsize>) -> Router {
    let slow = move || {
        begun.fetch_add(1, Ordering::Relaxed);
        async { sleep(MOMENT * 10).await.map_or("interrupted", |()| "slow") }
    };
    let kernel = Local::new(std::rc::Rc::new(pikake::KernelHandle::current().id()));
    Router::new().route("/", get(async move || kernel.to_string())).route("/slow", get(local(slow)))
}

/// Keeps the stream of an upgrade until it is interrupted, and then says goodbye.
async fn wait_and_say_goodbye(stream: Upgraded) {
    let error = stream.read(&mut [0]).await.unwrap_err();
    let why = interruption(&error).unwrap().reason().unwrap_or_default();
    stream.write_all(why.as_bytes()).await.unwrap();
}

/// The kernel of an upgraded connection, which is in the answer.
async fn upgrade(address: SocketAddr) -> (TcpStream, String) {
    let client = TcpStream::connect(address).await.unwrap();
    let head = "GET /upgrade HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: own\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let kernel = head.split("\r\nkernel: ").nth(1).unwrap().split("\r\n").next().unwrap();
    (client, kernel.to_owned())
}

/// Upgrades connections of each kernel, and interrupts the server.
async fn upgrades_say_goodbye(others: &[KernelHandle]) {
    let (bound, addresses) = mpsc::channel();
    let others = others.to_vec();
    let server = spawn(async move {
        serve_on_all("127.0.0.1:0", &others, move |listener: TcpListener| {
            bound.send(listener.local_addr().unwrap()).unwrap();
            let upgrade = async |upgrade: Upgrade| -> Response {
                let mut response: Response = upgrade.accept(wait_and_say_goodbye);
                let kernel = KernelHandle::current().id().to_string();
                response.headers_mut().insert("kernel", kernel.parse().unwrap());
                response
            };
            serve(listener, Router::new().route("/upgrade", any(upgrade))).soft_deadline(5 * MOMENT)
        })
        .await
    });
    let address = loop {
        match addresses.try_recv() {
            Ok(address) => break address,
            Err(_) => sleep(MOMENT / 10).await.unwrap(),
        }
    };
    let (mut clients, mut seen) = (Vec::new(), BTreeMap::new());
    while seen.len() < KERNELS && clients.len() < MOST {
        let (client, kernel) = upgrade(address).await;
        clients.push(client);
        *seen.entry(kernel).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), KERNELS, "{seen:?}");
    server.request_cancel("enough");
    for client in &clients {
        let mut goodbye = [0; SHUTTING_DOWN.len()];
        client.read_exact(&mut goodbye).await.unwrap();
        assert_eq!(goodbye, SHUTTING_DOWN.as_bytes());
        assert_eq!(client.read(&mut goodbye).await.unwrap(), 0);
    }
    let reports: Reports = server.await.unwrap().unwrap();
    let mut counts: Vec<_> =
        reports.kernels.iter().map(|report| report.upgrades_interrupted()).collect();
    let mut expected: Vec<_> = seen.into_values().collect();
    counts.sort_unstable();
    expected.sort_unstable();
    assert_eq!(counts, expected);
    let total = reports.total();
    assert_eq!((total.upgraded, total.upgrades_dropped()), (clients.len() as u64, 0), "{reports}");
}

#[test]
fn upgrades_of_all_kernels_say_goodbye() {
    run(async |others| upgrades_say_goodbye(&others.handles()).await);
}

#[pikake::sim(seeds = 10, threads = 3)]
async fn upgrades_of_all_simulated_kernels_say_goodbye() {
    upgrades_say_goodbye(&other_kernels()).await;
}

fn router() -> Router {
    router_that_counts(Arc::default())
}

#[test]
fn interruption_ends_all_kernels_with_their_reports() {
    run(async |others| {
        let (bound, addresses) = mpsc::channel();
        let begun = Arc::<AtomicUsize>::default();
        let counted = begun.clone();
        let handles = others.handles();
        let server = spawn(async move {
            serve_on_all("127.0.0.1:0", &handles, move |listener: TcpListener| {
                bound.send(listener.local_addr().unwrap()).unwrap();
                serve(listener, router_that_counts(counted.clone()))
            })
            .await
        });
        let address = loop {
            match addresses.try_recv() {
                Ok(address) => break address,
                Err(_) => sleep(MOMENT / 10).await.unwrap(),
            }
        };
        let mut seen = std::collections::BTreeSet::new();
        let mut asked = 0;
        while seen.len() < KERNELS && asked < MOST {
            seen.insert(get_path(address, "/").await.unwrap());
            asked += 1;
        }
        assert_eq!(seen.len(), KERNELS, "{seen:?}");
        let running: Vec<_> =
            (0..SLOW).map(|_| spawn(async move { get_path(address, "/slow").await })).collect();
        while begun.load(Ordering::Relaxed) < SLOW {
            sleep(MOMENT / 10).await.unwrap();
        }
        server.request_cancel("enough");
        for request in running {
            assert_eq!(request.await.unwrap().unwrap(), "slow");
        }
        let reports: Reports = server.await.unwrap().unwrap();
        assert_eq!(reports.kernels.len(), KERNELS);
        assert_eq!(reports.total().answered, (asked + SLOW) as u64);
        let why = Some(Interrupted::cancelled("enough"));
        assert!(reports.kernels.iter().all(|report| report.ended_by == why), "{reports}");
        assert!(reports.kernels.iter().all(|report| report.answered > 0), "{reports}");
        let refused = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn call_returns_when_all_kernels_have_ended() {
    run(async |others| {
        let reports = serve_on_all("127.0.0.1:0", &others.handles(), |listener| {
            serve(listener, router()).shutdown_when(async { drop(sleep(MOMENT).await) })
        });
        let reports = reports.await.unwrap();
        assert_eq!(reports.kernels, vec![Report::default(); KERNELS]);
    });
}

/// A listener that fails on all kernels but one.
struct Failing(TcpListener, bool);

impl Listener for Failing {
    type Connection = TcpStream;
    type Address = SocketAddr;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self.1 {
            true => Err(io::ErrorKind::NotConnected.into()),
            false => self.0.accept().await,
        }
    }
}

#[test]
fn failure_on_one_kernel_is_the_error_of_all() {
    run(async |others| {
        let home = pikake::KernelHandle::current().id();
        let served = serve_on_all("127.0.0.1:0", &others.handles(), move |listener| {
            let fails = pikake::KernelHandle::current().id() != home;
            serve(Failing(listener, fails), router())
        });
        let ServeError { source, .. } = served.await.unwrap_err();
        assert_eq!(source.kind(), io::ErrorKind::NotConnected);
    });
}

#[test]
fn address_in_use_is_an_error() {
    run(async |others| {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let served =
            serve_on_all(address, &others.handles(), |listener| serve(listener, router())).await;
        assert_eq!(served.unwrap_err().source.kind(), io::ErrorKind::AddrInUse);
    });
}

/// The seed spreads the connections, and each kernel keeps its state, although one thread turns
/// them all.
#[pikake::sim(seeds = 20, threads = 3)]
async fn simulated_kernels_serve_and_end_together() {
    const REQUESTS: usize = 150;
    let begun = Arc::<AtomicUsize>::default();
    let counted = begun.clone();
    let server = spawn(serve_on_all("127.0.0.1:80", &other_kernels(), move |listener| {
        serve(listener, router_that_counts(counted.clone()))
    }));
    sleep(MOMENT).await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..REQUESTS {
        seen.insert(get_path(address, "/").await.unwrap());
    }
    assert_eq!(seen.len(), KERNELS, "{seen:?}");
    let running: Vec<_> =
        (0..SLOW).map(|_| spawn(async move { get_path(address, "/slow").await })).collect();
    while begun.load(Ordering::Relaxed) < SLOW {
        sleep(MOMENT / 10).await.unwrap();
    }
    server.request_cancel("enough");
    for request in running {
        assert_eq!(request.await.unwrap().unwrap(), "slow");
    }
    let reports: Reports = server.await.unwrap().unwrap();
    assert_eq!(reports.kernels.len(), KERNELS);
    assert_eq!(reports.total().answered, (REQUESTS + SLOW) as u64);
    assert!(reports.kernels.iter().all(|report| report.answered > 0), "{reports}");
}

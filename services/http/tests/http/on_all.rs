//! One server on several kernels.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use pikake::http::axum::{Local, local};
use pikake::http::{Report, Reports, ServeError, serve, serve_on_all};
use pikake::kernel::Kernels;
use pikake::net::{Listener, TcpListener, TcpStream};
use pikake::{Interrupted, future_wait, other_kernels, sleep, spawn, timeout_after};

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

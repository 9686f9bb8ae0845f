//! A server on two threads of pikake or of tokio.
//!
//! ```text
//! pikake-cores-bench <pikake | shedding | tokio>    prints its port, serves until its standard input ends
//! ```

use std::io::Read;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use axum::serve::ListenerExt;
use rustix::time::{ClockId, clock_gettime};

const THREADS: usize = 2;

/// How late a kernel of `shedding` is at most when a request begins.
const SHED_AFTER: Duration = Duration::from_millis(20);

/// More connections than are ever opened: tokio's server has no limit.
const CONNECTIONS: usize = 100_000;

/// `kernel` names the group of a connection: the kernel that answers, or a half of the connections.
fn router(kernel: fn() -> String) -> Router {
    Router::new()
        .route("/light", get(async || "light"))
        .route("/spin/{micros}", get(async |Path(micros): Path<u64>| spin(micros)))
        .route("/kernel", get(async move || kernel()))
        .with_state(())
}

/// Takes this much processor time.
fn spin(micros: u64) -> &'static str {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let end = now() + Duration::from_micros(micros);
    while now() < end {
        // Some microseconds, so that the system calls take a small part of the time.
        for step in 0..10_000 {
            std::hint::black_box(step);
        }
    }
    "heavy"
}

/// `late`: when requests are shed.
fn on_pikake(late: Option<Duration>) {
    static BOUND: Once = Once::new();
    let kernel = || format!("{:?}", thread::current().id());
    pikake::run(async move {
        let kernels = pikake::Kernels::start(THREADS - 1).unwrap();
        let address = "127.0.0.1:0";
        let serving = pikake::http::serve_on_all(address, &kernels.handles(), move |listener| {
            BOUND.call_once(|| println!("{}", listener.local_addr().unwrap().port()));
            let server = pikake::http::serve(listener, router(kernel));
            server.connections(CONNECTIONS).header_timeout(None).shed_after(late)
        });
        serving.await.unwrap();
    });
}

/// tokio's connections belong to no thread, so every other request gets the other group.
fn on_tokio() {
    static REQUESTS: AtomicUsize = AtomicUsize::new(0);
    let kernel = || (REQUESTS.fetch_add(1, Ordering::Relaxed) % THREADS).to_string();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(THREADS).enable_all().build().unwrap();
    let served = runtime.spawn(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        axum::serve(listener, router(kernel)).await.unwrap();
    });
    runtime.block_on(served).unwrap();
}

fn main() {
    // Ends the process when the one that started it ends.
    thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    match std::env::args().nth(1).as_deref() {
        Some("pikake") => on_pikake(None),
        Some("shedding") => on_pikake(Some(SHED_AFTER)),
        Some("tokio") => on_tokio(),
        _ => panic!("the name of a server: pikake, shedding or tokio"),
    }
}

//! Several kernels: calls from one to another, connections spread over them, and their common end.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::{Kernels, TaskError, other_kernels, sleep, timeout_after, yield_now};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn call_runs_on_its_kernel_and_returns() {
    pikake::run(async {
        let kernels = Kernels::start(2).unwrap();
        let mut threads = vec![thread::current().id()];
        for kernel in kernels.handles() {
            let there = kernel.call(|| async {
                let local = Rc::new(thread::current().id()); // which is not `Send`
                sleep(Duration::from_millis(1)).await.unwrap();
                *local
            });
            threads.push(there.await.unwrap());
        }
        threads.sort_by_key(|id| format!("{id:?}"));
        threads.dedup();
        assert_eq!(threads.len(), 3);
    });
}

#[test]
fn call_without_a_result_returns_the_error() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let kernel = kernels.handles().remove(0);
        let panicked = kernel.call(|| async { panic!("as it must be") }).await;
        let Err(TaskError::Panicked(panic)) = panicked else { panic!("{panicked:?}") };
        assert_eq!(panic.message(), Some("as it must be"));
        let slow = timeout_after(Duration::from_millis(5), kernel.call(|| sleep(LONG))).await;
        assert!(slow.is_err());
        drop(kernels);
        assert!(matches!(kernel.call(|| async {}).await, Err(TaskError::Stopped)));
    });
}

#[test]
fn dropped_kernels_let_tasks_clean_up() {
    let goodbyes = Arc::new(AtomicUsize::new(0));
    pikake::run(async {
        let kernels = Kernels::start(2).unwrap();
        for kernel in kernels.handles() {
            let goodbyes = goodbyes.clone();
            kernel
                .spawn(move || async move {
                    sleep(LONG).await.unwrap_err();
                    yield_now().await.unwrap();
                    goodbyes.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
            kernel.call(|| async { yield_now().await.unwrap() }).await.unwrap();
        }
    });
    assert_eq!(goodbyes.load(Ordering::SeqCst), 2);
}

#[test]
fn connections_spread_over_kernels_of_main() {
    /// So many that all of them with one listener of three is as good as impossible.
    const CONNECTIONS: usize = 200;

    #[pikake::main(threads = 3)]
    async fn main() -> BTreeMap<u8, usize> {
        let first = TcpListener::bind_shared((Ipv4Addr::LOCALHOST.to_string(), 0)).await.unwrap();
        let address = first.local_addr().unwrap();
        let others = other_kernels();
        assert_eq!(others.len(), 2);
        for (number, kernel) in (1_u8..).zip(&others) {
            // Bound when this returns, and served from then on.
            let bound = kernel.call(move || async move {
                let listener = TcpListener::bind_shared(address).await.unwrap();
                let handler = move |stream: TcpStream, _| async move {
                    stream.write_all(&[number]).await.unwrap();
                };
                pikake::spawn(async move { drop(serve(listener, 1000, handler).await) }).detach();
            });
            bound.await.unwrap();
        }
        let handler = |stream: TcpStream, _| async move { stream.write_all(&[0]).await.unwrap() };
        pikake::spawn(async move { drop(serve(first, 1000, handler).await) }).detach();
        let mut counts = BTreeMap::new();
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(address).await.unwrap();
            let mut number = [0];
            stream.read_exact(&mut number).await.unwrap();
            *counts.entry(number[0]).or_default() += 1;
        }
        counts
    }

    let counts = main();
    assert_eq!(counts.values().sum::<usize>(), CONNECTIONS);
    assert_eq!(counts.len(), 3, "each got some: {counts:?}");
    assert!(other_kernels().is_empty());
}

//! Several kernels: calls from one to another, connections spread over them, and their common end.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pikake::net::{TcpListener, TcpStream, serve};
use pikake::{
    KernelHandle, Kernels, TaskError, on_kernels, other_kernels, sleep, spawn, timed,
    timeout_after, yield_now,
};

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

#[test]
#[should_panic(expected = "`threads = 0`: a program runs on one kernel at least")]
fn main_without_threads_is_a_panic() {
    const NONE: usize = 0;

    #[pikake::main(threads = NONE)]
    async fn main() {}

    main();
}

/// The name of this thread, and the reason with which its sleep was interrupted.
async fn sleep_long(started: mpsc::Sender<()>) -> Result<(String, Option<String>), TaskError> {
    started.send(()).unwrap();
    let why = sleep(LONG).await.unwrap_err();
    let name = thread::current().name().unwrap_or_default().to_owned();
    Ok((name, why.reason().map(str::to_owned)))
}

/// Waits for messages of other threads, and yields meanwhile.
async fn receive<T>(count: usize, from: &mpsc::Receiver<T>) {
    for _ in 0..count {
        while from.try_recv().is_err() {
            yield_now().await.unwrap();
        }
    }
}

#[test]
fn futures_run_on_all_kernels() {
    pikake::run(async {
        let kernels = Kernels::start(2).unwrap();
        let number = thread::current().id();
        let outcomes = on_kernels(&kernels.handles(), move || {
            // Not `Send`.
            let value = Rc::new(7);
            async move {
                yield_now().await.unwrap();
                Ok::<_, TaskError>((*value, thread::current().id() == number))
            }
        });
        let outcomes: Vec<_> = outcomes.await.into_iter().map(Result::unwrap).collect();
        assert_eq!(outcomes, [(7, true), (7, false), (7, false)]);
        assert_eq!(on_kernels(&[], || async { Ok::<_, TaskError>(1) }).await.len(), 1);
    });
}

/// An interruption of the caller cancels all tasks, whose outcomes it still receives.
#[test]
fn interruption_cancels_all_kernels() {
    pikake::run(async {
        let kernels = Kernels::start(2).unwrap();
        let (sender, started) = mpsc::channel();
        let handles = kernels.handles();
        let caller = spawn(async move { on_kernels(&handles, || sleep_long(sender)).await });
        receive(3, &started).await;
        caller.request_cancel("a signal");
        let mut reasons = Vec::new();
        for outcome in caller.await.unwrap() {
            reasons.push(outcome.unwrap());
        }
        assert_eq!(reasons.len(), 3);
        assert!(reasons.iter().all(|(_, why)| why.as_deref() == Some("a signal")), "{reasons:?}");
        assert_eq!([&*reasons[1].0, &*reasons[2].0], ["pikake-1", "pikake-2"]);
    });
}

#[test]
fn second_interruption_aborts_all_kernels() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let (sender, started) = mpsc::channel();
        let call = on_kernels(&kernels.handles(), || async move {
            sleep_long(sender.clone()).await?;
            // A cleanup that never ends.
            sleep_long(sender).await
        });
        let short = Duration::from_millis(1);
        let call = timed(2 * short, timed(short, call)).await.output.unwrap().output.unwrap();
        assert!(
            call.iter().all(|result| matches!(result, Err(TaskError::Cancelled(_)))),
            "{call:?}"
        );
        drop(started);
    });
}

/// The cancel after a failure is no interruption of the caller.
#[test]
fn first_interruption_after_a_failure_aborts_no_kernel() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let has_begun = Arc::new(AtomicUsize::new(0));
        let short = Duration::from_millis(20);
        let call = on_kernels(&kernels.handles(), move || async move {
            if thread::current().name() == Some("pikake-1") {
                while has_begun.load(Ordering::SeqCst) == 0 {
                    yield_now().await?;
                }
                return Err(TaskError::Stopped);
            }
            has_begun.store(1, Ordering::SeqCst);
            let told = sleep(Duration::from_secs(60)).await.unwrap_err();
            sleep(2 * short).await?; // a cleanup, which the deadline does not cut off
            Ok(told)
        });
        let results = timed(short, call).await.output.unwrap();
        assert!(matches!(&results[..], [Ok(_), Err(TaskError::Stopped)]), "{results:?}");
    });
}

/// A panic is a failure too.
#[test]
fn first_failure_cancels_the_other_kernels() {
    pikake::run(async {
        let kernels = Kernels::start(2).unwrap();
        let (sender, started) = mpsc::channel();
        let count = Arc::new(AtomicUsize::new(0));
        let outcomes = on_kernels(&kernels.handles(), || async move {
            if thread::current().name() == Some("pikake-2") {
                // A task that is cancelled before its first step returns nothing.
                while count.load(Ordering::SeqCst) < 2 {
                    yield_now().await.unwrap();
                }
                panic!("the second kernel's task fails");
            }
            count.fetch_add(1, Ordering::SeqCst);
            sleep_long(sender).await
        });
        let [first, second, third] = &outcomes.await[..] else { panic!("three kernels") };
        drop(started);
        for outcome in [first, second] {
            let why = outcome.as_ref().unwrap().1.as_deref();
            assert_eq!(why, Some("the task of another kernel has failed"));
        }
        assert!(matches!(third, Err(TaskError::Panicked(_))), "{third:?}");
    });
}

#[test]
fn ended_kernel_ends_the_others() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let handles = kernels.handles();
        drop(kernels);
        let (sender, _started) = mpsc::channel();
        let outcomes = on_kernels(&handles, || sleep_long(sender)).await;
        // Cancelled before its first step.
        let Err(TaskError::Cancelled(why)) = &outcomes[0] else { panic!("{outcomes:?}") };
        assert_eq!(why.reason(), Some("the task of another kernel has failed"));
        assert!(matches!(outcomes[1], Err(TaskError::Stopped)), "{outcomes:?}");
    });
}

#[test]
fn dropped_call_cancels_all_kernels() {
    pikake::run(async {
        let kernels = Kernels::start(1).unwrap();
        let (sender, started) = mpsc::channel();
        let (ended, ends) = mpsc::channel();
        let call = on_kernels(&kernels.handles(), || async move {
            ended.send(sleep_long(sender).await?).unwrap();
            Ok::<_, TaskError>(())
        });
        let call = spawn(call);
        receive(2, &started).await;
        call.abort();
        receive(2, &ends).await;
    });
}

#[test]
fn other_kernels_are_peers_without_the_caller() {
    #[pikake::main(threads = 3)]
    async fn main() {
        let own = KernelHandle::current().id();
        let others: Vec<_> = other_kernels().iter().map(KernelHandle::id).collect();
        for (number, kernel) in other_kernels().iter().enumerate() {
            let seen = kernel
                .call(|| async {
                    let others = other_kernels();
                    others.iter().map(KernelHandle::id).collect::<Vec<_>>()
                })
                .await
                .unwrap();
            assert_eq!(seen, [others[1 - number], own], "the main kernel is built last");
        }
        // Kernels that the program starts join those that it has.
        let own_kernels = Kernels::start(2).unwrap();
        let count = own_kernels.handles()[0].call(|| async { other_kernels().len() });
        assert_eq!(count.await.unwrap(), 4);
        assert_eq!(other_kernels().len(), 4);
        drop(own_kernels);
        assert_eq!(other_kernels().len(), 2);
    }

    main();
    assert!(pikake::run(async { other_kernels().is_empty() }));
}

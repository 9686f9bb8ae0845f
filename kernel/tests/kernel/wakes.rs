//! Wakes from other threads: each arrives once and at once, and nothing is left behind.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pikake::traps::{blocking, lookup};
use pikake::{Kernel, TaskError, future_wait, spawn, timeout_after, yield_now};

use crate::support::ms;

/// A flag that any thread can set and one task waits for, anew each round.
#[derive(Default)]
struct Bell {
    state: Mutex<(usize, Option<Waker>)>,
}

impl Bell {
    fn ring(&self) {
        let waker = {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn rung(self: &Arc<Self>) -> Rung {
        Rung(self.clone())
    }
}

struct Rung(Arc<Bell>);

impl Future for Rung {
    type Output = usize;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<usize> {
        let mut state = self.0.state.lock().unwrap();
        if state.0 > 0 {
            return Poll::Ready(std::mem::take(&mut state.0));
        }
        state.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[test]
fn wakes_from_eight_threads_are_not_lost() {
    const THREADS: usize = 8;
    const TASKS: usize = 50;
    const RINGS: usize = 2_000;

    let kernel = Kernel::new().unwrap();
    let bells: Arc<Vec<Arc<Bell>>> = Arc::new((0..TASKS).map(|_| Arc::default()).collect());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let bells = bells.clone();
            thread::spawn(move || {
                for ring in 0..RINGS {
                    bells[(ring * 7 + thread) % TASKS].ring();
                }
            })
        })
        .collect();
    let heard: usize = kernel.run(async {
        let heard = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = bells
            .iter()
            .map(|bell| {
                let (bell, heard) = (bell.clone(), heard.clone());
                spawn(async move {
                    // The total is shared, so a task that is done waits to be told by a last ring.
                    while heard.load(Ordering::Relaxed) < THREADS * RINGS {
                        heard.fetch_add(future_wait(bell.rung()).await.unwrap(), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        while heard.load(Ordering::Relaxed) < THREADS * RINGS {
            pikake::sleep(ms(1)).await.unwrap();
        }
        for bell in bells.iter() {
            bell.ring();
        }
        for task in tasks {
            task.await.unwrap();
        }
        heard.load(Ordering::Relaxed)
    });
    assert!(heard >= THREADS * RINGS);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn wake_interrupts_the_sleep_at_once() {
    // With nothing else to do the kernel blocks without limit: only the wake brings it back.
    let kernel = Kernel::new().unwrap();
    let bell = Arc::new(Bell::default());
    let (ask, asked) = mpsc::channel::<Instant>();
    let ringer = {
        let bell = bell.clone();
        thread::spawn(move || {
            let mut rings = Vec::new();
            while let Ok(at) = asked.recv() {
                // Give the kernel time to fall asleep; when it has not, the test is only easier.
                while at.elapsed() < ms(2) {
                    thread::yield_now();
                }
                rings.push(Instant::now());
                bell.ring();
            }
            rings
        })
    };
    let woken: Vec<Instant> = kernel.run(async {
        let mut woken = Vec::new();
        for _ in 0..50 {
            ask.send(Instant::now()).unwrap();
            future_wait(bell.rung()).await.unwrap();
            woken.push(Instant::now());
        }
        woken
    });
    drop(ask);
    let rings = ringer.join().unwrap();
    let late = rings.iter().zip(&woken).map(|(rung, woken)| *woken - *rung);
    let late: Vec<Duration> = late.collect();
    let in_time = late.iter().filter(|late| **late < Duration::from_millis(500)).count();
    assert!(in_time >= 49, "a wake is not bound to any timeout: {late:?}");
}

#[test]
fn wakers_that_outlive_task_and_kernel_do_nothing() {
    let bell = Arc::new(Bell::default());
    let kernel = Kernel::new().unwrap();
    kernel.run(async {
        let task = spawn({
            let bell = bell.clone();
            async move {
                let _ = timeout_after(ms(1), future_wait(bell.rung())).await;
            }
        });
        task.await.unwrap();
    });
    let of_ended_task = bell.state.lock().unwrap().1.clone().unwrap();
    of_ended_task.wake_by_ref();
    kernel.run(async {
        drop(spawn({
            let bell = bell.clone();
            async move { drop(future_wait(bell.rung()).await) }
        }));
        yield_now().await.unwrap();
    });
    let of_live_task = bell.state.lock().unwrap().1.clone().unwrap();
    drop(kernel);
    let thread = thread::spawn(move || {
        of_live_task.wake_by_ref();
        drop(of_live_task.clone());
        of_live_task.wake();
        of_ended_task.wake();
        bell.ring();
    });
    thread.join().unwrap();
}

#[test]
fn handles_start_tasks_from_other_threads() {
    let kernel = Kernel::new().unwrap();
    let handle = kernel.handle();
    let (send, receive) = futures::channel::mpsc::unbounded();
    let threads: Vec<_> = (0..8_u64)
        .map(|thread| {
            let (handle, send) = (handle.clone(), send.clone());
            thread::spawn(move || {
                for number in 0..100 {
                    let send = send.clone();
                    handle
                        .spawn(move || async move {
                            // Values of this future need not be `Send`.
                            let local = std::rc::Rc::new(thread * 100 + number);
                            yield_now().await.unwrap();
                            send.unbounded_send(*local).unwrap();
                        })
                        .unwrap();
                }
            })
        })
        .collect();
    drop(send);
    let mut numbers: Vec<u64> = kernel.run(async {
        use futures::StreamExt;
        future_wait(receive.collect()).await.unwrap()
    });
    numbers.sort_unstable();
    assert_eq!(numbers, (0..800).collect::<Vec<u64>>());
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn shutdown_and_stop_from_threads_end_the_run() {
    for shutdown in [false, true] {
        let kernel = Kernel::new().unwrap();
        let handle = kernel.handle();
        let thread = thread::spawn(move || {
            thread::park_timeout(ms(20));
            if shutdown { handle.shutdown() } else { handle.stop() }
        });
        let outcome = kernel.try_run(async { pikake::sleep(Duration::from_secs(3_600)).await });
        match outcome {
            Ok(slept) => assert!(shutdown && slept.unwrap_err().is_cancel()),
            Err(error) => assert!(!shutdown, "{error}"),
        }
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn closure_sent_to_an_ending_kernel_is_dropped() {
    let kernel = Kernel::new().unwrap();
    let handle = kernel.handle();
    let held = Arc::new(());
    let inside = held.clone();
    handle.spawn(move || async move { drop(inside) }).unwrap();
    drop(kernel);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn blocking_calls_run_beside_the_kernel() {
    pikake::run(async {
        let here = thread::current().id();
        let calls = (0..100).map(|number| blocking(move || (number, thread::current().id())));
        for (expected, outcome) in futures::future::join_all(calls).await.into_iter().enumerate() {
            let (number, there) = outcome.unwrap();
            assert_eq!(number, expected);
            assert_ne!(here, there);
        }
        let error = blocking(|| panic!("in a helper")).await;
        let error: TaskError = error.unwrap_err();
        assert_eq!(error.panic_message(), Some("in a helper"));
        // The caller goes on at once; the closure, if it has begun, to its end.
        let (send, receive) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let mut call = pin!(blocking(move || {
            send.send("begun").unwrap();
            wait.recv().unwrap();
            send.send("to its end").unwrap();
        }));
        assert!(futures::poll!(call.as_mut()).is_pending());
        assert_eq!(receive.recv(), Ok("begun"));
        assert!(timeout_after(ms(1), call).await.is_err());
        go.send(()).unwrap();
        assert_eq!(receive.recv(), Ok("to its end"));
    });
}

#[test]
fn names_are_looked_up() {
    pikake::run(async {
        let addresses = lookup("localhost", 80).await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
        assert!(!addresses.is_empty());
        let error = lookup("no such host", 80).await.unwrap_err();
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    });
}

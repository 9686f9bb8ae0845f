//! Objects in threads of their own: the order of calls, panics, interruptions, and the end.

use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures::future::join_all;
use futures::poll;
use pikake::thread::ThreadProxy;
use pikake::{Kernel, TaskError, current, spawn, yield_now};

use crate::support::{ms, within};

const PATIENCE: Duration = Duration::from_secs(20);

/// Cannot leave its thread, and tells when it is dropped.
struct Notes {
    notes: Rc<Vec<u32>>,
    gone: mpsc::Sender<ThreadId>,
}

impl Notes {
    fn add(&mut self, note: u32) -> Vec<u32> {
        let notes = Rc::get_mut(&mut self.notes).unwrap();
        notes.push(note);
        notes.clone()
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        let _ = self.gone.send(thread::current().id());
    }
}

async fn notes() -> (ThreadProxy<Notes>, mpsc::Receiver<ThreadId>) {
    let (gone, is_gone) = mpsc::channel();
    let open = ThreadProxy::open(move || Ok::<_, ()>(Notes { notes: Rc::default(), gone }));
    (open.await.unwrap().unwrap(), is_gone)
}

#[test]
fn calls_are_made_in_order_in_one_thread() {
    within(|| {
        pikake::run(async {
            let (proxy, is_gone) = notes().await;
            let there = proxy.call(|_| thread::current().id()).await.unwrap();
            assert_ne!(there, thread::current().id());
            let calls = (1..=5).map(|number| proxy.call(move |notes| notes.add(number)));
            let last = join_all(calls).await.pop().unwrap().unwrap();
            assert_eq!(last, [1, 2, 3, 4, 5]);
            proxy.close().await.unwrap();
            assert_eq!(is_gone.try_recv(), Ok(there), "it was dropped in its thread");
        });
    });
}

#[test]
fn panic_is_reported_and_the_object_stays() {
    within(|| {
        pikake::run(async {
            let (proxy, _is_gone) = notes().await;
            let call = proxy.call(|notes| {
                notes.add(1);
                panic!("half way");
            });
            let error: TaskError = call.await.unwrap_err();
            assert_eq!(error.panic_message(), Some("half way"));
            assert_eq!(proxy.call(|notes| notes.add(2)).await.unwrap(), [1, 2]);
        });
    });
}

#[test]
fn failed_construction_returns_its_error() {
    within(|| {
        pikake::run(async {
            let refused = ThreadProxy::<Notes>::open(|| Err("no such file")).await.unwrap();
            assert_eq!(refused.unwrap_err(), "no such file");
            let panicked = ThreadProxy::<u8>::open(|| -> Result<u8, ()> { panic!("oh") }).await;
            assert_eq!(panicked.unwrap_err().panic_message(), Some("oh"));
            let proxy = ThreadProxy::new(String::from("there already")).unwrap();
            assert_eq!(proxy.call(|text| text.clone()).await.unwrap(), "there already");
        });
    });
}

/// A call in the queue is not made; a call that runs is notified.
#[test]
fn interrupted_call_is_withdrawn_or_notified() {
    within(|| {
        pikake::run(async {
            let (proxy, _is_gone) = notes().await;
            let (started, is_started) = mpsc::channel();
            let first = spawn(proxy.call_with(move |notes, cancel| {
                started.send(()).unwrap();
                while !cancel.is_cancelled() {
                    thread::yield_now();
                }
                notes.add(1);
            }));
            yield_now().await.unwrap();
            is_started.recv_timeout(PATIENCE).unwrap();
            let held = Arc::new(());
            for _ in 0..1000 {
                let inside = held.clone();
                let mut call = pin!(proxy.call(move |notes| {
                    let _inside = inside;
                    notes.add(2)
                }));
                assert!(poll!(call.as_mut()).is_pending());
            }
            assert_eq!(Arc::strong_count(&held), 1);
            let mut last = pin!(proxy.call(|notes| notes.add(3)));
            assert!(poll!(last.as_mut()).is_pending());
            assert_eq!(format!("{proxy:?}"), "ThreadProxy { is_busy: true, waiting: 1 }");
            first.cancel().await.unwrap();
            assert!(matches!(first.await.unwrap(), Err(TaskError::Interrupted(_))));
            assert_eq!(last.await.unwrap(), [1, 3]);
        });
    });
}

#[test]
fn dropped_proxy_makes_only_awaited_calls() {
    within(|| {
        pikake::run(async {
            let (proxy, is_gone) = notes().await;
            let (open, gate) = mpsc::channel::<()>();
            let mut first = pin!(proxy.call(move |_| gate.recv().is_err()));
            let mut second = pin!(proxy.call(|notes| notes.add(1)));
            let late = proxy.call(|notes| notes.add(2));
            assert!(poll!(first.as_mut()).is_pending());
            assert!(poll!(second.as_mut()).is_pending());
            drop(proxy);
            let error = late.await.unwrap_err();
            assert!(matches!(error, TaskError::Cancelled(_)), "{error}");
            assert!(is_gone.try_recv().is_err());
            drop(open);
            assert_eq!(second.await.unwrap(), [1]);
            first.await.unwrap();
            is_gone.recv_timeout(PATIENCE).unwrap();
        });
    });
}

#[test]
fn proxy_ends_with_its_kernel_or_interrupted_opening() {
    within(|| {
        let kernel = Kernel::new().unwrap();
        let is_gone = kernel.run(async {
            let (proxy, is_gone) = notes().await;
            spawn(async move {
                let _proxy = proxy;
                std::future::pending::<()>().await;
            })
            .detach();
            is_gone
        });
        drop(kernel);
        is_gone.recv_timeout(PATIENCE).unwrap();

        let (gone, is_gone) = mpsc::channel();
        pikake::run(async {
            let (started, is_started) = mpsc::channel();
            let opening = spawn(ThreadProxy::open(move || {
                started.send(()).unwrap();
                thread::sleep(ms(5));
                Ok::<_, ()>(Notes { notes: Rc::default(), gone })
            }));
            yield_now().await.unwrap();
            is_started.recv_timeout(PATIENCE).unwrap();
            opening.cancel().await.unwrap();
            assert!(matches!(opening.await.unwrap(), Err(TaskError::Interrupted(_))));
        });
        is_gone.recv_timeout(PATIENCE).unwrap();
    });
}

#[test]
fn interrupted_close_is_a_drop() {
    within(|| {
        pikake::run(async {
            let (proxy, is_gone) = notes().await;
            let task = spawn(async move {
                current().request_cancel("");
                proxy.close().await
            });
            assert!(matches!(task.await.unwrap(), Err(TaskError::Interrupted(_))));
            is_gone.recv_timeout(PATIENCE).unwrap();
        });
    });
}

#[test]
fn two_kernels_share_a_proxy() {
    within(|| {
        let proxy = Arc::new(ThreadProxy::new(Vec::new()).unwrap());
        let threads: Vec<_> = (0..2_u32)
            .map(|kernel| {
                let proxy = proxy.clone();
                thread::spawn(move || {
                    pikake::run(async {
                        for number in 0..100 {
                            proxy.call(move |all| all.push((kernel, number))).await.unwrap();
                        }
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let mut all = pikake::run(async { proxy.call(|all| all.clone()).await.unwrap() });
        all.sort_by_key(|(kernel, _)| *kernel);
        let expected = (0..2).flat_map(|kernel| (0..100).map(move |number| (kernel, number)));
        assert_eq!(all, expected.collect::<Vec<_>>());
    });
}

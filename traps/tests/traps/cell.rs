//! The task cell, released by its owners in every order and on every thread.
//!
//! The tests check that future and output are dropped once, on the home thread.
//! `cargo xtask memcheck` runs them under valgrind, which finds leaks and accesses to freed memory.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};

use pikake::{Kernel, Task, spawn, yield_now};

use crate::support::{kernel, ms};

/// Something on the heap that counts its drops and insists on the thread it was made on.
struct Probe {
    drops: Arc<AtomicUsize>,
    home: ThreadId,
    _heap: Box<[u8; 64]>,
}

impl Probe {
    fn new(drops: &Arc<AtomicUsize>) -> Self {
        Self { drops: drops.clone(), home: thread::current().id(), _heap: Box::new([7; 64]) }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        assert_eq!(self.home, thread::current().id(), "dropped on its home thread (I8)");
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    Unpolled,
    Pending,
    Returned,
    Panicked,
}

/// Gives its waker away; then ends as it is told.
struct Subject {
    ending: Ending,
    waker: Rc<RefCell<Option<Waker>>>,
    _inside: Probe,
    output: Option<Probe>,
}

impl Future for Subject {
    type Output = Probe;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Probe> {
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        match self.ending {
            Ending::Unpolled => unreachable!("it is not polled"),
            Ending::Pending => Poll::Pending,
            Ending::Returned => Poll::Ready(self.output.take().unwrap()),
            Ending::Panicked => panic!("as told"),
        }
    }
}

/// All owners of one task.
struct Owners {
    kernel: Option<Kernel<pikake::time::ManualClock>>,
    task: Option<Task<Probe>>,
    waker: Option<Waker>,
}

impl Owners {
    fn let_go(&mut self, whose: char) {
        match whose {
            'k' => drop(self.kernel.take()),
            't' => drop(self.task.take()),
            // By a wake, and on another thread.
            'w' => {
                if let Some(waker) = self.waker.take() {
                    thread::spawn(move || {
                        waker.wake_by_ref();
                        drop(waker.clone());
                        waker.wake();
                    })
                    .join()
                    .unwrap();
                }
            }
            // Here.
            'h' => {
                if let Some(waker) = self.waker.take() {
                    waker.wake_by_ref();
                    drop(waker);
                }
            }
            _ => unreachable!(),
        }
    }
}

#[test]
#[expect(clippy::async_yields_async, reason = "the handle itself is wanted")]
fn owners_may_let_go_in_any_order() {
    let orders =
        ["ktw", "kwt", "tkw", "twk", "wkt", "wtk", "kth", "kht", "tkh", "thk", "hkt", "htk"];
    for ending in [Ending::Unpolled, Ending::Pending, Ending::Returned, Ending::Panicked] {
        for order in orders {
            let drops = Arc::new(AtomicUsize::new(0));
            let kernel = kernel();
            let waker = Rc::new(RefCell::new(None));
            let subject = Subject {
                ending,
                waker: waker.clone(),
                _inside: Probe::new(&drops),
                output: Some(Probe::new(&drops)),
            };
            let task = kernel.run(async {
                let task = spawn(subject);
                if ending != Ending::Unpolled {
                    yield_now().await.unwrap();
                }
                task
            });
            let waker = waker.borrow_mut().take();
            let mut owners = Owners { kernel: Some(kernel), task: Some(task), waker };
            for whose in order.chars() {
                owners.let_go(whose);
            }
            assert_eq!(drops.load(Ordering::Relaxed), 2, "{ending:?} {order}");
        }
    }
}

#[test]
fn wakers_on_many_threads_outlive_everything() {
    const THREADS: usize = 4;
    let kernel = Kernel::new().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let waker = Rc::new(RefCell::new(None));
    let threads: Vec<_> = kernel.run(async {
        let subject = Subject {
            ending: Ending::Pending,
            waker: waker.clone(),
            _inside: Probe::new(&drops),
            output: Some(Probe::new(&drops)),
        };
        drop(spawn(subject));
        yield_now().await.unwrap();
        let waker = waker.borrow_mut().take().unwrap();
        let threads = (0..THREADS)
            .map(|_| {
                let waker = waker.clone();
                thread::spawn(move || {
                    for _ in 0..200 {
                        waker.wake_by_ref();
                        drop(waker.clone());
                        thread::yield_now();
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            pikake::sleep(ms(1)).await.unwrap();
        }
        threads
    });
    drop(kernel);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

#[test]
fn outcome_is_taken_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    kernel().run(async {
        let probe = Probe::new(&drops);
        let task = spawn(async move {
            yield_now().await.unwrap();
            probe
        });
        let output = task.await.unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(output);
    });
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

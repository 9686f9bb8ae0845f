//! Panics of user code, and the order in which putters are served.
use std::cell::Cell;
use std::future::Future;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pikake::sync::{PriorityQueue, shared};
use pikake::{sleep, spawn, timeout_after};

use crate::support::{ms, run};

#[derive(PartialEq, Eq, Debug)]
struct Item(u32);

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

thread_local!(static FAIL: Cell<bool> = const { Cell::new(false) });
impl Ord for Item {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        assert!(!FAIL.get(), "no order today");
        self.0.cmp(&other.0)
    }
}

#[test]
fn panic_of_the_comparison_leaves_no_putter_hanging() {
    run(async {
        let queue = Rc::new(PriorityQueue::bounded(2));
        queue.put(Item(1)).await.unwrap();
        queue.put(Item(2)).await.unwrap();
        let putter = queue.clone();
        let putter = spawn(async move { putter.put(Item(3)).await.is_ok() });
        sleep(ms(1)).await.unwrap();
        let getter = queue.clone();
        let getter = spawn(async move {
            FAIL.set(true);
            let item = getter.try_get();
            FAIL.set(false);
            item.map(|i| i.0)
        });
        assert!(getter.join().await.is_err(), "it panicked");
        FAIL.set(false);
        let done = timeout_after(ms(1000), putter.join()).await;
        assert!(done.is_ok(), "the putter hangs; {queue:?}");
    });
}

struct Bad;
impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        panic!("a bad waker")
    }
}

#[test]
fn waker_panic_loses_no_item_and_no_wake() {
    let queue = Arc::new(shared::Queue::<u32>::bounded(1));
    queue.blocking_put(7).unwrap();
    run(async {
        let waker = Waker::from(Arc::new(Bad));
        let mut putter = Box::pin(queue.put(8));
        assert!(putter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let got = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.try_get()));
        let got = got.ok().and_then(Result::ok);
        assert_eq!(got, Some(7), "7 is nowhere: {queue:?}");
        putter.await.unwrap();
        assert_eq!(queue.try_get().unwrap(), 8);
    });
}

struct CloneGets(Arc<shared::Queue<u32>>);
fn vt() -> &'static std::task::RawWakerVTable {
    static V: std::task::RawWakerVTable = std::task::RawWakerVTable::new(c, w, r, d);
    thread_local!(static N: Cell<u32> = const { Cell::new(0) });
    unsafe fn c(p: *const ()) -> std::task::RawWaker {
        // SAFETY: the data of this test's waker is a `CloneGets` that outlives it.
        let q = unsafe { &*(p as *const CloneGets) };
        N.set(N.get() + 1);
        // The first clone is for the line, the second for the kernel.
        if N.get() == 2 {
            let _ = q.0.try_get();
            std::thread::sleep(Duration::from_millis(100));
        }
        std::task::RawWaker::new(p, &V)
    }
    unsafe fn w(_: *const ()) {}
    unsafe fn r(_: *const ()) {}
    unsafe fn d(_: *const ()) {}
    &V
}

#[test]
fn putters_proceed_in_order_of_arrival() {
    let queue = Arc::new(shared::Queue::<u32>::bounded(1));
    queue.blocking_put(0).unwrap();
    let other = queue.clone();
    run(async {
        let state = CloneGets(queue.clone());
        let mut first = Box::pin(queue.put(1));
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let thread = std::thread::spawn(move || other.blocking_put(2).unwrap());
        while format!("{queue:?}").contains("putting: 1") {
            std::thread::yield_now();
        }
        // The first is polled again, with another waker, while somebody gets. SAFETY: the functions
        // look at the state, which outlives the waker and its clones, and own nothing.
        let waker = unsafe { Waker::new(&state as *const _ as *const (), vt()) };
        let is_put = first.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let one = queue.get().await.unwrap();
        if !is_put {
            first.await.unwrap();
        }
        let two = queue.get().await.unwrap();
        thread.join().unwrap();
        assert_eq!((one, two), (Some(1), Some(2)));
    });
}

#[test]
fn waiter_of_a_panicked_kernel_blocks_no_other() {
    let queue = Arc::new(shared::Queue::<u32>::bounded(1));
    queue.blocking_put(0).unwrap();
    let other = queue.clone();
    let mut first = Box::pin(queue.put(1));
    // Outside a kernel the trap panics.
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }));
    assert!(polled.is_err());
    let thread = std::thread::spawn(move || other.blocking_put(2).unwrap());
    assert_eq!(queue.blocking_get().unwrap(), 0);
    let next = queue.blocking_get().unwrap();
    drop(first);
    if next == 1 {
        assert_eq!(queue.blocking_get().unwrap(), 2);
    }
    thread.join().unwrap();
}

//! Permits and items that were granted in an ended kernel, and user code that runs during a grant.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use pikake::sync::{Mutex, PutError, Queue, RwLock, Semaphore};
use pikake::traps::{WaitQueue, park, take};
use pikake::{spawn, timeout_after, yield_now};

use crate::support::{OnDrop, builder, ms, run};

type Put = Pin<Box<dyn Future<Output = Result<(), PutError<i32>>>>>;

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

#[test]
fn try_take_keeps_permits_of_an_ended_kernel() {
    let queue = WaitQueue::with_permits(3);
    let (mut first, mut second) = (Box::pin(take(&queue, 2)), Box::pin(take(&queue, 3)));
    run(async {
        assert!(queue.try_take(3));
        assert!(poll_once(&mut first).await.is_pending());
        queue.give(3);
        assert!(poll_once(&mut second).await.is_pending());
        assert_eq!((queue.free(), queue.granted()), (1, 2));
    });
    assert!(queue.try_take(1));
    drop((first, second));
    assert_eq!((queue.free(), queue.granted()), (2, 0));
}

/// The permits come back also if nobody ever drops the waits.
#[test]
fn forgotten_waits_keep_no_permits() {
    let semaphore = Semaphore::new(3);
    run(async {
        let (mut first, mut second) =
            (Box::pin(semaphore.acquire_many(2)), Box::pin(semaphore.acquire_many(3)));
        let held = semaphore.acquire_many(3).await.unwrap();
        assert!(poll_once(&mut first).await.is_pending());
        drop(held);
        assert!(poll_once(&mut second).await.is_pending());
        std::mem::forget((first, second));
    });
    drop(semaphore.try_acquire());
    assert_eq!(semaphore.available_permits(), 3);
}

#[test]
fn locks_granted_in_an_ended_kernel_are_free() {
    let (mutex, lock) = (Mutex::new(0), RwLock::new(0));
    let (mut locking, mut writing) = (Box::pin(mutex.lock()), Box::pin(lock.write()));
    run(async {
        let held = (mutex.lock().await.unwrap(), lock.read().await.unwrap());
        assert!(poll_once(&mut locking).await.is_pending());
        assert!(poll_once(&mut writing).await.is_pending());
        drop(held);
    });
    run(async {
        assert!(mutex.try_lock().is_ok());
        let read = timeout_after(ms(10), async { lock.read().await.map(|value| *value) }).await;
        assert_eq!(read.unwrap(), Ok(0));
    });
}

#[test]
fn items_promised_in_an_ended_kernel_are_got() {
    let queue = Queue::bounded(1);
    let mut promised = Box::pin(queue.get());
    run(async {
        assert!(poll_once(&mut promised).await.is_pending());
        queue.put(1).await.unwrap();
    });
    assert_eq!(queue.try_get(), Ok(1));
    drop(promised);
}

#[test]
fn put_that_outlives_its_kernel_blocks_no_other() {
    let queue = Queue::bounded(1);
    let mut put = Box::pin(queue.put(2));
    run(async {
        queue.put(1).await.unwrap();
        assert!(poll_once(&mut put).await.is_pending());
    });
    run(async {
        assert_eq!(queue.get().await.unwrap(), Some(1), "2 is taken in");
        assert!(poll_once(&mut Box::pin(queue.put(3))).await.is_pending());
        assert_eq!(queue.get().await.unwrap(), Some(2));
    });
}

#[test]
fn put_granted_before_kernel_end_blocks_no_other() {
    let queue = Queue::bounded(1);
    let mut older = Box::pin(queue.put(2));
    run(async {
        queue.put(1).await.unwrap();
        assert!(poll_once(&mut older).await.is_pending());
        assert_eq!(queue.get().await, Ok(Some(1)));
    });
    run(async { assert!(poll_once(&mut Box::pin(queue.put(3))).await.is_pending()) });
    drop(older);
}

#[test]
fn writer_gets_the_lock_of_ended_readers() {
    let lock = RwLock::new(());
    let mut reader = Box::pin(lock.read());
    run(async {
        let held = lock.write().await.unwrap();
        assert!(poll_once(&mut reader).await.is_pending());
        drop(held);
    });
    run(async { drop(timeout_after(ms(10), lock.write()).await.unwrap().unwrap()) });
    drop(reader);
}

#[test]
fn put_polled_outside_a_kernel_adds_nothing() {
    let queue: &Queue<i32> = Box::leak(Box::new(Queue::bounded(1)));
    queue.try_put(1).unwrap();
    let mut stray = Box::pin(queue.put(2));
    let poll = || stray.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
    run(async {
        let mut put = Box::pin(queue.put(3));
        assert!(poll_once(&mut put).await.is_pending());
        assert_eq!((queue.try_get(), queue.putting()), (Ok(1), 0));
        assert_eq!(poll_once(&mut put).await, Poll::Ready(Ok(())));
        assert_eq!(queue.try_get(), Ok(3));
    });
}

thread_local! {
    static HOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A combinator's waker that does more than to wake.
struct Hooked;

impl Wake for Hooked {
    fn wake(self: Arc<Self>) {
        if let Some(hook) = HOOK.take() {
            hook();
        }
    }
}

/// The getter's waker drops the put whose item is promised to that getter.
#[test]
fn put_dropped_during_its_transfer_blocks_no_other() {
    run(async {
        let queue: &Queue<i32> = Box::leak(Box::new(Queue::bounded(1)));
        let (mut first, mut second) = (Box::pin(queue.get()), Box::pin(queue.get()));
        assert!(poll_once(&mut first).await.is_pending());
        let waker = Waker::from(Arc::new(Hooked));
        assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        queue.put(1).await.unwrap();
        let dropped: Rc<RefCell<Option<Put>>> = Rc::new(RefCell::new(Some(Box::pin(queue.put(2)))));
        let mut put = dropped.take().unwrap();
        assert!(poll_once(&mut put).await.is_pending());
        dropped.replace(Some(put));
        let mut kept = Box::pin(queue.put(3));
        assert!(poll_once(&mut kept).await.is_pending());
        let of_hook = dropped.clone();
        HOOK.set(Some(Box::new(move || drop(of_hook.take()))));
        assert_eq!(poll_once(&mut first).await, Poll::Ready(Ok(Some(1))));
        assert!(dropped.take().is_none(), "the waker was called");
        assert!(poll_once(&mut kept).await.is_pending());
        assert_eq!(poll_once(&mut second).await, Poll::Ready(Ok(Some(2))));
    });
}

/// The waiter of the put has the last reference to a task whose output makes room when it is
/// dropped.
#[test]
fn destructor_that_gets_blocks_no_putter() {
    run(async {
        let queue: &Queue<i32> = Box::leak(Box::new(Queue::bounded(1)));
        queue.put(1).await.unwrap();
        let shared: Rc<RefCell<Option<Put>>> = Rc::new(RefCell::new(Some(Box::pin(queue.put(2)))));
        let of_task = shared.clone();
        let task = spawn(async move {
            let mut put = of_task.take().unwrap();
            assert!(poll_once(&mut put).await.is_pending());
            of_task.replace(Some(put));
            OnDrop(move || assert_eq!(queue.try_get(), Ok(2)))
        });
        task.detach();
        for _ in 0..2 {
            yield_now().await.unwrap();
        }
        let (mut third, mut fourth) = (Box::pin(queue.put(3)), Box::pin(queue.put(4)));
        assert!(poll_once(&mut third).await.is_pending());
        assert!(poll_once(&mut fourth).await.is_pending());
        assert_eq!(queue.try_get(), Ok(1), "2 is taken in");
        drop(shared.take());
        assert_eq!(poll_once(&mut third).await, Poll::Ready(Ok(())), "the destructor has got 2");
        assert!(poll_once(&mut fourth).await.is_pending());
    });
}

/// A taker whose task has had its share of answers is granted the permits, and collects them in the
/// next step.
#[test]
fn a_take_put_off_keeps_its_place() {
    let kernel = builder().answers_per_step(1).build().unwrap();
    kernel.run(async {
        let (queue, other) = (Rc::new(WaitQueue::with_permits(1)), WaitQueue::with_permits(1));
        let later = spawn({
            let queue = queue.clone();
            async move { take(&queue, 1).await.unwrap() }
        });
        take(&other, 1).await.unwrap();
        timeout_after(ms(5), take(&queue, 1)).await.unwrap().unwrap();
        assert!(!later.is_finished());
        later.detach();
    });
}

#[test]
fn a_signal_reaches_no_taker() {
    run(async {
        let queue = WaitQueue::new();
        let mut taking = Box::pin(take(&queue, 1));
        assert!(poll_once(&mut taking).await.is_pending());
        assert_eq!((queue.wake(1), queue.len()), (0, 1));
        queue.give(1);
        assert_eq!(poll_once(&mut taking).await, Poll::Ready(Ok(())));
    });
}

#[test]
#[should_panic = "cannot serve waiters for signals and for permits at once"]
fn waiters_of_both_kinds_panic() {
    run(async {
        let queue = WaitQueue::new();
        let (mut parked, mut taking) = (park(&queue), take(&queue, 1));
        assert!(poll_once(&mut parked).await.is_pending());
        drop(poll_once(&mut taking).await);
    });
}

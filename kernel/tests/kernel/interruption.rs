//! Interruptions and wakes at inconvenient moments: waits that leave their scope or task, scopes of
//! foreign futures, wakers that call the kernel.
//!
//! Each awaited event has happened already, or will happen by itself. A lost wake-up therefore
//! hangs its test, which `within` turns into a failure.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::time::{ManualClock, elapsed_since};
use pikake::traps::{WaitQueue, park, read_wait};
use pikake::{Kernel, TimedOut, current, now, sleep, spawn, timeout_after, yield_now};

use crate::support::sockets::{drain, pair, write};
use crate::support::{kernel, ms, run, within};

/// Far beyond anything that a test waits for.
const LONG: Duration = Duration::from_secs(100);

/// Polls the future inside a deadline of 10 ms. There it is interrupted, and not asked for that;
/// cleanup goes on until 40 ms.
async fn interrupt_unseen(wait: Pin<&mut impl Future>) {
    let scope = timeout_after(ms(10), async {
        assert!(futures::poll!(wait).is_pending());
        sleep(LONG).await.expect_err("the deadline is told here, too");
        sleep(ms(30)).await.expect("cleanup is left alone");
    });
    assert_eq!(scope.await, Err(TimedOut));
}

#[test]
fn moved_socket_wait_sees_earlier_data() {
    within(|| {
        run(async {
            let (here, there) = pair();
            drain(here);
            spawn(async move {
                sleep(ms(20)).await.unwrap();
                write(there, "x");
            })
            .detach();
            let mut wait = pin!(read_wait(here));
            interrupt_unseen(wait.as_mut()).await;
            wait.await.unwrap();
        });
    });
}

#[test]
fn moved_queue_wait_sees_an_earlier_wake() {
    within(|| {
        run(async {
            let queue = Rc::new(WaitQueue::new());
            let is_open = Rc::new(Cell::new(false));
            spawn({
                let (queue, is_open) = (queue.clone(), is_open.clone());
                async move {
                    sleep(ms(20)).await.unwrap();
                    is_open.set(true);
                    queue.wake(1);
                }
            })
            .detach();
            let mut wait = pin!(park(&queue));
            interrupt_unseen(wait.as_mut()).await;
            wait.await.unwrap();
            assert!(is_open.get());
        });
    });
}

#[test]
fn moved_join_sees_an_earlier_task_end() {
    within(|| {
        run(async {
            let mut task = spawn(async {
                sleep(ms(20)).await.unwrap();
                "ended"
            });
            interrupt_unseen(pin!(&mut task)).await;
            assert_eq!(task.await.unwrap(), "ended");
        });
    });
}

#[test]
fn moved_cancel_sees_an_earlier_task_end() {
    within(|| {
        run(async {
            let task = spawn(async {
                sleep(LONG).await.expect_err("asked to end");
                sleep(ms(20)).await.unwrap();
            });
            yield_now().await.unwrap();
            let mut cancel = pin!(task.cancel());
            interrupt_unseen(cancel.as_mut()).await;
            assert!(task.is_finished());
            cancel.await.unwrap();
        });
    });
}

#[test]
fn moved_sleep_keeps_its_deadline() {
    for (length, expected) in [(ms(20), ms(40)), (ms(70), ms(70))] {
        within(move || {
            run(async {
                let started = now();
                let mut nap = pin!(sleep(length));
                interrupt_unseen(nap.as_mut()).await;
                nap.await.unwrap();
                assert_eq!(elapsed_since(started), expected);
            });
        });
    }
}

#[test]
fn wait_moved_into_a_cancelled_task_is_interrupted() {
    within(|| {
        run(async {
            let mut nap = Box::pin(sleep(LONG));
            assert!(futures::poll!(nap.as_mut()).is_pending());
            let task = spawn(async move {
                current().request_cancel("now");
                nap.await
            });
            assert!(task.await.unwrap().unwrap_err().is_cancel());
        });
    });
}

#[test]
fn wait_moved_into_a_due_scope_is_interrupted() {
    within(|| {
        let clock = ManualClock::new();
        let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
        kernel.run(async {
            let mut nap = pin!(sleep(LONG));
            assert!(futures::poll!(nap.as_mut()).is_pending());
            let scope = timeout_after(ms(10), async {
                clock.advance(ms(20));
                // The deadline fires while nothing the kernel knows of is waited for.
                next_step().await;
                nap.await.expect_err("it is due to the next wait that would suspend");
            });
            assert_eq!(scope.await, Err(TimedOut));
            assert_eq!(elapsed_since(pikake::time::Ticks::ZERO), ms(20));
        });
    });
}

/// Suspends once, as a foreign future does.
async fn next_step() {
    let mut polled = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn cancel_returned_to_a_dropped_wait_is_repeated() {
    within(|| {
        run(async {
            let task = spawn(async {
                let queue = WaitQueue::new();
                {
                    let mut wait = pin!(park(&queue));
                    assert!(futures::poll!(wait.as_mut()).is_pending());
                    current().request_cancel("enough");
                }
                sleep(LONG).await
            });
            assert!(task.await.unwrap().unwrap_err().is_cancel());
        });
    });
}

/// Runs until the clock, which it moves by 1 ms a poll, has come to that; never stops to wake
/// itself. So its task is ready at all times.
async fn spin(clock: &ManualClock, length: Duration) {
    let started = now();
    poll_fn(|cx| {
        if elapsed_since(started) >= length {
            return Poll::Ready(());
        }
        clock.advance(ms(1));
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for what never comes, inside a deadline of 20 ms; tells after how long it was given up.
async fn give_up() -> Duration {
    let started = now();
    let never = timeout_after(ms(20), std::future::pending::<()>());
    assert_eq!(never.await, Err(TimedOut));
    elapsed_since(started)
}

/// How late a deadline may be noticed that competes with a task that is always ready: a few passes.
const IN_TIME: Duration = Duration::from_millis(30);

/// Runs a test on a kernel whose time the test moves.
fn with_clock(test: impl AsyncFnOnce(&ManualClock) + Send + 'static) {
    within(|| {
        let clock = ManualClock::new();
        let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
        kernel.run(test(&clock));
    });
}

#[test]
fn foreign_scope_ends_on_time_after_self_waker() {
    with_clock(async |clock| {
        let ((), gave_up) = futures::join!(spin(clock, ms(2_000)), give_up());
        assert!(gave_up <= IN_TIME, "{gave_up:?}");
    });
}

#[test]
fn foreign_scope_ends_on_time_before_self_waker() {
    with_clock(async |clock| {
        let (gave_up, ()) = futures::join!(give_up(), spin(clock, ms(2_000)));
        assert!(gave_up <= IN_TIME, "{gave_up:?}");
    });
}

#[test]
fn foreign_scope_ends_on_time_in_futures_unordered() {
    with_clock(async |clock| {
        type Child<'a> = Pin<Box<dyn Future<Output = Option<Duration>> + 'a>>;
        let children: [Child<'_>; 2] = [
            Box::pin(async { Some(give_up().await) }),
            Box::pin(async {
                spin(clock, ms(60)).await;
                None
            }),
        ];
        let mut children = FuturesUnordered::from_iter(children);
        let gave_up = children.next().await.unwrap().expect("the scope is the first to end");
        assert!(gave_up <= IN_TIME, "{gave_up:?}");
        assert_eq!(children.next().await, Some(None));
    });
}

#[test]
fn due_scope_is_polled_again_after_its_sibling() {
    within(|| {
        run(async {
            type Child = Pin<Box<dyn Future<Output = &'static str>>>;
            let sibling: Rc<Cell<Option<Waker>>> = Rc::default();
            let mut polls = 0;
            let wakes_once = poll_fn({
                let sibling = sibling.clone();
                move |_| {
                    polls += 1;
                    if polls == 2
                        && let Some(sibling) = sibling.take()
                    {
                        sibling.wake();
                    }
                    Poll::<()>::Pending
                }
            });
            let waits = poll_fn(move |cx| {
                sibling.set(Some(cx.waker().clone()));
                Poll::Pending
            });
            let children: [Child; 2] = [
                Box::pin(async {
                    assert_eq!(timeout_after(ms(20), wakes_once).await, Err(TimedOut));
                    "given up"
                }),
                Box::pin(waits),
            ];
            let mut children = FuturesUnordered::from_iter(children);
            assert_eq!(children.next().await, Some("given up"));
        });
    });
}

#[test]
fn queue_refused_to_another_kernel_keeps_waiters() {
    within(|| {
        let (one, other) = (kernel(), kernel());
        let queue = Rc::new(WaitQueue::new());
        let task = one.run(async {
            let queue = queue.clone();
            let task = spawn(async move { park(&queue).await });
            sleep(ms(1)).await.unwrap();
            [task]
        });
        let refused = other.try_run(async { park(&queue).await }).unwrap_err();
        assert!(refused.panic_message().unwrap().contains("two kernels"), "{refused}");
        assert_eq!(queue.wake(1), 1);
        let [task] = task;
        one.run(task).unwrap().unwrap();
    });
}

thread_local! {
    /// The queue that [`CALLS_BACK`] wakes during its clone.
    static WOKEN_BY_CLONE: RefCell<Option<Rc<WaitQueue>>> = const { RefCell::new(None) };
    /// How often it was called.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The functions of a waker whose clone runs back into the kernel, as a combinator's may.
static CALLS_BACK: RawWakerVTable = RawWakerVTable::new(
    |data| {
        let queue = WOKEN_BY_CLONE.with_borrow(Clone::clone);
        queue.inspect(|queue| assert_eq!(queue.wake(1), 1));
        RawWaker::new(data, &CALLS_BACK)
    },
    |_| CALLS.set(CALLS.get() + 1),
    |_| CALLS.set(CALLS.get() + 1),
    |_| {},
);

#[test]
fn wake_during_waker_clone_is_not_lost() {
    within(|| {
        run(async {
            let queue = Rc::new(WaitQueue::new());
            let mut wait = pin!(park(&queue));
            assert!(futures::poll!(wait.as_mut()).is_pending());
            WOKEN_BY_CLONE.set(Some(queue.clone()));
            // SAFETY: the functions look at no data and may be called on any thread.
            let waker = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &CALLS_BACK)) };
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            WOKEN_BY_CLONE.set(None);
            assert!(polled.is_ready() || CALLS.get() == 1, "told, or its new waker called");
        });
    });
}

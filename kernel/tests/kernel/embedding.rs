//! A kernel that a foreign loop turns: calls between two turns, on the same thread, make the
//! kernel's descriptor readable and take effect in the next turn.

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use mio::unix::SourceFd;
use pikake::time::{Clock, ManualClock};
use pikake::traps::{Attempt, WaitQueue, attempt, park, read_wait};
use pikake::{Interrupted, Kernel, Task, TaskError, sleep, spawn, yield_now};

use crate::support::sockets::{drain, pair};
use crate::support::{Log, OnDrop, ms, within};

/// A loop that knows the kernel's descriptor and nothing else of the kernel.
struct ForeignLoop(mio::Poll);

impl ForeignLoop {
    fn of<C: Clock + 'static>(kernel: &Kernel<C>) -> Self {
        let poll = mio::Poll::new().unwrap();
        let descriptor = kernel.as_raw_fd();
        let (token, interest) = (mio::Token(0), mio::Interest::READABLE);
        poll.registry().register(&mut SourceFd(&descriptor), token, interest).unwrap();
        Self(poll)
    }

    /// A loop around a kernel that has nothing left to do, and so shows nothing.
    fn around<C: Clock + 'static>(kernel: &Kernel<C>) -> Self {
        let mut foreign_loop = Self::of(kernel);
        settle(kernel);
        foreign_loop.is_readable();
        settle(kernel);
        assert!(!foreign_loop.is_readable(), "nothing happens by itself");
        foreign_loop
    }

    fn is_readable(&mut self) -> bool {
        let mut events = mio::Events::with_capacity(4);
        self.0.poll(&mut events, Some(Duration::ZERO)).unwrap();
        !events.is_empty()
    }
}

/// A kernel whose time stands still, so that it never turns for a timer.
fn kernel() -> Kernel<ManualClock> {
    Kernel::builder().clock(ManualClock::new()).build().unwrap()
}

/// Turns until nothing is left to do but wait.
fn settle<C: Clock + 'static>(kernel: &Kernel<C>) {
    while kernel.turn(Some(Duration::ZERO)).unwrap().is_ready {}
}

/// Starts a task, calls `between` when the kernel has nothing left to do, and asserts that the call
/// shows on the descriptor and that turns alone then end the task.
fn assert_shows<T: 'static>(start: impl FnOnce() -> Task<T>, between: impl FnOnce(&Task<T>)) {
    assert_shows_of(&kernel(), start, between);
}

/// Like [`assert_shows`], for calls on a kernel that the test has.
fn assert_shows_of<T: 'static>(
    kernel: &Kernel<ManualClock>,
    start: impl FnOnce() -> Task<T>,
    between: impl FnOnce(&Task<T>),
) {
    let [task] = kernel.run(async { [start()] });
    settle(kernel);
    assert!(!task.is_finished(), "it waits");
    let mut foreign_loop = ForeignLoop::around(kernel);
    between(&task);
    assert!(foreign_loop.is_readable(), "what was done shows on the descriptor");
    settle(kernel);
    assert!(task.is_finished(), "and has been seen");
}

/// Starts a task that waits in that queue.
fn parked(queue: &Rc<WaitQueue>) -> impl FnOnce() -> Task<()> + use<> {
    let queue = queue.clone();
    || spawn(async move { park(&queue).await.unwrap() })
}

#[test]
fn waking_a_queue_between_turns_shows() {
    within(|| {
        let queue = Rc::default();
        assert_shows(parked(&queue), |_| assert_eq!(queue.wake(1), 1));
    });
}

#[test]
fn passing_a_wake_on_between_turns_shows() {
    within(|| {
        let queue: &'static WaitQueue = Box::leak(Box::new(WaitQueue::new()));
        type Place = Pin<Box<dyn Future<Output = Result<(), Interrupted>>>>;
        let dropped: Rc<Cell<Option<Place>>> = Rc::default();
        let keep = dropped.clone();
        let start = || {
            spawn(async move {
                let mut first: Place = Box::pin(park(queue));
                assert!(futures::poll!(first.as_mut()).is_pending());
                assert_eq!(queue.len(), 1);
                keep.set(Some(first));
                park(queue).await.unwrap();
            })
        };
        assert_shows(start, |_| {
            assert_eq!(queue.wake(1), 1);
            drop(dropped.take());
        });
    });
}

#[test]
fn calling_a_waker_between_turns_shows() {
    within(|| {
        let waker: Rc<Cell<Option<Waker>>> = Rc::default();
        let keep = waker.clone();
        let start = || {
            let mut polls = 0;
            spawn(poll_fn(move |cx| {
                polls += 1;
                keep.set(Some(cx.waker().clone()));
                if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
            }))
        };
        assert_shows(start, |_| waker.take().unwrap().wake());
    });
}

#[test]
fn a_cancel_between_turns_shows() {
    within(|| {
        let queue = Rc::new(WaitQueue::new());
        let start = || spawn(async move { park(&queue).await.unwrap_err() });
        assert_shows(start, |task| task.request_cancel("between two turns"));
    });
}

#[test]
fn an_abort_between_turns_shows() {
    within(|| {
        let log = Log::default();
        let guard = OnDrop({
            let log = log.clone();
            move || log.add("dropped")
        });
        let start = || {
            spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            })
        };
        assert_shows(start, Task::abort);
        assert_eq!(log.take(), ["dropped"]);
    });
}

#[test]
fn closing_a_socket_between_turns_shows() {
    within(|| {
        let opened = Rc::new(Cell::new(None));
        let keep = opened.clone();
        let start = || {
            spawn(async move {
                let (here, _there) = pair();
                drain(here);
                keep.set(Some(here));
                read_wait(here).await.unwrap_err();
            })
        };
        assert_shows(start, |_| {
            let socket = opened.get().unwrap();
            attempt(socket, Attempt::Close).unwrap();
        });
    });
}

/// `Kernel::enter` spawns a task that wakes the waiting one.
#[test]
fn a_spawn_by_enter_shows() {
    within(|| {
        let kernel = kernel();
        let queue = Rc::default();
        assert_shows_of(&kernel, parked(&queue), |_| {
            let wake = async move { assert_eq!(queue.wake(1), 1) };
            kernel.enter(|| spawn(wake).detach()).unwrap();
        });
    });
}

#[test]
fn waking_a_queue_by_enter_shows() {
    within(|| {
        let kernel = kernel();
        let queue = Rc::default();
        assert_shows_of(&kernel, parked(&queue), |_| {
            assert_eq!(kernel.enter(|| queue.wake(1)), Ok(1));
        });
    });
}

/// The combinator polled the wait with a waker of its own, which the wake calls.
#[test]
fn waking_a_sub_wait_by_enter_shows() {
    within(|| {
        let kernel = kernel();
        let queue = Rc::new(WaitQueue::new());
        let waiting = queue.clone();
        let start = || {
            spawn(async move {
                let mut all: FuturesUnordered<_> = [park(&waiting)].into_iter().collect();
                all.next().await.unwrap().unwrap();
            })
        };
        assert_shows_of(&kernel, start, |_| {
            assert_eq!(kernel.enter(|| queue.wake(1)), Ok(1));
        });
    });
}

#[test]
fn a_cancel_by_enter_shows() {
    within(|| {
        let kernel = kernel();
        let queue = Rc::new(WaitQueue::new());
        let start = || spawn(async move { park(&queue).await.unwrap_err() });
        assert_shows_of(&kernel, start, |task| {
            kernel.enter(|| task.request_cancel("from outside")).unwrap();
        });
    });
}

#[test]
fn an_abort_by_enter_shows() {
    within(|| {
        let kernel = kernel();
        let start = || spawn(std::future::pending::<()>());
        assert_shows_of(&kernel, start, |task| kernel.enter(|| task.abort()).unwrap());
    });
}

/// The kernel is asleep when it is given its main task.
#[test]
fn a_main_task_of_try_run_by_shows() {
    within(|| {
        let kernel = kernel();
        let mut foreign_loop = ForeignLoop::around(&kernel);
        let output = kernel.try_run_by(async { yield_now().await.map(|()| 7) }, |main| {
            assert!(foreign_loop.is_readable(), "the main task shows on the descriptor");
            settle(&kernel);
            assert!(main.is_ended());
        });
        assert_eq!(output.unwrap(), Ok(7));
    });
}

/// The kernel drops the main task, and with it its wait, when `drive` returns.
#[test]
fn an_undriven_main_task_is_dropped() {
    within(|| {
        let kernel = kernel();
        let log = Log::default();
        let queue = WaitQueue::new();
        let ended = kernel.try_run_by(
            async {
                let _guard = OnDrop(|| log.add("dropped"));
                park(&queue).await
            },
            |_| settle(&kernel),
        );
        assert!(matches!(ended, Err(TaskError::Stopped)), "{ended:?}");
        assert_eq!((log.take(), queue.len()), (vec!["dropped".to_owned()], 0));
        assert_eq!((kernel.task_count(), kernel.wait_count()), (0, 0));
    });
}

/// The run sleeps in the driver, and so ends the sleep that the last turn has announced.
#[test]
fn a_message_after_a_run_between_turns_shows() {
    within(|| {
        let kernel = Kernel::new().unwrap();
        let mut foreign_loop = ForeignLoop::around(&kernel);
        kernel.run(async { sleep(ms(5)).await.unwrap() });
        // The driver's timer may show once more.
        foreign_loop.is_readable();
        let handle = kernel.handle();
        let is_called = Arc::new(AtomicBool::new(false));
        let called = is_called.clone();
        let call = Box::new(move || called.store(true, Ordering::SeqCst));
        thread::spawn(move || handle.call_there(call)).join().unwrap().unwrap();
        assert!(foreign_loop.is_readable(), "the message shows on the descriptor");
        settle(&kernel);
        assert!(is_called.load(Ordering::SeqCst), "and has been seen");
    });
}

#[test]
fn a_message_before_the_first_turn_shows() {
    within(|| {
        let kernel = kernel();
        let mut foreign_loop = ForeignLoop::of(&kernel);
        assert!(!foreign_loop.is_readable());
        let handle = kernel.handle();
        thread::spawn(move || handle.stop()).join().unwrap().unwrap();
        assert!(foreign_loop.is_readable());
    });
}

/// The wake finds no waiter, so the kernel has nothing to do.
#[test]
fn an_enter_without_work_does_not_show() {
    within(|| {
        let kernel = kernel();
        let mut foreign_loop = ForeignLoop::around(&kernel);
        let queue = WaitQueue::new();
        assert_eq!(kernel.enter(|| queue.wake(1)), Ok(0));
        assert!(!foreign_loop.is_readable());
    });
}

#[test]
fn one_turn_reports_a_stop_and_steps_nothing() {
    within(|| {
        let kernel = kernel();
        let steps = Rc::new(Cell::new(0));
        kernel.run(async {
            let steps = steps.clone();
            spawn(async move {
                loop {
                    steps.set(steps.get() + 1);
                    yield_now().await.unwrap();
                }
            })
            .detach();
            yield_now().await.unwrap();
        });
        assert!(!kernel.turn(Some(ms(0))).unwrap().is_stopped);
        kernel.handle().stop().unwrap();
        let before = steps.get();
        assert!(kernel.turn(Some(ms(0))).unwrap().is_stopped);
        assert_eq!(steps.get(), before);
        assert!(!kernel.turn(Some(ms(0))).unwrap().is_stopped, "reported once");
        assert_eq!(steps.get(), before + 1);
    });
}

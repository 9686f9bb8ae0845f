//! Shutdowns: by a handle, within a grace, after a failed turn. Futures, wakers and threads may
//! outlive the kernel.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use pikake::time::{Clock, ManualClock};
use pikake::traps::trigger::{Kind, Triggers};
use pikake::traps::{WaitQueue, is_closing, park};
use pikake::{
    Interrupted, Kernel, Task, TaskError, shield, sleep, spawn, task, timeout_after, try_run,
    yield_now,
};

use crate::support::{Faults, Faulty, Log, OnDrop, builder, kernel, ms, within};

#[test]
fn shutdown_by_handle_cancels_the_main_task_last() {
    within(|| {
        let log = Log::default();
        let kernel = kernel();
        kernel.run(async {
            for number in 0..2 {
                let log = log.clone();
                let task = spawn(async move {
                    sleep(ms(100_000)).await.unwrap_err();
                    log.add(format_args!("{number} told"));
                    sleep(ms(20)).await.unwrap();
                    log.add(format_args!("{number} cleaned up"));
                });
                task.detach();
            }
            yield_now().await.unwrap();
        });
        let handle = kernel.handle();
        kernel.run(async {
            handle.shutdown().unwrap();
            sleep(ms(100_000)).await.unwrap_err();
            log.add("main told");
        });
        let expected = ["1 told", "0 told", "main told", "1 cleaned up", "0 cleaned up"];
        assert_eq!(log.take(), expected);
        assert_eq!(kernel.task_count(), 0);
    });
}

#[test]
fn tasks_see_that_their_kernel_ends() {
    let seen = RefCell::new(Vec::new());
    let kernel = kernel();
    let handle = kernel.handle();
    kernel.run(async {
        seen.borrow_mut().push((is_closing(), spawn(async {}).is_finished()));
        handle.shutdown().unwrap();
        sleep(ms(1)).await.unwrap_err();
        seen.borrow_mut().push((is_closing(), spawn(async {}).is_finished()));
    });
    assert_eq!(seen.take(), [(false, false), (true, true)]);
    assert!(kernel.enter(is_closing).unwrap(), "also between two runs");
}

#[test]
fn shutdown_by_handle_ends_with_the_grace() {
    within(|| {
        let clock = ManualClock::auto();
        let builder = Kernel::builder().clock(clock.clone()).shutdown_grace(ms(100));
        let kernel = builder.build().unwrap();
        let handle = kernel.handle();
        let outcome: Result<(), TaskError> = kernel.try_run(async {
            handle.shutdown().unwrap();
            loop {
                let _ = sleep(ms(30)).await; // does not want to hear
            }
        });
        assert!(outcome.unwrap_err().is_cancelled());
        kernel.shutdown();
        assert!(kernel.handle().is_closed());
        let grace_is_over = pikake::time::Ticks::new(100_000_000);
        assert_eq!(clock.now(), grace_is_over, "a manual clock ticks nanoseconds");
    });
}

#[test]
fn shutdown_on_virtual_time_ends_after_its_grace() {
    within(|| {
        let kernel = builder().shutdown_grace(ms(50)).build().unwrap();
        kernel.run(async {
            let stubborn: Task<()> = spawn(async {
                let queue = WaitQueue::new();
                loop {
                    let _ = park(&queue).await;
                }
            });
            stubborn.detach();
            yield_now().await.unwrap();
        });
        kernel.shutdown();
        assert_eq!(kernel.task_count(), 0);
    });
}

/// Other tests of this process drop tasks at shutdowns as well.
#[test]
fn tasks_that_outlast_a_shutdown_are_a_trigger() {
    let triggers = Triggers::begin(Duration::MAX);
    within(|| {
        let kernel = builder().shutdown_grace(ms(50)).build().unwrap();
        kernel.run(async {
            let stays = shield(async { sleep(ms(100_000)).await });
            task::Builder::new().name("stays").spawn(stays).detach();
            yield_now().await.unwrap();
        });
        kernel.shutdown();
    });
    let (fired, _) = triggers.take();
    let is_it = |(kind, about): &(Kind, String)| {
        *kind == Kind::LateShutdown && about.starts_with("1 task") && about.contains("\"stays\"")
    };
    assert!(fired.iter().any(is_it), "{fired:?}");
}

#[test]
fn run_after_shutdown_is_cancelled_unpolled() {
    within(|| {
        let kernel = kernel();
        let handle = kernel.handle();
        kernel.run(async {
            handle.shutdown().unwrap();
            sleep(ms(100_000)).await.unwrap_err();
        });
        let log = Log::default();
        let outcome = kernel.try_run(async { log.add("polled") });
        assert!(outcome.unwrap_err().is_cancelled());
        assert!(log.take().is_empty());
    });
}

#[test]
fn shutdown_between_runs_ends_the_next_run() {
    within(|| {
        let log = Log::default();
        let kernel = kernel();
        kernel.run(async {
            let log = log.clone();
            let task = spawn(async move {
                sleep(ms(100_000)).await.unwrap_err();
                sleep(ms(20)).await.unwrap();
                log.add("cleaned up");
            });
            task.detach();
            yield_now().await.unwrap();
        });
        kernel.handle().shutdown().unwrap();
        let outcome = kernel.try_run(async { log.add("polled") });
        assert!(outcome.unwrap_err().is_cancelled());
        assert_eq!(log.take(), ["cleaned up"]);
        assert!(kernel.handle().is_closed());
    });
}

#[test]
fn failed_turn_ends_only_the_run() {
    within(|| {
        let log = Log::default();
        let faults = Faults::default();
        let kernel = builder().build_on(Faulty::new(&faults));
        kernel.run(async {
            let log = log.clone();
            let task = spawn(async move {
                sleep(ms(20)).await.unwrap();
                log.add("slept");
            });
            task.detach();
        });
        let panic = catch_unwind(AssertUnwindSafe(|| {
            kernel.run(async {
                let _guard = OnDrop(|| log.add("main dropped"));
                faults.wait.set(true);
                std::future::pending::<()>().await
            });
        }));
        let panic = panic.unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("readiness queue failed"), "{text}");
        assert_eq!(log.take(), ["main dropped"]);
        assert_eq!(kernel.task_count(), 1, "the main task is forgotten, the other is not");
        faults.wait.set(true);
        assert!(kernel.turn(None).is_err());
        kernel.run(async { sleep(ms(50)).await.unwrap() });
        assert_eq!(log.take(), ["slept"]);
    });
}

/// Another kernel refuses to poll them.
#[test]
fn futures_that_outlive_their_kernel_can_be_dropped() {
    within(|| {
        type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
        let queue = WaitQueue::new();
        let kernel = kernel();
        let waiting: Vec<Waiting<'_>> = kernel.run(async {
            let task = spawn(std::future::pending::<()>());
            yield_now().await.unwrap();
            let scope = timeout_after(ms(9), std::future::pending::<()>());
            let mut waiting: Vec<Waiting<'_>> = vec![
                Box::pin(async { sleep(ms(100_000)).await.unwrap() }),
                Box::pin(async { park(&queue).await.unwrap() }),
                Box::pin(async { scope.await.unwrap() }),
                Box::pin(async move { task.cancel().await.unwrap() }),
            ];
            for future in &mut waiting {
                assert!(futures::poll!(future.as_mut()).is_pending());
            }
            waiting
        });
        drop(kernel);
        for (number, future) in waiting.into_iter().enumerate() {
            let error = try_run(future).unwrap_err();
            let told = error.panic_message().is_some_and(|text| text.contains("kernel"));
            assert!(told, "{number}: {error}");
        }
        assert_eq!(queue.wake(1), 0);
    });
}

thread_local! {
    static KEPT: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) };
}

type Nap = Pin<Box<dyn Future<Output = Result<(), Interrupted>>>>;

/// A kernel with a task that waits, the handle to it, and a wait of another task.
fn in_use() -> (Kernel<ManualClock>, Task<()>, Nap) {
    let kernel = kernel();
    let (task, nap) = kernel.run(async {
        let task = spawn(async {
            let _late = OnDrop(|| drop(Kernel::new()));
            drop(sleep(ms(100_000)).await);
        });
        yield_now().await.unwrap();
        let mut nap: Nap = Box::pin(sleep(ms(100_000)));
        assert!(futures::poll!(nap.as_mut()).is_pending());
        (task, nap)
    });
    (kernel, task, nap)
}

#[test]
fn kernel_in_thread_locals_drops_in_any_order() {
    // Thread-locals are dropped in an order that depends on who was used first.
    for kept_first in [true, false] {
        within(move || {
            if kept_first {
                KEPT.with(|_| ());
            }
            let (kernel, task, nap) = in_use();
            KEPT.with_borrow_mut(|kept| {
                kept.push(Box::new(nap));
                kept.push(Box::new(kernel));
                kept.push(Box::new(task));
            });
        });
    }
}

#[test]
fn a_waker_of_a_forgotten_kernel_does_nothing() {
    within(|| {
        let thread = std::thread::spawn(|| {
            let (kernel, task, nap) = in_use();
            let waker = kernel.run(poll_fn(|cx| Poll::Ready(cx.waker().clone())));
            std::mem::forget((kernel, task, nap));
            waker
        });
        let waker: Waker = thread.join().unwrap();
        waker.wake_by_ref();
        drop(waker.clone());
        waker.wake();
    });
}

//! Kernels from the view of their owner: runs, turns, stops, shutdowns, and panics of tasks.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use pikake::kernel::Observer;
use pikake::time::{Deadline, Instant, ManualClock, deadline_after, with_timer_slack};
use pikake::traps::TaskRef;
use pikake::{
    Interrupted, Kernel, Task, TaskError, current, sleep, sleep_until, spawn, task, timeout_after,
    yield_now,
};

use crate::support::{Log, builder, kernel, ms, named, run, within};

#[test]
fn main_future_may_borrow_and_panic() {
    let kernel = kernel();
    let mut list = vec![1, 2];
    kernel.run(async {
        sleep(ms(1)).await.unwrap();
        list.push(3);
    });
    assert_eq!(list, [1, 2, 3]);
    let panic = catch_unwind(AssertUnwindSafe(|| kernel.run(async { panic!("over") })));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"over"));
    assert_eq!(kernel.run(async { 4 }), 4, "a panic of the main task leaves the kernel whole");
}

#[test]
#[expect(clippy::async_yields_async, reason = "the handle itself is wanted")]
fn tasks_pause_between_runs_and_resume() {
    let log = Log::default();
    let kernel = kernel();
    let task = kernel.run(async {
        let log = log.clone();
        let task = spawn(async move {
            for round in 0..3 {
                log.add(round);
                yield_now().await.unwrap();
            }
            "done"
        });
        yield_now().await.unwrap();
        task
    });
    assert_eq!(log.take(), ["0"]);
    assert!(!task.is_finished());
    assert_eq!(kernel.run(task).unwrap(), "done");
    assert_eq!(log.take(), ["1", "2"]);
}

#[test]
fn kernel_inside_a_running_one_is_refused() {
    let error = pikake::try_run(async { pikake::run(async {}) }).unwrap_err();
    assert!(error.panic_message().unwrap().contains("inside a running kernel"), "{error}");
    let outer = kernel();
    let inner = kernel();
    let turned = outer.run(async { inner.turn(Some(Duration::ZERO)).unwrap_err() });
    assert!(turned.to_string().contains("inside a running kernel"));
    outer.run(async move { drop(inner) });
}

#[test]
fn turn_makes_one_pass_and_reports_the_rest() {
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
    let log = Log::default();
    kernel.run(async {
        let log = log.clone();
        drop(spawn(async move {
            sleep(ms(10)).await.unwrap();
            log.add("slept");
            yield_now().await.unwrap();
            log.add("stepped again");
        }));
    });
    assert!(kernel.turn(Some(Duration::ZERO)).unwrap().next_deadline.is_some());
    let turn = kernel.turn(Some(Duration::ZERO)).unwrap();
    assert!(!turn.is_ready);
    assert_eq!((turn.tasks, turn.may_wait), (1, None), "a manual clock does not move by itself");
    clock.advance(ms(10));
    assert!(kernel.turn(Some(Duration::ZERO)).unwrap().is_ready);
    assert_eq!(log.take(), ["slept"]);
    let turn = kernel.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!((turn.is_ready, turn.next_deadline, turn.tasks), (false, None, 0));
    assert_eq!(log.take(), ["stepped again"]);
}

#[cfg(not(mio_unsupported_force_poll_poll))]
#[test]
fn wake_from_a_thread_makes_the_descriptor_readable() {
    use mio::unix::SourceFd;
    use std::os::fd::AsRawFd;

    let kernel = Kernel::new().unwrap();
    let handle = kernel.handle();
    let mut foreign_loop = mio::Poll::new().unwrap();
    let descriptor = kernel.as_raw_fd();
    let registry = foreign_loop.registry();
    let interest = mio::Interest::READABLE;
    registry.register(&mut SourceFd(&descriptor), mio::Token(0), interest).unwrap();
    let mut is_readable = |limit| {
        let mut events = mio::Events::with_capacity(4);
        foreign_loop.poll(&mut events, Some(limit)).unwrap();
        !events.is_empty()
    };
    assert!(!kernel.turn(Some(Duration::ZERO)).unwrap().is_ready);
    assert!(!is_readable(Duration::ZERO));
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        handle.spawn(move || async move { send.send("arrived").unwrap() }).unwrap();
    });
    assert!(is_readable(Duration::from_secs(10)), "woken at once");
    thread.join().unwrap();
    kernel.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(receive.try_recv(), Ok("arrived"));
}

#[test]
fn panic_ends_only_its_task() {
    run(async {
        let task: Task<()> = spawn(async { panic!("{} broke", "this") });
        let error: TaskError = task.await.unwrap_err();
        assert_eq!(error.panic_message(), Some("this broke"));
        assert_eq!(error.to_string(), "the task panicked: this broke");
    });
}

#[test]
fn destructor_panic_does_not_reach_the_kernel() {
    struct Bomb(&'static str);
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("{}", self.0);
        }
    }
    run(async {
        // In the future, when it is dropped unfinished.
        let task = spawn(async {
            let _bomb = Bomb("future");
            sleep(ms(1_000)).await
        });
        yield_now().await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        // In an output that nobody takes.
        drop(spawn(async { Bomb("output") }));
        yield_now().await.unwrap();
        sleep(ms(1)).await.unwrap();
    });
}

#[test]
fn destructors_may_use_the_kernel() {
    struct Busy {
        log: Log,
        victim: Option<Task<()>>,
        mine: Rc<RefCell<Option<Task<()>>>>,
    }
    impl Drop for Busy {
        fn drop(&mut self) {
            self.log.add(format_args!("dropped in {}", current().name()));
            let log = self.log.clone();
            drop(named("late", async move { log.add("spawned from a destructor") }));
            if let Some(victim) = self.victim.take() {
                victim.request_cancel("from a destructor");
                victim.abort();
            }
            drop(self.mine.take()); // the last handle to the task that is being dropped
        }
    }
    let log = Log::default();
    run(async {
        let victim = spawn(async { std::future::pending().await });
        let mine = Rc::new(RefCell::new(None));
        let busy = Busy { log: log.clone(), victim: Some(victim), mine: mine.clone() };
        let task = named("busy", async move {
            let _busy = busy;
            std::future::pending().await
        });
        yield_now().await.unwrap();
        task.abort();
        *mine.borrow_mut() = Some(task);
        for _ in 0..4 {
            yield_now().await.unwrap();
        }
        assert!(mine.borrow().is_none());
    });
    assert_eq!(log.take(), ["dropped in busy", "spawned from a destructor"]);
}

#[test]
fn self_abort_drops_the_task_after_its_step() {
    let log = Log::default();
    run(async {
        let own: Rc<RefCell<Option<Task<()>>>> = Rc::default();
        let task = {
            let (log, own) = (log.clone(), own.clone());
            spawn(async move {
                let own = own.borrow_mut().take().unwrap();
                own.abort();
                log.add("the step goes on");
                yield_now().await.unwrap();
                log.add("not reached");
            })
        };
        let id = task.id();
        *own.borrow_mut() = Some(task);
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        assert!(id.0 > 1);
    });
    assert_eq!(log.take(), ["the step goes on"]);
}

#[test]
fn a_task_that_never_ran_is_dropped_unpolled() {
    let log = Log::default();
    run(async {
        let task = spawn({
            let log = log.clone();
            async move { log.add("polled") }
        });
        task.cancel().await.unwrap();
        let error = task.await.unwrap_err();
        assert!(error.is_cancelled());
    });
    assert!(log.take().is_empty());
}

#[test]
fn second_cancel_does_not_interrupt_the_cleanup() {
    run(async {
        let task = spawn(async {
            let first = sleep(ms(1_000)).await.unwrap_err();
            sleep(ms(10)).await.expect("cleanup is left alone");
            first.reason().map(str::to_owned)
        });
        yield_now().await.unwrap();
        task.request_cancel("first");
        yield_now().await.unwrap();
        task.request_cancel("second");
        task.cancel().await.unwrap();
        assert_eq!(task.await.unwrap().as_deref(), Some("first"));
    });
}

#[test]
fn task_cancels_itself_and_joins_its_canceller() {
    run(async {
        let task = spawn(async {
            current().request_cancel("enough of this");
            sleep(ms(10)).await
        });
        assert!(task.await.unwrap().unwrap_err().is_cancel());
    });
}

#[test]
fn stop_ends_a_run_and_leaves_the_tasks() {
    let kernel = kernel();
    let log = Log::default();
    let handle = kernel.handle();
    let outcome = kernel.try_run(async {
        let log = log.clone();
        drop(spawn(async move {
            handle.stop().unwrap();
            yield_now().await.unwrap();
            yield_now().await.unwrap();
            log.add("later");
        }));
        let _dropped = OnDrop(|| assert!(pikake::traps::door::is_open(), "dropped inside"));
        std::future::pending::<()>().await
    });
    assert!(matches!(outcome, Err(TaskError::Stopped)));
    assert_eq!(kernel.task_count(), 1);
    assert!(log.take().is_empty());
    kernel.run(async {
        for _ in 0..4 {
            yield_now().await.unwrap();
        }
    });
    assert_eq!(log.take(), ["later"]);
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn shutdown_cancels_newest_first_and_awaits_cleanup() {
    let log = Log::default();
    let kernel = kernel();
    kernel.run(async {
        for number in 0..3 {
            let log = log.clone();
            drop(spawn(async move {
                let why: Interrupted = sleep(ms(1_000_000)).await.unwrap_err();
                log.add(format_args!("{number} told: {why}"));
                sleep(ms(10)).await.unwrap();
                let late = spawn(async {});
                assert!(late.is_finished() && late.await.unwrap_err().is_cancelled());
                log.add(format_args!("{number} done"));
            }));
        }
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(kernel.task_count(), 0);
    let told = "told: cancelled: the kernel is being shut down";
    assert_eq!(
        log.take(),
        [
            &format!("2 {told}"),
            &format!("1 {told}"),
            &format!("0 {told}"),
            "2 done",
            "1 done",
            "0 done"
        ]
    );
    assert!(kernel.handle().is_closed());
    assert!(kernel.try_run(async {}).unwrap_err().is_cancelled());
    kernel.shutdown();
}

#[test]
fn shutdown_drops_tasks_after_the_grace() {
    let log = Log::default();
    let kernel = builder().shutdown_grace(ms(50)).build().unwrap();
    kernel.run(async {
        for number in 0..2 {
            let log = log.clone();
            drop(spawn(async move {
                let _guard = OnDrop(|| log.add(format_args!("{number} dropped")));
                loop {
                    let _ = sleep(ms(20)).await; // does not want to hear
                }
            }));
        }
        yield_now().await.unwrap();
    });
    kernel.shutdown();
    assert_eq!(log.take(), ["1 dropped", "0 dropped"]);
}

#[test]
#[expect(clippy::async_yields_async, reason = "the handle itself is wanted")]
fn dropped_kernel_drops_its_tasks_on_its_thread() {
    let log = Log::default();
    let kernel = kernel();
    let handle = kernel.handle();
    let task = kernel.run(async {
        let log = log.clone();
        let task = spawn(async move {
            let _guard = OnDrop(|| log.add("dropped"));
            std::future::pending::<()>().await;
        });
        yield_now().await.unwrap();
        task
    });
    drop(kernel);
    assert_eq!(log.take(), ["dropped"]);
    assert!(task.is_finished());
    assert!(handle.is_closed());
    assert!(handle.spawn(|| async {}).is_err());
    task.request_cancel("nobody is there");
    task.abort();
}

#[test]
fn observer_sees_every_step_and_long_steps() {
    #[derive(Default, Clone)]
    struct Longest(Rc<Cell<Duration>>, Rc<Cell<u32>>);
    impl Observer for Longest {
        fn stepped(&self, _: &TaskRef, took: Duration) {
            self.0.set(self.0.get().max(took));
            self.1.set(self.1.get() + 1);
        }
    }
    let clock = ManualClock::new();
    let longest = Longest::default();
    let kernel = Kernel::builder().clock(clock.clone()).observer(longest.clone()).build().unwrap();
    kernel.run(async {
        yield_now().await.unwrap();
        clock.advance(ms(300));
    });
    assert_eq!((longest.0.get(), longest.1.get()), (ms(300), 2));
}

#[test]
fn task_that_never_suspends_lets_others_run() {
    // An always-ready wait: joining tasks that have ended.
    let log = Log::default();
    let kernel = builder().answers_per_step(4).build().unwrap();
    kernel.run(async {
        let mut ended = Vec::new();
        for _ in 0..10 {
            ended.push(spawn(async {}));
        }
        sleep(ms(1)).await.unwrap();
        let other = spawn({
            let log = log.clone();
            async move { log.add("the other") }
        });
        for task in ended {
            task.await.unwrap();
        }
        log.add("ten joins");
        other.await.unwrap();
    });
    assert_eq!(log.take().len(), 2);
}

#[test]
fn names_and_places_are_kept() {
    run(async {
        let line = line!() + 1;
        let task = task::Builder::new().name("reader").spawn(async { current().spawned_at() });
        assert_eq!(task.name(), "reader");
        assert_eq!(task.await.unwrap().line(), line);
    });
}

#[test]
fn zero_timeout_runs_the_body_until_it_suspends() {
    run(async {
        let ran = Cell::new(false);
        let body = async {
            ran.set(true);
            sleep(ms(1)).await.unwrap_err();
        };
        assert!(timeout_after(Duration::ZERO, body).await.is_err());
        assert!(ran.get());
        assert_eq!(timeout_after(Duration::ZERO, async { 3 }).await, Ok(3));
    });
}

/// Sleeps that end within the slack of each other cost one poll of the driver, and end in order.
#[test]
fn a_slack_lets_sleeps_share_a_poll() {
    within(|| {
        let slack = ms(20);
        let kernel = Kernel::builder().timer_slack(slack).build().unwrap();
        let ended = Rc::new(RefCell::new(Vec::new()));
        let polls = || pikake::kernel::inspect::kernel_figures().polls;
        kernel.run(async {
            let before = polls();
            let tasks: Vec<_> = (0..100u32)
                .map(|number| {
                    let (ended, due) = (ended.clone(), Instant::now() + ms(1) * (100 - number) / 5);
                    spawn(async move {
                        sleep_until(due).await.unwrap();
                        assert!(Instant::now() >= due);
                        ended.borrow_mut().push(99 - number);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert!(polls() - before < 50, "{}", polls() - before);
        });
        assert_eq!(*ended.borrow(), (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn a_slack_of_a_wait_is_for_real_time_only() {
    let deadlines = async || {
        let deadline = deadline_after(ms(3));
        (deadline, with_timer_slack(deadline, ms(1)), with_timer_slack(Deadline::NEVER, ms(1)))
    };
    let (exact, rounded, never) = pikake::run(deadlines());
    assert!(rounded >= exact && never.is_never());
    let (exact, rounded, never) = run(deadlines());
    assert!(rounded == exact && never.is_never());
}

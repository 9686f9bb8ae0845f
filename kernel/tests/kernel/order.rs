//! The scheduler's order, as vectors of events that are compared whole.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pikake::kernel::Observer;
use pikake::task::Builder;
use pikake::time::ManualClock;
use pikake::traps::inspect::kernel_figures;
use pikake::traps::{TaskRef, WaitQueue, park};
use pikake::{Interrupted, Kernel, Task, sleep, spawn, timeout_after, yield_now};

use crate::support::{Log, Recorder, builder, ms, named, run};

#[test]
fn a_spawned_task_starts_in_a_later_step() {
    let recorder = Recorder::default();
    let kernel = builder().observer(recorder.clone()).build().unwrap();
    kernel.run(async {
        let child = named("child", async { 5 });
        assert_eq!(child.await.unwrap(), 5);
    });
    assert_eq!(
        recorder.0.take(),
        [
            "created main",
            "step main",
            "created child",       // spawn does not switch
            "  main waits: join",  // main suspends
            "step child",          // only now the child starts
            "exit child Returned", // and wakes its joiner
            "step main",
            "  main goes on: join done",
            "exit main Returned",
        ]
    );
}

#[test]
fn ready_tasks_take_turns() {
    let log = Log::default();
    run(async {
        let tasks: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let log = log.clone();
                spawn(async move {
                    for round in 0..3 {
                        log.add(format_args!("{name}{round}"));
                        yield_now().await.unwrap();
                    }
                })
            })
            .into();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(log.take(), ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]);
}

#[test]
fn sleepers_wake_by_deadline_then_arrival() {
    let log = Log::default();
    run(async {
        let mut tasks = Vec::new();
        for (name, length) in [("c", 30), ("a", 10), ("b1", 20), ("b2", 20), ("b3", 20)] {
            let log = log.clone();
            tasks.push(spawn(async move {
                sleep(ms(length)).await.unwrap();
                log.add(name);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(log.take(), ["a", "b1", "b2", "b3", "c"]);
}

#[test]
fn waiters_wake_in_order_of_arrival() {
    let log = Log::default();
    run(async {
        let queue = Rc::new(WaitQueue::new());
        let tasks: Vec<_> = (0..4)
            .map(|number| {
                let (log, queue) = (log.clone(), queue.clone());
                spawn(async move {
                    park(&queue).await.unwrap();
                    log.add(number);
                })
            })
            .collect();
        yield_now().await.unwrap();
        assert_eq!(queue.len(), 4);
        assert_eq!(queue.wake(2), 2);
        yield_now().await.unwrap();
        log.add("two of four");
        assert_eq!(queue.wake(usize::MAX), 2);
        assert_eq!(queue.wake(1), 0, "nobody is left");
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(log.take(), ["0", "1", "two of four", "2", "3"]);
}

#[test]
fn unseen_wake_goes_to_the_next_waiter() {
    let log = Log::default();
    run(async {
        let queue = Rc::new(WaitQueue::new());
        let first = {
            let queue = queue.clone();
            spawn(async move { park(&queue).await })
        };
        let second = {
            let (queue, log) = (queue.clone(), log.clone());
            spawn(async move {
                park(&queue).await.unwrap();
                log.add("second");
            })
        };
        yield_now().await.unwrap();
        assert_eq!(queue.wake(1), 1);
        first.abort(); // before it has seen the wake
        second.await.unwrap();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(queue.is_empty());
    });
    assert_eq!(log.take(), ["second"]);
}

#[test]
fn satisfied_wait_returns_before_the_interruption() {
    let recorder = Recorder::default();
    let kernel = builder().observer(recorder.clone()).build().unwrap();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let waits = queue.clone();
        let child = named("child", async move {
            park(&waits).await.expect("satisfied before the cancel");
            sleep(ms(10)).await.expect_err("this one is interrupted");
            sleep(ms(10)).await.expect("once only");
        });
        yield_now().await.unwrap();
        recorder.0.take();
        queue.wake(1);
        child.request_cancel("enough");
        child.await.unwrap();
    });
    assert_eq!(
        recorder.0.take(),
        [
            "  main waits: join",
            "step child",
            "  child goes on: park done", // the sleep that follows is not even parked
            "  child waits: sleep",
            "step child",
            "  child goes on: sleep done",
            "exit child Returned",
            "step main",
            "  main goes on: join done",
            "exit main Returned",
        ]
    );
}

#[test]
fn due_sleep_beats_a_due_deadline() {
    // Both are overdue after a stall of the clock: the event wins.
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
    let outcome = kernel.run(async {
        let stall = spawn(async move { clock.advance(Duration::from_secs(3)) });
        let body = sleep(Duration::from_secs(2));
        let outcome = timeout_after(Duration::from_secs(1), body).await;
        stall.await.unwrap();
        outcome
    });
    assert_eq!(outcome, Ok(Ok(())));
}

#[test]
fn two_yielders_do_not_starve_a_timer() {
    let log = Log::default();
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
    kernel.run(async {
        for _ in 0..2 {
            let clock = clock.clone();
            drop(spawn(async move {
                while yield_now().await.is_ok() {
                    clock.advance(ms(1));
                }
            }));
        }
        sleep(ms(50)).await.unwrap();
        log.add("slept");
    });
    assert_eq!(log.take(), ["slept"]);
}

#[test]
fn the_step_of_a_task_that_begins_at_once_is_shown_inside() {
    let recorder = Recorder::default();
    let kernel = builder().observer(recorder.clone()).build().unwrap();
    let eager = |name| Builder::new().name(name).eager();
    kernel.run(async {
        let waits = eager("waits").spawn(async { sleep(ms(1)).await.is_ok() });
        eager("ends").spawn(async {}).detach();
        assert!(waits.await.unwrap());
    });
    assert_eq!(
        recorder.0.take(),
        [
            "created main",
            "step main",
            "created waits",
            "step waits",
            "  waits waits: sleep",
            "created ends",
            "step ends",
            "exit ends Returned",
            "  main waits: join",
            "step waits",
            "  waits goes on: sleep done",
            "exit waits Returned",
            "step main",
            "  main goes on: join done",
            "exit main Returned",
        ]
    );
}

/// The time of a step inside is not counted twice.
#[test]
fn each_step_has_its_own_time() {
    #[derive(Clone, Default)]
    struct Times(Log);
    impl Observer for Times {
        fn stepped(&self, task: &TaskRef, took: Duration) {
            self.0.add(format_args!("{} {}", task.name(), took.as_millis()));
        }
    }
    let (times, clock) = (Times::default(), ManualClock::new());
    let kernel = Kernel::builder().clock(clock.clone()).observer(times.clone()).build().unwrap();
    let longest = kernel.run(async {
        let stall = |length| clock.advance(ms(length));
        stall(1);
        let inner = clock.clone();
        let child = Builder::new().name("child").eager().spawn(async move {
            inner.advance(ms(10));
            let innermost = inner.clone();
            let grandchild = async move { innermost.advance(ms(100)) };
            Builder::new().name("grandchild").eager().spawn(grandchild).detach();
            inner.advance(ms(20));
        });
        stall(2);
        child.await.unwrap();
        yield_now().await.unwrap();
        stall(4);
        kernel_figures().longest_step
    });
    assert_eq!(times.0.take(), ["grandchild 100", "child 30", "main 3", "main 4"]);
    assert_eq!(longest, ms(133), "a step is as long as with those inside");
}

/// A step has what is left of the quotas of the step around, and leaves it the rest.
#[test]
fn steps_inside_share_the_quotas() {
    let counts = Rc::new(RefCell::new(Vec::new()));
    let kernel = builder().build().unwrap();
    let count = |counts: &Rc<RefCell<Vec<usize>>>| {
        let mut answers = 0;
        // An ended task is joined at once, as long as the quota lasts.
        while std::pin::pin!(spawn_ended())
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
        {
            answers += 1;
        }
        counts.borrow_mut().push(answers);
    };
    kernel.run(async {
        let inner = counts.clone();
        Builder::new().eager().spawn(async move { count(&inner) }).detach();
        count(&counts);
        yield_now().await.unwrap();
        count(&counts);
    });
    let counts = counts.take();
    assert!(counts[0] > 10, "{counts:?}");
    assert_eq!(counts[1], 0, "{counts:?}");
    assert_eq!(counts[2], counts[0], "{counts:?}");
}

fn spawn_ended() -> Task<()> {
    Builder::new().eager().spawn(async {})
}

/// An observer may do to a task that is about to begin at once what it may do to any other.
#[test]
fn a_wake_by_an_observer_before_the_first_step_does_nothing() {
    #[derive(Clone)]
    struct Wakes(Log);
    impl Observer for Wakes {
        fn created(&self, task: &TaskRef) {
            task.waker().wake();
            task.inspect();
        }
        fn stepping(&self, task: &TaskRef) {
            self.0.add(format_args!("step {}", task.name()));
            if task.name() == "child" {
                task.request_cancel(Interrupted::cancelled("by an observer"));
            }
        }
    }
    let log = Log::default();
    let kernel = builder().observer(Wakes(log.clone())).build().unwrap();
    kernel.run(async {
        let child = async { sleep(ms(5)).await.unwrap_err().to_string() };
        let child = Builder::new().name("child").eager().spawn(child);
        assert_eq!(child.await.unwrap(), "cancelled: by an observer");
    });
    assert_eq!(log.take(), ["step main", "step child"]);
}

/// The panic of an observer in a step inside is that of the task around, and nothing is lost.
#[test]
fn an_observer_panics_in_a_step_inside() {
    struct Panics {
        before: bool,
    }
    impl Observer for Panics {
        fn stepping(&self, task: &TaskRef) {
            assert!(!self.before || task.name() != "child", "the observer panics");
        }
        fn stepped(&self, task: &TaskRef, _: Duration) {
            assert!(self.before || task.name() != "child", "the observer panics");
        }
    }
    for before in [false, true] {
        let kernel = builder().observer(Panics { before }).build().unwrap();
        kernel.run(async {
            let child = Builder::new().name("child").eager();
            let around = spawn(async { child.spawn(async {}).detach() });
            assert!(around.await.unwrap_err().panic().is_some());
            yield_now().await.unwrap();
        });
        assert_eq!(kernel.task_count(), 0);
    }
}

/// A listing has a scope with a deadline that a foreign future waits in, also if tasks begin there.
#[test]
fn a_scope_in_which_tasks_begin_is_listed() {
    run(async {
        let task = spawn(timeout_after(
            ms(100),
            poll_fn(|_| {
                spawn_ended().detach();
                Poll::<()>::Pending
            }),
        ));
        yield_now().await.unwrap();
        task.task_ref().inspect();
        yield_now().await.unwrap();
        yield_now().await.unwrap();
        assert_eq!(task.task_ref().seen_waits().len(), 1);
        task.abort();
    });
}

/// A wake lists the task in its own step, in which it ends.
#[test]
fn a_task_that_has_ended_is_not_ready() {
    run(async {
        let wakes = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Ready(())
        });
        let task = spawn(wakes);
        assert!(task.task_ref().is_ready());
        while !task.is_finished() {
            yield_now().await.unwrap();
        }
        assert!(!task.task_ref().is_ready());
        yield_now().await.unwrap();
        assert!(!task.task_ref().is_ready());
    });
}

#[test]
fn a_task_without_a_name_is_named_once() {
    run(async {
        let [late, named] = [Builder::new(), Builder::new().name("from the start")]
            .map(|task| task.spawn(std::future::pending::<()>()));
        for task in [&late, &named] {
            task.task_ref().set_name("late");
            task.task_ref().set_name(String::from("later"));
        }
        assert_eq!((late.name(), named.name()), ("late", "from the start"));
        late.abort();
        named.abort();
    });
}

//! The assertions of Curio's `test_kernel` that have a meaning here.

use std::cell::{Cell, RefCell};
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use futures::channel::oneshot;
use pikake::time::{Deadline, elapsed_since, now};
use pikake::traps::{WaitQueue, park, timeout_at};
use pikake::{
    Task, TaskError, TimedOut, check_interrupt, current, future_wait, ignore_after, shield, sleep,
    spawn, timed, timeout_after, yield_now,
};

use crate::runner::{Runner, World, describe, ms, on_every_kernel};

fn run_returns_the_value_of_main<R: Runner>() {
    let (outcome, _) = R::outcome(async |_| "hello");
    assert_eq!(outcome.unwrap(), "hello");
}

fn run_resumes_the_panic_of_main<R: Runner>() {
    let (outcome, _) = R::outcome(async |_| panic!("on purpose"));
    let error: TaskError = outcome.unwrap_err();
    assert_eq!(error.panic_message(), Some("on purpose"));
}

fn a_sleep_lasts_as_long_as_it_says<R: Runner>() {
    R::run(async |_| {
        let before = now();
        sleep(ms(500)).await.unwrap();
        assert_eq!(elapsed_since(before), ms(500));
        assert!(now() > before);
    });
}

fn cancel_interrupts_a_sleep<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move { world.note(describe(sleep(ms(1_000)).await)) }
        });
        sleep(ms(500)).await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(events, ["500 cancelled"]);
}

fn a_sleep_longer_than_its_timeout_times_out<R: Runner>() {
    let events = R::run(async |world| {
        world.note(format_args!("{:?}", timeout_after(ms(100), sleep(ms(1_000))).await));
        world.note(format_args!("{:?}", ignore_after(ms(100), sleep(ms(1_000))).await));
        let outcome = timed(ms(100), sleep(ms(1_000))).await;
        world.note(format_args!("{} {:?}", outcome.expired, outcome.output.map(describe)));
    });
    assert_eq!(events, ["100 Err(TimedOut)", "200 None", "300 true Some(\"a deadline passed\")"]);
}

fn unused_timeout_does_not_reach_later_sleeps<R: Runner>() {
    let events = R::run(async |world| {
        world.note(format_args!("{:?}", timeout_after(ms(200), sleep(ms(100))).await));
        world.note(describe(sleep(ms(500)).await));
    });
    assert_eq!(events, ["100 Ok(Ok(()))", "600 ok"]);
}

fn join_returns_the_value_or_the_panic<R: Runner>() {
    R::run(async |_| {
        assert_eq!(spawn(async { 37 }).await.unwrap(), 37);
        let task: Task<()> = spawn(async { panic!("bad value") });
        let error = task.join().await.unwrap_err();
        assert_eq!(error.panic_message(), Some("bad value"));
    });
}

fn a_cancel_waits_for_the_end<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(sleep(ms(1_000)).await));
                sleep(ms(100)).await.unwrap();
                world.note("cleaned up");
                "value"
            }
        });
        yield_now().await.unwrap();
        world.note(describe(task.cancel().await));
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(events, ["0 cancelled", "100 cleaned up", "100 ok", "100 Ok(\"value\")"]);
}

fn shielded_sleep_completes_despite_a_cancel<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(shield(sleep(ms(500))).await));
                world.note(describe(check_interrupt()));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        yield_now().await.unwrap();
        world.note(describe(task.cancel().await));
    });
    assert_eq!(events, ["500 ok", "500 cancelled", "501 ok", "501 ok"]);
}

fn request_cancel_returns_at_once<R: Runner>() {
    let events = R::run(async |world| {
        let (is_set, queue) = (Rc::new(Cell::new(false)), Rc::new(WaitQueue::new()));
        let task = spawn({
            let (world, is_set, queue) = (world.clone(), is_set.clone(), queue.clone());
            async move {
                world.note(describe(sleep(ms(1_000)).await));
                while !is_set.get() {
                    park(&queue).await.unwrap();
                }
                world.note("cleaned up");
            }
        });
        yield_now().await.unwrap();
        task.request_cancel("");
        world.note("requested");
        sleep(ms(10)).await.unwrap();
        is_set.set(true);
        queue.wake(usize::MAX);
        task.await.unwrap();
    });
    assert_eq!(events, ["0 requested", "0 cancelled", "10 cleaned up"]);
}

fn join_of_a_cancelled_task_is_an_error<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn(std::future::pending::<()>());
        let third = spawn(async move {
            yield_now().await.unwrap();
            sleep(ms(10)).await.unwrap();
        });
        yield_now().await.unwrap();
        let task = Rc::new(RefCell::new(Some(task)));
        let canceller = spawn({
            let task = task.clone();
            async move {
                third.await.unwrap();
                task.borrow().as_ref().unwrap().request_cancel("by a third task");
            }
        });
        canceller.await.unwrap();
        let error = task.take().unwrap().await.unwrap_err();
        world.note(format_args!("{error}"));
    });
    assert_eq!(events, ["10 the task ended by a cancel (cancelled: by a third task)"]);
}

fn joiner_sees_a_cancel_by_another_task<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn(async { describe(sleep(ms(1_000)).await) });
        yield_now().await.unwrap();
        let cancel = task.cancel(); // does not borrow the handle
        spawn(async move {
            sleep(ms(10)).await.unwrap();
            cancel.await.unwrap();
        })
        .detach();
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(events, ["10 Ok(\"cancelled\")"]);
}

fn forwarded_cancel_ends_the_children_first<R: Runner>() {
    let events = R::run(async |world| {
        fn level(world: &World, names: &'static [&'static str]) -> Task<()> {
            let world = world.clone();
            spawn(async move {
                let Some((name, inner)) = names.split_first() else {
                    return;
                };
                let child = level(&world, inner);
                let _ = sleep(ms(1_000)).await;
                child.cancel().await.unwrap();
                world.note(name);
            })
        }
        let task = level(&world, &["grandparent", "parent", "child"]);
        sleep(ms(10)).await.unwrap();
        task.cancel().await.unwrap();
        world.note("done");
    });
    assert_eq!(events, ["10 child", "10 parent", "10 grandparent", "10 done"]);
}

fn finished_sleep_returns_before_the_cancel<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(sleep(ms(10)).await));
                world.note(describe(sleep(ms(10)).await));
            }
        });
        yield_now().await.unwrap();
        world.stall(10);
        yield_now().await.unwrap(); // the task is ready behind this one
        task.request_cancel("");
        task.await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled"]);
}

fn nested_deadlines_are_reported_by_their_owners_alone<R: Runner>() {
    let events = R::run(async |world| {
        let outer = timeout_after(ms(10), async {
            let middle = timeout_after(ms(20), async {
                let inner = timeout_after(ms(30), async {
                    world.note(format_args!("body: {}", describe(sleep(ms(100)).await)));
                });
                world.note(format_args!("inner: {:?}", inner.await));
            });
            world.note(format_args!("middle: {:?}", middle.await));
            world.note(format_args!("next: {}", describe(sleep(ms(100)).await)));
        });
        world.note(format_args!("outer: {:?}", outer.await));
    });
    assert_eq!(
        events,
        [
            "10 body: a deadline passed",
            "10 inner: Ok(())",
            "10 middle: Ok(())",
            "110 next: ok", // told once
            "110 outer: Err(TimedOut)",
        ]
    );
}

fn propagated_inner_timeout_is_not_the_outer<R: Runner>() {
    let events = R::run(async |world| {
        let inner = timeout_after(ms(10), sleep(ms(100)));
        world.note(format_args!("{:?}", timeout_after(ms(50), inner).await));
        let with_early_return = timeout_after(ms(50), async {
            timeout_after(ms(10), sleep(ms(100))).await??;
            Ok::<_, std::io::Error>(())
        });
        let error = with_early_return.await.unwrap().unwrap_err();
        world.note(format_args!("{:?}", error.kind()));
    });
    assert_eq!(events, ["10 Ok(Err(TimedOut))", "20 TimedOut"]);
}

fn equal_deadlines_are_the_outermost_ones<R: Runner>() {
    let events = R::run(async |world| {
        let soon = Deadline::at(now().saturating_add(10_000_000));
        let inner = timeout_at(soon, sleep(ms(100)));
        world.note(format_args!("{:?}", timeout_at(soon, inner).await.map(|_| ())));
        let outer = timeout_after(ms(10), async {
            timeout_after(ms(10), sleep(ms(100))).await.map(describe)
        });
        let outer = timed(ms(100), outer).await;
        world.note(format_args!("{:?}", outer.output));
    });
    assert_eq!(events, ["10 Err(TimedOut)", "20 Some(Err(TimedOut))"]);
}

fn scope_without_deadline_keeps_the_outer<R: Runner>() {
    let events = R::run(async |world| {
        let inner = timeout_at(Deadline::NEVER, sleep(ms(2_000)));
        world.note(format_args!("{:?}", timeout_after(ms(1_000), inner).await.map(|_| ())));
        let inner = timeout_at(Deadline::NEVER, sleep(ms(10))).await;
        world.note(format_args!("{:?}", inner.map(describe)));
    });
    assert_eq!(events, ["1000 Err(TimedOut)", "1010 Ok(\"ok\")"]);
}

fn a_child_inherits_no_deadline<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let child = spawn(async { describe(sleep(ms(50)).await) });
            yield_now().await.unwrap();
            (child, "in time")
        });
        let (child, _) = outcome.await.unwrap();
        world.note(format_args!("{:?}", child.await));
    });
    assert_eq!(events, ["50 Ok(\"ok\")"]);
}

fn endless_yields_starve_no_task<R: Runner>() {
    let events = R::run(async |world| {
        let spins = Rc::new(Cell::new(0));
        let task = spawn({
            let (world, spins) = (world.clone(), spins.clone());
            async move {
                while sleep(ms(0)).await.is_ok() {
                    spins.set(spins.get() + 1);
                    world.stall(1);
                }
            }
        });
        sleep(ms(50)).await.unwrap();
        assert!((49..=51).contains(&spins.get()));
        world.note(describe(task.cancel().await));
    });
    assert_eq!(events.len(), 1);
    assert!(events[0].ends_with(" ok"));
}

fn mutual_wakes_starve_no_third_task<R: Runner>() {
    let events = R::run(async |world| {
        let queues = Rc::new([WaitQueue::new(), WaitQueue::new()]);
        let players: Vec<_> = (0..2)
            .map(|number| {
                let (world, queues) = (world.clone(), queues.clone());
                spawn(async move {
                    loop {
                        queues[1 - number].wake(1);
                        world.stall(1);
                        if park(&queues[number]).await.is_err() {
                            break;
                        }
                    }
                })
            })
            .collect();
        yield_now().await.unwrap();
        for _ in 0..10 {
            queues[0].wake(1);
            yield_now().await.unwrap();
        }
        sleep(ms(5)).await.unwrap();
        for player in players {
            player.cancel().await.unwrap();
        }
        world.note("the third");
    });
    assert!(events[0].ends_with("the third"));
}

fn cleanup_after_a_cancel_keeps_outer_deadlines<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let outcome = timeout_after(ms(20), async {
                    world.note(describe(sleep(ms(100)).await));
                    world.note(describe(sleep(ms(100)).await)); // a cancel takes no deadline away
                });
                world.note(format_args!("{:?}", outcome.await));
                world.note(describe(sleep(ms(100)).await)); // which has not heard of the cancel
            }
        });
        sleep(ms(10)).await.unwrap();
        task.cancel().await.unwrap();
    });
    let expected = ["10 cancelled", "20 a deadline passed", "20 Err(TimedOut)", "20 cancelled"];
    assert_eq!(events, expected);
}

fn nested_kernel_is_an_error<R: Runner>() {
    R::run(async |_| {
        let inner = catch_unwind(AssertUnwindSafe(|| R::run(async |_| {})));
        assert!(inner.is_err());
        sleep(ms(1)).await.unwrap(); // the outer one goes on
    });
}

fn pending_cancel_interrupts_every_wait_that_suspends<R: Runner>() {
    let events = R::run(async |world| {
        for which in 0..5 {
            let task = spawn({
                let world = world.clone();
                async move {
                    current().request_cancel("pending");
                    let queue = WaitQueue::new();
                    let (_send, receive) = oneshot::channel::<()>();
                    let other = spawn(async {});
                    world.note(match which {
                        0 => describe(sleep(ms(1)).await),
                        1 => describe(yield_now().await),
                        2 => describe(park(&queue).await),
                        3 => describe(future_wait(receive).await),
                        _ => match other.await {
                            Err(TaskError::Interrupted(interrupted)) => interrupted.to_string(),
                            outcome => format!("{outcome:?}"),
                        },
                    });
                    assert!(queue.is_empty());
                    world.note(describe(yield_now().await));
                }
            });
            task.await.unwrap();
        }
    });
    assert_eq!(events, ["0 cancelled: pending", "0 ok"].repeat(5));
}

fn pending_cancel_skips_calls_that_do_not_suspend<R: Runner>() {
    let events = R::run(async |world| {
        let ended = spawn(async { 1 });
        yield_now().await.unwrap();
        let task = spawn({
            let world = world.clone();
            async move {
                current().request_cancel("pending");
                assert_eq!(ended.await.unwrap(), 1);
                assert_eq!(future_wait(std::future::ready(2)).await, Ok(2));
                spawn(async {}).detach();
                WaitQueue::new().wake(1);
                let _ = (now(), current());
                assert_eq!(timeout_after(ms(10), async { 3 }).await, Ok(3));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 cancelled: pending"]);
}

fn a_pending_timeout_is_gone_with_its_scope<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            world.stall(20);
            pikake::pending_interrupt().is_some()
        });
        let _ = outcome.await;
        world.note(format_args!("{:?}", pikake::pending_interrupt()));
        world.note(describe(sleep(ms(1)).await));
    });
    assert_eq!(events, ["20 None", "21 ok"]);
}

fn a_cancel_carries_its_reason<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn(async { sleep(ms(100)).await.unwrap_err().reason().map(str::to_owned) });
        yield_now().await.unwrap();
        task.request_cancel("the client went away");
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(events, ["0 Ok(Some(\"the client went away\"))"]);
}

fn interruption_in_an_io_error_forbids_retry<R: Runner>() {
    R::run(async |_| {
        let outcome =
            timed(ms(10), async { std::io::Error::from(sleep(ms(100)).await.unwrap_err()) });
        let error = outcome.await.output.unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(std::io::Error::from(TimedOut).kind(), std::io::ErrorKind::TimedOut);
        current().request_cancel("");
        let error = std::io::Error::from(sleep(ms(1)).await.unwrap_err());
        assert_eq!(error.kind(), std::io::ErrorKind::Other);
        assert!(error.source().unwrap().is::<pikake::Interrupted>());
    });
}

fn shutdown_cancels_newest_first<R: Runner>() {
    let events = R::run(async |world| {
        for name in ["oldest", "middle", "newest"] {
            let world = world.clone();
            spawn(async move {
                assert!(sleep(ms(100_000)).await.is_err());
                world.note(name);
                sleep(ms(10)).await.unwrap();
                let late = spawn(async {});
                assert!(late.is_finished() && late.await.unwrap_err().is_cancelled());
                world.note(format_args!("{name} cleaned up"));
            })
            .detach();
        }
        yield_now().await.unwrap();
        let world = world.clone();
        spawn(async move { world.note("never stepped") }).detach();
    });
    assert_eq!(
        events,
        [
            "0 newest",
            "0 middle",
            "0 oldest",
            "10 newest cleaned up",
            "10 middle cleaned up",
            "10 oldest cleaned up",
        ]
    );
}

fn shutdown_drops_tasks_after_the_grace<R: Runner>() {
    let events = R::run(async |world| {
        for name in ["older", "newer"] {
            let world = world.clone();
            spawn(async move {
                let _guard = world.on_drop(name);
                loop {
                    let _ = shield(sleep(ms(700))).await;
                }
            })
            .detach();
        }
        yield_now().await.unwrap();
    });
    assert_eq!(events, ["5000 newer", "5000 older"]);
}

on_every_kernel! {
    in_order {
        a_cancel_waits_for_the_end
        shielded_sleep_completes_despite_a_cancel
        request_cancel_returns_at_once
        finished_sleep_returns_before_the_cancel
        endless_yields_starve_no_task
        pending_cancel_skips_calls_that_do_not_suspend
        a_cancel_carries_its_reason
        shutdown_drops_tasks_after_the_grace
    }
    in_any_order {
        run_returns_the_value_of_main
        run_resumes_the_panic_of_main
        a_sleep_lasts_as_long_as_it_says
        cancel_interrupts_a_sleep
        a_sleep_longer_than_its_timeout_times_out
        unused_timeout_does_not_reach_later_sleeps
        join_returns_the_value_or_the_panic
        join_of_a_cancelled_task_is_an_error
        joiner_sees_a_cancel_by_another_task
        forwarded_cancel_ends_the_children_first
        nested_deadlines_are_reported_by_their_owners_alone
        propagated_inner_timeout_is_not_the_outer
        equal_deadlines_are_the_outermost_ones
        scope_without_deadline_keeps_the_outer
        a_child_inherits_no_deadline
        mutual_wakes_starve_no_third_task
        cleanup_after_a_cancel_keeps_outer_deadlines
        nested_kernel_is_an_error
        pending_cancel_interrupts_every_wait_that_suspends
        a_pending_timeout_is_gone_with_its_scope
        interruption_in_an_io_error_forbids_retry
    }
    of_the_main_task {
        shutdown_cancels_newest_first
    }
}

//! Which wait returns a cause, and when: answers, branches, and several causes at once.

use std::cell::RefCell;
use std::future::{pending as foreign, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context, Waker};

use super::pikake::traps::{WaitQueue, elapse, park};
use super::pikake::{
    check_interrupt, current, future_wait, pending_interrupt, shield, sleep, spawn, timed,
    timeout_after, yield_now,
};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, select};
use futures::stream::{FuturesUnordered, StreamExt};

use super::runner::{Runner, World, describe, ms, next_step, on_every_kernel, poll_once};

fn a_select_loses_no_cancel_with_a_branch<R: Runner>() {
    let events = R::run(async |world| {
        let (send, receive) = oneshot::channel();
        let task = spawn({
            let world = world.clone();
            async move {
                futures::select_biased! {
                    _ = receive.fuse() => world.note("took the other branch"),
                    _ = sleep(ms(100)).fuse() => unreachable!(),
                }
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(5)).await.unwrap();
        send.send(()).unwrap();
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(
        events,
        [
            "5 took the other branch", // the sleep is dropped and returned no cause
            "5 cancelled: stop",       // so the next wait returns it
            "6 ok",                    // and no other
        ]
    );
}

fn a_select_loses_no_deadline_with_a_branch<R: Runner>() {
    let events = R::run(async |world| {
        let (send, receive) = oneshot::channel();
        spawn(async move {
            sleep(ms(10)).await.unwrap();
            send.send(()).unwrap();
        })
        .detach();
        yield_now().await.unwrap();
        let outcome = timeout_after(ms(10), async {
            futures::select_biased! {
                _ = receive.fuse() => world.note("took the other branch"),
                _ = sleep(ms(100)).fuse() => unreachable!(),
            }
            world.note(describe(sleep(ms(1)).await));
            world.note(describe(sleep(ms(1)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(
        events,
        ["10 took the other branch", "10 a deadline passed", "11 ok", "11 Err(TimedOut)"]
    );
}

fn a_cancel_interrupts_both_branches_of_a_join<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                let satisfied = async {
                    world.note(format_args!("park: {}", describe(park(&queue).await)));
                    world.note(format_args!("its branch: {}", describe(sleep(ms(1)).await)));
                };
                let parked = async {
                    world.note(format_args!("sleep: {}", describe(sleep(ms(100)).await)));
                };
                futures::join!(satisfied, parked);
                world.note(format_args!("afterwards: {}", describe(sleep(ms(1)).await)));
            }
        });
        sleep(ms(5)).await.unwrap();
        assert_eq!(queue.wake(1), 1);
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(
        events,
        [
            "5 park: ok",
            "5 its branch: cancelled: stop",
            "5 sleep: cancelled: stop",
            "6 afterwards: ok",
        ]
    );
}

fn two_shields_of_a_branch_deliver_once<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let (send, receive) = oneshot::channel();
                let sleeper = shield(async {
                    sleep(ms(5)).await.unwrap();
                    send.send(()).unwrap();
                });
                futures::join!(sleeper, shield(receive)).1.unwrap();
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(1)).await.unwrap();
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(events, ["5 cancelled: stop", "6 ok"]);
}

fn a_yield_moved_into_a_shield_is_uninterrupted<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                shield(async { current().request_cancel("stop") }).await;
                shield(async {
                    let mut yielding = yield_now();
                    let scope = timed(ms(1), poll_once(&mut yielding));
                    assert!(scope.await.output.unwrap().is_pending());
                    assert!(poll_once(&mut yielding).await.is_pending(), "its step is to come");
                    world.note(describe(yielding.await));
                })
                .await;
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 ok", "0 cancelled: stop"]);
}

/// A task drops a yield of an earlier step, spawns a child and yields again. The second yield makes
/// the task ready after its step, so the child comes first.
fn dropped_yield_wakes_no_task<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let queue = WaitQueue::new();
                match select(park(&queue), yield_now()).await {
                    Either::Left((answer, loser)) => {
                        drop(loser);
                        world.note(describe(answer));
                    }
                    Either::Right(_) => unreachable!(),
                }
                let child = world.clone();
                spawn(async move { child.note("child") }).detach();
                yield_now().await.unwrap();
                world.note("parent");
            }
        });
        yield_now().await.unwrap();
        task.request_cancel("stop");
        task.await.unwrap();
        yield_now().await.unwrap();
    });
    assert_eq!(events, ["0 cancelled: stop", "0 child", "0 parent"]);
}

fn a_branch_ends_where_another_wait_is_polled<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                let satisfied = async { world.note(describe(park(&queue).await)) };
                let parked = async {
                    world.note(describe(sleep(ms(100)).await));
                    world.note(describe(sleep(ms(1)).await));
                };
                futures::join!(satisfied, parked);
            }
        });
        sleep(ms(5)).await.unwrap();
        queue.wake(1);
        task.request_cancel("stop");
        task.await.unwrap();
    });
    // The satisfied branch has no wait left to interrupt, and its cause does not pass to the other
    // one.
    assert_eq!(events, ["5 ok", "5 cancelled: stop", "6 ok"]);
}

fn a_pending_cancel_and_timeout_are_both_delivered<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let outcome = timeout_after(ms(10), async {
                    world.stall(20);
                    current().request_cancel("stop");
                    world.note(describe(sleep(ms(1)).await));
                    world.note(describe(sleep(ms(1)).await));
                    world.note(describe(sleep(ms(1)).await));
                });
                world.note(format_args!("{:?}", outcome.await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["20 cancelled: stop", "20 a deadline passed", "21 ok", "21 Err(TimedOut)"]);
}

fn leaving_a_scope_discards_its_timeout_alone<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let inside = timeout_after(ms(10), async {
                    world.stall(20);
                    current().request_cancel("stop");
                    pending_interrupt().is_some_and(|why| why.is_cancel())
                });
                world.note(format_args!("{:?}", inside.await));
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["20 Ok(true)", "20 cancelled: stop", "21 ok"]);
}

/// The deadline comes up before the cancel, and both before the next step of the task.
fn a_parked_wait_returns_the_outermost_cause_first<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let outcome = timeout_after(ms(10), async {
                    world.note(describe(sleep(ms(100)).await));
                    world.note(describe(sleep(ms(100)).await));
                    world.note(describe(sleep(ms(1)).await));
                });
                world.note(format_args!("{:?}", outcome.await));
            }
        });
        yield_now().await.unwrap();
        world.stall(10);
        yield_now().await.unwrap(); // in this turn the deadline comes, after this task is ready
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(events, ["10 cancelled: stop", "10 a deadline passed", "11 ok", "11 Err(TimedOut)"]);
}

fn leaving_an_inner_scope_keeps_the_outer_deadline<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let inner = timeout_after(ms(50), async { world.stall(20) });
            world.note(format_args!("{:?}", inner.await));
            world.note(describe(sleep(ms(1)).await));
            world.note(describe(sleep(ms(1)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["20 Ok(())", "20 a deadline passed", "21 ok", "21 Err(TimedOut)"]);
}

fn an_outer_deadline_returned_inside_is_not_repeated<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let inner = timeout_after(ms(50), async {
                world.note(describe(sleep(ms(100)).await)); // swallowed
            });
            world.note(format_args!("{:?}", inner.await));
            world.note(describe(sleep(ms(1)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["10 a deadline passed", "10 Ok(())", "11 ok", "11 Err(TimedOut)"]);
}

fn a_zero_timeout_lets_the_body_run_first<R: Runner>() {
    let events = R::run(async |world| {
        let ended = spawn(async {});
        yield_now().await.unwrap();
        let outcome = timeout_after(ms(0), async {
            world.note("runs");
            ended.await.unwrap(); // does not suspend
            world.note(describe(sleep(ms(1)).await));
            world.note(describe(sleep(ms(1)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
        world.note(format_args!("{:?}", timeout_after(ms(0), async { 3 }).await));
        let nothing = timeout_after(ms(0), foreign::<()>()).await;
        world.note(format_args!("{nothing:?}"));
    });
    assert_eq!(
        events,
        ["0 runs", "0 a deadline passed", "1 ok", "1 Err(TimedOut)", "1 Ok(3)", "1 Err(TimedOut)"]
    );
}

fn an_overrun_without_waits_is_reported_as_late<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timed(ms(10), async { world.stall(35) });
        world.note(format_args!("{:?}", outcome.await));
        let outcome = timeout_after(ms(10), async { world.stall(35) });
        world.note(format_args!("{:?}", outcome.await));
        world.note(describe(sleep(ms(1)).await));
    });
    let late = "35 Timed { output: Some(()), expired: false, late: 25ms }";
    assert_eq!(events, [late, "70 Ok(())", "71 ok"]);
}

fn leaving_a_scope_removes_its_timer<R: Runner>() {
    let events = R::run(async |world| {
        // By value.
        timeout_after(ms(10), sleep(ms(1))).await.unwrap().unwrap();
        // By an error.
        let by_error = timeout_after(ms(10), async {
            sleep(ms(1)).await.unwrap();
            Err::<(), _>("an error")
        });
        by_error.await.unwrap().unwrap_err();
        // By a panic.
        let by_panic = timeout_after(ms(10), async {
            sleep(ms(1)).await.unwrap();
            panic!("on purpose");
        });
        AssertUnwindSafe(by_panic).catch_unwind().await.unwrap_err();
        // By a drop, at once or of one that waits.
        drop(timeout_after(ms(10), sleep(ms(1))));
        let mut by_drop = Box::pin(timeout_after(ms(10), sleep(ms(100))));
        assert!(futures::poll!(&mut by_drop).is_pending());
        drop(by_drop);
        // By a drop during a panic.
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let mut waits = Box::pin(timeout_after(ms(10), sleep(ms(100))));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(waits.as_mut().poll(&mut cx).is_pending());
            panic!("on purpose");
        }));
        unwound.unwrap_err();
        world.note(describe(sleep(ms(100)).await));
        world.note(describe(check_interrupt()));
    });
    assert_eq!(events, ["103 ok", "103 ok"]);
}

fn leaving_a_scope_removes_its_due_deadline<R: Runner>() {
    let events = R::run(async |world| {
        for leave in ["by value", "by a drop"] {
            let queue = WaitQueue::new();
            let mut body = Box::pin(timeout_after(ms(10), async {
                if leave == "by value" {
                    let _ = poll_once(&mut park(&queue)).await;
                    world.stall(20);
                    next_step().await; // the deadline comes up, and answers no wait
                    leave
                } else {
                    foreign().await
                }
            }));
            if leave == "by value" {
                world.note(format_args!("{:?}", body.await));
            } else {
                assert!(futures::poll!(&mut body).is_pending());
                world.stall(20);
                yield_now().await.unwrap(); // the deadline comes up outside of the scope
                drop(body);
            }
            world.note(describe(sleep(ms(1)).await));
        }
    });
    assert_eq!(events[0], "20 Ok(\"by value\")");
    assert_eq!(events[1..], ["21 ok", "42 ok"]);
}

fn a_pending_cancel_precedes_a_beaten_timeout<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let outcome = timeout_after(ms(10), async {
                    world.note(describe(sleep(ms(10)).await)); // the event wins
                    current().request_cancel("stop");
                    world.note(describe(sleep(ms(1)).await));
                    world.note(describe(sleep(ms(1)).await));
                });
                world.note(format_args!("{:?}", outcome.await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled: stop", "10 a deadline passed", "10 Err(TimedOut)"]);
}

/// Cancels a waiting task, then lets the event happen before its next step, and notes two answers.
async fn cancel_before_event(
    world: &World,
    event: &str,
    wait: impl Future<Output = String> + 'static,
    happens: impl FnOnce(),
) {
    let task = spawn({
        let (world, event) = (world.clone(), event.to_owned());
        async move {
            let answer = wait.await;
            world.note(format_args!("{event}: {answer}, then {}", describe(sleep(ms(1)).await)));
        }
    });
    sleep(ms(1)).await.unwrap();
    task.request_cancel("");
    happens();
    task.await.unwrap();
}

fn every_event_beats_a_cancel_before_the_step<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let wait = {
            let queue = queue.clone();
            async move { describe(park(&queue).await) }
        };
        let happens = || assert_eq!((queue.len(), queue.wake(1), queue.len()), (1, 1, 0));
        cancel_before_event(&world, "wake", wait, happens).await;

        let wait = async { describe(sleep(ms(10)).await) };
        cancel_before_event(&world, "timer", wait, || world.stall(20)).await;

        let (send, receive) = oneshot::channel();
        let wait = async { describe(future_wait(receive).await) };
        cancel_before_event(&world, "foreign future", wait, || send.send(()).unwrap()).await;

        let joined = Rc::new(RefCell::new(spawn(foreign::<()>())));
        let wait = {
            let joined = joined.clone();
            async move { format!("{:?}", poll_fn(|cx| joined.borrow_mut().poll_unpin(cx)).await) }
        };
        cancel_before_event(&world, "exit", wait, || joined.borrow().abort()).await;
    });
    assert_eq!(
        events,
        [
            "1 wake: ok, then cancelled",
            "22 timer: ok, then cancelled",
            "23 foreign future: ok, then cancelled",
            "24 exit: Err(Cancelled(cancelled: aborted)), then cancelled",
        ]
    );
}

/// The waking task's sleep ends in the turn in which the deadline passes.
fn a_wake_beats_a_deadline_of_its_turn<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                let outcome = timeout_after(ms(10), park(&queue)).await;
                world.note(format_args!("{:?}", outcome.map(describe)));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        yield_now().await.unwrap();
        sleep(ms(10)).await.unwrap();
        assert_eq!((queue.len(), queue.wake(1), queue.len()), (1, 1, 0));
        task.await.unwrap();
    });
    assert_eq!(events, ["10 Ok(\"ok\")", "11 ok"]);
}

fn a_yield_in_its_step_is_not_interrupted<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut yields = yield_now();
                let _ = poll_once(&mut yields).await;
                next_step().await; // the step that it waited for has begun
                current().request_cancel("stop");
                world.note(describe(yields.await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 ok", "0 cancelled: stop"]);
}

fn a_yield_after_its_step_is_not_interrupted<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut yields = yield_now();
                let _ = poll_once(&mut yields).await;
                world.note(describe(sleep(ms(100)).await));
                world.note(describe(yields.await));
            }
        });
        sleep(ms(5)).await.unwrap();
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(events, ["5 cancelled: stop", "5 ok"]);
}

/// A loop of attempts is cancelled while an attempt that was too slow cleans up. The attempt passes
/// the cancel on, and its timeout drops it.
fn a_cancel_that_a_timeout_drops_is_due_again<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let attempt = async || {
                    if let Err(why) = sleep(ms(100)).await {
                        sleep(ms(50)).await?; // rolls back
                        return Err(why);
                    }
                    Ok(())
                };
                loop {
                    world.note(format_args!("{:?}", timeout_after(ms(10), attempt()).await));
                    if let Err(why) = sleep(ms(10)).await {
                        world.note(why);
                        break world.note(describe(sleep(ms(1)).await));
                    }
                }
            }
        });
        sleep(ms(30)).await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(events, ["30 Err(TimedOut)", "30 cancelled", "31 ok"]);
}

/// Each branch had the cancel, one of them outside of the timeout that drops it.
fn a_cancel_that_a_timeout_drops_in_one_branch_is_not_repeated<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let timed_out = timeout_after(ms(10), async {
                    drop(sleep(ms(100)).await);
                    sleep(ms(100)).await
                });
                let cleans_up = async {
                    let why = sleep(ms(100)).await;
                    world.note(describe(sleep(ms(5)).await));
                    world.note(describe(why));
                };
                world.note(format_args!("{:?}", futures::join!(timed_out, cleans_up).0));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(30)).await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(events, ["35 ok", "35 cancelled", "35 Err(TimedOut)", "36 ok"]);
}

/// A deadline in the place of the cancel, in a set, which polls the wait that began meanwhile.
fn a_deadline_that_a_timeout_drops_interrupts_a_parked_wait<R: Runner>() {
    let events = R::run(async |world| {
        let (world, queue) = (&world, WaitQueue::new());
        let outer = timed(ms(30), async {
            let attempt = async {
                let limited = timeout_after(ms(10), async {
                    drop(sleep(ms(100)).await);
                    drop(sleep(ms(100)).await);
                    sleep(ms(5)).await
                });
                world.note(format_args!("{:?}", limited.await));
                let _ = foreign::<()>().await;
            };
            let parks = async {
                elapse(ms(32)).await;
                world.note(describe(park(&queue).await));
            };
            let mut set: FuturesUnordered<LocalBoxFuture<'_, ()>> = FuturesUnordered::new();
            set.push(Box::pin(attempt));
            set.push(Box::pin(parks));
            set.next().await;
        });
        world.note(outer.await.expired);
    });
    assert_eq!(events, ["35 Err(TimedOut)", "35 a deadline passed", "35 true"]);
}

/// `timed` gives its caller the cancel.
fn a_cancel_in_a_late_output_is_not_repeated<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let late = timed(ms(10), async {
                    drop(sleep(ms(100)).await);
                    sleep(ms(100)).await
                });
                world.note(describe(late.await.output.unwrap()));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(30)).await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(events, ["30 cancelled", "31 ok"]);
}

on_every_kernel! {
    in_order {
        a_select_loses_no_deadline_with_a_branch
        dropped_yield_wakes_no_task
        a_parked_wait_returns_the_outermost_cause_first
        a_zero_timeout_lets_the_body_run_first
        a_wake_beats_a_deadline_of_its_turn
    }
    in_any_order {
        a_select_loses_no_cancel_with_a_branch
        a_cancel_interrupts_both_branches_of_a_join
        a_branch_ends_where_another_wait_is_polled
        two_shields_of_a_branch_deliver_once
        a_yield_moved_into_a_shield_is_uninterrupted
        a_pending_cancel_and_timeout_are_both_delivered
        leaving_a_scope_discards_its_timeout_alone
        leaving_an_inner_scope_keeps_the_outer_deadline
        an_outer_deadline_returned_inside_is_not_repeated
        an_overrun_without_waits_is_reported_as_late
        leaving_a_scope_removes_its_timer
        leaving_a_scope_removes_its_due_deadline
        a_pending_cancel_precedes_a_beaten_timeout
        a_yield_in_its_step_is_not_interrupted
        every_event_beats_a_cancel_before_the_step
        a_yield_after_its_step_is_not_interrupted
        a_cancel_that_a_timeout_drops_is_due_again
        a_cancel_that_a_timeout_drops_in_one_branch_is_not_repeated
        a_deadline_that_a_timeout_drops_interrupts_a_parked_wait
        a_cancel_in_a_late_output_is_not_repeated
    }
}

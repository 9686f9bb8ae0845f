//! Pikake's decisions where its ancestors disagree, line by line.

use std::rc::Rc;
use std::task::Waker;

use super::pikake::traps::{WaitQueue, park};
use super::pikake::{TimedOut, current, sleep, spawn, timed, timeout_after, yield_now};

use super::runner::{Runner, World, describe, ms, named, on_every_kernel};

fn a_new_task_starts_in_a_later_step<R: Runner>() {
    let events = R::run(async |world| {
        let ready = spawn({
            let world = world.clone();
            async move { world.note("was ready before") }
        });
        let new = spawn({
            let world = world.clone();
            async move { world.note("starts") }
        });
        world.note("spawned");
        futures::join!(ready, new).1.unwrap();
    });
    assert_eq!(events, ["0 spawned", "0 was ready before", "0 starts"]);
}

/// A body whose sleep and whose deadline are overdue in one turn.
async fn both_due(world: &World) {
    let stalls = spawn({
        let world = world.clone();
        async move { world.stall(30) }
    });
    world.note(describe(sleep(ms(20)).await));
    stalls.await.unwrap();
}

fn an_event_beats_a_timeout_of_its_turn<R: Runner>() {
    let events = R::run(async |world| {
        world.note(format_args!("{:?}", timeout_after(ms(10), both_due(&world)).await));
        world.note(describe(sleep(ms(1)).await)); // dropped with its scope
    });
    assert_eq!(events, ["30 ok", "30 Ok(())", "31 ok"]);
}

fn a_beaten_timeout_is_pending_in_its_scope<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            both_due(&world).await;
            world.note(describe(sleep(ms(1)).await));
            world.note(describe(sleep(ms(1)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["30 ok", "30 a deadline passed", "31 ok", "31 Err(TimedOut)"]);
}

fn cancelling_a_ready_task_leaves_its_answer_alone<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                world.note(describe(park(&queue).await));
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        yield_now().await.unwrap();
        queue.wake(1);
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(events, ["0 ok", "0 cancelled: stop", "1 ok"]);
}

fn any_number_of_requests_is_one_delivery<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(sleep(ms(100)).await));
                world.note(describe(sleep(ms(100)).await));
            }
        });
        yield_now().await.unwrap();
        task.request_cancel("first");
        task.request_cancel("second");
        sleep(ms(10)).await.unwrap();
        task.request_cancel("third");
        world.note(describe(task.cancel().await));
    });
    assert_eq!(events, ["0 cancelled: first", "100 ok", "100 ok"]);
}

fn a_task_that_never_ran_is_dropped_unpolled<R: Runner>() {
    let events = R::run(async |world| {
        let guard = world.on_drop("dropped");
        let task = spawn({
            let world = world.clone();
            async move {
                let _guard = guard;
                world.note("polled");
            }
        });
        task.request_cancel("stop");
        world.note("asked");
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(events, ["0 asked", "0 dropped", "0 Err(Cancelled(cancelled: stop))"]);
}

fn a_cancel_is_delivered_before_a_timeout<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let outcome = timeout_after(ms(10), async {
                    world.stall(10);
                    current().request_cancel("stop");
                    world.note(describe(sleep(ms(1)).await));
                });
                world.note(format_args!("{:?}", outcome.await)); // the timeout is discarded
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["10 cancelled: stop", "10 Ok(())", "11 ok"]);
}

fn an_outer_deadline_does_not_expire_inner_scopes<R: Runner>() {
    let events = R::run(async |world| {
        let outer = timeout_after(ms(10), async {
            let inner = timed(ms(20), async {
                let interrupted = sleep(ms(100)).await.unwrap_err();
                assert!(interrupted.is_timeout());
                interrupted.owner().unwrap()
            });
            let inner = inner.await;
            world.note(format_args!("inner: expired {}", inner.expired));
            let own = timed(ms(20), async { sleep(ms(100)).await.unwrap_err().owner().unwrap() });
            let own = own.await;
            assert_ne!(inner.output, own.output, "another owner");
            world.note(format_args!("inner: expired {}", own.expired));
        });
        assert_eq!(outer.await, Err(TimedOut));
    });
    assert_eq!(events, ["10 inner: expired false", "30 inner: expired true"]);
}

fn a_zero_timeout_interrupts_the_first_suspending_wait<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(0), async {
            world.note("before");
            world.note(describe(sleep(ms(0)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
        let outcome = timeout_after(ms(0), yield_now()).await;
        world.note(format_args!("{outcome:?}"));
    });
    assert_eq!(events, ["0 before", "0 a deadline passed", "0 Err(TimedOut)", "0 Err(TimedOut)"]);
}

fn a_spurious_resume_ends_no_wait<R: Runner>() {
    let events = R::run(async |world| {
        let waker = Rc::new(std::cell::OnceCell::<Waker>::new());
        let task = named("waits", {
            let (world, waker) = (world.clone(), waker.clone());
            async move {
                std::future::poll_fn(|cx| {
                    waker.set(cx.waker().clone()).unwrap();
                    std::task::Poll::Ready(())
                })
                .await;
                world.note(describe(sleep(ms(50)).await));
                world.note(describe(park(&WaitQueue::new()).await));
            }
        });
        for _ in 0..10 {
            sleep(ms(10)).await.unwrap();
            waker.get().unwrap().wake_by_ref();
        }
        task.cancel().await.unwrap();
    });
    assert_eq!(events, ["50 ok", "100 cancelled"]);
}

on_every_kernel! {
    in_order {
        a_new_task_starts_in_a_later_step
        cancelling_a_ready_task_leaves_its_answer_alone
        any_number_of_requests_is_one_delivery
    }
    in_any_order {
        an_event_beats_a_timeout_of_its_turn
        a_beaten_timeout_is_pending_in_its_scope
        a_task_that_never_ran_is_dropped_unpolled
        a_cancel_is_delivered_before_a_timeout
        an_outer_deadline_does_not_expire_inner_scopes
        a_zero_timeout_interrupts_the_first_suspending_wait
        a_spurious_resume_ends_no_wait
    }
}

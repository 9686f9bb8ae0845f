//! Waits that cannot be interrupted: told of nothing, and to the rules as if they were not there.

use super::pikake::traps::elapse;
use super::pikake::{sleep, spawn, timed, timeout_after, yield_now};

use super::runner::{Runner, ms, on_every_kernel, poll_once, told};

fn it_lasts_as_long_as_it_says<R: Runner>() {
    let events = R::run(async |world| {
        elapse(ms(0)).await;
        world.note("nothing to wait for");
        elapse(ms(20)).await;
        world.note("over");
    });
    assert_eq!(events, ["0 nothing to wait for", "20 over"]);
}

fn a_body_that_waits_on_nothing_else_is_dropped<R: Runner>() {
    let events = R::run(async |world| {
        let body = async {
            let _guard = world.on_drop("body is gone");
            elapse(ms(100)).await;
        };
        world.note(format_args!("{:?}", timeout_after(ms(10), body).await));
        let task = spawn(async { elapse(ms(100)).await });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
        world.note(task.await.unwrap_err().is_cancelled());
    });
    assert_eq!(events, ["10 body is gone", "10 Err(TimedOut)", "10 true"]);
}

fn the_wait_beside_it_is_told_and_it_goes_on<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timed(ms(10), async {
            let mut timer = elapse(ms(30));
            assert!(poll_once(&mut timer).await.is_pending());
            world.note(told(sleep(ms(100)).await));
            timer.await;
            "rang"
        });
        let outcome = outcome.await;
        world.note(format_args!("{:?} expired {}", outcome.output, outcome.expired));
    });
    assert_eq!(events, ["10 a deadline passed", "30 Some(\"rang\") expired true"]);
}

fn a_pending_cause_is_left_for_the_next_wait<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut timer = elapse(ms(10));
                super::pikake::current().request_cancel("");
                assert!(poll_once(&mut timer).await.is_pending());
                world.note(told(sleep(ms(10)).await));
                timer.await;
                world.note("rang");
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 cancelled", "10 rang"]);
}

fn one_that_moves_to_another_task_wakes_that_one<R: Runner>() {
    let events = R::run(async |world| {
        let mut timer = elapse(ms(20));
        assert!(poll_once(&mut timer).await.is_pending());
        let task = spawn({
            let world = world.clone();
            async move {
                timer.await;
                world.note("rang elsewhere");
            }
        });
        task.await.unwrap();
        world.note("joined");
    });
    assert_eq!(events, ["20 rang elsewhere", "20 joined"]);
}

on_every_kernel! {
    in_order {
        a_body_that_waits_on_nothing_else_is_dropped
        the_wait_beside_it_is_told_and_it_goes_on
        one_that_moves_to_another_task_wakes_that_one
    }
    in_any_order {
        it_lasts_as_long_as_it_says
        a_pending_cause_is_left_for_the_next_wait
    }
}

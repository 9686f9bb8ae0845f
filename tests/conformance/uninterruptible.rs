//! Waits that cannot be interrupted: they return no cause, and the rules ignore them.

use super::pikake::traps::elapse;
use super::pikake::{sleep, spawn, timed, timeout_after, yield_now};

use super::runner::{Runner, describe, ms, on_every_kernel, poll_once};

fn an_elapse_lasts_as_long_as_asked<R: Runner>() {
    let events = R::run(async |world| {
        elapse(ms(0)).await;
        world.note("nothing to wait for");
        elapse(ms(20)).await;
        world.note("over");
    });
    assert_eq!(events, ["0 nothing to wait for", "20 over"]);
}

fn a_deadline_drops_a_body_of_elapses_alone<R: Runner>() {
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

fn an_elapse_outlasts_an_interrupted_sleep<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timed(ms(10), async {
            let mut timer = elapse(ms(30));
            assert!(poll_once(&mut timer).await.is_pending());
            world.note(describe(sleep(ms(100)).await));
            timer.await;
            "rang"
        });
        let outcome = outcome.await;
        world.note(format_args!("{:?} expired {}", outcome.output, outcome.expired));
    });
    assert_eq!(events, ["10 a deadline passed", "30 Some(\"rang\") expired true"]);
}

fn an_elapse_leaves_a_cancel_to_other_waits<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut timer = elapse(ms(10));
                super::pikake::current().request_cancel("");
                assert!(poll_once(&mut timer).await.is_pending());
                world.note(describe(sleep(ms(10)).await));
                timer.await;
                world.note("rang");
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["0 cancelled", "10 rang"]);
}

fn an_elapse_that_moves_wakes_its_new_task<R: Runner>() {
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
        a_deadline_drops_a_body_of_elapses_alone
        an_elapse_outlasts_an_interrupted_sleep
        an_elapse_that_moves_wakes_its_new_task
    }
    in_any_order {
        an_elapse_lasts_as_long_as_asked
        an_elapse_leaves_a_cancel_to_other_waits
    }
}

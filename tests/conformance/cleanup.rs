//! Bodies that go on after an interruption: foreign futures, graces, shields.

use std::future::{pending as foreign, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use super::pikake::time::now;
use super::pikake::{
    Task, check_interrupt, current, future_wait, shield, sleep, spawn, timed, timeout_after,
    yield_now,
};
use futures::channel::oneshot;
use futures::stream::{FuturesUnordered, StreamExt};

use super::runner::{Runner, World, describe, ms, on_every_kernel, poll_once};

fn a_foreign_rollback_may_take_the_foreign_grace<R: Runner>() {
    let events = R::run(async |world| {
        for length in [300, 999, 1_001] {
            let outcome = timed(ms(10), async {
                let _guard = world.on_drop("body is gone");
                sleep(ms(100)).await.unwrap_err();
                roll_back(length).await.unwrap();
            });
            let outcome = outcome.await;
            assert!(outcome.expired);
            world.note(format_args!("{length} {:?} late {:?}", outcome.output, outcome.late));
        }
    });
    assert_eq!(
        events,
        [
            "310 body is gone",
            "310 300 Some(()) late 300ms",
            "1319 body is gone",
            "1319 999 Some(()) late 999ms",
            "2329 body is gone", // 1319 + 10 + 1000: cut off
            "2329 1001 None late 1s",
        ]
    );
}

fn a_trap_in_a_rollback_renews_the_grace<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            sleep(ms(100)).await.unwrap_err();
            roll_back(900).await.unwrap();
            sleep(ms(1)).await.unwrap();
            roll_back(900).await.unwrap();
            world.note("rolled back");
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["1811 rolled back", "1811 Err(TimedOut)"]);
}

fn a_cancelled_task_rolls_back_through_foreign_futures<R: Runner>() {
    let events = R::run(async |world| {
        for length in [300, 3_000] {
            let task = spawn({
                let world = world.clone();
                async move {
                    let _guard = world.on_drop("body is gone");
                    sleep(ms(10_000)).await.unwrap_err();
                    roll_back(length).await.unwrap();
                    "rolled back"
                }
            });
            yield_now().await.unwrap();
            task.cancel().await.unwrap();
            world.note(format_args!("{:?}", task.await.map_err(|error| error.is_cancelled())));
        }
    });
    assert_eq!(
        events,
        ["300 body is gone", "300 Ok(\"rolled back\")", "1300 body is gone", "1300 Err(true)"]
    );
}

fn a_deadline_drops_a_scope_of_foreign_futures<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let _guard = world.on_drop("dropped");
            foreign::<()>().await;
        });
        world.note(format_args!("{:?}", outcome.await));
        let task = spawn({
            let world = world.clone();
            async move {
                let _guard = world.on_drop("dropped");
                foreign::<()>().await;
            }
        });
        yield_now().await.unwrap();
        world.note(describe(task.cancel().await));
        world.note(format_args!("{:?}", task.await.map_err(|error| error.is_cancelled())));
    });
    assert_eq!(events, ["10 dropped", "10 Err(TimedOut)", "10 dropped", "10 ok", "10 Err(true)"]);
}

fn a_deadline_interrupts_a_visible_foreign_wait<R: Runner>() {
    let events = R::run(async |world| {
        let (send, mut receive) = oneshot::channel();
        let outcome = timed(ms(10), async {
            let _guard = world.on_drop("dropped");
            world.note(describe(future_wait(&mut receive).await));
            "interrupted"
        });
        world.note(format_args!("{:?}", outcome.await.output));
        send.send(7).unwrap();
        world.note(format_args!("{:?}", future_wait(receive).await)); // was kept
    });
    assert_eq!(
        events,
        ["10 a deadline passed", "10 dropped", "10 Some(\"interrupted\")", "10 Ok(Ok(7))"]
    );
}

fn a_ready_foreign_future_beats_a_cancel<R: Runner>() {
    let events = R::run(async |world| {
        let (send, receive) = oneshot::channel();
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(format_args!("{:?}", future_wait(receive).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        yield_now().await.unwrap();
        task.request_cancel("stop");
        send.send(7).unwrap();
        task.await.unwrap();
    });
    assert_eq!(events, ["0 Ok(Ok(7))", "0 cancelled: stop"]);
}

fn a_shield_delays_a_deadline_until_its_end<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let shielded = async {
                let inside = shield(async {
                    world.note(format_args!("inside: {}", describe(sleep(ms(20)).await)));
                    world.note(format_args!("not due: {}", describe(check_interrupt())));
                });
                inside.await;
                world.note(format_args!("its branch: {}", describe(sleep(ms(5)).await)));
            };
            let open =
                async { world.note(format_args!("open: {}", describe(sleep(ms(20)).await))) };
            futures::join!(shielded, open);
            world.note(format_args!("afterwards: {}", describe(sleep(ms(5)).await)));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(
        events,
        [
            "10 open: a deadline passed",
            "20 inside: ok",
            "20 not due: ok",
            "20 its branch: a deadline passed",
            "25 afterwards: ok",
            "25 Err(TimedOut)",
        ]
    );
}

fn deadlines_inside_a_shield_work_and_shields_nest<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let inside = shield(async {
                    let inner = timeout_after(ms(20), shield(sleep(ms(30)))).await;
                    world.note(format_args!("shielded twice: {:?}", inner.map(describe)));
                    let inner = timeout_after(ms(20), sleep(ms(30))).await;
                    world.note(format_args!("shielded once: {:?}", inner.map(describe)));
                });
                inside.await;
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(5)).await.unwrap();
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(
        events,
        [
            "30 shielded twice: Ok(\"ok\")", // late, but not interrupted before its end
            "50 shielded once: Err(TimedOut)",
            "50 cancelled: stop",
            "51 ok",
        ]
    );
}

fn a_dropped_shield_gives_back_the_held_cancel<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut inside = Box::pin(shield(sleep(ms(100))));
                let mut nap = sleep(ms(10));
                poll_fn(|cx| match Pin::new(&mut nap).poll(cx) {
                    Poll::Ready(slept) => {
                        world.note(describe(slept));
                        Poll::Ready(())
                    }
                    Poll::Pending => inside.as_mut().poll(cx).map(drop),
                })
                .await;
                drop(inside);
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(10)).await.unwrap();
        task.request_cancel("stop"); // the short sleep is satisfied: its branch is due as well
        task.await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled: stop"]);
}

fn the_end_of_a_grace_drops_any_body<R: Runner>() {
    let events = R::run(async |world| {
        let stubborn = || async {
            let _guard = world.on_drop("dropped");
            loop {
                let _ = sleep(ms(7)).await;
            }
        };
        let outcome = timed(ms(10), stubborn()).grace(ms(50)).await;
        world.note(format_args!("{:?} {}", outcome.output, outcome.expired));
        let outcome = timeout_after(ms(10), shield(stubborn())).grace(ms(50)).await;
        world.note(format_args!("{outcome:?}"));
        let in_time = timeout_after(ms(10), async {
            sleep(ms(100)).await.unwrap_err();
            sleep(ms(30)).await
        });
        world.note(format_args!("{:?}", in_time.grace(ms(50)).await));
        world.note(describe(sleep(ms(100)).await)); // and that grace is gone
    });
    assert_eq!(
        events,
        [
            "60 dropped",
            "60 None true",
            "120 dropped",
            "120 Err(TimedOut)",
            "160 Err(TimedOut)",
            "260 ok",
        ]
    );
}

fn an_uncollected_answer_does_not_keep_a_scope<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let mut nap = sleep(ms(5));
            let _ = poll_once(&mut nap).await;
            foreign::<()>().await;
        });
        world.note(format_args!("{:?}", timeout_after(ms(5_000), outcome).await));
    });
    assert_eq!(events, ["10 Ok(Err(TimedOut))"]);
}

fn a_shield_protects_a_wait_cancelled_before<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut nap = sleep(ms(50));
                let _ = poll_once(&mut nap).await;
                current().request_cancel("stop"); // notifies the sleep
                world.note(describe(shield(nap).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["50 ok", "50 cancelled: stop"]);
}

fn a_shielded_cancel_is_delivered_once<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut nap = sleep(ms(5));
                let _ = poll_once(&mut nap).await;
                let inside = shield(async {
                    sleep(ms(10)).await.unwrap();
                    current().request_cancel("stop"); // notifies the shield, and the sleep outside
                    world.note(describe(nap.await)); // which has its answer
                });
                inside.await;
                world.note(describe(sleep(ms(1)).await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled: stop", "11 ok"]);
}

fn an_uncollected_yield_does_not_keep_a_scope<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            sleep(ms(100)).await.unwrap_err();
            let mut yields = yield_now();
            let _ = poll_once(&mut yields).await;
            foreign::<()>().await;
        });
        let outcome = timeout_after(ms(5_000), outcome).await;
        world.note(format_args!("{outcome:?}"));
    });
    assert_eq!(events, ["1010 Ok(Err(TimedOut))"], "after the foreign grace");
}

fn a_dropped_wait_does_not_keep_a_scope<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            sleep(ms(100)).await.unwrap_err();
            assert!(poll_once(&mut sleep(ms(50))).await.is_pending());
            foreign::<()>().await;
        });
        world.note(format_args!("{:?}", timeout_after(ms(5_000), outcome).await));
    });
    assert_eq!(events, ["1010 Ok(Err(TimedOut))"], "after the foreign grace");
}

/// The deadline called the set's waker, which may still be on its way.
fn an_unpolled_set_keeps_a_scope_one_grace<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let mut set: FuturesUnordered<_> = [sleep(ms(15_000))].into_iter().collect();
            assert!(poll_once(&mut set.next()).await.is_pending());
            foreign::<()>().await;
        });
        world.note(format_args!("{:?}", timeout_after(ms(5_000), outcome).await));
    });
    assert_eq!(events, ["1010 Ok(Err(TimedOut))"]);
}

fn an_inner_scope_does_not_keep_the_outer<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let inner = timeout_after(ms(15_000), foreign::<()>());
            let mut set: FuturesUnordered<_> = [inner].into_iter().collect();
            set.next().await
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["10 Err(TimedOut)"]);
}

fn a_trap_renews_a_grace_that_has_ended<R: Runner>() {
    let events = R::run(async |world| {
        let over = now().saturating_add(1_010_000_000);
        let outcome = timeout_after(ms(10), async {
            sleep(ms(100)).await.unwrap_err();
            // The end of the grace polls this future, which is done then.
            poll_fn(|_| if now() == over { Poll::Ready(()) } else { Poll::Pending }).await;
            sleep(ms(1)).await.unwrap();
            roll_back(900).await.unwrap();
            world.note("rolled back");
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["1911 rolled back", "1911 Err(TimedOut)"]);
}

fn a_second_request_does_not_interrupt_the_cleanup<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(sleep(ms(100)).await));
                world.note(describe(sleep(ms(20)).await));
            }
        });
        yield_now().await.unwrap();
        let first = timeout_after(ms(10), task.cancel()).await;
        world.note(format_args!("{first:?}"));
        world.note(describe(task.cancel().await));
        task.await.unwrap();
    });
    assert_eq!(events, ["0 cancelled", "10 Err(TimedOut)", "20 ok", "20 ok"]);
}

/// A task that is interrupted, and cleans up for so long.
fn cleaning(world: &World, length: u64) -> Task<&'static str> {
    let world = world.clone();
    spawn(async move {
        let _guard = world.on_drop("dropped");
        world.note(describe(sleep(ms(10_000)).await));
        world.note(describe(shield(sleep(ms(length))).await));
        "cleaned up"
    })
}

fn cancel_within_leaves_a_short_cleanup_alone<R: Runner>() {
    let events = R::run(async |world| {
        let task = cleaning(&world, 20);
        yield_now().await.unwrap();
        world.note(describe(task.cancel_within(ms(50)).await));
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(events, ["0 cancelled", "20 ok", "20 dropped", "20 ok", "20 Ok(\"cleaned up\")"]);
}

fn cancel_within_aborts_after_the_grace<R: Runner>() {
    let events = R::run(async |world| {
        let task = cleaning(&world, 5_000);
        yield_now().await.unwrap();
        world.note(describe(task.cancel_within(ms(50)).await));
        world.note(format_args!("{:?}", task.await));
        let task = spawn(async { "polled" });
        world.note(describe(task.cancel_within(ms(50)).await)); // before its first step
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(
        events,
        [
            "0 cancelled",
            "50 dropped",
            "50 ok",
            "50 Err(Cancelled(cancelled))",
            "50 ok",
            "50 Err(Cancelled(cancelled))",
        ]
    );
}

fn cancel_within_never_interrupts_the_cleanup<R: Runner>() {
    let events = R::run(async |world| {
        let task = cleaning(&world, 40);
        yield_now().await.unwrap();
        task.request_cancel("first");
        sleep(ms(10)).await.unwrap();
        world.note(describe(task.cancel_within(ms(1_000)).await));
        world.note(format_args!("{:?}", task.await));
    });
    assert_eq!(
        events,
        ["0 cancelled: first", "40 ok", "40 dropped", "40 ok", "40 Ok(\"cleaned up\")"]
    );
}

fn first_grace_that_ends_counts<R: Runner>() {
    let events = R::run(async |world| {
        for [first, second] in [[50, 500], [500, 40]] {
            let task = cleaning(&world, 5_000);
            yield_now().await.unwrap();
            let patience = timeout_after(ms(10), task.cancel_within(ms(first))).await;
            world.note(format_args!("{patience:?}")); // the request is not taken back
            world.note(describe(task.cancel_within(ms(second)).await));
        }
    });
    let one = ["0 cancelled", "10 Err(TimedOut)", "50 dropped", "50 ok"];
    let other = ["50 cancelled", "60 Err(TimedOut)", "100 dropped", "100 ok"];
    assert_eq!(events, [one, other].concat());
}

/// A foreign driver that rolls back for a while, and answers when it has finished.
fn roll_back(length: u64) -> oneshot::Receiver<()> {
    let (send, receive) = oneshot::channel();
    spawn(async move {
        sleep(ms(length)).await.unwrap();
        let _ = send.send(());
    })
    .detach();
    receive
}

on_every_kernel! {
    in_order {
        a_cancelled_task_rolls_back_through_foreign_futures
        a_deadline_drops_a_scope_of_foreign_futures
        a_ready_foreign_future_beats_a_cancel
        a_second_request_does_not_interrupt_the_cleanup
        cancel_within_leaves_a_short_cleanup_alone
        cancel_within_aborts_after_the_grace
        cancel_within_never_interrupts_the_cleanup
        first_grace_that_ends_counts
    }
    in_any_order {
        a_foreign_rollback_may_take_the_foreign_grace
        a_trap_in_a_rollback_renews_the_grace
        a_deadline_interrupts_a_visible_foreign_wait
        a_shield_delays_a_deadline_until_its_end
        deadlines_inside_a_shield_work_and_shields_nest
        a_dropped_shield_gives_back_the_held_cancel
        the_end_of_a_grace_drops_any_body
        an_uncollected_answer_does_not_keep_a_scope
        a_shield_protects_a_wait_cancelled_before
        a_shielded_cancel_is_delivered_once
        an_uncollected_yield_does_not_keep_a_scope
        a_dropped_wait_does_not_keep_a_scope
        an_unpolled_set_keeps_a_scope_one_grace
        an_inner_scope_does_not_keep_the_outer
        a_trap_renews_a_grace_that_has_ended
    }
}

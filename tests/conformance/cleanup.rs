//! What was interrupted and goes on: foreign futures, graces, shields.

use std::future::{pending as foreign, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use super::pikake::time::now;
use super::pikake::{
    check_interrupt, current, future_wait, shield, sleep, spawn, timed, timeout_after, yield_now,
};
use futures::channel::oneshot;
use futures::stream::{FuturesUnordered, StreamExt};

use super::runner::{Runner, ms, on_every_kernel, poll_once, told};

fn a_rollback_through_a_foreign_driver_may_take_the_foreign_grace<R: Runner>() {
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

fn the_foreign_grace_starts_anew_when_the_rollback_has_waited_on_a_trap<R: Runner>() {
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

fn a_cancelled_task_may_roll_back_through_a_foreign_driver<R: Runner>() {
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

fn a_scope_on_foreign_futures_alone_is_dropped_when_its_time_is_up<R: Runner>() {
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
        world.note(told(task.cancel().await));
        world.note(format_args!("{:?}", task.await.map_err(|error| error.is_cancelled())));
    });
    assert_eq!(events, ["10 dropped", "10 Err(TimedOut)", "10 dropped", "10 ok", "10 Err(true)"]);
}

fn a_foreign_wait_that_is_visible_is_interrupted_instead<R: Runner>() {
    let events = R::run(async |world| {
        let (send, mut receive) = oneshot::channel();
        let outcome = timed(ms(10), async {
            let _guard = world.on_drop("dropped");
            world.note(told(future_wait(&mut receive).await));
            "told"
        });
        world.note(format_args!("{:?}", outcome.await.output));
        send.send(7).unwrap();
        world.note(format_args!("{:?}", future_wait(receive).await)); // was kept
    });
    assert_eq!(events, ["10 a deadline passed", "10 dropped", "10 Some(\"told\")", "10 Ok(Ok(7))"]);
}

fn a_foreign_future_that_is_ready_wins_over_an_interruption_of_the_moment<R: Runner>() {
    let events = R::run(async |world| {
        let (send, receive) = oneshot::channel();
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(format_args!("{:?}", future_wait(receive).await));
                world.note(told(sleep(ms(1)).await));
            }
        });
        yield_now().await.unwrap();
        task.request_cancel("stop");
        send.send(7).unwrap();
        task.await.unwrap();
    });
    assert_eq!(events, ["0 Ok(Ok(7))", "0 cancelled: stop"]);
}

fn a_shield_is_told_in_the_place_of_those_inside<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timeout_after(ms(10), async {
            let shielded = async {
                let inside = shield(async {
                    world.note(format_args!("inside: {}", told(sleep(ms(20)).await)));
                    world.note(format_args!("not due: {}", told(check_interrupt())));
                });
                inside.await;
                world.note(format_args!("its branch: {}", told(sleep(ms(5)).await)));
            };
            let open = async { world.note(format_args!("open: {}", told(sleep(ms(20)).await))) };
            futures::join!(shielded, open);
            world.note(format_args!("afterwards: {}", told(sleep(ms(5)).await)));
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

fn deadlines_inside_a_shield_do_their_work_and_shields_nest<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let inside = shield(async {
                    let inner = timeout_after(ms(20), shield(sleep(ms(30)))).await;
                    world.note(format_args!("shielded twice: {:?}", inner.map(told)));
                    let inner = timeout_after(ms(20), sleep(ms(30))).await;
                    world.note(format_args!("shielded once: {:?}", inner.map(told)));
                });
                inside.await;
                world.note(told(sleep(ms(1)).await));
                world.note(told(sleep(ms(1)).await));
            }
        });
        sleep(ms(5)).await.unwrap();
        task.request_cancel("stop");
        task.await.unwrap();
    });
    assert_eq!(
        events,
        [
            "30 shielded twice: Ok(\"ok\")", // out of time, but not told before it was done
            "50 shielded once: Err(TimedOut)",
            "50 cancelled: stop",
            "51 ok",
        ]
    );
}

fn a_shield_that_is_dropped_gives_back_what_it_held<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut inside = Box::pin(shield(sleep(ms(100))));
                let mut nap = sleep(ms(10));
                poll_fn(|cx| match Pin::new(&mut nap).poll(cx) {
                    Poll::Ready(slept) => {
                        world.note(told(slept));
                        Poll::Ready(())
                    }
                    Poll::Pending => inside.as_mut().poll(cx).map(drop),
                })
                .await;
                drop(inside);
                world.note(told(sleep(ms(1)).await));
            }
        });
        sleep(ms(10)).await.unwrap();
        task.request_cancel("stop"); // the short sleep is satisfied: its branch is due as well
        task.await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled: stop"]);
}

fn a_grace_ends_in_a_drop_whatever_the_body_does<R: Runner>() {
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
        world.note(told(sleep(ms(100)).await)); // and that grace is gone
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

fn a_wait_with_its_answer_that_nobody_asks_for_does_not_keep_a_scope<R: Runner>() {
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

fn a_wait_that_was_told_outside_a_shield_is_not_told_inside<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut nap = sleep(ms(50));
                let _ = poll_once(&mut nap).await;
                current().request_cancel("stop"); // tells the sleep
                world.note(told(shield(nap).await));
                world.note(told(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["50 ok", "50 cancelled: stop"]);
}

fn what_a_shield_held_back_is_told_once_after_it<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                let mut nap = sleep(ms(5));
                let _ = poll_once(&mut nap).await;
                let inside = shield(async {
                    sleep(ms(10)).await.unwrap();
                    current().request_cancel("stop"); // told: the shield, and the sleep outside
                    world.note(told(nap.await)); // which has its answer
                });
                inside.await;
                world.note(told(sleep(ms(1)).await));
                world.note(told(sleep(ms(1)).await));
            }
        });
        task.await.unwrap();
    });
    assert_eq!(events, ["10 ok", "10 cancelled: stop", "11 ok"]);
}

fn a_yield_that_nobody_asks_for_does_not_keep_a_scope<R: Runner>() {
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

fn a_wait_that_was_polled_and_dropped_does_not_keep_a_scope<R: Runner>() {
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

/// The set's waker was called, and may be on its way.
fn a_set_that_nobody_polls_keeps_a_scope_for_the_foreign_grace<R: Runner>() {
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

fn an_inner_scope_in_a_set_does_not_keep_the_outer_one<R: Runner>() {
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

fn a_foreign_grace_that_ended_starts_anew_after_a_trap<R: Runner>() {
    let events = R::run(async |world| {
        let over = now().saturating_add(1_010_000_000);
        let outcome = timeout_after(ms(10), async {
            sleep(ms(100)).await.unwrap_err();
            // Finds out that it is done when it is polled because the grace is over.
            poll_fn(|_| if now() == over { Poll::Ready(()) } else { Poll::Pending }).await;
            sleep(ms(1)).await.unwrap();
            roll_back(900).await.unwrap();
            world.note("rolled back");
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["1911 rolled back", "1911 Err(TimedOut)"]);
}

fn a_second_request_does_not_reach_the_cleanup_of_the_first<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(told(sleep(ms(100)).await));
                world.note(told(sleep(ms(20)).await));
            }
        });
        yield_now().await.unwrap();
        let first = timeout_after(ms(10), task.cancel()).await;
        world.note(format_args!("{first:?}"));
        world.note(told(task.cancel().await));
        task.await.unwrap();
    });
    assert_eq!(events, ["0 cancelled", "10 Err(TimedOut)", "20 ok", "20 ok"]);
}

/// A driver of another library that needs a while to roll back, and says when it is done.
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
        a_cancelled_task_may_roll_back_through_a_foreign_driver
        a_scope_on_foreign_futures_alone_is_dropped_when_its_time_is_up
        a_foreign_future_that_is_ready_wins_over_an_interruption_of_the_moment
        a_second_request_does_not_reach_the_cleanup_of_the_first
    }
    in_any_order {
        a_rollback_through_a_foreign_driver_may_take_the_foreign_grace
        the_foreign_grace_starts_anew_when_the_rollback_has_waited_on_a_trap
        a_foreign_wait_that_is_visible_is_interrupted_instead
        a_shield_is_told_in_the_place_of_those_inside
        deadlines_inside_a_shield_do_their_work_and_shields_nest
        a_shield_that_is_dropped_gives_back_what_it_held
        a_grace_ends_in_a_drop_whatever_the_body_does
        a_wait_with_its_answer_that_nobody_asks_for_does_not_keep_a_scope
        a_wait_that_was_told_outside_a_shield_is_not_told_inside
        what_a_shield_held_back_is_told_once_after_it
        a_yield_that_nobody_asks_for_does_not_keep_a_scope
        a_wait_that_was_polled_and_dropped_does_not_keep_a_scope
        a_set_that_nobody_polls_keeps_a_scope_for_the_foreign_grace
        an_inner_scope_in_a_set_does_not_keep_the_outer_one
        a_foreign_grace_that_ended_starts_anew_after_a_trap
    }
}

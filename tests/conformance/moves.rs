//! Waits that move between scopes and tasks, that combinators poll, that are forgotten or dropped,
//! and tasks that are dropped.

use std::cell::{Cell, RefCell};
use std::future::{pending as foreign, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Waker};

use super::pikake::traps::{WaitQueue, park};
use super::pikake::{
    Task, TimedOut, current, shield, sleep, spawn, timed, timeout_after, yield_now,
};
use futures::channel::oneshot;
use futures::stream::{FuturesUnordered, StreamExt};

use super::runner::{Runner, World, describe, ms, named, next_step, on_every_kernel, poll_once};

fn a_deadline_inside_futures_unordered_wakes_its_child<R: Runner>() {
    let events = R::run(async |world| {
        let polls: [Cell<u32>; 4] = Default::default();
        let mut set = FuturesUnordered::new();
        for (number, polls) in polls.iter().enumerate() {
            let limit = if number == 2 { 10 } else { 1_000 };
            set.push(async move {
                let mut body = pin!(timeout_after(ms(limit), sleep(ms(50 + number as u64))));
                let outcome = poll_fn(|cx| {
                    polls.set(polls.get() + 1);
                    body.as_mut().poll(cx)
                });
                (number, outcome.await)
            });
        }
        while let Some((number, outcome)) = set.next().await {
            world.note(format_args!("{number} {:?}", outcome.map(describe)));
        }
        drop(set);
        assert_eq!(polls.map(Cell::into_inner), [2; 4], "once to park and once to collect");
    });
    assert_eq!(
        events,
        ["10 2 Err(TimedOut)", "50 0 Ok(\"ok\")", "51 1 Ok(\"ok\")", "53 3 Ok(\"ok\")"]
    );
}

fn a_deadline_around_futures_unordered_interrupts_every_child<R: Runner>() {
    let events = R::run(async |world| {
        let outcome = timed(ms(10), async {
            let mut set: FuturesUnordered<_> =
                (0..4).map(|number| async move { (number, sleep(ms(5 * number)).await) }).collect();
            let mut seen = Vec::new();
            while let Some((number, slept)) = set.next().await {
                seen.push((number, slept.is_ok()));
            }
            seen.sort_unstable();
            seen
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    let seen = "[(0, true), (1, true), (2, true), (3, false)]"; // the event wins for 2
    assert_eq!(events, [format!("10 Timed {{ output: Some({seen}), expired: true, late: 0ns }}")]);
}

fn a_sleep_may_leave_one_scope_for_another<R: Runner>() {
    let events = R::run(async |world| {
        let mut nap = sleep(ms(50));
        world.note(format_args!("{:?}", timeout_after(ms(10), poll_once(&mut nap)).await));
        let inside = timeout_after(ms(30), &mut nap).await;
        world.note(format_args!("{:?}", inside.map(describe)));
    });
    assert_eq!(
        events,
        ["0 Ok(Pending)", "30 Err(TimedOut)"],
        "the second scope alone interrupts it"
    );
}

fn an_unpolled_sleep_outlasts_its_scope<R: Runner>() {
    let events = R::run(async |world| {
        let mut nap = sleep(ms(50));
        let first = timeout_after(ms(10), async {
            let _ = poll_once(&mut nap).await;
            foreign::<()>().await;
        });
        world.note(format_args!("{:?}", first.await));
        let second = timeout_after(ms(1_000), &mut nap).await;
        world.note(format_args!("{:?}", second.map(describe)));
    });
    assert_eq!(events, ["10 Err(TimedOut)", "50 Ok(\"ok\")"]);
}

fn an_unpolled_park_outlasts_its_scope<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let mut waits = park(&queue);
        let first = timeout_after(ms(10), async {
            let _ = poll_once(&mut waits).await;
            foreign::<()>().await;
        });
        world.note(format_args!("{:?}", first.await));
        world.note(format_args!("{} waiting", queue.len()));
        let wakes = async {
            sleep(ms(5)).await.unwrap();
            world.note(format_args!("woke {}", queue.wake(1)));
        };
        world.note(describe(futures::join!(waits, wakes).0));
    });
    assert_eq!(events, ["10 Err(TimedOut)", "10 1 waiting", "15 woke 1", "15 ok"]);
}

fn a_wait_returns_the_deadline_it_moves_into<R: Runner>() {
    let events = R::run(async |world| {
        let mut nap = sleep(ms(100));
        let _ = poll_once(&mut nap).await;
        let (send, receive) = oneshot::channel();
        spawn(async move {
            sleep(ms(10)).await.unwrap();
            send.send(()).unwrap();
        })
        .detach();
        yield_now().await.unwrap();
        let outcome = timeout_after(ms(10), async {
            receive.await.unwrap(); // comes in the turn of the deadline, which answers no wait
            world.note(describe((&mut nap).await));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["10 a deadline passed", "10 Err(TimedOut)"]);
}

fn a_boxed_trap_moves_to_another_task<R: Runner>() {
    let events = R::run(async |world| {
        let mut nap = Box::pin(sleep(ms(50)));
        let _ = poll_once(&mut nap).await;
        let other = spawn({
            let world = world.clone();
            async move { world.note(format_args!("moved: {}", describe(nap.await))) }
        });
        yield_now().await.unwrap();
        current().request_cancel("the first task");
        world.note(format_args!("left behind: {}", describe(sleep(ms(1)).await)));
        other.await.unwrap();
    });
    assert_eq!(events, ["0 left behind: cancelled: the first task", "50 moved: ok"]);
}

fn a_yield_that_moves_is_not_interrupted_twice<R: Runner>() {
    let events = R::run(async |world| {
        let mut yields = yield_now();
        let body = async move {
            let _ = poll_once(&mut yields).await;
            let slept = describe(sleep(ms(100)).await);
            (slept, describe(yields.await))
        };
        let scope = Rc::new(RefCell::new(Some(Box::pin(timed(ms(10), body)))));
        let giver = spawn({
            let (world, scope) = (world.clone(), scope.clone());
            async move {
                let mut given = scope.take().unwrap();
                let _ = poll_once(&mut given).await;
                scope.replace(Some(given));
                world.stall(20);
                sleep(ms(1)).await.unwrap();
            }
        });
        // The kernel steps the taker after the giver, and the deadline fires before the giver's
        // next step.
        let taker = spawn(async move { scope.take().unwrap().await.output });
        world.note(format_args!("{:?}", taker.join().await));
        giver.join().await.unwrap();
    });
    // The sleep returned the cause. The other task polled the yield last, and its step has come.
    assert_eq!(events, ["20 Ok(Some((\"a deadline passed\", \"ok\")))"]);
}

fn a_notified_wait_that_moves_is_not_interrupted<R: Runner>() {
    let events = R::run(async |world| {
        let mut nap = Box::pin(sleep(ms(50)));
        let _ = poll_once(&mut nap).await;
        current().request_cancel("the first task"); // notifies the sleep, too
        let other = spawn({
            let world = world.clone();
            async move { world.note(format_args!("moved: {}", describe(nap.await))) }
        });
        next_step().await;
        next_step().await;
        world.note(format_args!("left behind: {}", describe(sleep(ms(1)).await)));
        other.await.unwrap();
    });
    assert_eq!(events, ["0 left behind: cancelled: the first task", "50 moved: ok"]);
}

fn a_join_that_timed_out_can_be_retried<R: Runner>() {
    let events = R::run(async |world| {
        let mut task = spawn(async {
            sleep(ms(25)).await.unwrap();
            7
        });
        loop {
            match timeout_after(ms(10), &mut task).await {
                Err(TimedOut) => world.note("not yet"),
                Ok(outcome) => break world.note(format_args!("{outcome:?}")),
            }
        }
    });
    assert_eq!(events, ["10 not yet", "20 not yet", "25 Ok(7)"]);
}

fn forgetting_a_parked_future_harms_no_other<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let mut waits = Box::pin({
            let queue = queue.clone();
            async move { park(&queue).await }
        });
        assert!(futures::poll!(&mut waits).is_pending());
        std::mem::forget(waits);
        let mut nap = Box::pin(sleep(ms(10)));
        let _ = poll_once(&mut nap).await;
        std::mem::forget(nap);
        sleep(ms(20)).await.unwrap();
        world.note(format_args!("woke {} of {}", queue.wake(9), queue.len() + 1));
        let outcome = timeout_after(ms(10), async {
            let mut nap = Box::pin(sleep(ms(15)));
            let _ = poll_once(&mut nap).await;
            std::mem::forget(nap); // is never polled again, and takes no cause away
            world.note(describe(sleep(ms(50)).await));
            world.note(describe(sleep(ms(50)).await));
        });
        world.note(format_args!("{:?}", outcome.await));
    });
    assert_eq!(events, ["20 woke 1 of 1", "30 a deadline passed", "80 ok", "80 Err(TimedOut)"]);
}

fn a_destructor_may_spawn<R: Runner>() {
    let events = R::run(async |world| {
        drops_with({
            let world = world.clone();
            move || {
                let later = world.clone();
                spawn(async move { later.note("spawned in a destructor") }).detach();
                world.note(format_args!("the current task is {}", current().name()));
            }
        })
        .await;
        yield_now().await.unwrap();
    });
    assert_eq!(events, ["0 the current task is dying", "0 spawned in a destructor"]);
}

fn a_destructor_may_wake<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let waiter = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move { world.note(describe(park(&queue).await)) }
        });
        yield_now().await.unwrap();
        drops_with(move || {
            queue.wake(1);
        })
        .await;
        waiter.await.unwrap();
    });
    assert_eq!(events, ["0 ok"]);
}

fn a_destructor_may_cancel_and_abort_any_task<R: Runner>() {
    let events = R::run(async |world| {
        let sleeper = |world: &World| {
            let world = world.clone();
            spawn(async move {
                let _guard = world.on_drop("dropped");
                world.note(describe(sleep(ms(100)).await));
            })
        };
        let (cancelled, aborted) = (Rc::new(sleeper(&world)), Rc::new(sleeper(&world)));
        let own: Rc<RefCell<Option<Task<()>>>> = Rc::default();
        yield_now().await.unwrap();
        let guard = OnDrop({
            let (cancelled, aborted, own) = (cancelled.clone(), aborted.clone(), own.clone());
            move || {
                cancelled.request_cancel("by a destructor");
                aborted.abort();
                let own = own.borrow();
                let own = own.as_ref().unwrap();
                own.request_cancel("too late");
                own.abort();
            }
        });
        *own.borrow_mut() = Some(spawn(async move {
            let _guard = guard;
            foreign::<()>().await;
        }));
        yield_now().await.unwrap();
        own.borrow().as_ref().unwrap().abort();
        sleep(ms(1)).await.unwrap();
        assert!(cancelled.is_finished() && aborted.is_finished());
        let own = own.take().unwrap();
        world.note(format_args!("{:?}", own.await.map_err(|error| error.is_cancelled())));
    });
    assert_eq!(events, ["0 dropped", "0 cancelled: by a destructor", "0 dropped", "1 Err(true)"]);
}

fn a_destructor_may_join<R: Runner>() {
    let events = R::run(async |world| {
        let ended = spawn(async { 7 });
        let running = spawn(async { sleep(ms(10)).await });
        yield_now().await.unwrap();
        let mut joins = Some((ended, running));
        drops_with({
            let world = world.clone();
            move || {
                let (mut ended, mut running) = joins.take().unwrap();
                let mut cx = Context::from_waker(Waker::noop());
                world.note(format_args!("{:?}", Pin::new(&mut ended).poll(&mut cx)));
                world.note(Pin::new(&mut running).poll(&mut cx).is_pending());
            }
        })
        .await;
        sleep(ms(20)).await.unwrap();
    });
    assert_eq!(events, ["0 Ready(Ok(7))", "0 true"]);
}

fn aborting_itself_ends_a_task_after_its_step<R: Runner>() {
    let events = R::run(async |world| {
        let own: Rc<RefCell<Option<Task<()>>>> = Rc::default();
        *own.borrow_mut() = Some(spawn({
            let (world, own) = (world.clone(), own.clone());
            async move {
                let _guard = world.on_drop("dropped");
                own.borrow().as_ref().unwrap().abort();
                world.note("the step goes on");
                yield_now().await.unwrap();
                world.note("not reached");
            }
        }));
        yield_now().await.unwrap();
        let own = own.take().unwrap();
        world.note(format_args!("{:?}", own.await.map_err(|error| error.is_cancelled())));
    });
    assert_eq!(events, ["0 the step goes on", "0 dropped", "0 Err(true)"]);
}

fn an_aborted_task_is_dropped_before_other_steps<R: Runner>() {
    let events = R::run(async |world| {
        let victim = spawn({
            let world = world.clone();
            async move {
                let _guard = world.on_drop("dropped");
                shield(foreign::<()>()).await; // an abort knows of no shields
            }
        });
        yield_now().await.unwrap();
        let next = spawn({
            let world = world.clone();
            async move { world.note("the next step") }
        });
        victim.abort();
        world.note("the step of the aborting task");
        next.await.unwrap();
    });
    assert_eq!(events, ["0 the step of the aborting task", "0 dropped", "0 the next step"]);
}

/// Calls a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Aborts a task whose future does `work` when it is dropped.
async fn drops_with(work: impl FnMut() + 'static) {
    let guard = OnDrop(work);
    let task = named("dying", async move {
        let _guard = guard;
        sleep(ms(1_000)).await
    });
    yield_now().await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
}

on_every_kernel! {
    in_order {
        a_wait_returns_the_deadline_it_moves_into
        a_yield_that_moves_is_not_interrupted_twice
        a_destructor_may_spawn
        a_destructor_may_wake
        a_destructor_may_cancel_and_abort_any_task
        a_destructor_may_join
        aborting_itself_ends_a_task_after_its_step
        an_aborted_task_is_dropped_before_other_steps
    }
    in_any_order {
        a_deadline_inside_futures_unordered_wakes_its_child
        a_deadline_around_futures_unordered_interrupts_every_child
        a_sleep_may_leave_one_scope_for_another
        an_unpolled_sleep_outlasts_its_scope
        an_unpolled_park_outlasts_its_scope
        a_boxed_trap_moves_to_another_task
        a_notified_wait_that_moves_is_not_interrupted
        a_join_that_timed_out_can_be_retried
        forgetting_a_parked_future_harms_no_other
    }
}

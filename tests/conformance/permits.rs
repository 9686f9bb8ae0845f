//! Permits of a wait queue: who gets them, in which order, and where they are when a waiter leaves.

use std::cell::RefCell;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::traps::{About, Queued, WaitQueue, take, take_at};
use pikake::{Interrupted, Task, current, shield, sleep, spawn, timeout_after, yield_now};

use crate::runner::{Runner, World, describe, ms, on_every_kernel, poll_once};

type Taking = Pin<Box<dyn Future<Output = Result<(), Interrupted>>>>;

/// A wait for permits that has a share of its queue.
fn taking(queue: &Rc<WaitQueue>, count: usize) -> Taking {
    let queue = queue.clone();
    Box::pin(async move { take(&queue, count).await })
}

/// A wait that has begun, and is in the queue.
async fn begun(queue: &Rc<WaitQueue>, count: usize) -> Taking {
    let mut taking = taking(queue, count);
    assert!(poll_once(&mut taking).await.is_pending());
    taking
}

/// A task that takes so many permits, notes its answer, and keeps what it got.
fn taker(world: &World, name: &'static str, queue: &Rc<WaitQueue>, count: usize) -> Task<()> {
    let (world, taking) = (world.clone(), taking(queue, count));
    spawn(async move {
        let answer = describe(taking.await);
        world.note(format_args!("{name}: {answer}"));
    })
}

fn queue(permits: usize) -> Rc<WaitQueue> {
    Rc::new(WaitQueue::with_permits(permits))
}

/// How many permits are free, how many granted, and how many wait.
fn counts(queue: &WaitQueue) -> (usize, usize, usize) {
    (queue.free(), queue.granted(), queue.len())
}

fn permits_are_granted_in_order_of_arrival<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let tasks = ["first", "second", "third"].map(|name| taker(&world, name, &queue, 1));
        yield_now().await.unwrap();
        for left in (0..tasks.len()).rev() {
            queue.give(1);
            world.note(format_args!("{left} are left"));
            assert_eq!(counts(&queue), (0, 1, left));
            sleep(ms(1)).await.unwrap();
        }
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    let expected = [
        "0 2 are left",
        "0 first: ok",
        "1 1 are left",
        "1 second: ok",
        "2 0 are left",
        "2 third: ok",
    ];
    assert_eq!(events, expected);
}

fn free_permits_are_taken_without_suspending<R: Runner>() {
    R::run(async |_| {
        let queue = queue(3);
        assert!(poll_once(&mut taking(&queue, 2)).await.is_ready());
        assert!(queue.try_take(1) && !queue.try_take(1));
        assert_eq!(counts(&queue), (0, 0, 0));
    });
}

fn newcomer_does_not_overtake_a_waiter<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(2);
        let large = taker(&world, "large", &queue, 3);
        yield_now().await.unwrap();
        assert!(!queue.try_take(1), "the waiter keeps what is free");
        let mut small = begun(&queue, 1).await;
        queue.give(1);
        assert_eq!(counts(&queue), (0, 3, 1));
        assert!(!queue.try_take(1), "the permits are the waiter's before it runs");
        assert!(poll_once(&mut small).await.is_pending());
        large.await.unwrap();
        queue.give(2);
        assert!(!queue.try_take(2), "one of two is granted");
        assert_eq!(counts(&queue), (1, 1, 0));
        assert!(queue.try_take(1), "the other is free, and nobody waits");
        small.await.unwrap();
    });
    assert_eq!(events, ["0 large: ok"]);
}

fn a_large_request_keeps_what_comes_free<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let _tasks = [taker(&world, "large", &queue, 3), taker(&world, "small", &queue, 1)];
        yield_now().await.unwrap();
        for free in 1..=2 {
            queue.give(1);
            sleep(ms(1)).await.unwrap();
            assert_eq!(counts(&queue), (free, 0, 2));
        }
        queue.give(1);
        sleep(ms(1)).await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 1));
        queue.give(1);
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(events, ["2 large: ok", "3 small: ok"]);
}

fn one_give_serves_all_it_suffices_for<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let waits = [("one", 1), ("two", 2), ("four", 4), ("last", 1)];
        let _tasks = waits.map(|(name, count)| taker(&world, name, &queue, count));
        yield_now().await.unwrap();
        queue.give(5);
        assert_eq!(counts(&queue), (2, 3, 2), "the last waits behind the four");
        sleep(ms(1)).await.unwrap();
        queue.give(2);
        assert_eq!(counts(&queue), (0, 4, 1));
        sleep(ms(1)).await.unwrap();
        queue.give(2);
        assert_eq!(counts(&queue), (1, 1, 0));
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(events, ["0 one: ok", "0 two: ok", "1 four: ok", "2 last: ok"]);
}

fn unclaimed_permits_stay_free<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        queue.give(1);
        assert_eq!(counts(&queue), (1, 0, 0));
        let task = taker(&world, "two", &queue, 2);
        sleep(ms(1)).await.unwrap();
        queue.give(4);
        assert_eq!(counts(&queue), (3, 2, 0));
        task.await.unwrap();
        assert_eq!(counts(&queue), (3, 0, 0));
        assert_eq!((queue.reclaim(), queue.reclaim()), (3, 0));
    });
    assert_eq!(events, ["1 two: ok"]);
}

fn a_wait_for_no_permits_waits_its_turn<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        assert!(queue.try_take(0));
        assert!(poll_once(&mut taking(&queue, 0)).await.is_ready());
        let _tasks = [taker(&world, "one", &queue, 1), taker(&world, "none", &queue, 0)];
        yield_now().await.unwrap();
        assert!(!queue.try_take(0), "somebody waits");
        queue.give(0);
        assert_eq!(counts(&queue), (0, 0, 2));
        queue.give(1);
        assert_eq!(counts(&queue), (0, 1, 0));
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(events, ["0 one: ok", "0 none: ok"]);
}

/// How a waiter leaves.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Leaves {
    Dropped,
    Cancelled,
    TimedOut,
    Aborted,
}
use Leaves::{Aborted, Cancelled, Dropped, TimedOut};

/// Waits for three permits, and leaves after a millisecond at the latest.
async fn leaves(world: &World, how: Leaves, queue: &Rc<WaitQueue>) {
    let mut wait = taking(queue, 3);
    match how {
        Dropped => {
            assert!(poll_once(&mut wait).await.is_pending());
            sleep(ms(1)).await.unwrap();
            drop(wait);
        }
        TimedOut => {
            let timed_out = timeout_after(ms(1), wait).await;
            world.note(format_args!("{:?}", timed_out.map(describe)));
        }
        Cancelled | Aborted => {
            let task = spawn(wait);
            sleep(ms(1)).await.unwrap();
            match how {
                Cancelled => world.note(describe(task.cancel().await.and(task.await.unwrap()))),
                _ => {
                    task.abort();
                    assert!(task.await.unwrap_err().is_cancelled());
                }
            }
        }
    }
}

/// Lets somebody who waits for three permits leave, while two are free and others wait behind.
fn leaves_those_behind<R: Runner>(how: Leaves, noted: &[&str]) {
    let events = R::run(async move |world| {
        let queue = queue(2);
        let behind = async {
            yield_now().await.unwrap();
            let mut tasks = Vec::new();
            for (name, count) in [("one", 1), ("two", 2)] {
                tasks.push(taker(&world, name, &queue, count));
                yield_now().await.unwrap();
            }
            assert_eq!(counts(&queue), (2, 0, 3));
            tasks
        };
        let ((), tasks) = futures::join!(leaves(&world, how, &queue), behind);
        assert_eq!(queue.len(), 1, "the first is served, and keeps the second waiting");
        sleep(ms(1)).await.unwrap();
        assert_eq!(counts(&queue), (1, 0, 1));
        queue.give(1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, noted);
}

fn a_dropped_head_lets_those_behind_on<R: Runner>() {
    leaves_those_behind::<R>(Dropped, &["1 one: ok", "2 two: ok"]);
}

fn a_cancelled_head_lets_those_behind_on<R: Runner>() {
    leaves_those_behind::<R>(Cancelled, &["1 one: ok", "1 cancelled", "2 two: ok"]);
}

fn a_head_timed_out_lets_those_behind_on<R: Runner>() {
    leaves_those_behind::<R>(TimedOut, &["1 Err(TimedOut)", "1 one: ok", "2 two: ok"]);
}

fn an_aborted_head_lets_those_behind_on<R: Runner>() {
    leaves_those_behind::<R>(Aborted, &["1 one: ok", "2 two: ok"]);
}

fn waiter_leaving_from_elsewhere_changes_nothing_else<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let names = ["first", "second", "third", "fourth", "fifth"];
        let tasks = names.map(|name| taker(&world, name, &queue, 1));
        yield_now().await.unwrap();
        for (number, waiting) in [(2, 4), (3, 3)] {
            tasks[number].abort(); // in the middle
            yield_now().await.unwrap();
            assert_eq!(counts(&queue), (0, 0, waiting));
        }
        tasks[4].abort(); // at the end
        yield_now().await.unwrap();
        let last = taker(&world, "sixth", &queue, 1);
        yield_now().await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 3));
        queue.give(3);
        last.await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, ["0 first: ok", "0 second: ok", "0 sixth: ok"]);
}

fn a_dropped_grant_goes_to_the_next<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let first = begun(&queue, 3).await;
        let tasks = [taker(&world, "one", &queue, 1), taker(&world, "two", &queue, 2)];
        yield_now().await.unwrap();
        queue.give(3);
        assert_eq!(counts(&queue), (0, 3, 2));
        drop(first);
        assert_eq!(counts(&queue), (0, 3, 0));
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(events, ["0 one: ok", "0 two: ok"]);
}

fn a_dropped_grant_is_free_without_a_next<R: Runner>() {
    R::run(async |_| {
        let queue = queue(0);
        let first = begun(&queue, 3).await;
        queue.give(4);
        assert_eq!(counts(&queue), (1, 3, 0));
        drop(first);
        assert_eq!(counts(&queue), (4, 0, 0));
        assert!(queue.try_take(4));
    });
}

fn a_grant_of_an_aborted_task_goes_on<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let first = taker(&world, "aborted", &queue, 2);
        yield_now().await.unwrap();
        let second = taker(&world, "next", &queue, 1);
        yield_now().await.unwrap();
        queue.give(2);
        first.abort();
        assert_eq!(counts(&queue), (0, 2, 1), "the task has not been dropped yet");
        second.await.unwrap();
        assert_eq!(counts(&queue), (1, 0, 0));
    });
    assert_eq!(events, ["0 next: ok"]);
}

fn a_grant_dropped_with_its_scope_goes_on<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let scope = timeout_after(ms(10), async {
            let wait = begun(&queue, 2).await;
            queue.give(2);
            sleep(ms(20)).await.unwrap_err();
            // It was granted before the deadline passed, and nobody looks.
            assert_eq!(counts(&queue), (0, 2, 1));
            drop(wait);
        });
        let next = async {
            sleep(ms(1)).await.unwrap();
            let next = taker(&world, "next", &queue, 1);
            next.await.unwrap();
        };
        let (timed_out, ()) = futures::join!(scope, next);
        world.note(format_args!("{timed_out:?}"));
        assert_eq!(counts(&queue), (1, 0, 0));
    });
    assert_eq!(events, ["10 next: ok", "10 Err(TimedOut)"]);
}

/// The task is interrupted and has its permits in one step, in either order.
fn a_grant_beats_a_cancel_of_its_step<R: Runner>() {
    for cancel_first in [true, false] {
        let events = R::run(async move |world| {
            let queue = queue(0);
            let task = spawn({
                let (world, queue) = (world.clone(), queue.clone());
                async move {
                    world.note(describe(take(&queue, 2).await));
                    assert_eq!(counts(&queue), (0, 0, 0));
                    world.note(describe(take(&queue, 1).await));
                    assert_eq!(counts(&queue), (0, 0, 0));
                    world.note(describe(shield(sleep(ms(1))).await));
                }
            });
            yield_now().await.unwrap();
            if cancel_first {
                task.request_cancel("stop");
            }
            queue.give(2);
            if !cancel_first {
                task.request_cancel("stop");
            }
            task.await.unwrap();
        });
        assert_eq!(events, ["0 ok", "0 cancelled: stop", "1 ok"]);
    }
}

fn a_grant_beats_a_deadline_of_its_turn<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let giver = spawn({
            let queue = queue.clone();
            async move {
                sleep(ms(10)).await.unwrap();
                queue.give(1);
            }
        });
        let scope = timeout_after(ms(10), async {
            world.note(describe(take(&queue, 1).await));
            assert_eq!(counts(&queue), (0, 0, 0));
            world.note(describe(take(&queue, 1).await)); // the deadline is due here
        });
        world.note(format_args!("{:?}", scope.await));
        giver.await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, ["10 ok", "10 a deadline passed", "10 Err(TimedOut)"]);
}

/// Free permits are taken at once. The next wait that suspends returns the due interruption.
fn a_due_cancel_leaves_free_permits_to_take<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(1);
        current().request_cancel("soon");
        world.note(describe(take(&queue, 1).await));
        world.note(describe(take(&queue, 1).await));
        assert_eq!(counts(&queue), (0, 0, 0), "the second never waited");
        world.note(describe(sleep(ms(1)).await));
    });
    assert_eq!(events, ["0 ok", "0 cancelled: soon", "1 ok"]);
}

fn an_interrupted_taker_has_no_permits<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(1);
        let task = taker(&world, "two", &queue, 2);
        yield_now().await.unwrap();
        task.request_cancel("stop");
        assert_eq!(counts(&queue), (1, 0, 1), "it waits until it is polled");
        task.await.unwrap();
        assert_eq!(counts(&queue), (1, 0, 0));
        queue.give(1);
        assert_eq!(counts(&queue), (2, 0, 0));
    });
    assert_eq!(events, ["0 two: cancelled: stop"]);
}

fn a_waiting_take_moves_to_another_task<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let moved = begun(&queue, 2).await;
        let behind = taker(&world, "behind", &queue, 1);
        yield_now().await.unwrap();
        let other = spawn({
            let world = world.clone();
            async move { world.note(format_args!("moved: {}", describe(moved.await))) }
        });
        yield_now().await.unwrap();
        current().request_cancel("the first task");
        world.note(format_args!("left behind: {}", describe(sleep(ms(1)).await)));
        queue.give(2);
        assert_eq!(counts(&queue), (0, 2, 1), "the wait has kept its place");
        other.await.unwrap();
        queue.give(1);
        behind.await.unwrap();
    });
    let expected = ["0 left behind: cancelled: the first task", "0 moved: ok", "0 behind: ok"];
    assert_eq!(events, expected);
}

fn a_granted_take_moves_to_another_task<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let moved = begun(&queue, 2).await;
        queue.give(2);
        let other = spawn({
            let world = world.clone();
            async move { world.note(format_args!("moved: {}", describe(moved.await))) }
        });
        other.await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, ["0 moved: ok"]);
}

fn takers_in_futures_unordered_are_served_in_order<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let mut waits: Vec<Taking> = Vec::new();
        for count in 1..=3 {
            waits.push(begun(&queue, count).await); // with the waker of the task
        }
        let mut set = FuturesUnordered::new();
        for (number, wait) in waits.into_iter().enumerate() {
            set.push(async move { (number, wait.await) });
        }
        let giver = spawn({
            let queue = queue.clone();
            async move {
                for _ in 0..6 {
                    sleep(ms(1)).await.unwrap();
                    queue.give(1);
                }
            }
        });
        while let Some((number, answer)) = set.next().await {
            world.note(format_args!("{number}: {}", describe(answer)));
        }
        giver.await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, ["1 0: ok", "3 1: ok", "6 2: ok"]);
}

/// A wait that is forgotten while it waits leaves with its queue; one that was granted something
/// stays.
fn a_forgotten_wait_leaves_with_its_queue<R: Runner>() {
    let events = R::run(async |world| {
        let doomed = WaitQueue::new();
        for count in 1..=3 {
            let mut wait = take(&doomed, count);
            assert!(poll_once(&mut wait).await.is_pending());
            std::mem::forget(wait);
        }
        let kept = queue(0);
        let task = taker(&world, "kept", &kept, 1);
        yield_now().await.unwrap();
        doomed.give(2);
        assert_eq!(counts(&doomed), (1, 1, 2), "granted to one that will never collect");
        drop(doomed);
        let after = [taker(&world, "after", &kept, 1), taker(&world, "last", &kept, 1)];
        sleep(ms(1)).await.unwrap();
        assert_eq!(counts(&kept), (0, 0, 3));
        kept.give(3);
        task.await.unwrap();
        for task in after {
            task.await.unwrap();
        }
        assert_eq!(counts(&kept), (0, 0, 0));
    });
    assert_eq!(events, ["1 kept: ok", "1 after: ok", "1 last: ok"]);
}

fn a_destructor_gives_permits_to_those_that_wait<R: Runner>() {
    /// Gives a permit back.
    struct Permit(Rc<WaitQueue>);

    impl Drop for Permit {
        fn drop(&mut self) {
            self.0.give(1);
        }
    }

    let events = R::run(async |world| {
        let queue = queue(1);
        let holder = spawn({
            let queue = queue.clone();
            async move {
                take(&queue, 1).await.unwrap();
                let _permit = Permit(queue);
                sleep(ms(100)).await
            }
        });
        yield_now().await.unwrap();
        let next = taker(&world, "next", &queue, 1);
        yield_now().await.unwrap();
        holder.abort();
        next.await.unwrap();
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, ["0 next: ok"]);
}

/// A queue whose waiters serve nobody when they leave.
struct Selfish<'a>(&'a WaitQueue);

impl Queued for Selfish<'_> {
    fn queue(&self) -> &WaitQueue {
        self.0
    }

    fn about(&self) -> About {
        About::new("a permit")
    }

    fn left(&self) {}
}

/// Permits that a dropped wait did not collect are free; whoever takes the wait back serves the
/// next, or takes the permits away.
fn permits_of_a_dropped_trap_await_serve<R: Runner>() {
    let events = R::run(async |world| {
        let queue = queue(0);
        let mut selfish = [(); 2].map(|()| take_at(Selfish(&queue), 1, Location::caller()));
        for wait in &mut selfish {
            assert!(poll_once(wait).await.is_pending());
        }
        let next = taker(&world, "next", &queue, 1);
        yield_now().await.unwrap();
        queue.give(2);
        let [first, second] = selfish;
        drop(first);
        assert_eq!(counts(&queue), (1, 1, 1));
        assert!(!queue.try_take(1), "somebody waits");
        assert_eq!(queue.reclaim(), 1);
        drop(second);
        assert_eq!(counts(&queue), (1, 0, 1));
        queue.serve();
        assert_eq!(counts(&queue), (0, 1, 0));
        next.await.unwrap();
        queue.serve();
        queue.recover();
        assert_eq!(counts(&queue), (0, 0, 0));
    });
    assert_eq!(events, ["0 next: ok"]);
}

/// Leaves two waits in a queue whose kernel ends: one that has been granted two permits, and one
/// that waits.
fn outlived<R: Runner>(queue: &Rc<WaitQueue>) -> [Taking; 2] {
    let left = Rc::new(RefCell::new(Vec::new()));
    let (queue, waits) = (queue.clone(), left.clone());
    R::run(async move |_| {
        for _ in 0..2 {
            let wait = begun(&queue, 2).await;
            waits.borrow_mut().push(wait);
        }
        queue.give(3);
        assert_eq!(counts(&queue), (1, 2, 1));
    });
    <[Taking; 2]>::try_from(left.take()).ok().expect("two waits")
}

fn permits_granted_in_an_ended_kernel_are_recovered<R: Runner>() {
    let queue = queue(0);
    let left = outlived::<R>(&queue);
    queue.recover();
    assert_eq!(counts(&queue), (3, 0, 0));
    assert!(queue.try_take(3), "nobody waits");
    drop(left);
    assert_eq!(counts(&queue), (0, 0, 0));
}

fn waits_dropped_after_their_kernel_free_permits<R: Runner>() {
    let queue = queue(0);
    let [granted, waiting] = outlived::<R>(&queue);
    drop(granted);
    assert_eq!(counts(&queue), (3, 0, 0));
    drop(waiting);
    assert_eq!(counts(&queue), (3, 0, 0), "they are counted once");
}

/// The waits of an ended kernel are forgotten, or dropped while the queue is part of another
/// kernel.
fn another_kernel_has_what_an_ended_one_granted<R: Runner>() {
    for is_forgotten in [true, false] {
        let queue = queue(0);
        let left = outlived::<R>(&queue);
        let mut left = Some(left);
        if is_forgotten {
            std::mem::forget(left.take());
        }
        let events = R::run(async move |world| {
            let tasks = [taker(&world, "two", &queue, 2), taker(&world, "four", &queue, 4)];
            yield_now().await.unwrap();
            assert_eq!(counts(&queue), (1, 0, 1));
            drop(left.take());
            assert_eq!(counts(&queue), (1, 0, 1), "the waits of the other kernel count no more");
            queue.give(3);
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(counts(&queue), (0, 0, 0));
        });
        assert_eq!(events, ["0 two: ok", "0 four: ok"]);
    }
}

fn permits_survive_their_queues_kernels<R: Runner>() {
    let kept = queue(1);
    for round in 0..3 {
        let queue = kept.clone();
        let events = R::run(async move |world| {
            let tasks = ["one", "other"].map(|name| taker(&world, name, &queue, 1));
            sleep(ms(1)).await.unwrap();
            assert_eq!(counts(&queue), (0, 0, 1), "in round {round}");
            queue.give(1);
            for task in tasks {
                task.await.unwrap();
            }
            queue.give(1);
        });
        assert_eq!(events, ["0 one: ok", "1 other: ok"]);
        assert_eq!(counts(&kept), (1, 0, 0));
    }
}

on_every_kernel! {
    in_order {
        permits_are_granted_in_order_of_arrival
        newcomer_does_not_overtake_a_waiter
        a_large_request_keeps_what_comes_free
        one_give_serves_all_it_suffices_for
        a_wait_for_no_permits_waits_its_turn
        a_dropped_head_lets_those_behind_on
        a_cancelled_head_lets_those_behind_on
        a_head_timed_out_lets_those_behind_on
        an_aborted_head_lets_those_behind_on
        waiter_leaving_from_elsewhere_changes_nothing_else
        a_dropped_grant_goes_to_the_next
        a_grant_of_an_aborted_task_goes_on
        a_grant_beats_a_cancel_of_its_step
        a_grant_beats_a_deadline_of_its_turn
        an_interrupted_taker_has_no_permits
        a_waiting_take_moves_to_another_task
        a_forgotten_wait_leaves_with_its_queue
        a_destructor_gives_permits_to_those_that_wait
        permits_of_a_dropped_trap_await_serve
        another_kernel_has_what_an_ended_one_granted
        permits_survive_their_queues_kernels
    }
    in_any_order {
        free_permits_are_taken_without_suspending
        unclaimed_permits_stay_free
        a_dropped_grant_is_free_without_a_next
        a_grant_dropped_with_its_scope_goes_on
        a_due_cancel_leaves_free_permits_to_take
        a_granted_take_moves_to_another_task
        takers_in_futures_unordered_are_served_in_order
        permits_granted_in_an_ended_kernel_are_recovered
        waits_dropped_after_their_kernel_free_permits
    }
}

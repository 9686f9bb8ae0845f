//! The assertions of Curio's `test_queue` about queues inside one kernel, and eventlet's rules for
//! queues.

use std::rc::Rc;

use pikake::sync::{LifoQueue, NotPut, PriorityQueue, Queue};
use pikake::{sleep, spawn, timeout_after, yield_now};

use crate::runner::{Runner, describe, ms, on_every_kernel};

fn consumers_get_items_in_turn_and_join_waits<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(Queue::unbounded());
        let consumers: Vec<_> = ["one", "two"]
            .map(|name| {
                let (world, queue) = (world.clone(), queue.clone());
                spawn(async move {
                    loop {
                        let Some(item) = queue.get().await.unwrap() else { break };
                        world.note(format_args!("{name} {item}"));
                        queue.task_done().unwrap();
                    }
                    world.note(format_args!("{name} is done"));
                })
            })
            .into();
        yield_now().await.unwrap();
        for item in 0..4 {
            queue.put(item).await.unwrap();
            sleep(ms(1)).await.unwrap();
        }
        queue.join().await.unwrap();
        world.note("joined");
        queue.close();
        for consumer in consumers {
            consumer.await.unwrap();
        }
    });
    let expected =
        ["0 one 0", "1 two 1", "2 one 2", "3 two 3", "4 joined", "4 one is done", "4 two is done"];
    assert_eq!(events, expected);
}

fn an_unbounded_queue_takes_everything_at_once<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(Queue::unbounded());
        let consumer = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                while let Some(item) = queue.get().await.unwrap() {
                    world.note(format_args!("got {item}"));
                    sleep(ms(1)).await.unwrap();
                    queue.task_done().unwrap();
                }
            }
        });
        for item in 0..3 {
            queue.put(item).await.unwrap();
            world.note(format_args!("put {item}"));
        }
        queue.join().await.unwrap();
        world.note("joined");
        queue.close();
        consumer.await.unwrap();
    });
    let expected = ["0 put 0", "0 put 1", "0 put 2", "0 got 0", "1 got 1", "2 got 2", "3 joined"];
    assert_eq!(events, expected);
}

fn a_bounded_queue_makes_the_producer_wait<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(Queue::bounded(2));
        let consumer = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                while let Some(item) = queue.get().await.unwrap() {
                    world.note(format_args!("got {item}"));
                    sleep(ms(10)).await.unwrap();
                    queue.task_done().unwrap();
                }
            }
        });
        for item in 0..5 {
            queue.put(item).await.unwrap();
            world.note(format_args!("put {item}"));
        }
        queue.join().await.unwrap();
        world.note("joined");
        queue.close();
        consumer.await.unwrap();
    });
    let expected = [
        "0 put 0",
        "0 put 1",
        "0 got 0",
        "0 put 2",
        "10 got 1",
        "10 put 3",
        "20 got 2",
        "20 put 4",
        "30 got 3",
        "40 got 4",
        "50 joined",
    ];
    assert_eq!(events, expected);
}

fn a_get_can_be_cancelled_or_time_out<R: Runner>() {
    let events = R::run(async |world| {
        let queue: Rc<Queue<u8>> = Rc::new(Queue::unbounded());
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move { world.note(queue.get().await.unwrap_err()) }
        });
        sleep(ms(1)).await.unwrap();
        task.cancel().await.unwrap();
        world.note(format_args!("{:?}", timeout_after(ms(5), queue.get()).await));
        assert_eq!(queue.getting(), 0);
    });
    let expected = ["1 cancelled", "6 Err(TimedOut)"];
    assert_eq!(events, expected);
}

fn a_put_can_be_cancelled_or_time_out<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(Queue::bounded(1));
        queue.put(0).await.unwrap();
        let task = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                let error = queue.put(1).await.unwrap_err();
                world.note(format_args!("{} is back: {}", error.item, error.why));
            }
        });
        sleep(ms(1)).await.unwrap();
        task.cancel().await.unwrap();
        assert!(timeout_after(ms(5), queue.put(2)).await.is_err());
        world.note(format_args!("{:?}", queue.put_timeout(3, ms(5)).await));
        assert_eq!((queue.len(), queue.putting(), queue.try_get()), (1, 0, Ok(0)));
    });
    let expected = ["1 1 is back: waiting for room was cut short (cancelled)", "11 Ok(Err(3))"];
    assert_eq!(events, expected);
}

fn a_queue_knows_its_length<R: Runner>() {
    R::run(async |_| {
        let queue = Queue::bounded(2);
        assert_eq!((queue.len(), queue.is_empty(), queue.is_full()), (0, true, false));
        queue.put(1).await.unwrap();
        queue.put(2).await.unwrap();
        assert_eq!((queue.len(), queue.is_empty(), queue.is_full()), (2, false, true));
    });
}

fn priority_queues_give_the_smallest_stacks_the_last<R: Runner>() {
    R::run(async |_| {
        let (smallest, last) = (PriorityQueue::unbounded(), LifoQueue::unbounded());
        for item in [3, 1, 2] {
            smallest.put(item).await.unwrap();
            last.put(item).await.unwrap();
        }
        for expected in [(1, 2), (2, 1), (3, 3)] {
            let got = (smallest.get().await.unwrap(), last.get().await.unwrap());
            assert_eq!(got, (Some(expected.0), Some(expected.1)));
        }
    });
}

fn a_get_gives_the_smallest_of_that_moment<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(PriorityQueue::unbounded());
        let consumer = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                while let Some(item) = queue.get().await.unwrap() {
                    world.note(item);
                }
            }
        });
        yield_now().await.unwrap();
        for item in [3, 1, 2] {
            queue.put(item).await.unwrap();
        }
        sleep(ms(1)).await.unwrap();
        queue.close();
        consumer.await.unwrap();
    });
    assert_eq!(events, ["0 1", "0 2", "0 3"]);
}

/// A getter that was interrupted a step before the item gets nothing. A getter that got the item
/// before the interruption keeps it.
fn an_interrupted_getter_leaves_the_item_to_others<R: Runner>() {
    let events = R::run(async |world| {
        for item_first in [false, true] {
            let queue = Rc::new(Queue::unbounded());
            let getters: Vec<_> = ["one", "two"]
                .map(|name| {
                    let (world, queue) = (world.clone(), queue.clone());
                    spawn(async move {
                        let got = queue.get().await.map_err(|_| "interrupted");
                        world.note(format_args!("{name} {got:?}"));
                    })
                })
                .into();
            yield_now().await.unwrap();
            if item_first {
                queue.put(7).await.unwrap();
                getters[0].request_cancel("");
            } else {
                getters[0].request_cancel("");
                yield_now().await.unwrap();
                queue.put(7).await.unwrap();
            }
            sleep(ms(1)).await.unwrap();
            getters[1].request_cancel("");
            for getter in getters {
                getter.await.unwrap();
            }
        }
    });
    let expected = [
        "0 one Err(\"interrupted\")",
        "0 two Ok(Some(7))",
        "1 one Ok(Some(7))",
        "2 two Err(\"interrupted\")",
    ];
    assert_eq!(events, expected);
}

fn an_item_beats_a_cancel_of_its_step<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(Queue::unbounded());
        let getter = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                world.note(format_args!("{:?}", queue.get().await));
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(1)).await.unwrap();
        getter.request_cancel("");
        queue.put(7).await.unwrap();
        getter.await.unwrap();
        assert_eq!((queue.len(), queue.getting()), (0, 0));
    });
    assert_eq!(events, ["1 Ok(Some(7))", "1 cancelled"]);
}

fn a_queue_without_room_hands_items_over<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(Queue::bounded(0));
        let putter = spawn({
            let (world, queue) = (world.clone(), queue.clone());
            async move {
                for item in 0..3 {
                    queue.put(item).await.unwrap();
                    world.note(format_args!("put {item}"));
                }
            }
        });
        for _ in 0..3 {
            sleep(ms(10)).await.unwrap();
            world.note(format_args!("got {}", queue.get().await.unwrap().unwrap()));
        }
        putter.await.unwrap();
        assert!(queue.is_empty() && queue.is_full());
    });
    let expected = ["10 got 0", "10 put 0", "20 got 1", "20 put 1", "30 got 2", "30 put 2"];
    assert_eq!(events, expected);
}

fn closing_a_queue_returns_items_to_waiting_putters<R: Runner>() {
    let events = R::run(async |world| {
        let (full, empty) = (Rc::new(Queue::bounded(1)), Rc::new(Queue::<u8>::bounded(1)));
        full.put(0).await.unwrap();
        let putter = spawn({
            let full = full.clone();
            async move { full.put(1).await.unwrap_err() }
        });
        let getter = spawn({
            let empty = empty.clone();
            async move { empty.get().await }
        });
        sleep(ms(1)).await.unwrap();
        full.close();
        empty.close();
        let error = putter.await.unwrap();
        world.note(error.item);
        assert_eq!(error.why, NotPut::Closed);
        assert_eq!(getter.await.unwrap(), Ok(None));
        assert_eq!((full.get().await, full.get().await), (Ok(Some(0)), Ok(None)));
    });
    assert_eq!(events, ["1 1"]);
}

fn one_task_done_too_many_is_an_error<R: Runner>() {
    R::run(async |_| {
        let queue = Queue::unbounded();
        queue.join().await.unwrap();
        queue.put(1).await.unwrap();
        queue.task_done().unwrap();
        queue.task_done().unwrap_err();
        queue.join().await.unwrap();
    });
}

on_every_kernel! {
    in_order {
        consumers_get_items_in_turn_and_join_waits
        an_interrupted_getter_leaves_the_item_to_others
    }
    in_any_order {
        an_unbounded_queue_takes_everything_at_once
        a_bounded_queue_makes_the_producer_wait
        a_get_can_be_cancelled_or_time_out
        a_put_can_be_cancelled_or_time_out
        a_queue_knows_its_length
        priority_queues_give_the_smallest_stacks_the_last
        a_get_gives_the_smallest_of_that_moment
        an_item_beats_a_cancel_of_its_step
        a_queue_without_room_hands_items_over
        closing_a_queue_returns_items_to_waiting_putters
        one_task_done_too_many_is_an_error
    }
}

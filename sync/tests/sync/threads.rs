//! Primitives that threads and kernels share: awaiting and blocking, interruptions, random calls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::stream::StreamExt;
use pikake::sync::shared::{Event, Mutex, Queue, channel, unbounded_channel};
use pikake::sync::{NotPut, TryGetError, TryPutError};
use pikake::testing::Injector;
use pikake::{Kernel, TimedOut, sleep, spawn, timeout_after, yield_now};

use crate::support::insist::{FOREVER, Insistent, THREADS};
use crate::support::{ms, within};

fn assert_shared<T: Send + Sync>() {}

#[test]
fn shared_primitives_are_send_and_sync() {
    assert_shared::<Mutex<std::cell::Cell<u8>>>();
    assert_shared::<Queue<std::cell::Cell<u8>>>();
    assert_shared::<Event>();
    assert_shared::<pikake::sync::shared::Sender<u8>>();
    assert_shared::<pikake::sync::shared::Receiver<u8>>();
}

#[test]
fn new_queue_is_empty_outside_a_kernel() {
    let queue: Queue<u8> = Queue::bounded(2);
    assert!(queue.is_empty() && !queue.is_closed());
    assert_eq!(queue.try_get(), Err(TryGetError::Empty));
    let expected = "Queue { length: 0, capacity: Some(2), getting: 0, putting: 0, unfinished: 0, closed: false }";
    assert_eq!(format!("{queue:?}"), expected);
    assert_eq!(format!("{:?}", Mutex::new(1)), "Mutex { held_by: None, waiting: 0, .. }");
    assert_eq!(format!("{:?}", Event::new()), "Event { is_set: false, waiting: 0 }");
}

#[test]
fn thread_produces_and_joins_while_task_consumes() {
    within(|| {
        let queue = Arc::new(Queue::bounded(2));
        let producer = thread::spawn({
            let queue = queue.clone();
            move || {
                (0..10).for_each(|number| queue.blocking_put(number).unwrap());
                queue.blocking_join();
                queue.close();
            }
        });
        let got = pikake::run(async {
            let mut got = Vec::new();
            while let Some(item) = queue.get().await.unwrap() {
                got.push(item);
                queue.task_done().unwrap();
            }
            got
        });
        assert_eq!(got, (0..10).collect::<Vec<_>>());
        producer.join().unwrap();
    });
}

#[test]
fn task_produces_and_joins_while_thread_consumes() {
    within(|| {
        let queue = Arc::new(Queue::bounded(0));
        let consumer = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut got = Vec::new();
                while let Some(item) = queue.blocking_get() {
                    got.push(item);
                    queue.task_done().unwrap();
                }
                got
            }
        });
        pikake::run(async {
            for number in 0..10 {
                queue.put(number).await.unwrap();
            }
            queue.join().await.unwrap();
            queue.close();
        });
        assert_eq!(consumer.join().unwrap(), (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn timed_out_gets_lose_no_item() {
    within(|| {
        let queue = Arc::new(Queue::bounded(2));
        let producer = thread::spawn({
            let queue = queue.clone();
            move || {
                for number in 0..30 {
                    thread::sleep(Duration::from_micros(number * 37 % 400));
                    queue.blocking_put(number).unwrap();
                }
                queue.close();
            }
        });
        let got = pikake::run(async {
            let mut got = Vec::new();
            loop {
                match timeout_after(Duration::from_micros(100), queue.get()).await {
                    Ok(Ok(Some(item))) => got.push(item),
                    Ok(Ok(None)) => return got,
                    Ok(Err(error)) => panic!("{error}"),
                    Err(TimedOut) => {}
                }
            }
        });
        assert_eq!(got, (0..30).collect::<Vec<_>>());
        producer.join().unwrap();
    });
}

#[test]
fn timed_out_put_returns_the_item() {
    within(|| {
        let queue = Queue::bounded(1);
        queue.try_put(1).unwrap();
        assert_eq!(queue.blocking_put_timeout(2, ms(1)), Err(TryPutError::Full(2)));
        assert_eq!(queue.try_put(3), Err(TryPutError::Full(3)));
        pikake::run(async {
            let mut back = None;
            let put = async {
                let error = queue.put(4).await.unwrap_err();
                back = error.interrupted().is_some().then_some(error.item);
            };
            assert_eq!(timeout_after(ms(1), put).await, Err(TimedOut));
            assert_eq!(back, Some(4));
        });
        queue.close();
        assert_eq!(queue.blocking_put(5).unwrap_err().why, NotPut::Closed);
        assert_eq!(queue.blocking_get_timeout(ms(1)), Ok(1));
        assert_eq!(queue.blocking_get_timeout(ms(1)), Err(TryGetError::Closed));
    });
}

#[test]
fn three_kernels_get_each_item_once() {
    const ITEMS: usize = 1_000;
    within(|| {
        let queue = Arc::new(Queue::bounded(10));
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || {
                    pikake::run(async {
                        let mut got = Vec::new();
                        while let Some(item) = queue.get().await.unwrap() {
                            got.push(item);
                        }
                        got
                    })
                })
            })
            .collect();
        pikake::run(async {
            for number in 0..ITEMS {
                queue.put(number).await.unwrap();
            }
            queue.close();
        });
        let mut all = BTreeSet::new();
        for consumer in consumers {
            let got = consumer.join().unwrap();
            assert!(got.is_sorted());
            for item in got {
                assert!(all.insert(item), "{item} came twice");
            }
        }
        assert_eq!(all.len(), ITEMS);
    });
}

#[test]
fn threads_and_tasks_wait_for_one_event() {
    within(|| {
        let (event, begun) = (Arc::new(Event::new()), Arc::new(Event::new()));
        assert!(!event.blocking_wait_timeout(ms(1)));
        let waiter = thread::spawn({
            let (event, begun) = (event.clone(), begun.clone());
            move || {
                begun.set();
                event.blocking_wait();
            }
        });
        pikake::run(async {
            begun.wait().await.unwrap();
            let too_early = timeout_after(ms(1), event.wait()).await;
            assert!(too_early.is_err() && !event.is_set());
            let task = spawn({
                let event = event.clone();
                async move { event.wait().await }
            });
            yield_now().await.unwrap();
            event.set();
            task.await.unwrap().unwrap();
        });
        waiter.join().unwrap();
        event.clear();
        assert!(!event.is_set());
    });
}

#[test]
fn a_channel_is_a_stream_for_a_task() {
    within(|| {
        let (sender, mut receiver) = unbounded_channel();
        let thread = thread::spawn(move || {
            (1..=3).for_each(|number| sender.send(number).unwrap());
        });
        let got: Vec<_> =
            pikake::run(async { receiver.stream().map(Result::unwrap).collect().await });
        assert_eq!(got, [1, 2, 3]);
        thread.join().unwrap();

        let (sender, receiver) = channel(1);
        drop(receiver);
        assert_eq!(sender.blocking_send(1).unwrap_err().why, NotPut::Closed);
    });
}

#[test]
fn blocking_inside_a_kernel_panics_with_advice() {
    let outcome = pikake::try_run(async { Queue::<u8>::unbounded().blocking_get() });
    let error = outcome.unwrap_err();
    let message = error.panic_message().unwrap();
    assert!(message.contains("await the call without `_blocking`"), "{message}");
}

#[test]
fn tasks_and_threads_proceed_in_order_of_arrival() {
    within(|| {
        let queue = Arc::new(Queue::unbounded());
        let until_waiting = |count: usize| {
            let shown = format!("getting: {count},");
            while !format!("{queue:?}").contains(&shown) {
                thread::yield_now();
            }
        };
        let waiters: Vec<_> = (0..6)
            .map(|number| {
                let waiter = thread::spawn({
                    let queue = queue.clone();
                    move || match number % 2 {
                        0 => queue.blocking_get().unwrap(),
                        _ => pikake::run(async { queue.get().await.unwrap().unwrap() }),
                    }
                });
                until_waiting(number + 1);
                waiter
            })
            .collect();
        (0..6).for_each(|number| queue.try_put(number).unwrap());
        let got: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
        assert_eq!(got, [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn shared_lock_passes_over_interrupted_or_dropped_waiters() {
    within(|| {
        let mutex = Mutex::new(0);
        pikake::run(async {
            let held = mutex.try_lock().unwrap();
            let mut dropped = Box::pin(mutex.lock());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            let timed_out = timeout_after(ms(1), async { mutex.lock().await.map(drop) }).await;
            assert_eq!(timed_out, Err(TimedOut));
            let mut last = Box::pin(mutex.lock());
            assert!(futures::poll!(last.as_mut()).is_pending());
            drop(held); // it is the first one's, which goes away
            assert!(mutex.try_lock().is_err());
            drop(dropped);
            *last.await.unwrap() += 1;
        });
        assert_eq!(mutex.into_inner(), 1);
    });
}

#[test]
fn interrupted_shared_queue_loses_nothing() {
    let program = || async {
        // A driver may wake for a message that has been read already, which must not pass for
        // a program that does nothing any more: so there is always a timer.
        spawn(async { while sleep(FOREVER).await.is_ok() {} }).detach();
        let insistent = Insistent::default();
        let (there, back) = (Arc::new(Queue::bounded(1)), Arc::new(Queue::bounded(1)));
        let echo = thread::spawn({
            let (there, back) = (there.clone(), back.clone());
            move || {
                while let Some(item) = there.blocking_get() {
                    back.blocking_put(item).unwrap();
                }
            }
        });
        let mut got = Vec::new();
        for number in 0..4 {
            let mut item = number;
            while let Err(error) = there.put(item).await {
                insistent.note(&error);
                item = error.into_item();
            }
            got.extend(insistent.on(|| back.get()).await);
        }
        there.close();
        echo.join().unwrap();
        (got, insistent.told.get())
    };
    Injector::new().cleanup_limit(None).patience(THREADS).run(program, |run| {
        let (got, told) = run.output.as_ref().unwrap();
        assert_eq!(*got, [0, 1, 2, 3]);
        assert!(*told <= 1);
    });
}

/// Eight threads, of which four run kernels, put and get through one small queue, under one lock;
/// half of the waits are given up early.
#[test]
fn random_calls_from_threads_and_tasks_lose_nothing() {
    const EACH: u64 = 2_000;
    const THREADS: u64 = 8;
    within(|| {
        let queue = Arc::new(Queue::bounded(3));
        let tally = Arc::new(Mutex::new((0, 0)));
        let threads: Vec<_> = (0..THREADS)
            .map(|who| {
                let (queue, tally) = (queue.clone(), tally.clone());
                thread::spawn(move || match who % 4 {
                    // Threads and kernels that put, in pairs with those that get.
                    0 => {
                        for number in 0..EACH {
                            let mut item = number;
                            while let Err(error) =
                                queue.blocking_put_timeout(item, Duration::from_micros(20))
                            {
                                item = error.into_item();
                            }
                        }
                    }
                    1 => pikake::run(async {
                        for number in 0..EACH {
                            let mut item = Some(number);
                            while let Some(again) = item.take() {
                                let put =
                                    async { item = queue.put(again).await.err().map(|e| e.item) };
                                let _ = timeout_after(Duration::from_micros(20), put).await;
                            }
                        }
                    }),
                    2 => {
                        let mut got = 0;
                        while got < EACH {
                            if let Ok(item) = queue.blocking_get_timeout(Duration::from_micros(20))
                            {
                                got += 1;
                                let mut tally = tally.blocking_lock();
                                tally.0 += 1;
                                tally.1 += item;
                            }
                        }
                    }
                    _ => pikake::run(async {
                        let mut got = 0;
                        while got < EACH {
                            let item = timeout_after(Duration::from_micros(20), queue.get()).await;
                            if let Ok(Ok(Some(item))) = item {
                                got += 1;
                                let mut tally = tally.lock().await.unwrap();
                                tally.0 += 1;
                                tally.1 += item;
                            }
                        }
                    }),
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(queue.is_empty());
        let putters = THREADS / 2;
        assert_eq!(*tally.blocking_lock(), (putters * EACH, putters * EACH * (EACH - 1) / 2));
    });
}

#[test]
fn a_kernel_sleeps_until_another_thread_sends() {
    within(|| {
        let (sender, mut receiver) = channel(1);
        let kernel = Kernel::new().unwrap();
        let thread = thread::spawn(move || {
            thread::sleep(ms(5));
            sender.blocking_send(7).unwrap();
        });
        let got = kernel.run(async {
            let also = spawn(async { sleep(ms(1)).await });
            let got = receiver.recv().await;
            also.await.unwrap().unwrap();
            got
        });
        assert_eq!(got, Ok(Some(7)));
        thread.join().unwrap();
        kernel.shutdown();
    });
}

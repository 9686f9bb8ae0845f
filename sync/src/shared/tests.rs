//! What threads share, under the model checker: all interleavings of a few small programs that
//! random schedules reach.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shuttle::thread;

use super::items::{Getting, Putting};
use super::wait::Wait;
use crate::shared::{Event, Mutex, Queue, bounded_channel};

/// How many schedules each program is run under.
const SCHEDULES: usize = 3_000;

#[track_caller]
fn check(program: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(program, SCHEDULES);
}

/// Polls a wait once and drops it, as one is that was interrupted. Gives its output if it had one.
fn poll_and_drop<F: Future + Unpin>(mut wait: F) -> Option<F::Output> {
    match Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => {
            thread::yield_now(); // somebody may call it now
            None
        }
    }
}

#[test]
fn a_mutex_excludes_and_reaches_everybody() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let mutex = mutex.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mut count = mutex.lock_blocking();
                        let before = *count;
                        thread::yield_now();
                        *count = before + 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*mutex.lock_blocking(), 6);
    });
}

#[test]
fn every_item_comes_once_and_in_its_senders_order() {
    for capacity in [0, 1, 2] {
        check(move || {
            let queue = Arc::new(Queue::bounded(capacity));
            let putters: Vec<_> = (0..2)
                .map(|who| {
                    let queue = queue.clone();
                    thread::spawn(move || {
                        for number in 0..2 {
                            queue.put_blocking((who, number)).unwrap();
                        }
                    })
                })
                .collect();
            let getters: Vec<_> = (0..2)
                .map(|_| {
                    let queue = queue.clone();
                    thread::spawn(move || {
                        let mut got = Vec::new();
                        while let Some(item) = queue.get_blocking() {
                            got.push(item);
                            queue.task_done().unwrap();
                        }
                        got
                    })
                })
                .collect();
            putters.into_iter().for_each(|thread| thread.join().unwrap());
            queue.join_blocking();
            queue.close();
            let mut all = BTreeSet::new();
            for getter in getters {
                let got = getter.join().unwrap();
                for who in 0..2 {
                    assert!(got.iter().filter(|item| item.0 == who).is_sorted(), "{got:?}");
                }
                for item in got {
                    assert!(all.insert(item), "{item:?} came twice");
                }
            }
            assert_eq!(all.len(), 4);
        });
    }
}

#[test]
fn what_was_handed_to_one_who_is_gone_goes_to_the_next() {
    check(|| {
        let queue = Arc::new(Queue::bounded(1));
        let putter = thread::spawn({
            let queue = queue.clone();
            move || (0..3).for_each(|number| queue.put_blocking(number).unwrap())
        });
        let fickle = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut got = Vec::new();
                for _ in 0..3 {
                    got.extend(poll_and_drop(Wait::<_, _, Getting>::new(&queue.0, ())));
                }
                got.into_iter().map(|got| got.ok().unwrap().1).collect::<Vec<_>>()
            }
        });
        let steady = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut got = Vec::new();
                while let Some(item) = queue.get_blocking() {
                    got.push(item);
                }
                got
            }
        });
        putter.join().unwrap();
        let mut got = fickle.join().unwrap();
        queue.close();
        got.extend(steady.join().unwrap());
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2]);
    });
}

#[test]
fn what_is_taken_back_was_not_taken() {
    check(|| {
        let queue = Arc::new(Queue::bounded(0));
        let fickle = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut wait = Wait::<_, _, Putting>::new(&queue.0, 7);
                let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop()));
                thread::yield_now();
                match polled {
                    Poll::Ready(Ok(())) => None,
                    Poll::Ready(Err(item)) => Some(item),
                    Poll::Pending => {
                        wait.leave(true);
                        wait.take_back()
                    }
                }
            }
        });
        let getter = thread::spawn({
            let queue = queue.clone();
            move || queue.get_blocking()
        });
        let back = fickle.join().unwrap();
        queue.close();
        let got = getter.join().unwrap();
        assert!(got.is_some() ^ back.is_some(), "{got:?}, {back:?}");
    });
}

#[test]
fn an_event_that_is_set_and_cleared_lets_go_on_who_waited() {
    check(|| {
        let event = Arc::new(Event::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let event = event.clone();
                thread::spawn(move || event.wait_blocking())
            })
            .collect();
        while !format!("{event:?}").contains("waiting: 2") {
            thread::yield_now();
        }
        event.set();
        event.clear();
        waiters.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_channel_ends_with_its_senders() {
    check(|| {
        let (sender, mut receiver) = bounded_channel(1);
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || sender.send_blocking(number).unwrap())
            })
            .collect();
        drop(sender);
        let mut got = Vec::new();
        while let Some(item) = receiver.recv_blocking() {
            got.push(item);
        }
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

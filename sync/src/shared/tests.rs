//! Small programs of several threads, run by the model checker under random schedules.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use shuttle::thread;

use super::broadcast::{Receiving, RecvError};
use super::items::{Getting, Putting};
use super::notify::Notified;
use super::wait::Wait;
use crate::shared::{Event, Mutex, Notify, Queue, broadcast, channel, watch};

/// The number of schedules of each program.
const SCHEDULES: usize = 3_000;

#[track_caller]
fn check(program: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(program, SCHEDULES);
}

/// Polls a wait once and drops it, as an interruption does. Returns its output, if there is one.
fn poll_and_drop<F: Future + Unpin>(mut wait: F) -> Option<F::Output> {
    match Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => {
            thread::yield_now(); // another thread may grant it something now
            None
        }
    }
}

#[test]
fn mutex_excludes_and_serves_all_threads() {
    check(|| {
        let mutex = Arc::new(Mutex::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let mutex = mutex.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mut count = mutex.blocking_lock();
                        let before = *count;
                        thread::yield_now();
                        *count = before + 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*mutex.blocking_lock(), 6);
    });
}

#[test]
fn items_arrive_once_in_order_of_their_sender() {
    for capacity in [0, 1, 2] {
        check(move || {
            let queue = Arc::new(Queue::bounded(capacity));
            let putters: Vec<_> = (0..2)
                .map(|sender| {
                    let queue = queue.clone();
                    thread::spawn(move || {
                        for number in 0..2 {
                            queue.blocking_put((sender, number)).unwrap();
                        }
                    })
                })
                .collect();
            let getters: Vec<_> = (0..2)
                .map(|_| {
                    let queue = queue.clone();
                    thread::spawn(move || {
                        let mut got = Vec::new();
                        while let Some(item) = queue.blocking_get() {
                            got.push(item);
                            queue.task_done().unwrap();
                        }
                        got
                    })
                })
                .collect();
            putters.into_iter().for_each(|thread| thread.join().unwrap());
            queue.blocking_join();
            queue.close();
            let mut all = BTreeSet::new();
            for getter in getters {
                let got = getter.join().unwrap();
                for sender in 0..2 {
                    assert!(got.iter().filter(|item| item.0 == sender).is_sorted(), "{got:?}");
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
fn uncollected_item_goes_to_next_getter() {
    check(|| {
        let queue = Arc::new(Queue::bounded(1));
        let putter = thread::spawn({
            let queue = queue.clone();
            move || (0..3).for_each(|number| queue.blocking_put(number).unwrap())
        });
        let dropping = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut got = Vec::new();
                for _ in 0..3 {
                    got.extend(poll_and_drop(Wait::<_, _, Getting>::new(&queue.0, ())));
                }
                got.into_iter().map(|got| got.ok().unwrap().1).collect::<Vec<_>>()
            }
        });
        let waiting = thread::spawn({
            let queue = queue.clone();
            move || {
                let mut got = Vec::new();
                while let Some(item) = queue.blocking_get() {
                    got.push(item);
                }
                got
            }
        });
        putter.join().unwrap();
        let mut got = dropping.join().unwrap();
        queue.close();
        got.extend(waiting.join().unwrap());
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2]);
    });
}

#[test]
fn item_is_got_or_taken_back() {
    check(|| {
        let queue = Arc::new(Queue::bounded(0));
        let dropping = thread::spawn({
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
            move || queue.blocking_get()
        });
        let back = dropping.join().unwrap();
        queue.close();
        let got = getter.join().unwrap();
        assert!(got.is_some() ^ back.is_some(), "{got:?}, {back:?}");
    });
}

#[test]
fn event_set_and_cleared_releases_waiters() {
    check(|| {
        let event = Arc::new(Event::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let event = event.clone();
                thread::spawn(move || event.blocking_wait())
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
fn channel_ends_with_its_last_sender() {
    check(|| {
        let (sender, mut receiver) = channel(1);
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || sender.blocking_send(number).unwrap())
            })
            .collect();
        drop(sender);
        let mut got = Vec::new();
        while let Some(item) = receiver.blocking_recv() {
            got.push(item);
        }
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn broadcast_items_arrive_once_or_are_missed() {
    check(|| {
        let (sender, first) = broadcast::channel(2);
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let mut receiver = first.resubscribe();
                thread::spawn(move || {
                    let (mut got, mut missed) = (Vec::new(), 0);
                    loop {
                        match receiver.blocking_recv() {
                            Ok(item) => got.push(item),
                            Err(RecvError::Lagged(number)) => missed += number,
                            Err(RecvError::Closed) => return (got, missed),
                        }
                    }
                })
            })
            .collect();
        let dropping = thread::spawn(move || {
            let wait = Wait::<_, _, Receiving>::new(&*first.shared, first.next);
            let _ = poll_and_drop(wait);
        });
        let senders: Vec<_> = (0..2)
            .map(|number| {
                let sender = sender.clone();
                thread::spawn(move || {
                    sender.send((number, 0));
                    sender.send((number, 1));
                })
            })
            .collect();
        senders.into_iter().for_each(|thread| thread.join().unwrap());
        dropping.join().unwrap();
        let mut late = sender.subscribe();
        drop(sender);
        for receiver in receivers {
            let (got, missed) = receiver.join().unwrap();
            assert_eq!(got.len() as u64 + missed, 4, "{got:?}");
            for sender in 0..2 {
                assert!(got.iter().filter(|item| item.0 == sender).is_sorted(), "{got:?}");
            }
        }
        assert_eq!(late.blocking_recv(), Err(RecvError::Closed));
        assert!(format!("{late:?}").contains("kept: 0"), "{late:?}");
    });
}

#[test]
fn watchers_see_the_last_change_and_the_end() {
    check(|| {
        let (sender, receiver) = watch::channel(0);
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let mut receiver = receiver.clone();
                thread::spawn(move || {
                    let mut seen = vec![receiver.get()];
                    while receiver.blocking_changed() {
                        seen.push(receiver.get());
                    }
                    seen
                })
            })
            .collect();
        for number in 1..=3 {
            sender.send(number);
        }
        drop(sender);
        for receiver in receivers {
            let seen = receiver.join().unwrap();
            assert!(seen.is_sorted() && seen.last() == Some(&3), "{seen:?}");
        }
    });
}

#[test]
fn notification_reaches_a_waiter_that_stays() {
    check(|| {
        let notify = Arc::new(Notify::new());
        let dropping = thread::spawn({
            let notify = notify.clone();
            move || poll_and_drop(Wait::<_, _, Notified>::new(&notify.0, 0)).is_some()
        });
        let waiting = thread::spawn({
            let notify = notify.clone();
            move || notify.blocking_notified()
        });
        notify.notify_one();
        if dropping.join().unwrap() {
            notify.notify_one();
        }
        waiting.join().unwrap();
        assert!(format!("{notify:?}").contains("is_notified: false, waiting: 0"), "{notify:?}");
    });
}

#[test]
fn waiters_of_an_ended_round_leave_one_notification_at_most() {
    check(|| {
        let notify = Arc::new(Notify::new());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let notify = notify.clone();
                thread::spawn(move || notify.blocking_notified())
            })
            .collect();
        while notify.waiting() < 2 {
            thread::yield_now();
        }
        let one = thread::spawn({
            let notify = notify.clone();
            move || notify.notify_one()
        });
        notify.notify_all();
        one.join().unwrap();
        waiters.into_iter().for_each(|thread| thread.join().unwrap());
        let rounds = notify.0.lock();
        assert!(rounds.free <= 1 && rounds.granted == 0 && rounds.ended == 0, "{rounds:?}");
    });
}

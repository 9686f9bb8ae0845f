//! Hand-over of locks, permits and notifications, also when the receiver has left.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use futures::future::{join, select};
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::sync::{Condvar, Event, Mutex, Queue, RwLock, Semaphore};
use pikake::{sleep, spawn, timeout_after, yield_now};

use crate::order::all;
use crate::support::{ms, named, run};

#[test]
fn newcomers_do_not_overtake_waiters() {
    run(async {
        let mutex = Rc::new(Mutex::new(()));
        let held = mutex.lock().await.unwrap();
        let waiter = named("waiter", {
            let mutex = mutex.clone();
            async move { drop(mutex.lock().await.unwrap()) }
        });
        yield_now().await.unwrap();
        drop(held);
        assert!(mutex.is_locked() && mutex.try_lock().is_err(), "it is the waiter's already");
        let mut mine = pin!(mutex.lock());
        assert!(futures::poll!(mine.as_mut()).is_pending());
        drop(mine.await.unwrap());
        assert!(waiter.is_finished());

        let queue = Rc::new(Queue::unbounded());
        let getter = spawn({
            let queue = queue.clone();
            async move { queue.get().await.unwrap() }
        });
        yield_now().await.unwrap();
        queue.put(1).await.unwrap();
        assert!(queue.try_get().is_err() && queue.len() == 1, "it is promised");
        queue.put(2).await.unwrap();
        assert_eq!(queue.try_get(), Ok(2), "the first is for the one that was first");
        assert_eq!(getter.await.unwrap(), Some(1));
    });
}

/// Drops a waiter that is first in line, before and after something was handed over to it.
macro_rules! dropped {
    ($name:ident, $make:expr, $hand_over:expr, $wait:expr) => {
        #[test]
        fn $name() {
            for after in [false, true] {
                run(async {
                    let shared = Rc::new($make);
                    let wait = $wait;
                    let begin = $hand_over;
                    // Something that takes everything there is, until it is called.
                    let hand_over = begin(shared.clone()).await;
                    let mut first = Box::pin(wait(shared.clone()));
                    assert!(futures::poll!(first.as_mut()).is_pending());
                    let second = spawn(wait(shared.clone()));
                    yield_now().await.unwrap();
                    if after {
                        hand_over();
                        drop(first);
                    } else {
                        drop(first);
                        hand_over();
                    }
                    second.await.unwrap();
                });
            }
        }
    };
}

dropped!(
    a_lock_goes_to_the_next_when_its_waiter_is_dropped,
    Mutex::new(()),
    async |shared: Rc<Mutex<()>>| {
        let held = {
            let (gate, opened) = futures::channel::oneshot::channel::<()>();
            let holder = spawn(async move {
                let _held = shared.lock().await.unwrap();
                let _ = pikake::future_wait(opened).await;
            });
            holder.detach();
            yield_now().await.unwrap();
            gate
        };
        move || drop(held)
    },
    |shared: Rc<Mutex<()>>| async move { drop(shared.lock().await.unwrap()) }
);

dropped!(
    a_permit_goes_to_the_next_when_its_waiter_is_dropped,
    Semaphore::new(0),
    async |shared: Rc<Semaphore>| move || shared.add_permits(1).unwrap(),
    |shared: Rc<Semaphore>| async move { drop(shared.acquire().await.unwrap()) }
);

dropped!(
    an_item_goes_to_the_next_when_its_getter_is_dropped,
    Queue::unbounded(),
    async |shared: Rc<Queue<u8>>| move || shared.try_put(1).unwrap(),
    |shared: Rc<Queue<u8>>| async move { assert_eq!(shared.get().await, Ok(Some(1))) }
);

#[test]
fn leaving_large_request_lets_small_ones_proceed() {
    run(async {
        let semaphore = Rc::new(Semaphore::new(2));
        let mut large = Box::pin(semaphore.acquire_many(3));
        assert!(futures::poll!(large.as_mut()).is_pending());
        let small = spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.unwrap().forget() }
        });
        yield_now().await.unwrap();
        assert_eq!((semaphore.waiting(), semaphore.available_permits()), (2, 2));
        drop(large);
        small.await.unwrap();
        assert_eq!((semaphore.waiting(), semaphore.available_permits()), (0, 1));
    });
}

#[test]
fn a_writer_that_leaves_lets_readers_go_on() {
    run(async {
        let lock = Rc::new(RwLock::new(()));
        let reads = lock.read().await.unwrap();
        let writer = spawn({
            let lock = lock.clone();
            async move { lock.write().await.map(drop) }
        });
        yield_now().await.unwrap();
        assert!(lock.try_read().is_err(), "a writer waits");
        let reader = spawn({
            let lock = lock.clone();
            async move { lock.read().await.map(drop) }
        });
        yield_now().await.unwrap();
        assert_eq!(lock.waiting(), 2);
        writer.cancel().await.unwrap();
        assert!(writer.await.unwrap().is_err());
        reader.await.unwrap().unwrap();
        drop(reads);
        assert!(lock.try_write().is_ok());
    });
}

/// A deadline that passes answers no wait, and an answer that comes before the next poll wins.
#[test]
fn a_permit_beats_a_deadline_before_the_poll() {
    run(async {
        let semaphore = Semaphore::new(0);
        let mut lies_around = Box::pin(timeout_after(ms(1), semaphore.acquire()));
        assert!(futures::poll!(lies_around.as_mut()).is_pending());
        sleep(ms(2)).await.unwrap();
        assert_eq!((semaphore.waiting(), semaphore.available_permits()), (1, 0));
        semaphore.add_permits(1).unwrap();
        let permit = lies_around.await.expect("it was not told").unwrap();
        assert_eq!((semaphore.waiting(), semaphore.available_permits()), (0, 0));
        drop(permit);
        assert_eq!((semaphore.waiting(), semaphore.available_permits()), (0, 1));
    });
}

#[test]
fn several_waits_of_one_task() {
    run(async {
        let mutex = Mutex::new(Vec::new());
        let event = Event::new();
        let mut held = mutex.lock().await.unwrap();
        held.push(0);
        let waits: FuturesUnordered<_> = (1..=10)
            .map(|number| {
                let (mutex, event) = (&mutex, &event);
                async move {
                    mutex.lock().await.unwrap().push(number);
                    event.wait().await.unwrap();
                }
            })
            .collect();
        let release = async {
            yield_now().await.unwrap();
            drop(held);
            sleep(ms(1)).await.unwrap();
            event.set();
        };
        join(waits.collect::<Vec<()>>(), release).await;
        assert_eq!(mutex.into_inner(), (0..=10).collect::<Vec<_>>());
    });
}

#[test]
fn loser_of_a_select_releases_its_permit() {
    run(async {
        let (one, other) = (Semaphore::new(0), Semaphore::new(0));
        let both = select(Box::pin(one.acquire()), Box::pin(other.acquire()));
        let release = async {
            yield_now().await.unwrap();
            one.add_permits(1).unwrap();
            other.add_permits(1).unwrap();
        };
        let (got, ()) = join(
            async {
                let (permit, _loser) = both.await.factor_first();
                permit.unwrap().num_permits()
            },
            release,
        )
        .await;
        assert_eq!(got, 1);
        assert_eq!((one.available_permits(), other.available_permits()), (1, 1));
    });
}

/// The receiver of the notification is dropped before it has the lock.
#[test]
fn unused_notification_goes_to_the_next_waiter() {
    run(async {
        let shared = Rc::new((Mutex::new(()), Condvar::new()));
        let mut first = Box::pin({
            let shared = shared.clone();
            async move {
                let held = shared.0.lock().await.unwrap();
                drop(shared.1.wait(held).await.unwrap());
            }
        });
        assert!(futures::poll!(first.as_mut()).is_pending());
        let second = spawn({
            let shared = shared.clone();
            async move {
                let held = shared.0.lock().await.unwrap();
                drop(shared.1.wait(held).await.unwrap());
            }
        });
        yield_now().await.unwrap();
        let held = shared.0.lock().await.unwrap();
        assert_eq!(shared.1.notify(1), 1);
        assert!(futures::poll!(first.as_mut()).is_pending(), "it waits for the lock");
        assert_eq!(shared.1.waiting(), 1);
        drop(first);
        assert_eq!(shared.1.waiting(), 0);
        drop(held);
        second.await.unwrap();
    });
}

#[test]
fn places_in_the_queue_are_reused() {
    // Nothing to be seen from outside but that it works, with more and fewer waiters than before.
    run(async {
        let semaphore = Rc::new(Semaphore::new(0));
        let done = Rc::new(Cell::new(0));
        for many in [1, 3, 200, 2, 100, 1] {
            let tasks: Vec<_> = (0..many)
                .map(|_| {
                    let (semaphore, done) = (semaphore.clone(), done.clone());
                    spawn(async move {
                        semaphore.acquire().await.unwrap().forget();
                        done.set(done.get() + 1);
                    })
                })
                .collect();
            yield_now().await.unwrap();
            semaphore.add_permits(many).unwrap();
            all(tasks).await;
        }
        assert_eq!((done.get(), semaphore.available_permits()), (307, 0));
    });
}

#[test]
fn lock_and_its_waiters_outlive_their_kernel() {
    let mutex = Mutex::new(0);
    let queue = Queue::bounded(1);
    let mut left_over = Box::pin(mutex.lock());
    let mut put_in_vain = Box::pin(queue.put(2));
    run(async {
        let held = mutex.lock().await.unwrap();
        queue.put(1).await.unwrap();
        assert!(futures::poll!(left_over.as_mut()).is_pending());
        assert!(futures::poll!(put_in_vain.as_mut()).is_pending());
        drop(held); // handed over to one who will never see it
    });
    assert_eq!((mutex.is_locked(), queue.putting()), (true, 1));
    drop((left_over, put_in_vain));
    assert_eq!((mutex.is_locked(), queue.putting()), (false, 0));
    run(async {
        let held = mutex.lock().await.unwrap();
        let mut next = Box::pin(mutex.lock());
        assert!(futures::poll!(next.as_mut()).is_pending());
        drop(held);
        *next.await.unwrap() += 1;
        assert_eq!(queue.get().await, Ok(Some(1)));
    });
    assert_eq!(mutex.into_inner(), 1);
}

#[test]
fn free_permit_is_taken_despite_a_due_interruption() {
    run(async {
        let (mutex, semaphore, queue) = (Mutex::new(()), Semaphore::new(1), Queue::unbounded());
        pikake::current().request_cancel("soon");
        drop(mutex.lock().await.unwrap());
        drop(semaphore.acquire().await.unwrap());
        queue.put(1).await.unwrap();
        assert_eq!(queue.get().await, Ok(Some(1)));
        assert_eq!(queue.get().await.unwrap_err().reason(), Some("soon"));
    });
}

/// A deadline that passes answers no wait: the writer is in the queue until it is polled.
#[test]
fn a_reader_waits_behind_an_unpolled_writer() {
    run(async {
        let lock = RwLock::new(());
        let reads = lock.read().await.unwrap();
        let mut lies_around = Box::pin(timeout_after(ms(1), lock.write()));
        assert!(futures::poll!(lies_around.as_mut()).is_pending());
        sleep(ms(2)).await.unwrap();
        let mut also_reads = Box::pin(lock.read());
        assert!(futures::poll!(also_reads.as_mut()).is_pending());
        assert_eq!((lock.reading(), lock.waiting()), (1, 2));
        assert!(lies_around.await.is_err());
        let also_reads = also_reads.await.unwrap();
        assert_eq!((lock.reading(), lock.waiting()), (2, 0));
        drop((reads, also_reads));
        assert!(lock.try_write().is_ok());
    });
}

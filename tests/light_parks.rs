//! Light parks: what is seen of them, and what moves, ends or is dropped meanwhile.
//!
//! The first wait of a task, and the first in a queue, have records. So tasks and queues are warmed up
//! before what is tested begins.
mod support;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::traps::{TrapKind, WaitQueue, park};
use pikake::{Interrupted, Kernel, TimedOut, sleep, spawn, timeout_after, yield_now};
use support::{Log, kernel, ms};

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Waits in a queue that it owns a share of.
fn parked(queue: &Rc<WaitQueue>) -> Boxed<Result<(), Interrupted>> {
    let queue = queue.clone();
    Box::pin(async move { park(&queue).await })
}

/// Polls once; tells whether it is done.
async fn is_ready<T>(future: &mut Boxed<T>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

/// Has the current task wait in the queue, and go on.
async fn warm_up(queue: &Rc<WaitQueue>) {
    let waker = queue.clone();
    spawn(async move { assert_eq!(waker.wake(1), 1) }).detach();
    park(queue).await.unwrap();
}

fn is_clean<C: pikake::time::Clock + 'static>(kernel: &Kernel<C>) {
    assert_eq!((kernel.wait_count(), kernel.waits().len()), (0, 0));
}

#[test]
fn they_are_seen_and_counted_like_others() {
    let kernel = kernel();
    let queue = Rc::new(WaitQueue::new());
    let of_task = queue.clone();
    let (id, place) = kernel.run(async move {
        let task = spawn(async move {
            warm_up(&of_task).await;
            park(&of_task).await
        });
        sleep(ms(1)).await.unwrap();
        let id = task.id();
        task.detach();
        (id, line!() - 5)
    });
    let waits = kernel.waits();
    assert_eq!((kernel.wait_count(), queue.len()), (1, 1));
    assert_eq!((waits[0].task.id(), waits[0].trap), (id, TrapKind::Park));
    assert_eq!((waits[0].place.file(), waits[0].place.line()), (file!(), place));
    assert_eq!(queue.wake(1), 1);
    assert_eq!((kernel.wait_count(), kernel.waits().len(), queue.len()), (1, 0, 0));
    kernel.run(async { yield_now().await.unwrap() });
    is_clean(&kernel);
}

#[test]
fn those_who_come_later_stand_behind() {
    let kernel = kernel();
    let log = Log::default();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        warm_up(&queue).await;
        for name in ["first", "second", "third"] {
            let (queue, log) = (queue.clone(), log.clone());
            let task = spawn(async move {
                warm_up(&Rc::new(WaitQueue::new())).await;
                park(&queue).await.unwrap();
                log.add(name);
            });
            task.detach();
            sleep(ms(1)).await.unwrap();
        }
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.wake(2), 2);
        sleep(ms(1)).await.unwrap();
        log.add("later");
        assert_eq!(queue.wake(2), 1);
        sleep(ms(1)).await.unwrap();
    });
    assert_eq!(log.take(), ["first", "second", "later", "third"]);
    is_clean(&kernel);
}

#[test]
fn one_that_is_cancelled_leaves_the_queue_to_others() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        warm_up(&queue).await;
        let waiting = || {
            let queue = queue.clone();
            spawn(async move {
                warm_up(&Rc::new(WaitQueue::new())).await;
                park(&queue).await
            })
        };
        let (one, other) = (waiting(), waiting());
        sleep(ms(1)).await.unwrap();
        one.request_cancel("not wanted");
        assert_eq!((queue.len(), queue.wake(2)), (1, 1));
        let outcomes = (one.join().await, other.join().await);
        assert!(matches!(outcomes, (Ok(Err(_)), Ok(Ok(())))), "{outcomes:?}");
        assert_eq!(queue.wake(1), 0);
    });
    is_clean(&kernel);
}

#[test]
fn a_cancel_does_not_take_a_wake_back() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        let of_task = queue.clone();
        let task = spawn(async move {
            warm_up(&of_task).await;
            let woken = park(&of_task).await;
            (woken, park(&of_task).await.is_err())
        });
        sleep(ms(1)).await.unwrap();
        assert_eq!(queue.wake(1), 1);
        task.request_cancel("too late for the first");
        assert_eq!(task.join().await.unwrap(), (Ok(()), true));
        assert_eq!(queue.len(), 0);
    });
    is_clean(&kernel);
}

#[test]
fn a_wake_of_one_that_is_dropped_goes_to_the_next() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        warm_up(&queue).await;
        let mut first = parked(&queue);
        assert!(!is_ready(&mut first).await);
        let of_next = queue.clone();
        let next = spawn(async move { park(&of_next).await });
        yield_now().await.unwrap();
        assert_eq!((queue.len(), queue.wake(1)), (2, 1));
        drop(first);
        assert_eq!(next.join().await.unwrap(), Ok(()));
        // One that was not woken passes nothing on.
        let mut third = parked(&queue);
        assert!(!is_ready(&mut third).await);
        drop(third);
        assert_eq!(queue.wake(1), 0);
    });
    is_clean(&kernel);
}

#[test]
fn one_that_is_carried_into_another_task_wakes_that_one() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        warm_up(&queue).await;
        for is_woken_before in [false, true] {
            let mut wait = parked(&queue);
            assert!(!is_ready(&mut wait).await);
            if is_woken_before {
                assert_eq!(queue.wake(1), 1);
            }
            let other = spawn(wait);
            yield_now().await.unwrap();
            assert_eq!(queue.wake(1), usize::from(!is_woken_before));
            assert_eq!(other.join().await.unwrap(), Ok(()));
        }
        warm_up(&queue).await;
    });
    is_clean(&kernel);
}

#[test]
fn one_that_is_carried_into_a_scope_is_interrupted_there() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        warm_up(&queue).await;
        let mut wait = parked(&queue);
        assert!(!is_ready(&mut wait).await);
        assert_eq!(timeout_after(ms(5), &mut wait).await, Err(TimedOut));
        assert_eq!(queue.len(), 0);
        drop(wait);
        warm_up(&queue).await;
    });
    is_clean(&kernel);
}

#[test]
fn one_outlives_its_task_and_the_next_of_its_number() {
    let kernel = kernel();
    kernel.run(async {
        let queues = [(); 2].map(|()| Rc::new(WaitQueue::new()));
        let mut left = Vec::new();
        for queue in &queues {
            let queue = queue.clone();
            // Each has the number of the one before in the kernel's books.
            let task = spawn(async move {
                warm_up(&queue).await;
                let mut wait = parked(&queue);
                assert!(!is_ready(&mut wait).await);
                [wait]
            });
            left.extend(task.join().await.unwrap());
        }
        assert_eq!(queues.each_ref().map(|queue| queue.wake(1)), [1, 1]);
        for wait in left {
            assert_eq!(wait.await, Ok(()));
        }
        spawn(async move { warm_up(&queues[0]).await }).join().await.unwrap();
    });
    is_clean(&kernel);
}

#[test]
fn one_that_a_combinator_polls_later_wakes_by_its_waker() {
    let kernel = kernel();
    kernel.run(async {
        let queue = Rc::new(WaitQueue::new());
        warm_up(&queue).await;
        let mut wait = parked(&queue);
        assert!(!is_ready(&mut wait).await);
        let mut all: FuturesUnordered<_> = [wait, parked(&queue)].into_iter().collect();
        let waker = queue.clone();
        spawn(async move {
            sleep(ms(1)).await.unwrap();
            assert_eq!(waker.wake(1), 1);
            sleep(ms(1)).await.unwrap();
            assert_eq!(waker.wake(1), 1);
        })
        .detach();
        assert_eq!((all.next().await, all.next().await), (Some(Ok(())), Some(Ok(()))));
    });
    is_clean(&kernel);
}

#[test]
fn one_that_is_leaked_outlives_its_queue() {
    let kernel = kernel();
    kernel.run(async {
        let task = spawn(async {
            let queue = Rc::new(WaitQueue::new());
            warm_up(&queue).await;
            {
                let mut wait: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(park(&queue));
                poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_ready())).await;
                // It will not be polled again, nor dropped.
                std::mem::forget(wait);
            }
            drop(queue);
            park(&WaitQueue::new()).await
        });
        sleep(ms(20)).await.unwrap();
        task.request_cancel("enough");
        assert!(task.join().await.unwrap().is_err());
    });
    // It was told of the cancel, too, and never asked.
    assert_eq!((kernel.wait_count(), kernel.waits().len()), (1, 0));
}

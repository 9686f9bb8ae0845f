//! The order in which a thousand waiters proceed.

use std::cell::RefCell;
use std::rc::Rc;

use pikake::sync::{Condvar, Mutex, Queue, RwLock, Semaphore};
use pikake::{Task, sleep, spawn, yield_now};

use crate::support::{ms, run};

/// Enough that an order is not one by chance.
const MANY: usize = 1_000;

/// Runs so many tasks, each of which waits for something once, and gives the order in which they
/// got it. Each begins to wait after the one before.
async fn order<F: Future<Output = ()> + 'static>(wait: impl Fn(usize) -> F) -> Vec<Task<()>> {
    let tasks: Vec<_> = (0..MANY).map(|number| spawn(wait(number))).collect();
    yield_now().await.unwrap();
    tasks
}

pub(crate) async fn all(tasks: Vec<Task<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn mutex_is_granted_in_order_of_arrival() {
    let got = Rc::new(RefCell::new(Vec::new()));
    run(async {
        let mutex = Rc::new(Mutex::new(()));
        let held = mutex.lock().await.unwrap();
        let tasks = order(|number| {
            let (mutex, got) = (mutex.clone(), got.clone());
            async move {
                for round in 0..2 {
                    let _held = mutex.lock().await.unwrap();
                    got.borrow_mut().push((round, number));
                    yield_now().await.unwrap();
                }
            }
        })
        .await;
        assert_eq!(mutex.waiting(), MANY);
        drop(held);
        all(tasks).await;
    });
    // A waiter waits at most for one turn of each other one.
    let expected: Vec<_> = (0..2).flat_map(|round| (0..MANY).map(move |n| (round, n))).collect();
    assert_eq!(got.take(), expected);
}

#[test]
fn semaphore_is_granted_in_order_of_arrival() {
    let got = Rc::new(RefCell::new(Vec::new()));
    run(async {
        let semaphore = Rc::new(Semaphore::new(10));
        let held = semaphore.acquire_many(10).await.unwrap();
        let tasks = order(|number| {
            let (semaphore, got) = (semaphore.clone(), got.clone());
            async move {
                let _permit = semaphore.acquire_many(1 + number % 10).await.unwrap();
                got.borrow_mut().push(number);
                sleep(ms(1)).await.unwrap();
            }
        })
        .await;
        drop(held);
        all(tasks).await;
        assert_eq!(semaphore.available_permits(), 10);
    });
    assert_eq!(got.take(), (0..MANY).collect::<Vec<_>>());
}

#[test]
fn getters_and_putters_proceed_in_order_of_arrival() {
    let got = Rc::new(RefCell::new(Vec::new()));
    run(async {
        let queue = Rc::new(Queue::bounded(3));
        let getters = order(|number| {
            let (queue, got) = (queue.clone(), got.clone());
            async move {
                let item = queue.get().await.unwrap().unwrap();
                got.borrow_mut().push((number, item));
            }
        })
        .await;
        assert_eq!(queue.getting(), MANY);
        for item in 0..MANY {
            queue.put(item).await.unwrap();
        }
        all(getters).await;
        let putters = order(|number| {
            let queue = queue.clone();
            async move { queue.put(number).await.unwrap() }
        })
        .await;
        assert_eq!(queue.putting(), MANY - 3);
        for number in 0..MANY {
            let item = queue.get().await.unwrap().unwrap();
            got.borrow_mut().push((number, item));
        }
        all(putters).await;
    });
    let expected: Vec<_> = (0..2).flat_map(|_| (0..MANY).map(|n| (n, n))).collect();
    assert_eq!(got.take(), expected);
}

#[test]
fn readers_and_writers_keep_order_writers_first() {
    let got = Rc::new(RefCell::new(Vec::new()));
    run(async {
        let lock = Rc::new(RwLock::new(()));
        let held = lock.read().await.unwrap();
        let tasks = order(|number| {
            let (lock, got) = (lock.clone(), got.clone());
            async move {
                if number % 2 == 0 {
                    let _held = lock.read().await.unwrap();
                    got.borrow_mut().push(number);
                } else {
                    let _held = lock.write().await.unwrap();
                    got.borrow_mut().push(number);
                    yield_now().await.unwrap();
                }
            }
        })
        .await;
        drop(held);
        all(tasks).await;
    });
    // The first reader came before any writer.
    let mut expected = vec![0];
    expected.extend((0..MANY).filter(|n| n % 2 == 1));
    expected.extend((1..MANY).filter(|n| n % 2 == 0));
    assert_eq!(got.take(), expected);
}

#[test]
fn a_condvar_notifies_in_the_order_of_arrival() {
    let got = Rc::new(RefCell::new(Vec::new()));
    run(async {
        let shared = Rc::new((Mutex::new(()), Condvar::new()));
        let tasks = order(|number| {
            let (shared, got) = (shared.clone(), got.clone());
            async move {
                let held = shared.0.lock().await.unwrap();
                let _held = shared.1.wait(held).await.unwrap();
                got.borrow_mut().push(number);
            }
        })
        .await;
        assert_eq!(shared.1.notify(2 * MANY), MANY);
        all(tasks).await;
    });
    assert_eq!(got.take(), (0..MANY).collect::<Vec<_>>());
}

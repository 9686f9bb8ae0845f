//! A thousand waiters, of which many leave: the others proceed in order of arrival, and nothing is
//! lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures::future::join;
use pikake::kernel::Observer;
use pikake::sync::{Condvar, Mutex, Queue, RwLock, Semaphore};
use pikake::traps::TaskRef;
use pikake::{Task, sleep, spawn, timeout_after, yield_now};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{builder, ms, run};

const MANY: usize = 1_000;

/// How many milliseconds there are to leave in.
const SPAN: u64 = 400;

/// When a waiter leaves, in milliseconds, and how.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Leaves {
    Never,
    Dropped(u64),
    Cancelled(u64),
    TimesOut(u64),
}
use Leaves::{Cancelled, Dropped, Never, TimesOut};

#[derive(Clone, Copy, Debug)]
struct Waiter {
    leaves: Leaves,
    /// From one to ten.
    weight: usize,
}

/// About half of the waiters leave.
fn crowd() -> impl Strategy<Value = Vec<Waiter>> {
    let leaves = prop_oneof![
        3 => Just(Never),
        1 => (0..SPAN).prop_map(Dropped),
        1 => (0..SPAN).prop_map(Cancelled),
        1 => (0..SPAN).prop_map(TimesOut),
    ];
    vec((leaves, 1..=10_usize).prop_map(|(leaves, weight)| Waiter { leaves, weight }), MANY)
}

/// Those that got what they waited for, in this order.
type Served = Rc<RefCell<Vec<usize>>>;

/// Starts a task for each waiter, calls `begin` when all wait, and has those leave that do.
async fn attend<F: Future<Output = ()> + 'static>(
    waiters: &[Waiter],
    wait: impl Fn(usize, Waiter) -> F,
    begin: impl FnOnce(),
) {
    let tasks: Vec<Task<()>> = waiters
        .iter()
        .enumerate()
        .map(|(number, waiter)| {
            let limit = match waiter.leaves {
                TimesOut(after) => ms(after),
                _ => Duration::MAX,
            };
            let wait = timeout_after(limit, wait(number, *waiter));
            spawn(async move { wait.await.unwrap_or(()) })
        })
        .collect();
    yield_now().await.unwrap();
    begin();
    let mut leaving: Vec<_> = waiters
        .iter()
        .zip(&tasks)
        .filter_map(|(waiter, task)| match waiter.leaves {
            Dropped(at) | Cancelled(at) => Some((at, waiter.leaves, task)),
            _ => None,
        })
        .collect();
    leaving.sort_by_key(|(at, ..)| *at);
    let mut now = 0;
    for (number, (at, leaves, task)) in leaving.into_iter().enumerate() {
        if at > now {
            sleep(ms(at - now)).await.unwrap();
            now = at;
        }
        if number % 3 == 0 {
            // Others have given up what they had, and those that come next have not run yet.
            yield_now().await.unwrap();
        }
        match leaves {
            Dropped(_) => task.abort(),
            _ => task.request_cancel("it has waited enough"),
        }
    }
    sleep(ms(SPAN * MANY as u64)).await.unwrap();
    assert!(tasks.iter().all(Task::is_finished), "somebody waits in vain");
}

/// Those that stay, of those that `is_one_of`.
fn staying(waiters: &[Waiter], is_one_of: impl Fn(usize) -> bool) -> Vec<usize> {
    let stays = |number: &usize| waiters[*number].leaves == Never && is_one_of(*number);
    (0..waiters.len()).filter(stays).collect()
}

fn assert_in_order(waiters: &[Waiter], served: &[usize], is_one_of: impl Fn(usize) -> bool) {
    let stays = |number: &usize| waiters[*number].leaves == Never && is_one_of(*number);
    let in_order: Vec<_> = served.iter().copied().filter(stays).collect();
    assert_eq!(in_order, staying(waiters, is_one_of), "those that stay are all served, in order");
    let mut once = served.to_vec();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), served.len(), "each is served once");
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_mutex_passes_over_those_that_leave(waiters in crowd()) {
        let served = Served::default();
        run(async {
            let mutex = Rc::new(Mutex::new(0));
            let held = mutex.lock().await.unwrap();
            let wait = |number, waiter: Waiter| {
                let (mutex, served) = (mutex.clone(), served.clone());
                async move {
                    let Ok(mut count) = mutex.lock().await else { return };
                    *count += 1;
                    served.borrow_mut().push(number);
                    if waiter.weight > 5 {
                        let _ = sleep(ms(1)).await;
                    }
                }
            };
            attend(&waiters, wait, || drop(held)).await;
            assert_eq!((mutex.is_locked(), mutex.waiting()), (false, 0));
            assert_eq!(*mutex.try_lock().expect("nobody holds it"), served.borrow().len());
        });
        assert_in_order(&waiters, &served.borrow(), |_| true);
    }

    #[test]
    fn a_semaphore_passes_over_those_that_leave(waiters in crowd()) {
        let served = Served::default();
        run(async {
            let semaphore = Rc::new(Semaphore::bounded(10));
            let held = semaphore.acquire_many(10).await.unwrap();
            let out = Rc::new(Cell::new(0));
            let wait = |number, waiter: Waiter| {
                let (semaphore, served, out) = (semaphore.clone(), served.clone(), out.clone());
                async move {
                    let Ok(permit) = semaphore.acquire_many(waiter.weight).await else { return };
                    served.borrow_mut().push(number);
                    let _out = Counted::new(&out, waiter.weight);
                    assert!(out.get() <= 10, "{} permits are out", out.get());
                    let _ = sleep(ms(1)).await;
                    drop(permit);
                }
            };
            attend(&waiters, wait, || drop(held)).await;
            assert_eq!((semaphore.available_permits(), semaphore.waiting(), out.get()), (10, 0, 0));
        });
        assert_in_order(&waiters, &served.borrow(), |_| true);
    }

    #[test]
    fn a_queue_passes_over_putters_that_leave(waiters in crowd()) {
        let (served, got, refused) = (Served::default(), Served::default(), Served::default());
        run(async {
            let queue = Rc::new(Queue::bounded(3));
            for item in 0..3 {
                queue.put(MANY + item).await.unwrap();
            }
            let wait = |number, _| {
                let (queue, served) = (queue.clone(), served.clone());
                let refused = refused.clone();
                async move {
                    match queue.put(number).await {
                        Ok(()) => served.borrow_mut().push(number),
                        Err(error) => refused.borrow_mut().push(error.item),
                    }
                }
            };
            let getter = spawn({
                let (queue, got) = (queue.clone(), got.clone());
                async move {
                    while let Some(item) = queue.get().await.unwrap() {
                        got.borrow_mut().push(item);
                        if item % 3 == 0 {
                            sleep(ms(1)).await.unwrap();
                        }
                    }
                }
            });
            attend(&waiters, wait, || ()).await;
            assert_eq!(queue.putting(), 0);
            queue.close();
            getter.await.unwrap();
            assert_eq!((queue.len(), queue.getting()), (0, 0));
        });
        let got = got.take();
        assert_eq!(got[..3], [MANY, MANY + 1, MANY + 2]);
        assert!(got[3..].is_sorted_by(|one, next| one < next), "{got:?}");
        for item in served.borrow().iter() {
            assert!(got[3..].binary_search(item).is_ok(), "{item} was put, and is lost");
        }
        for item in refused.borrow().iter() {
            assert!(got[3..].binary_search(item).is_err(), "{item} came back, and was got as well");
        }
        assert_in_order(&waiters, &served.borrow(), |_| true);
    }

    #[test]
    fn a_queue_passes_over_getters_that_leave(waiters in crowd()) {
        let (served, got) = (Served::default(), Served::default());
        let put = Cell::new(0);
        let mut left = Vec::new();
        run(async {
            let queue = Rc::new(Queue::bounded(3));
            let wait = |number, _| {
                let (queue, served, got) = (queue.clone(), served.clone(), got.clone());
                async move {
                    let Ok(Some(item)) = queue.get().await else { return };
                    served.borrow_mut().push(number);
                    got.borrow_mut().push(item);
                }
            };
            let putter = spawn({
                let queue = queue.clone();
                async move {
                    let mut item = 0;
                    yield_now().await.unwrap();
                    while queue.getting() > 0 {
                        // Several in one step, as far as there is room.
                        while item % 7 > 0 && queue.try_put(item).is_ok() {
                            item += 1;
                        }
                        queue.put(item).await.unwrap();
                        item += 1;
                        sleep(ms(1)).await.unwrap();
                    }
                    item
                }
            });
            attend(&waiters, wait, || ()).await;
            while let Ok(item) = queue.try_get() {
                left.push(item);
            }
            put.set(putter.await.unwrap());
            while let Ok(item) = queue.try_get() {
                left.push(item);
            }
            assert_eq!((queue.len(), queue.getting(), queue.putting()), (0, 0, 0));
        });
        let mut all = got.borrow().clone();
        all.extend(&left);
        all.sort_unstable();
        assert_eq!(all, (0..put.get()).collect::<Vec<_>>(), "each item is got once");
        let in_order = |(number, item): (&usize, &usize)| {
            (waiters[*number].leaves == Never).then_some(*item)
        };
        let of_those_that_stay: Vec<_> =
            served.borrow().iter().zip(got.borrow().iter()).filter_map(in_order).collect();
        assert!(of_those_that_stay.is_sorted(), "{of_those_that_stay:?}");
        assert_in_order(&waiters, &served.borrow(), |_| true);
    }

    #[test]
    fn a_lock_passes_over_readers_and_writers_leaving(waiters in crowd()) {
        let served = Served::default();
        let writes = |number: usize| waiters[number].weight > 7;
        run(async {
            let lock = Rc::new(RwLock::new(0));
            let held = lock.write().await.unwrap();
            let wait = |number, waiter: Waiter| {
                let (lock, served) = (lock.clone(), served.clone());
                async move {
                    if waiter.weight > 7 {
                        let Ok(mut value) = lock.write().await else { return };
                        served.borrow_mut().push(number);
                        *value += 1;
                        let _ = sleep(ms(1)).await;
                    } else {
                        let Ok(value) = lock.read().await else { return };
                        served.borrow_mut().push(number);
                        let before = *value;
                        let _ = sleep(ms(1)).await;
                        assert_eq!(*value, before);
                    }
                }
            };
            attend(&waiters, wait, || drop(held)).await;
            assert_eq!((lock.reading(), lock.is_writing(), lock.waiting()), (0, false, 0));
            let written = *lock.try_write().expect("nobody holds it");
            assert_eq!(written, served.borrow().iter().filter(|number| writes(**number)).count());
        });
        let served = served.take();
        assert_in_order(&waiters, &served, writes);
        assert_in_order(&waiters, &served, |number| !writes(number));
    }

    #[test]
    fn a_condvar_passes_over_those_that_leave(waiters in crowd()) {
        let served = Served::default();
        run(async {
            let shared = Rc::new((Mutex::new(()), Condvar::new()));
            let wait = |number, _| {
                let (shared, served) = (shared.clone(), served.clone());
                async move {
                    let Ok(guard) = shared.0.lock().await else { return };
                    if let Ok(_guard) = shared.1.wait(guard).await {
                        served.borrow_mut().push(number);
                    }
                }
            };
            let notifies = async {
                yield_now().await.unwrap();
                let stay = staying(&waiters, |_| true).len();
                let mut notified = 0;
                let mut held = None;
                for round in 0..SPAN {
                    // The notified task waits for the lock in half of the rounds.
                    match round % 40 {
                        0 => drop(held.take()),
                        20 => held = Some(shared.0.lock().await.unwrap()),
                        _ => {}
                    }
                    // As long as nobody else is needed for it than those that stay.
                    if notified < stay {
                        notified += shared.1.notify(1 + round as usize % 2);
                    }
                    sleep(ms(1)).await.unwrap();
                }
                drop(held);
                sleep(ms(SPAN)).await.unwrap();
                assert_eq!(served.borrow().len(), notified, "each notification reaches one");
                shared.1.notify_all();
            };
            join(attend(&waiters, wait, || ()), notifies).await;
            assert_eq!((shared.1.waiting(), shared.0.is_locked()), (0, false));
        });
        assert_in_order(&waiters, &served.borrow(), |_| true);
    }
}

/// A part of a sum, as long as it lives.
struct Counted(Rc<Cell<usize>>, usize);

impl Counted {
    fn new(sum: &Rc<Cell<usize>>, part: usize) -> Self {
        sum.set(sum.get() + part);
        Self(sum.clone(), part)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

/// Counts the steps of all tasks.
#[derive(Clone, Default, Debug)]
struct Steps(Rc<Cell<usize>>);

impl Observer for Steps {
    fn stepping(&self, _: &TaskRef) {
        self.0.set(self.0.get() + 1);
    }
}

/// In which order all of them leave.
const ORDERS: [fn(usize) -> usize; 3] = [
    |number| number,
    |number| MANY - 1 - number,
    // A generator of the numbers below a thousand.
    |number| number * 387 % MANY,
];

/// Lets a thousand wait, and leave one by one; the steps of all tasks are counted.
fn count_steps<F: Future<Output = ()> + 'static>(wait: impl Fn(usize) -> F) {
    for order in ORDERS {
        let steps = Steps::default();
        let kernel = builder().observer(steps.clone()).build().unwrap();
        kernel.run(async {
            let tasks: Vec<_> = (0..MANY).map(|number| spawn(wait(number))).collect();
            sleep(ms(1)).await.unwrap();
            let before = steps.0.get();
            for number in 0..MANY {
                tasks[order(number)].request_cancel("it leaves");
                sleep(ms(1)).await.unwrap();
                assert!(tasks[order(number)].is_finished());
            }
            let taken = steps.0.get() - before;
            assert_eq!(taken, 2 * MANY, "a step of the task that leaves, and one of this task");
        });
        kernel.shutdown();
        assert_eq!((kernel.task_count(), kernel.wait_count()), (0, 0));
    }
}

/// A waiter that leaves resumes no other.
#[test]
fn leaving_steps_no_other_waiter() {
    let mutex = Rc::new(Mutex::new(()));
    let held = mutex.try_lock().unwrap();
    count_steps(|_| {
        let mutex = mutex.clone();
        async move { drop(mutex.lock().await) }
    });
    drop(held);

    let semaphore = Rc::new(Semaphore::new(1));
    count_steps(|number| {
        let semaphore = semaphore.clone();
        async move { drop(semaphore.acquire_many(2 + number % 3).await) }
    });

    let queue = Rc::new(Queue::bounded(1));
    count_steps(|_| {
        let queue = queue.clone();
        async move { drop(queue.get().await) }
    });
    queue.try_put(0).unwrap();
    count_steps(|number| {
        let queue = queue.clone();
        async move { drop(queue.put(number).await) }
    });

    let lock = Rc::new(RwLock::new(()));
    let held = lock.try_write().unwrap();
    count_steps(|number| {
        let lock = lock.clone();
        async move {
            match number % 3 {
                0 => drop(lock.write().await),
                _ => drop(lock.read().await),
            }
        }
    });
    drop(held);

    let shared = Rc::new((Mutex::new(()), Condvar::new()));
    count_steps(|_| {
        let shared = shared.clone();
        async move { drop(shared.1.wait(shared.0.lock().await.unwrap()).await) }
    });
}

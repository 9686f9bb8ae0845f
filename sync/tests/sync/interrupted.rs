//! Every primitive, interrupted at each of its waits: the result is the same, and no hand-over is
//! lost.

use std::cell::Cell;
use std::rc::Rc;

use futures::stream::StreamExt;
use pikake::sync::{
    Barrier, Condvar, Event, Mutex, OnceCell, Promise, PutError, Queue, ReentrantMutex, RwLock,
    Semaphore, WaitGroup, WaitInterrupted, broadcast, mpsc, oneshot, watch,
};
use pikake::testing::interrupt_everywhere;
use pikake::{Interrupted, Task, shield, sleep, spawn, yield_now};

use crate::support::insist::{A_FEW, Failure, Insistent, a_few_steps, insist_inside, ms};

impl<T> Failure for PutError<T> {
    fn interruption(&self) -> Option<&Interrupted> {
        self.interrupted()
    }
}

impl<T: ?Sized> Failure for WaitInterrupted<'_, T> {
    fn interruption(&self) -> Option<&Interrupted> {
        Some(&self.interrupted)
    }
}

/// Some tasks, that nobody interrupts.
fn several<F: Future<Output = ()> + 'static>(make: impl Fn(usize) -> F) -> Vec<Task<()>> {
    (0..A_FEW).map(|number| spawn(make(number))).collect()
}

async fn all(insistent: &Insistent, tasks: Vec<Task<()>>) {
    for mut task in tasks {
        insistent.on(async || (&mut task).await).await;
    }
}

#[test]
fn a_mutex() {
    insist_inside((A_FEW * A_FEW + A_FEW, false, 0), async |insistent| {
        let mutex = Rc::new(Mutex::new(0));
        let others = several(|_| {
            let mutex = mutex.clone();
            async move {
                for _ in 0..A_FEW {
                    let mut count = mutex.lock().await.unwrap();
                    a_few_steps().await;
                    *count += 1;
                }
            }
        });
        for _ in 0..A_FEW {
            let mut count = insistent.on(|| mutex.lock()).await;
            *count += 1;
            insistent.on(yield_now).await;
        }
        all(insistent, others).await;
        let count = *mutex.try_lock().unwrap();
        (count, mutex.is_locked(), mutex.waiting())
    });
}

#[test]
fn a_reentrant_mutex() {
    insist_inside((2 * A_FEW * A_FEW + 2 * A_FEW, None, 0), async |insistent| {
        let mutex = Rc::new(ReentrantMutex::new(Cell::new(0)));
        let others = several(|_| {
            let mutex = mutex.clone();
            async move {
                for _ in 0..A_FEW {
                    let count = mutex.lock().await.unwrap();
                    a_few_steps().await;
                    let again = mutex.lock().await.unwrap();
                    again.set(count.get() + 2);
                }
            }
        });
        for _ in 0..A_FEW {
            let count = insistent.on(|| mutex.lock()).await;
            let again = mutex.try_lock().unwrap();
            insistent.on(yield_now).await;
            again.set(count.get() + 2);
        }
        all(insistent, others).await;
        let count = mutex.lock().await.unwrap().get();
        (count, mutex.owner(), mutex.waiting())
    });
}

#[test]
fn an_rw_lock() {
    insist_inside((A_FEW * A_FEW + A_FEW, 0, false, 0), async |insistent| {
        let lock = Rc::new(RwLock::new(0));
        let others = several(|number| {
            let lock = lock.clone();
            async move {
                for _ in 0..A_FEW {
                    let before = {
                        let value = lock.read().await.unwrap();
                        let before = *value;
                        a_few_steps().await;
                        assert_eq!(*value, before, "nobody writes while somebody reads");
                        before
                    };
                    let mut value = lock.write().await.unwrap();
                    assert!(*value >= before && number < A_FEW);
                    *value += 1;
                    a_few_steps().await;
                }
            }
        });
        for _ in 0..A_FEW {
            *insistent.on(|| lock.write()).await += 1;
            let value = insistent.on(|| lock.read()).await;
            let before = *value;
            insistent.on(yield_now).await;
            assert_eq!(*value, before);
        }
        all(insistent, others).await;
        let value = *lock.try_write().unwrap();
        (value, lock.reading(), lock.is_writing(), lock.waiting())
    });
}

#[test]
fn a_semaphore() {
    insist_inside((3, 0), async |insistent| {
        let semaphore = Rc::new(Semaphore::bounded(3));
        let others = several(|number| {
            let semaphore = semaphore.clone();
            async move {
                for _ in 0..A_FEW {
                    let _permit = semaphore.acquire_many(1 + number).await.unwrap();
                    a_few_steps().await;
                }
            }
        });
        for count in 1..=A_FEW {
            let permit = insistent.on(|| semaphore.acquire_many(count)).await;
            assert!(permit.num_permits() + semaphore.available_permits() <= 3);
            insistent.on(yield_now).await;
        }
        all(insistent, others).await;
        (semaphore.available_permits(), semaphore.waiting())
    });
}

#[test]
fn a_wait_group_an_event_and_a_promise() {
    insist_inside((0, true, 7), async |insistent| {
        let shared = Rc::new((WaitGroup::new(), Event::new(), Promise::new()));
        shared.0.up(A_FEW);
        let others = several(|_| {
            let shared = shared.clone();
            async move {
                a_few_steps().await;
                shared.0.down(1).unwrap();
                shared.1.wait().await.unwrap();
                assert_eq!(*shared.2.wait().await.unwrap(), 7);
            }
        });
        insistent.on(|| shared.0.wait()).await;
        let count = shared.0.count();
        let mut setter = spawn({
            let shared = shared.clone();
            async move {
                a_few_steps().await;
                shared.1.set();
                a_few_steps().await;
                shared.2.set(7).unwrap();
            }
        });
        insistent.on(|| shared.1.wait()).await;
        let value = *insistent.on(|| shared.2.wait()).await;
        insistent.on(async || (&mut setter).await).await;
        all(insistent, others).await;
        (count, shared.1.is_set(), value)
    });
}

#[test]
fn condvar_holds_the_lock_after_every_wait() {
    insist_inside((A_FEW, 0), async |insistent| {
        let shared = Rc::new((Mutex::new(0), Condvar::new()));
        let others = several(|_| {
            let shared = shared.clone();
            async move {
                let mut count = shared.0.lock().await.unwrap();
                a_few_steps().await; // who was notified has to wait for the lock
                *count += 1;
                shared.1.notify_all();
            }
        });
        let mut count = insistent.on(|| shared.0.lock()).await;
        while *count < A_FEW {
            count = match shared.1.wait(count).await {
                Ok(count) => count,
                Err(error) => {
                    insistent.note(&error);
                    error.guard
                }
            };
            assert!(shared.0.is_locked());
        }
        let result = (*count, shared.1.waiting());
        drop(count);
        all(insistent, others).await;
        // Told here if not before: the way back to the lock is shielded.
        insistent.on(yield_now).await;
        result
    });
}

#[test]
fn a_condvar_waits_while_a_condition_holds() {
    insist_inside((A_FEW, 0, false), async |insistent| {
        let shared = Rc::new((Mutex::new(0), Condvar::new()));
        let others = several(|number| {
            let shared = shared.clone();
            async move {
                for _ in 0..=number {
                    a_few_steps().await;
                }
                *shared.0.lock().await.unwrap() += 1;
                shared.1.notify_all();
            }
        });
        let mut count = insistent.on(|| shared.0.lock()).await;
        let result = loop {
            match shared.1.wait_while(count, |count| *count < A_FEW).await {
                Ok(count) => break *count,
                Err(error) => {
                    insistent.note(&error);
                    count = error.guard;
                }
            }
        };
        all(insistent, others).await;
        // Told here if not before: the way back to the lock is shielded.
        insistent.on(yield_now).await;
        (result, shared.1.waiting(), shared.0.is_locked())
    });
}

#[test]
fn a_barrier_counts_those_that_wait() {
    insist_inside((A_FEW, 0), async |insistent| {
        let barrier = Rc::new(Barrier::new(A_FEW + 1));
        let others = several(|_| {
            let barrier = barrier.clone();
            async move {
                for _ in 0..A_FEW {
                    a_few_steps().await;
                    barrier.wait().await.unwrap();
                }
            }
        });
        let mut rounds = 0;
        for _ in 0..A_FEW {
            insistent.on(|| barrier.wait()).await;
            rounds += 1;
        }
        all(insistent, others).await;
        (rounds, barrier.waiting())
    });
}

#[test]
fn next_caller_initialises_after_a_failed_one() {
    let program = || async {
        let cell = Rc::new(OnceCell::new());
        let attempts = Rc::new(Cell::new(0));
        let make = {
            let (cell, attempts) = (cell.clone(), attempts.clone());
            move || {
                let (cell, attempts) = (cell.clone(), attempts.clone());
                async move {
                    let attempt = async || {
                        attempts.set(attempts.get() + 1);
                        sleep(ms(1)).await?;
                        yield_now().await?;
                        Ok::<_, Interrupted>(7)
                    };
                    cell.get_or_try_init(attempt).await.copied()
                }
            }
        };
        let others: Vec<_> = (0..A_FEW).map(|_| spawn(make())).collect();
        let mine = make().await;
        for other in others {
            assert_eq!(shield(other).await.unwrap(), Ok(7), "nobody interrupted them");
        }
        (mine, cell.get().copied(), attempts.get(), cell.waiting())
    };
    interrupt_everywhere(program, |run| {
        let (mine, value, attempts, waiting) = run.output.clone().unwrap();
        assert_eq!((value, waiting), (Some(7), 0));
        assert_eq!(attempts, if mine.is_ok() { 1 } else { 2 });
    });
}

#[test]
fn a_bounded_queue_loses_nothing_and_doubles_nothing() {
    for capacity in [0, 1, 2] {
        insist_inside(((0..2 * A_FEW).collect::<Vec<_>>(), 0, 0), async |insistent| {
            let queue = Rc::new(Queue::bounded(capacity));
            let mut other = spawn({
                let queue = queue.clone();
                async move {
                    for number in 0..2 * A_FEW {
                        queue.put(number).await.unwrap();
                        if number % 2 == 0 {
                            a_few_steps().await;
                        }
                    }
                    queue.join().await.unwrap();
                }
            });
            let mut got = Vec::new();
            for _ in 0..2 * A_FEW {
                got.extend(insistent.on(|| queue.get()).await);
                queue.task_done().unwrap();
            }
            insistent.on(async || (&mut other).await).await;
            (got, queue.len(), queue.getting() + queue.putting())
        });
    }
}

#[test]
fn interrupted_put_returns_the_item() {
    for capacity in [0, 1, 2] {
        insist_inside((0..2 * A_FEW).collect::<Vec<_>>(), async |insistent| {
            let queue = Rc::new(Queue::bounded(capacity));
            let mut other = spawn({
                let queue = queue.clone();
                async move {
                    let mut got = Vec::new();
                    for number in 0..2 * A_FEW {
                        if number % 2 == 0 {
                            a_few_steps().await;
                        }
                        got.extend(queue.get().await.unwrap());
                    }
                    got
                }
            });
            for number in 0..2 * A_FEW {
                let mut item = number;
                while let Err(error) = queue.put(item).await {
                    insistent.note(&error);
                    item = error.into_item();
                    assert_eq!(item, number);
                }
            }
            insistent.on(async || (&mut other).await).await
        });
    }
}

/// Longer than a program is interrupted.
const LONG: u64 = 100_000;

#[test]
fn puts_with_a_timeout_give_the_item_back() {
    for capacity in [0, 1, 2] {
        insist_inside((0..2 * A_FEW).collect::<Vec<_>>(), async |insistent| {
            let queue = Rc::new(Queue::bounded(capacity));
            let mut other = spawn({
                let queue = queue.clone();
                async move {
                    let mut got = Vec::new();
                    for _ in 0..2 * A_FEW {
                        a_few_steps().await;
                        got.extend(queue.get().await.unwrap());
                    }
                    got
                }
            });
            for number in 0..2 * A_FEW {
                while let Err(error) = queue.put_timeout(number, ms(LONG)).await.map(Result::unwrap)
                {
                    insistent.note(&error);
                    assert_eq!(error.into_item(), number);
                }
            }
            insistent.on(async || (&mut other).await).await
        });
    }
}

#[test]
fn getting_all_there_is() {
    for capacity in [0, 1, 2] {
        insist_inside(((0..2 * A_FEW).collect::<Vec<_>>(), 0, 0), async |insistent| {
            let queue = Rc::new(Queue::bounded(capacity));
            let putters = several(|number| {
                let queue = queue.clone();
                async move {
                    for item in [2 * number, 2 * number + 1] {
                        queue.put(item).await.unwrap();
                    }
                }
            });
            let mut got = Vec::new();
            while got.len() < 2 * A_FEW {
                got.extend(insistent.on(|| queue.pop_all()).await);
            }
            all(insistent, putters).await;
            got.sort_unstable();
            (got, queue.len(), queue.getting() + queue.putting())
        });
    }
}

#[test]
fn streams_of_all_kinds() {
    insist_inside((3, 3, 3, 3, 0), async |insistent| {
        let queue = Rc::new(Queue::bounded(1));
        let (to_one, mut one) = mpsc::channel(1);
        let (to_all, mut each) = broadcast::channel(2);
        let (state, mut watched) = watch::channel(0);
        spawn({
            let queue = queue.clone();
            async move {
                for number in 1..=3 {
                    a_few_steps().await;
                    queue.put(number).await.unwrap();
                    a_few_steps().await;
                    to_one.send(number).await.unwrap();
                    a_few_steps().await;
                    to_all.send(number).unwrap();
                    state.send(number).unwrap();
                }
                a_few_steps().await;
                queue.close();
            }
        })
        .detach();
        let (mut queued, mut sent, mut told) = (0, 0, 0);
        let mut stream = queue.stream();
        while queued < 3 {
            queued = insistent.on(async || stream.next().await.unwrap()).await;
            sent = insistent.on(async || one.next().await.unwrap()).await;
            told = insistent.on(async || each.next().await.unwrap()).await.unwrap();
        }
        assert_eq!(insistent.on(async || stream.next().await.transpose()).await, None);
        assert_eq!(insistent.on(async || one.next().await.transpose()).await, None);
        assert_eq!(insistent.on(async || each.next().await.transpose()).await, None);
        let mut last = 0;
        while let Some(state) = insistent.on(async || watched.next().await.transpose()).await {
            last = state;
        }
        (queued, sent, told, last, queue.len())
    });
}

#[test]
fn senders_get_the_item_back() {
    for capacity in [0, 1, 2] {
        insist_inside((0..2 * A_FEW).collect::<Vec<_>>(), async |insistent| {
            let (sender, mut receiver) = mpsc::channel(capacity);
            let mut other = spawn(async move {
                let mut got = Vec::new();
                while let Some(item) = receiver.recv().await.unwrap() {
                    got.push(item);
                    a_few_steps().await;
                }
                got
            });
            for number in 0..2 * A_FEW {
                loop {
                    let sent = match number % 2 {
                        0 => sender.send(number).await,
                        _ => sender.send_timeout(number, ms(LONG)).await.map(Result::unwrap),
                    };
                    let Err(error) = sent else { break };
                    insistent.note(&error);
                    assert_eq!(error.into_item(), number);
                }
            }
            drop(sender);
            insistent.on(async || (&mut other).await).await
        });
    }
}

#[test]
fn joining_a_queue() {
    insist_inside(0, async |insistent| {
        let queue = Rc::new(Queue::unbounded());
        let mut other = spawn({
            let queue = queue.clone();
            async move {
                for _ in 0..A_FEW {
                    a_few_steps().await;
                    queue.get().await.unwrap();
                    a_few_steps().await;
                    queue.task_done().unwrap();
                }
            }
        });
        for number in 0..A_FEW {
            queue.put(number).await.unwrap();
        }
        insistent.on(|| queue.join()).await;
        insistent.on(async || (&mut other).await).await;
        queue.len()
    });
}

#[test]
fn interrupted_getter_leaves_its_item_to_others() {
    // Two items come in one moment, for two that wait; a third waits behind them.
    let program = || async {
        let queue = Rc::new(Queue::unbounded());
        let other = || {
            let queue = queue.clone();
            spawn(async move { queue.get().await.unwrap().expect("it is not closed") })
        };
        let giver = spawn({
            let queue = queue.clone();
            async move {
                a_few_steps().await;
                queue.put(1).await.unwrap();
                queue.put(2).await.unwrap();
                a_few_steps().await;
                queue.put(3).await.unwrap();
            }
        });
        let before = other();
        let yielded = shield(yield_now()).await;
        let (mine, behind) = {
            let get = queue.get();
            let behind = other();
            (get.await, behind)
        };
        let others = (shield(before).await.unwrap(), shield(behind).await.unwrap());
        shield(giver).await.unwrap();
        (yielded, mine, others, queue.len())
    };
    interrupt_everywhere(program, |run| {
        let (_, mine, (one, two), left) = run.output.clone().unwrap();
        let mine = mine.ok().flatten();
        let mut got: Vec<_> = [mine, Some(one), Some(two)].into_iter().flatten().collect();
        got.sort_unstable();
        let expected: Vec<_> = (1..=got.len()).collect();
        assert_eq!(got, expected, "{mine:?}, {one}, {two}");
        assert_eq!(left, 3 - got.len());
    });
}

#[test]
fn channels_of_all_kinds() {
    insist_inside((6, Ok(3), Some(2), 9), async |insistent| {
        let (to_many, mut one) = mpsc::channel(1);
        let (answer, mut answered) = oneshot::channel();
        let (to_all, mut each) = broadcast::channel(2);
        let (state, mut watched) = watch::channel(0);
        spawn(async move {
            for number in 1..=3 {
                a_few_steps().await;
                to_many.send(number).await.unwrap();
            }
            a_few_steps().await;
            answer.send(3).unwrap();
            for number in 1..=2 {
                a_few_steps().await;
                to_all.send(number).unwrap();
            }
            a_few_steps().await;
            state.send(9).unwrap();
        })
        .detach();
        let mut sum = 0;
        while let Some(number) = insistent.on(async || one.recv().await).await {
            sum += number;
        }
        let answered = insistent.on(async || (&mut answered).await).await;
        let mut last = None;
        while let Ok(number) = insistent.on(async || each.recv().await).await {
            last = Some(number);
        }
        while let Err(error) = watched.changed().await {
            match error.interrupted() {
                Some(interrupted) => insistent.note(interrupted),
                None => break,
            }
        }
        (sum, answered, last, *watched.borrow())
    });
}

//! What Shrapnel's `test_mutex`, `test_semaphore`, `test_isemaphore`, `test_condition_variable` and
//! `test_rw_lock` assert: five wait and are interrupted, before or after what they wait for was
//! handed over, and a sixth waits behind them.

use std::rc::Rc;

use pikake::sync::{Condvar, Mutex, RwLock, Semaphore, WaitGroup};
use pikake::{Interrupted, Task, sleep, spawn, yield_now};

use crate::runner::{Runner, World, ms, on_every_kernel, told};

/// How many are interrupted.
const SOME: usize = 5;

/// When they are.
#[derive(Clone, Copy, PartialEq)]
enum When {
    BeforeTheHandOver,
    AfterTheHandOver,
}
use When::{AfterTheHandOver, BeforeTheHandOver};

/// Has five and one wait, hands over, interrupts the five, and lets the time pass.
///
/// Waiters 0 to 4 are the five; what they are told is noted.
async fn interrupt_five<F: Future<Output = Result<(), Interrupted>> + 'static>(
    world: &World,
    when: When,
    wait: impl Fn(usize) -> F,
    hand_over: impl FnOnce(),
) {
    let waiters: Vec<Task<()>> = (0..=SOME)
        .map(|number| {
            let (world, wait) = (world.clone(), wait(number));
            spawn(async move {
                let told = told(wait.await);
                world.note(format_args!("{number} {told}"));
            })
        })
        .collect();
    yield_now().await.unwrap();
    let interrupt = || waiters[..SOME].iter().for_each(|waiter| waiter.request_cancel(""));
    match when {
        BeforeTheHandOver => {
            interrupt();
            hand_over();
        }
        AfterTheHandOver => {
            hand_over();
            interrupt();
        }
    }
    sleep(ms(1)).await.unwrap();
    for waiter in waiters {
        assert!(waiter.is_finished(), "all have been served or told");
        waiter.await.unwrap();
    }
}

/// The five are told and the sixth gets it.
const SIXTH: [&str; 6] =
    ["0 0 cancelled", "0 1 cancelled", "0 2 cancelled", "0 3 cancelled", "0 4 cancelled", "0 5 ok"];

/// The first had it already, and passes it on to the sixth.
const FIRST_AND_SIXTH: [&str; 6] =
    ["0 0 ok", "0 1 cancelled", "0 2 cancelled", "0 3 cancelled", "0 4 cancelled", "0 5 ok"];

fn sorted(mut events: Vec<String>) -> Vec<String> {
    events.sort();
    events
}

fn a_mutex_reaches_the_sixth<R: Runner>() {
    for (when, expected) in [(BeforeTheHandOver, SIXTH), (AfterTheHandOver, FIRST_AND_SIXTH)] {
        let events = R::run(async |world| {
            let mutex = Rc::new(Mutex::new(()));
            let held = mutex.lock().await.unwrap();
            let wait = |_| {
                let mutex = mutex.clone();
                async move { mutex.lock().await.map(drop) }
            };
            interrupt_five(&world, when, wait, || drop(held)).await;
            assert!(!mutex.is_locked() && mutex.waiting() == 0);
        });
        assert_eq!(sorted(events), expected);
    }
}

fn a_mutex_reaches_the_sixth_when_it_is_interrupted_in_the_step_of_the_hand_over<R: Runner>() {
    // Each is interrupted right after the lock was handed to it, in the same step.
    let events = R::run(async |world| {
        let mutex = Rc::new(Mutex::new(()));
        let held = mutex.lock().await.unwrap();
        let waiters: Vec<_> = (0..=SOME)
            .map(|number| {
                let (world, mutex) = (world.clone(), mutex.clone());
                spawn(async move {
                    let told = told(mutex.lock().await.map(drop));
                    world.note(format_args!("{number} {told}"));
                })
            })
            .collect();
        yield_now().await.unwrap();
        drop(held);
        for waiter in &waiters[..SOME] {
            waiter.abort(); // and not only told: gone
        }
        sleep(ms(1)).await.unwrap();
        assert!(waiters.iter().all(Task::is_finished));
        assert!(!mutex.is_locked() && mutex.waiting() == 0);
    });
    assert_eq!(events, ["0 5 ok"]);
}

fn a_mutex_says_whether_it_can_be_taken<R: Runner>() {
    R::run(async |_| {
        let mutex = Mutex::new(1);
        let held = mutex.try_lock().unwrap();
        assert!(mutex.is_locked() && mutex.try_lock().is_none());
        drop(held);
        assert!(!mutex.is_locked() && mutex.try_lock().is_some());
    });
}

fn permits_reach_the_sixth<R: Runner>() {
    for (when, expected) in [(BeforeTheHandOver, SIXTH), (AfterTheHandOver, FIRST_AND_SIXTH)] {
        let events = R::run(async |world| {
            let semaphore = Rc::new(Semaphore::new(0));
            let wait = |_| {
                let semaphore = semaphore.clone();
                async move { semaphore.acquire(1).await.map(drop) }
            };
            interrupt_five(&world, when, wait, || semaphore.release(1).unwrap()).await;
            assert_eq!((semaphore.available(), semaphore.waiting()), (1, 0));
        });
        assert_eq!(sorted(events), expected);
    }
}

fn a_release_into_a_line_of_interrupted_waiters_is_not_lost<R: Runner>() {
    let events = R::run(async |world| {
        let semaphore = Rc::new(Semaphore::new(0));
        let waiters: Vec<_> = (0..SOME)
            .map(|_| {
                let (world, semaphore) = (world.clone(), semaphore.clone());
                spawn(async move { world.note(told(semaphore.acquire(1).await.map(drop))) })
            })
            .collect();
        yield_now().await.unwrap();
        waiters.iter().for_each(|waiter| waiter.request_cancel(""));
        semaphore.release(1).unwrap();
        assert_eq!(semaphore.available(), 1, "nobody is there to take it");
        sleep(ms(1)).await.unwrap();
        assert_eq!((semaphore.available(), semaphore.waiting()), (1, 0));
    });
    assert_eq!(events, ["0 cancelled"; SOME]);
}

fn a_large_request_is_served_before_small_ones_behind_it<R: Runner>() {
    let events = R::run(async |world| {
        let semaphore = Rc::new(Semaphore::new(0));
        let tasks: Vec<_> = [3, 1, 1]
            .map(|count| {
                let (world, semaphore) = (world.clone(), semaphore.clone());
                spawn(async move {
                    semaphore.acquire(count).await.unwrap().forget();
                    world.note(count);
                })
            })
            .into();
        for _ in 0..5 {
            sleep(ms(1)).await.unwrap();
            semaphore.release(1).unwrap();
            assert!(semaphore.waiting() == 0 || semaphore.try_acquire(1).is_none());
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(events, ["3 3", "4 1", "5 1"]);
}

fn a_count_that_reaches_zero_wakes_all_who_were_not_interrupted_before<R: Runner>() {
    for when in [BeforeTheHandOver, AfterTheHandOver] {
        let events = R::run(async |world| {
            let group = Rc::new(WaitGroup::new());
            group.up(1);
            let wait = |_| {
                let group = group.clone();
                async move { group.wait().await }
            };
            interrupt_five(&world, when, wait, || group.down(1).unwrap()).await;
            assert_eq!(group.waiting(), 0);
        });
        if when == BeforeTheHandOver {
            assert_eq!(events, SIXTH);
        } else {
            assert_eq!(events, ["0 0 ok", "0 1 ok", "0 2 ok", "0 3 ok", "0 4 ok", "0 5 ok"]);
        }
    }
}

fn a_count_is_waited_for_until_it_is_zero<R: Runner>() {
    let events = R::run(async |world| {
        let group = Rc::new(WaitGroup::new());
        group.wait().await.unwrap();
        group.up(2);
        let waiter = spawn({
            let (world, group) = (world.clone(), group.clone());
            async move {
                group.wait().await.unwrap();
                world.note("zero");
            }
        });
        for _ in 0..2 {
            sleep(ms(1)).await.unwrap();
            group.down(1).unwrap();
        }
        group.up(1); // too late to keep who waited
        waiter.await.unwrap();
    });
    assert_eq!(events, ["2 zero"]);
}

fn a_notification_reaches_the_sixth<R: Runner>() {
    for (when, expected) in [(BeforeTheHandOver, SIXTH), (AfterTheHandOver, FIRST_AND_SIXTH)] {
        let events = R::run(async |world| {
            let shared = Rc::new((Mutex::new(()), Condvar::new()));
            let wait = |_| {
                let shared = shared.clone();
                async move {
                    let held = shared.0.lock().await?;
                    drop(shared.1.wait(held).await?);
                    Ok(())
                }
            };
            let notified = shared.clone();
            let hand_over = || {
                notified.1.notify(1);
                if when == AfterTheHandOver {
                    notified.1.notify(0);
                }
            };
            if when == AfterTheHandOver {
                // The first is notified, and that counts: so the sixth needs one of its own.
                let again = shared.clone();
                let task = spawn(async move {
                    yield_now().await.unwrap();
                    yield_now().await.unwrap();
                    again.1.notify(1);
                });
                interrupt_five(&world, when, wait, hand_over).await;
                task.await.unwrap();
            } else {
                interrupt_five(&world, when, wait, hand_over).await;
            }
            assert!(!shared.0.is_locked() && shared.1.waiting() == 0);
        });
        assert_eq!(sorted(events), expected);
    }
}

fn a_notification_of_one_who_is_dropped_reaches_the_next<R: Runner>() {
    let events = R::run(async |world| {
        let shared = Rc::new((Mutex::new(()), Condvar::new()));
        let waiters: Vec<_> = (0..=SOME)
            .map(|number| {
                let (world, shared) = (world.clone(), shared.clone());
                spawn(async move {
                    let held = shared.0.lock().await.unwrap();
                    drop(shared.1.wait(held).await.unwrap());
                    world.note(number);
                })
            })
            .collect();
        yield_now().await.unwrap();
        shared.1.notify(1);
        waiters[..SOME].iter().for_each(Task::abort);
        sleep(ms(1)).await.unwrap();
        assert!(waiters[SOME].is_finished());
    });
    assert_eq!(events, ["0 5"]);
}

fn a_read_write_lock_reaches_the_sixth_whoever_waits_for_what<R: Runner>() {
    // Who waits: readers or writers, behind a writer or a reader.
    for (held_by_a_writer, wait_to_write) in [(true, true), (true, false), (false, true)] {
        for when in [BeforeTheHandOver, AfterTheHandOver] {
            let events = R::run(async |world| {
                let lock = Rc::new(RwLock::new(()));
                let (mut reads, mut writes) = (None, None);
                if held_by_a_writer {
                    writes = lock.try_write();
                } else {
                    reads = lock.try_read();
                }
                let wait = |_| {
                    let lock = lock.clone();
                    async move {
                        match wait_to_write {
                            true => lock.write().await.map(drop),
                            false => lock.read().await.map(drop),
                        }
                    }
                };
                interrupt_five(&world, when, wait, || drop((reads.take(), writes.take()))).await;
                assert_eq!((lock.reading(), lock.is_writing(), lock.waiting()), (0, false, 0));
            });
            let expected = match (when, wait_to_write) {
                (BeforeTheHandOver, _) => SIXTH,
                (AfterTheHandOver, true) => FIRST_AND_SIXTH,
                (AfterTheHandOver, false) => {
                    ["0 0 ok", "0 1 ok", "0 2 ok", "0 3 ok", "0 4 ok", "0 5 ok"]
                }
            };
            assert_eq!(sorted(events), expected);
        }
    }
}

fn readers_behind_writers_that_are_interrupted_go_on<R: Runner>() {
    for when in [BeforeTheHandOver, AfterTheHandOver] {
        let events = R::run(async |world| {
            let lock = Rc::new(RwLock::new(()));
            // Somebody reads all the time. The five want to write; the sixth wants to read.
            let reads = lock.try_read().unwrap();
            let wait = |number| {
                let lock = lock.clone();
                async move {
                    match number < SOME {
                        true => lock.write().await.map(drop),
                        false => lock.read().await.map(drop),
                    }
                }
            };
            let mut reads = Some(reads);
            let hand_over = || {
                if when == AfterTheHandOver {
                    reads.take();
                }
            };
            interrupt_five(&world, when, wait, hand_over).await;
        });
        let expected = if when == BeforeTheHandOver { SIXTH } else { FIRST_AND_SIXTH };
        assert_eq!(sorted(events), expected);
    }
}

fn a_waiting_writer_keeps_new_readers_out<R: Runner>() {
    let events = R::run(async |world| {
        let lock = Rc::new(RwLock::new(0));
        let reads = lock.read().await.unwrap();
        let both = lock.try_read().unwrap();
        let writer = spawn({
            let (world, lock) = (world.clone(), lock.clone());
            async move {
                *lock.write().await.unwrap() += 1;
                world.note("wrote");
            }
        });
        yield_now().await.unwrap();
        assert!(lock.try_read().is_none() && lock.try_write().is_none());
        let reader = spawn({
            let (world, lock) = (world.clone(), lock.clone());
            async move {
                let value = lock.read().await.unwrap();
                world.note(format_args!("read {value:?}"));
            }
        });
        sleep(ms(1)).await.unwrap();
        drop((reads, both));
        writer.await.unwrap();
        reader.await.unwrap();
    });
    assert_eq!(events, ["1 wrote", "1 read 1"]);
}

on_every_kernel! {
    in_order {
        a_mutex_reaches_the_sixth
        permits_reach_the_sixth
        a_release_into_a_line_of_interrupted_waiters_is_not_lost
        a_large_request_is_served_before_small_ones_behind_it
        a_count_that_reaches_zero_wakes_all_who_were_not_interrupted_before
        a_notification_reaches_the_sixth
        a_notification_of_one_who_is_dropped_reaches_the_next
        a_read_write_lock_reaches_the_sixth_whoever_waits_for_what
        readers_behind_writers_that_are_interrupted_go_on
        a_waiting_writer_keeps_new_readers_out
    }
    in_any_order {
        a_mutex_reaches_the_sixth_when_it_is_interrupted_in_the_step_of_the_hand_over
        a_mutex_says_whether_it_can_be_taken
        a_count_is_waited_for_until_it_is_zero
    }
}

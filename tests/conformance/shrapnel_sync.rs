//! The assertions of Shrapnel's `test_mutex`, `test_semaphore`, `test_isemaphore`,
//! `test_condition_variable` and `test_rw_lock`: five waiters are interrupted before or after the
//! hand-over, and a sixth waits behind them.

use std::rc::Rc;

use pikake::sync::{Condvar, Mutex, RwLock, Semaphore, WaitGroup};
use pikake::{Interrupted, Task, shield, sleep, spawn, yield_now};

use crate::runner::{Runner, World, describe, ms, on_every_kernel};

/// The number of interrupted waiters.
const SOME: usize = 5;

/// When the five are interrupted.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// A step before the hand-over: the five have stopped waiting.
    AStepBefore,
    /// In the step of the hand-over and before it: the five still wait.
    JustBefore,
    /// In the step of the hand-over and after it.
    JustAfter,
}
use When::{AStepBefore, JustAfter, JustBefore};

/// Starts six waiters, hands over, interrupts waiters 0 to 4, and lets time pass.
///
/// Each waiter notes its answer.
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
                let answer = describe(wait.await);
                world.note(format_args!("{number} {answer}"));
            })
        })
        .collect();
    yield_now().await.unwrap();
    let interrupt = || waiters[..SOME].iter().for_each(|waiter| waiter.request_cancel(""));
    match when {
        AStepBefore => {
            interrupt();
            yield_now().await.unwrap();
            hand_over();
        }
        JustBefore => {
            interrupt();
            hand_over();
        }
        JustAfter => {
            hand_over();
            interrupt();
        }
    }
    sleep(ms(1)).await.unwrap();
    for waiter in waiters {
        assert!(waiter.is_finished(), "all have been served or interrupted");
        waiter.await.unwrap();
    }
}

/// Keeps the handed-over object for one more step, in which the tasks behind see their cancel.
async fn keep_for_a_step<T>(handed_over: T) {
    shield(yield_now()).await.unwrap();
    drop(handed_over);
}

/// The five are interrupted, and the sixth waiter gets the object.
const SIXTH: [&str; 6] =
    ["0 0 cancelled", "0 1 cancelled", "0 2 cancelled", "0 3 cancelled", "0 4 cancelled", "0 5 ok"];

/// The first waiter gets the object in spite of its cancel, and passes it on to the sixth.
const FIRST_AND_SIXTH: [&str; 6] =
    ["0 0 ok", "0 1 cancelled", "0 2 cancelled", "0 3 cancelled", "0 4 cancelled", "0 5 ok"];

/// All six waiters get the object.
const ALL: [&str; 6] = ["0 0 ok", "0 1 ok", "0 2 ok", "0 3 ok", "0 4 ok", "0 5 ok"];

/// The answers where the hand-over serves one waiter at a time.
const ONE_AT_A_TIME: [(When, [&str; 6]); 3] =
    [(AStepBefore, SIXTH), (JustBefore, FIRST_AND_SIXTH), (JustAfter, FIRST_AND_SIXTH)];

/// The answers where the hand-over serves all waiters at once.
const ALL_AT_ONCE: [(When, [&str; 6]); 3] =
    [(AStepBefore, SIXTH), (JustBefore, ALL), (JustAfter, ALL)];

fn sorted(mut events: Vec<String>) -> Vec<String> {
    events.sort();
    events
}

fn a_mutex_reaches_the_sixth<R: Runner>() {
    for (when, expected) in ONE_AT_A_TIME {
        let events = R::run(async move |world| {
            let mutex = Rc::new(Mutex::new(()));
            let held = mutex.lock().await.unwrap();
            let wait = |_| {
                let mutex = mutex.clone();
                async move {
                    keep_for_a_step(mutex.lock().await?).await;
                    Ok(())
                }
            };
            interrupt_five(&world, when, wait, || drop(held)).await;
            assert!(!mutex.is_locked() && mutex.waiting() == 0);
        });
        assert_eq!(sorted(events), expected);
    }
}

fn an_aborted_hand_over_reaches_the_sixth<R: Runner>() {
    // Each is interrupted right after the lock was handed to it, in the same step.
    let events = R::run(async |world| {
        let mutex = Rc::new(Mutex::new(()));
        let held = mutex.lock().await.unwrap();
        let waiters: Vec<_> = (0..=SOME)
            .map(|number| {
                let (world, mutex) = (world.clone(), mutex.clone());
                spawn(async move {
                    let answer = describe(mutex.lock().await.map(drop));
                    world.note(format_args!("{number} {answer}"));
                })
            })
            .collect();
        yield_now().await.unwrap();
        drop(held);
        for waiter in &waiters[..SOME] {
            waiter.abort(); // drops the waiter, and does not only interrupt it
        }
        sleep(ms(1)).await.unwrap();
        assert!(waiters.iter().all(Task::is_finished));
        assert!(!mutex.is_locked() && mutex.waiting() == 0);
    });
    assert_eq!(events, ["0 5 ok"]);
}

fn a_grant_beats_a_cancel_of_its_step<R: Runner>() {
    let events = R::run(async |world| {
        let mutex = Rc::new(Mutex::new(()));
        let held = mutex.lock().await.unwrap();
        let waiter = spawn({
            let (world, mutex) = (world.clone(), mutex.clone());
            async move {
                let _held = mutex.lock().await.unwrap();
                world.note("has it");
                world.note(describe(sleep(ms(1)).await));
            }
        });
        sleep(ms(1)).await.unwrap();
        waiter.request_cancel("");
        assert_eq!(mutex.waiting(), 1, "a cancelled waiter counts until its step");
        drop(held);
        assert_eq!((mutex.is_locked(), mutex.waiting()), (true, 0));
        waiter.await.unwrap();
        assert!(!mutex.is_locked());
    });
    assert_eq!(events, ["1 has it", "1 cancelled"]);
}

fn a_mutex_says_whether_it_can_be_taken<R: Runner>() {
    R::run(async |_| {
        let mutex = Mutex::new(1);
        let held = mutex.try_lock().unwrap();
        assert!(mutex.is_locked() && mutex.try_lock().is_err());
        drop(held);
        assert!(!mutex.is_locked() && mutex.try_lock().is_ok());
    });
}

fn permits_reach_the_sixth<R: Runner>() {
    for (when, expected) in ONE_AT_A_TIME {
        let events = R::run(async move |world| {
            let semaphore = Rc::new(Semaphore::new(0));
            let wait = |_| {
                let semaphore = semaphore.clone();
                async move {
                    keep_for_a_step(semaphore.acquire().await?).await;
                    Ok(())
                }
            };
            interrupt_five(&world, when, wait, || semaphore.add_permits(1).unwrap()).await;
            assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
        });
        assert_eq!(sorted(events), expected);
    }
}

/// Waiters that had a step since their cancel leave the permit alone. Waiters without such a step
/// get the permit, each from the one before.
fn a_release_to_interrupted_waiters_is_not_lost<R: Runner>() {
    for (had_a_step, answer, left_alone) in [(true, "0 cancelled", 1), (false, "0 ok", 0)] {
        let events = R::run(async move |world| {
            let semaphore = Rc::new(Semaphore::new(0));
            let waiters: Vec<_> = (0..SOME)
                .map(|_| {
                    let (world, semaphore) = (world.clone(), semaphore.clone());
                    spawn(async move { world.note(describe(semaphore.acquire().await.map(drop))) })
                })
                .collect();
            yield_now().await.unwrap();
            waiters.iter().for_each(|waiter| waiter.request_cancel(""));
            if had_a_step {
                yield_now().await.unwrap();
            }
            semaphore.add_permits(1).unwrap();
            assert_eq!(semaphore.available_permits(), left_alone);
            sleep(ms(1)).await.unwrap();
            assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
        });
        assert_eq!(events, [answer; SOME]);
    }
}

fn a_large_request_precedes_later_small_ones<R: Runner>() {
    let events = R::run(async |world| {
        let semaphore = Rc::new(Semaphore::new(0));
        let tasks: Vec<_> = [3, 1, 1]
            .map(|count| {
                let (world, semaphore) = (world.clone(), semaphore.clone());
                spawn(async move {
                    semaphore.acquire_many(count).await.unwrap().forget();
                    world.note(count);
                })
            })
            .into();
        for _ in 0..5 {
            sleep(ms(1)).await.unwrap();
            semaphore.add_permits(1).unwrap();
            assert!(semaphore.waiting() == 0 || semaphore.try_acquire().is_err());
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(events, ["3 3", "4 1", "5 1"]);
}

fn a_zero_count_wakes_all_uninterrupted_waiters<R: Runner>() {
    for (when, expected) in ALL_AT_ONCE {
        let events = R::run(async move |world| {
            let group = Rc::new(WaitGroup::new());
            group.up(1);
            let wait = |_| {
                let group = group.clone();
                async move { group.wait().await }
            };
            interrupt_five(&world, when, wait, || group.down(1).unwrap()).await;
            assert_eq!(group.waiting(), 0);
        });
        assert_eq!(events, expected);
    }
}

fn a_count_is_awaited_until_zero<R: Runner>() {
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
    for (when, expected) in ONE_AT_A_TIME {
        let events = R::run(async move |world| {
            let shared = Rc::new((Mutex::new(()), Condvar::new()));
            let wait = |_| {
                let shared = shared.clone();
                async move {
                    let held = shared.0.lock().await?;
                    let held = shared.1.wait(held).await?;
                    keep_for_a_step(held).await;
                    shared.1.notify(1); // a notification counts, so the next needs its own
                    Ok(())
                }
            };
            interrupt_five(&world, when, wait, || assert_eq!(shared.1.notify(1), 1)).await;
            assert!(!shared.0.is_locked() && shared.1.waiting() == 0);
        });
        assert_eq!(sorted(events), expected);
    }
}

fn dropping_a_notified_waiter_notifies_the_next<R: Runner>() {
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

fn a_read_write_lock_reaches_the_sixth<R: Runner>() {
    // Who waits: readers or writers, behind a writer or a reader.
    for (held_by_a_writer, wait_to_write) in [(true, true), (true, false), (false, true)] {
        let answers = if wait_to_write { ONE_AT_A_TIME } else { ALL_AT_ONCE };
        for (when, expected) in answers {
            let events = R::run(async move |world| {
                let lock = Rc::new(RwLock::new(()));
                let (mut reads, mut writes) = (None, None);
                if held_by_a_writer {
                    writes = lock.try_write().ok();
                } else {
                    reads = lock.try_read().ok();
                }
                let wait = |_| {
                    let lock = lock.clone();
                    async move {
                        match wait_to_write {
                            true => keep_for_a_step(lock.write().await?).await,
                            false => keep_for_a_step(lock.read().await?).await,
                        }
                        Ok(())
                    }
                };
                interrupt_five(&world, when, wait, || drop((reads.take(), writes.take()))).await;
                assert_eq!((lock.reading(), lock.is_writing(), lock.waiting()), (0, false, 0));
            });
            assert_eq!(sorted(events), expected);
        }
    }
}

fn readers_behind_writers_that_are_interrupted_go_on<R: Runner>() {
    for (when, expected) in ONE_AT_A_TIME {
        let events = R::run(async move |world| {
            let lock = Rc::new(RwLock::new(()));
            // The five want to write; the sixth wants to read, and may when the five have left.
            let mut reads = Some(lock.try_read().unwrap());
            let wait = |number| {
                let lock = lock.clone();
                async move {
                    match number < SOME {
                        true => keep_for_a_step(lock.write().await?).await,
                        false => keep_for_a_step(lock.read().await?).await,
                    }
                    Ok(())
                }
            };
            let hand_over = || {
                if when != AStepBefore {
                    reads.take();
                }
            };
            interrupt_five(&world, when, wait, hand_over).await;
        });
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
        assert!(lock.try_read().is_err() && lock.try_write().is_err());
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
        a_release_to_interrupted_waiters_is_not_lost
        a_large_request_precedes_later_small_ones
        a_zero_count_wakes_all_uninterrupted_waiters
        a_notification_reaches_the_sixth
        dropping_a_notified_waiter_notifies_the_next
        a_read_write_lock_reaches_the_sixth
        readers_behind_writers_that_are_interrupted_go_on
        a_waiting_writer_keeps_new_readers_out
    }
    in_any_order {
        an_aborted_hand_over_reaches_the_sixth
        a_grant_beats_a_cancel_of_its_step
        a_mutex_says_whether_it_can_be_taken
        a_count_is_awaited_until_zero
    }
}

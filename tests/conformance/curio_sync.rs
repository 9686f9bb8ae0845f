//! The assertions of Curio's `test_sync` about objects inside one kernel.

use std::rc::Rc;

use pikake::sync::{
    Condvar, Event, Mutex, OnceCell, Promise, ReentrantMutex, RwLock, Semaphore, WaitGroup,
};
use pikake::{sleep, spawn, timeout_after};

use crate::runner::{Runner, World, describe, ms, named, on_every_kernel};

fn setting_an_event_answers_its_waiters<R: Runner>() {
    let events = R::run(async |world| {
        let event = Rc::new(Event::new());
        let waiter = spawn({
            let (world, event) = (world.clone(), event.clone());
            async move {
                world.note(format_args!("waits, {}", event.is_set()));
                event.wait().await.unwrap();
                world.note(format_args!("goes on, {}", event.is_set()));
                event.clear();
                world.note(format_args!("cleared, {}", event.is_set()));
            }
        });
        world.note("sleeps");
        sleep(ms(10)).await.unwrap();
        world.note("sets");
        event.set();
        waiter.await.unwrap();
    });
    let expected =
        ["0 sleeps", "0 waits, false", "10 sets", "10 goes on, true", "10 cleared, false"];
    assert_eq!(events, expected);
}

fn a_wait_on_a_set_event_returns_immediately<R: Runner>() {
    let events = R::run(async |world| {
        let event = Event::new();
        event.set();
        event.wait().await.unwrap();
        world.note("at once");
    });
    assert_eq!(events, ["0 at once"]);
}

fn setting_and_clearing_an_event_answers_its_waiters<R: Runner>() {
    let events = R::run(async |world| {
        let event = Rc::new(Event::new());
        let waiter = spawn({
            let (world, event) = (world.clone(), event.clone());
            async move { world.note(describe(event.wait().await)) }
        });
        sleep(ms(1)).await.unwrap();
        event.set();
        event.clear();
        waiter.await.unwrap();
    });
    assert_eq!(events, ["1 ok"]);
}

/// Cancels an endless `wait` on `never`, and lets another one time out.
async fn cancelled_and_timed_out<T: 'static, F>(world: World, what: &str, never: Rc<T>, wait: F)
where
    F: AsyncFn(&T) -> Result<(), pikake::Interrupted> + Copy + 'static,
{
    let task = spawn({
        let (world, never, what) = (world.clone(), never.clone(), what.to_owned());
        async move {
            let answer = describe(wait(&never).await);
            world.note(format_args!("{what}: {answer}"));
        }
    });
    sleep(ms(1)).await.unwrap();
    task.cancel().await.unwrap();
    world.note("its end was waited for");
    let outcome = timeout_after(ms(5), wait(&never)).await;
    world.note(format_args!("{what}: {outcome:?}"));
    // No later wait returns the timeout.
    sleep(ms(10)).await.unwrap();
}

fn every_wait_can_be_cancelled_or_time_out<R: Runner>() {
    let check = |what: &str, events: Vec<String>| {
        let expected = [
            format!("1 {what}: cancelled"),
            "1 its end was waited for".to_owned(),
            format!("6 {what}: Err(TimedOut)"),
        ];
        assert_eq!(events, expected);
    };
    check(
        "event",
        R::run(async |world| {
            let never = Rc::new(Event::new());
            cancelled_and_timed_out(world, "event", never.clone(), async |e: &Event| {
                e.wait().await
            })
            .await;
            assert_eq!((never.is_set(), never.waiting()), (false, 0));
        }),
    );
    check(
        "lock",
        R::run(async |world| {
            let never = Rc::new(Mutex::new(()));
            let _held = never.lock().await.unwrap();
            cancelled_and_timed_out(world, "lock", never.clone(), async |m: &Mutex<()>| {
                m.lock().await.map(drop)
            })
            .await;
            assert_eq!(never.waiting(), 0);
        }),
    );
    check(
        "read",
        R::run(async |world| {
            let never = Rc::new(RwLock::new(()));
            let _held = never.write().await.unwrap();
            cancelled_and_timed_out(world, "read", never.clone(), async |l: &RwLock<()>| {
                l.read().await.map(drop)
            })
            .await;
            assert_eq!(never.waiting(), 0);
        }),
    );
    check(
        "permit",
        R::run(async |world| {
            let never = Rc::new(Semaphore::new(0));
            cancelled_and_timed_out(world, "permit", never.clone(), async |s: &Semaphore| {
                s.acquire().await.map(drop)
            })
            .await;
            assert_eq!((never.available_permits(), never.waiting()), (0, 0));
        }),
    );
    check(
        "condition",
        R::run(async |world| {
            let never = Rc::new((Mutex::new(()), Condvar::new()));
            cancelled_and_timed_out(
                world,
                "condition",
                never.clone(),
                async |(mutex, condition): &(Mutex<()>, Condvar)| {
                    let held = mutex.lock().await?;
                    drop(condition.wait(held).await?);
                    Ok(())
                },
            )
            .await;
            assert_eq!((never.0.is_locked(), never.1.waiting()), (false, 0));
        }),
    );
    check(
        "count",
        R::run(async |world| {
            let never = Rc::new(WaitGroup::new());
            never.up(1);
            cancelled_and_timed_out(world, "count", never, async |w: &WaitGroup| w.wait().await)
                .await;
        }),
    );
}

fn an_event_in_time_leaves_no_timeout<R: Runner>() {
    let events = R::run(async |world| {
        let event = Rc::new(Event::new());
        let setter = spawn({
            let event = event.clone();
            async move {
                for _ in 0..2 {
                    sleep(ms(10)).await.unwrap();
                    event.set();
                }
            }
        });
        world.note(format_args!("{:?}", timeout_after(ms(15), event.wait()).await));
        event.clear();
        world.note(describe(event.wait().await));
        setter.await.unwrap();
    });
    assert_eq!(events, ["10 Ok(Ok(()))", "20 ok"]);
}

/// Three workers take their turns at something that has room for so many.
async fn take_turns(world: &World, permits: usize) {
    let semaphore = Rc::new(Semaphore::new(permits));
    let workers: Vec<_> = ["one", "two", "three"]
        .map(|name| {
            let (world, semaphore) = (world.clone(), semaphore.clone());
            named(name, async move {
                world.note(format_args!("{name} waits"));
                let _permit = semaphore.acquire().await.unwrap();
                world.note(format_args!("{name} has it, {} left", semaphore.available_permits()));
                sleep(ms(5)).await.unwrap();
                world.note(format_args!("{name} is done"));
            })
        })
        .into();
    for worker in workers {
        worker.await.unwrap();
    }
}

fn workers_take_turns_in_order_of_arrival<R: Runner>() {
    let expected = [
        "0 one waits",
        "0 one has it, 0 left",
        "0 two waits",
        "0 three waits",
        "5 one is done",
        "5 two has it, 0 left",
        "10 two is done",
        "10 three has it, 0 left",
        "15 three is done",
    ];
    assert_eq!(R::run(async |world| take_turns(&world, 1).await), expected);
    let with_a_lock = R::run(async |world| {
        let mutex = Rc::new(Mutex::new(()));
        let workers: Vec<_> = ["one", "two", "three"]
            .map(|name| {
                let (world, mutex) = (world.clone(), mutex.clone());
                spawn(async move {
                    world.note(format_args!("{name} waits"));
                    let _held = mutex.lock().await.unwrap();
                    world.note(format_args!("{name} has it, 0 left"));
                    sleep(ms(5)).await.unwrap();
                    world.note(format_args!("{name} is done"));
                })
            })
            .into();
        for worker in workers {
            worker.await.unwrap();
        }
    });
    assert_eq!(with_a_lock, expected);
}

fn a_release_lets_the_third_of_three_in<R: Runner>() {
    let events = R::run(async |world| take_turns(&world, 2).await);
    let expected = [
        "0 one waits",
        "0 one has it, 1 left",
        "0 two waits",
        "0 two has it, 0 left",
        "0 three waits",
        "5 one is done",
        "5 two is done",
        "5 three has it, 1 left",
        "10 three is done",
    ];
    assert_eq!(events, expected);
}

fn a_reentrant_lock_admits_its_holder_again<R: Runner>() {
    let events = R::run(async |world| {
        let mutex = Rc::new(ReentrantMutex::new(()));
        let workers: Vec<_> = ["one", "two"]
            .map(|name| {
                let (world, mutex) = (world.clone(), mutex.clone());
                spawn(async move {
                    let outer = mutex.lock().await.unwrap();
                    world.note(format_args!("{name} has it"));
                    let inner = mutex.lock().await.unwrap();
                    world.note(format_args!("{name} has it twice"));
                    drop(inner);
                    assert!(mutex.is_locked());
                    sleep(ms(5)).await.unwrap();
                    drop(outer);
                    world.note(format_args!("{name} is done"));
                })
            })
            .into();
        sleep(ms(1)).await.unwrap();
        // The guard ensures that only the holder gives it back.
        assert!(mutex.try_lock().is_none());
        for worker in workers {
            worker.await.unwrap();
        }
        assert!(!mutex.is_locked());
    });
    let expected = [
        "0 one has it",
        "0 one has it twice",
        "5 one is done",
        "5 two has it",
        "5 two has it twice",
        "10 two is done",
    ];
    assert_eq!(events, expected);
}

fn a_condition_wakes_its_longest_waiter<R: Runner>() {
    let events = R::run(async |world| {
        let shared = Rc::new((Mutex::new(Vec::new()), Condvar::new()));
        let consumers: Vec<_> = ["one", "two"]
            .map(|name| {
                let (world, shared) = (world.clone(), shared.clone());
                spawn(async move {
                    loop {
                        let held = shared.0.lock().await.unwrap();
                        let empty = |items: &mut Vec<Option<i32>>| items.is_empty();
                        let mut items = shared.1.wait_while(held, empty).await.unwrap();
                        let Some(item) = items.remove(0) else { break };
                        world.note(format_args!("{name} {item}"));
                    }
                })
            })
            .into();
        for item in (0..4).map(Some).chain([None, None]) {
            sleep(ms(1)).await.unwrap();
            shared.0.lock().await.unwrap().push(item);
            assert_eq!(shared.1.notify(1), 1);
        }
        for consumer in consumers {
            consumer.await.unwrap();
        }
        assert_eq!(shared.1.notify(1), 0, "of no use, and no harm");
    });
    assert_eq!(events, ["1 one 0", "2 two 1", "3 one 2", "4 two 3"]);
}

fn notified_waiters_wait_for_the_notifiers_lock<R: Runner>() {
    let events = R::run(async |world| {
        let shared = Rc::new((Mutex::new(()), Condvar::new()));
        let waiters: Vec<_> = ["one", "two", "three"]
            .map(|name| {
                let (world, shared) = (world.clone(), shared.clone());
                spawn(async move {
                    let held = shared.0.lock().await.unwrap();
                    let _held = shared.1.wait(held).await.unwrap();
                    world.note(name);
                })
            })
            .into();
        sleep(ms(1)).await.unwrap();
        let held = shared.0.lock().await.unwrap();
        assert_eq!(shared.1.notify_all(), 3);
        sleep(ms(1)).await.unwrap();
        world.note("leaves");
        drop(held);
        for waiter in waiters {
            waiter.await.unwrap();
        }
    });
    assert_eq!(events, ["2 leaves", "2 one", "2 two", "2 three"]);
}

fn each_notification_checks_the_predicate_again<R: Runner>() {
    let events = R::run(async |world| {
        let shared = Rc::new((Mutex::new(0), Condvar::new()));
        let waiter = spawn({
            let (world, shared) = (world.clone(), shared.clone());
            async move {
                let held = shared.0.lock().await.unwrap();
                let looks = |count: &mut i32| {
                    world.note(format_args!("looks at {count}"));
                    *count < 2
                };
                assert_eq!(*shared.1.wait_while(held, looks).await.unwrap(), 2);
            }
        });
        for _ in 0..2 {
            sleep(ms(1)).await.unwrap();
            *shared.0.lock().await.unwrap() += 1;
            shared.1.notify(1);
        }
        waiter.await.unwrap();
    });
    assert_eq!(events, ["0 looks at 0", "1 looks at 1", "2 looks at 2"]);
}

fn an_interrupted_condition_wait_takes_the_lock_first<R: Runner>() {
    let events = R::run(async |world| {
        let shared = Rc::new((Mutex::new(()), Condvar::new()));
        let waiter = spawn({
            let (world, shared) = (world.clone(), shared.clone());
            async move {
                let held = shared.0.lock().await.unwrap();
                let error = shared.1.wait(held).await.unwrap_err();
                assert!(shared.0.is_locked());
                world.note(&error.interrupted);
            }
        });
        sleep(ms(1)).await.unwrap();
        let held = shared.0.lock().await.unwrap();
        waiter.request_cancel("");
        sleep(ms(5)).await.unwrap();
        world.note("unlocks");
        drop(held);
        waiter.await.unwrap();
    });
    assert_eq!(events, ["6 unlocks", "6 cancelled"]);
}

fn a_promise_is_kept_once<R: Runner>() {
    let events = R::run(async |world| {
        let promise = Rc::new(Promise::new());
        let keeper = spawn({
            let promise = promise.clone();
            async move {
                sleep(ms(1)).await.unwrap();
                promise.set(Ok::<_, &str>(7)).unwrap();
                assert_eq!(promise.set(Err("again")), Err(Err("again")));
            }
        });
        world.note(format_args!("{:?}", promise.wait().await));
        keeper.await.unwrap();
    });
    assert_eq!(events, ["1 Ok(Ok(7))"]);
}

fn a_value_is_made_once_unless_making_fails<R: Runner>() {
    let events = R::run(async |world| {
        let cell = Rc::new(OnceCell::new());
        let tasks: Vec<_> = (0..3)
            .map(|number| {
                let (world, cell) = (world.clone(), cell.clone());
                spawn(async move {
                    let make = async || {
                        world.note(format_args!("{number} makes it"));
                        sleep(ms(5)).await.map(|()| number)
                    };
                    let made = cell.get_or_try_init(make).await;
                    world.note(format_args!("{number}: {made:?}"));
                })
            })
            .collect();
        sleep(ms(1)).await.unwrap();
        tasks[0].request_cancel("");
        for task in tasks {
            task.await.unwrap();
        }
    });
    let expected = [
        "0 0 makes it",
        "1 0: Err(Interrupted(cancelled))",
        "1 1 makes it",
        "6 1: Ok(1)",
        "6 2: Ok(1)",
    ];
    assert_eq!(events, expected);
}

on_every_kernel! {
    in_order {
        workers_take_turns_in_order_of_arrival
        a_release_lets_the_third_of_three_in
        a_reentrant_lock_admits_its_holder_again
        a_condition_wakes_its_longest_waiter
        notified_waiters_wait_for_the_notifiers_lock
        a_value_is_made_once_unless_making_fails
    }
    in_any_order {
        setting_an_event_answers_its_waiters
        a_wait_on_a_set_event_returns_immediately
        setting_and_clearing_an_event_answers_its_waiters
        every_wait_can_be_cancelled_or_time_out
        an_event_in_time_leaves_no_timeout
        each_notification_checks_the_predicate_again
        an_interrupted_condition_wait_takes_the_lock_first
        a_promise_is_kept_once
    }
}

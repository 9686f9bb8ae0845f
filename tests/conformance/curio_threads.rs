//! The assertions of Curio's `test_workers` and `test_thread`, and eventlet's rules for its thread
//! pool and its `GreenPool`. Cases with threads run on the real kernel alone, in real time. The
//! other cases run on every kernel.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pikake::sync::shared;
use pikake::task::ordered_map;
use pikake::thread::{block_on, in_thread, run_in_thread, spawn_thread};
use pikake::{TaskError, TaskGroup, sleep, spawn, timeout_after, yield_now};

use crate::runner::{Runner, World, ms, on_every_kernel};

/// Nothing takes so long, and what is not to happen would have by then.
const LONG: Duration = Duration::from_secs(20);

/// Waits for a message from another thread, without holding up the kernel.
async fn receive<T: Send + 'static>(from: mpsc::Receiver<T>) -> T {
    run_in_thread(move || from.recv_timeout(LONG).expect("it comes")).await.unwrap()
}

fn a_group_with_a_limit_waits_for_room<R: Runner>() {
    let events = R::run(|world: World| async move {
        let mut group = TaskGroup::bounded(2);
        for number in 1..=3_u64 {
            let inside = world.clone();
            let member = async move {
                sleep(ms(10 * number)).await.unwrap();
                inside.note(number);
            };
            group.spawn(member).await.unwrap();
            world.note(format_args!("spawned {number}"));
        }
        group.join_all().await.unwrap();
    });
    assert_eq!(events, ["0 spawned 1", "0 spawned 2", "10 1", "10 spawned 3", "20 2", "40 3"]);
}

fn results_and_failures_are_in_order<R: Runner>() {
    let events = R::run(|world: World| async move {
        let mut map = ordered_map([30_u64, 10, 20], 2, async |length| {
            sleep(ms(length)).await.unwrap();
            assert_ne!(length, 10, "this one fails");
            length
        });
        while let Some(outcome) = map.next_outcome().await.unwrap() {
            match outcome {
                Ok(length) => world.note(length),
                Err(_) => world.note("failed"),
            }
        }
    });
    assert_eq!(events, ["30 30", "30 failed", "50 20"]);
}

on_every_kernel! {
    in_any_order {
        a_group_with_a_limit_waits_for_room
        results_and_failures_are_in_order
    }
}

#[test]
fn blocking_call_does_not_delay_other_ticks() {
    pikake::run(async {
        let (open, gate) = mpsc::channel::<()>();
        let blocked = spawn(run_in_thread(move || gate.recv().is_err()));
        let begin = Instant::now();
        for _ in 0..10 {
            sleep(ms(2)).await.unwrap();
        }
        assert!(begin.elapsed() < LONG && !blocked.is_finished());
        drop(open);
        assert!(blocked.await.unwrap().unwrap());
    });
}

#[test]
fn waits_for_workers_are_cancelled_or_time_out() {
    pikake::run(async {
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let block = || {
            let gate = gate.clone();
            run_in_thread(move || gate.lock().unwrap().recv().is_err())
        };
        let task = spawn(block());
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
        let error = task.await.unwrap().unwrap_err();
        assert!(matches!(error, TaskError::Interrupted(why) if why.is_cancel()));
        let mut told = None;
        assert!(timeout_after(ms(1), async { told = Some(block().await) }).await.is_err());
        assert!(matches!(told, Some(Err(TaskError::Interrupted(why))) if why.is_timeout()));
        drop(open);
    });
}

#[test]
fn worker_failure_carries_its_error() {
    pikake::run(async {
        let failed = run_in_thread(|| "many".parse::<u8>()).await.unwrap();
        assert_eq!(failed.unwrap_err(), "many".parse::<u8>().unwrap_err());
        let panicked = run_in_thread(|| panic!("over there")).await.unwrap_err();
        assert_eq!(panicked.panic_message(), Some("over there"));
    });
}

#[test]
fn a_thread_awaits_and_is_joined() {
    pikake::run(async {
        let task = spawn_thread(|| {
            let two = block_on(|| async {
                yield_now().await.unwrap();
                2
            });
            two.unwrap() + 3
        });
        assert_eq!(task.await.unwrap(), 5);
    });
}

#[test]
fn thread_and_await_failures_reach_the_waiter() {
    pikake::run(async {
        let task = spawn_thread(|| block_on(|| async { "many".parse::<u8>() }).unwrap());
        assert!(task.await.unwrap().is_err());
        let task = spawn_thread(|| block_on(|| async { panic!("in the await") }));
        let error: TaskError = task.await.unwrap_err();
        assert_eq!(error.panic_message(), Some("in the await"));
    });
}

#[test]
fn cancel_of_a_thread_interrupts_its_await() {
    pikake::run(async {
        let (waits, is_waiting) = mpsc::channel();
        let task = spawn_thread(move || {
            block_on(move || {
                waits.send(()).unwrap();
                sleep(LONG)
            })
        });
        receive(is_waiting).await;
        task.cancel().await.unwrap();
        let told = task.await.unwrap().unwrap();
        assert!(told.unwrap_err().is_cancel());
    });
}

#[test]
fn thread_waits_for_a_lock_of_a_task() {
    pikake::run(async {
        let lock = Arc::new(shared::Mutex::new(Vec::new()));
        let mut held = lock.lock().await.unwrap();
        let (starts, is_started) = mpsc::channel();
        let inside = lock.clone();
        let task = spawn_thread(move || {
            starts.send(()).unwrap();
            inside.blocking_lock().push("thread");
        });
        receive(is_started).await;
        sleep(ms(5)).await.unwrap();
        held.push("task");
        drop(held);
        task.await.unwrap();
        assert_eq!(*lock.lock().await.unwrap(), ["task", "thread"]);
    });
}

#[test]
fn an_await_of_a_thread_can_time_out() {
    pikake::run(async {
        let task = spawn_thread(|| block_on(|| timeout_after(ms(1), sleep(LONG))));
        assert!(task.await.unwrap().unwrap().is_err());
    });
}

#[test]
fn thread_shields_an_await() {
    pikake::run(async {
        let (waits, is_waiting) = mpsc::channel();
        let (open, is_open) = futures::channel::oneshot::channel();
        let task = spawn_thread(move || {
            let shielded = block_on(move || {
                pikake::shield(async move {
                    waits.send(()).unwrap();
                    pikake::future_wait(is_open).await
                })
            });
            assert!(shielded.unwrap().is_ok(), "it was not told in there");
        });
        receive(is_waiting).await;
        task.request_cancel("");
        yield_now().await.unwrap();
        open.send(()).unwrap();
        task.await.unwrap();
    });
}

#[test]
fn threads_are_members_of_groups() {
    pikake::run(async {
        let mut group = TaskGroup::new();
        for number in 0..3_u64 {
            group.spawn(in_thread(move || {
                block_on(move || sleep(ms(3 - number))).unwrap().unwrap();
                number
            }));
        }
        assert_eq!(group.join_all().await.unwrap(), [0, 1, 2]);
        let mut group = TaskGroup::new();
        group.spawn(in_thread(|| block_on(|| sleep(LONG)).is_ok_and(|slept| slept.is_ok())));
        group.spawn(async { panic!("this ends the thread, too") });
        assert_eq!(group.join_all().await.unwrap_err().failures().len(), 1);
    });
}

#[test]
fn a_thread_of_its_own_uses_a_group() {
    pikake::run(async {
        let task = spawn_thread(|| {
            block_on(|| async {
                let mut group = TaskGroup::new();
                for number in 0..3 {
                    group.spawn(async move { number });
                }
                group.join_all().await.unwrap()
            })
        });
        assert_eq!(task.await.unwrap().unwrap(), [0, 1, 2]);
    });
}

#[test]
fn cancelled_worker_counts_until_it_ends() {
    let kernel = pikake::Kernel::builder().helper_threads(1).build().unwrap();
    kernel.run(async {
        let (open, gate) = mpsc::channel::<()>();
        let (starts, is_started) = mpsc::channel();
        let first = spawn(run_in_thread(move || {
            starts.send(()).unwrap();
            gate.recv().is_err()
        }));
        yield_now().await.unwrap();
        is_started.recv_timeout(LONG).unwrap();
        first.cancel().await.unwrap();
        let ran = Rc::new(Cell::new(false));
        let inside = ran.clone();
        let next = spawn(async move {
            let name = run_in_thread(|| std::thread::current().name().map(str::to_owned));
            let name = name.await.unwrap();
            inside.set(true);
            name
        });
        sleep(ms(5)).await.unwrap();
        assert!(!ran.get(), "there is one thread, and it is busy");
        drop(open);
        assert_eq!(next.await.unwrap().as_deref(), Some("pikake-helper0"));
    });
}

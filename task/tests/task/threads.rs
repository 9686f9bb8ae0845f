//! Threads that await in their kernel: values, panics and cancels between both, and both ends.

use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread as threads;
use std::time::Duration;

use pikake::thread::{self, block_on, check_interrupt, has_kernel, in_thread, spawn_thread};
use pikake::{Interrupted, Kernel, TaskError, current, future_wait, sleep, spawn, yield_now};

use crate::support::{ms, named, within};

const PATIENCE: Duration = Duration::from_secs(20);

const FOREVER: Duration = Duration::from_secs(3600);

#[test]
fn thread_awaits_futures_in_its_kernel() {
    within(|| {
        pikake::run(async {
            let here = threads::current().id();
            let task = spawn_thread(move || {
                assert!(has_kernel());
                assert_ne!(threads::current().id(), here);
                let mut sum = 0;
                for number in 1..=10 {
                    sum += block_on(move || async move {
                        // Values of this future need not be `Send`.
                        let number = Rc::new(number);
                        yield_now().await.unwrap();
                        assert_eq!(threads::current().id(), here);
                        *number
                    })
                    .unwrap();
                }
                sum
            });
            assert_eq!(task.await.unwrap(), 55);
        });
        assert!(!has_kernel());
    });
}

#[test]
fn panics_pass_between_thread_and_task() {
    within(|| {
        pikake::run(async {
            let error = spawn_thread(|| panic!("in the thread")).await.unwrap_err();
            assert_eq!(error.panic_message(), Some("in the thread"));
            let task = spawn_thread(|| {
                let inside =
                    std::panic::catch_unwind(|| block_on(|| async { panic!("in the future") }));
                let text = inside.unwrap_err().downcast::<&str>().unwrap();
                (text, block_on(|| async { "and on" }).unwrap())
            });
            assert_eq!(task.await.unwrap(), (Box::new("in the future"), "and on"));
        });
    });
}

#[test]
fn cancel_interrupts_the_blocked_thread_once() {
    within(|| {
        pikake::run(async {
            let (waits, is_waiting) = mpsc::channel();
            let task = spawn_thread(move || {
                let slept = block_on(move || {
                    waits.send(()).unwrap();
                    sleep(FOREVER)
                });
                let why = slept.unwrap().unwrap_err();
                // Cleanup may wait.
                block_on(|| sleep(ms(1))).unwrap().unwrap();
                assert_eq!(check_interrupt(), Ok(()));
                why
            });
            let waits = move || is_waiting.recv_timeout(PATIENCE).unwrap();
            pikake::task::run_in_thread(waits).await.unwrap();
            task.request_cancel("enough");
            task.request_cancel("too late");
            let why = task.await.unwrap();
            assert_eq!(why.reason(), Some("enough"));
        });
    });
}

/// The next wait returns the cancel, and so does a check.
#[test]
fn cancel_of_a_computing_thread_shows_later() {
    within(|| {
        pikake::run(async {
            for asks in [true, false] {
                let (cancelled, is_cancelled) = mpsc::channel::<()>();
                let (started, is_started) = mpsc::channel();
                let task = spawn_thread(move || {
                    started.send(()).unwrap();
                    is_cancelled.recv_timeout(PATIENCE).unwrap();
                    let told = if asks {
                        check_interrupt()
                    } else {
                        block_on(|| async { panic!("it is not begun") })
                    };
                    assert_eq!(block_on(|| async { 5 }), Ok(5));
                    told
                });
                let starts = move || is_started.recv_timeout(PATIENCE).unwrap();
                pikake::task::run_in_thread(starts).await.unwrap();
                task.request_cancel("now");
                // The task is told in its next step, and tells the thread.
                yield_now().await.unwrap();
                yield_now().await.unwrap();
                cancelled.send(()).unwrap();
                assert_eq!(task.await.unwrap(), Err(Interrupted::cancelled("now")));
            }
        });
    });
}

#[test]
fn cancel_waits_for_the_thread_to_end() {
    within(|| {
        pikake::run(async {
            let held = Arc::new(());
            let inside = held.clone();
            let (started, is_started) = mpsc::channel();
            let task = spawn_thread(move || {
                started.send(()).unwrap();
                threads::sleep(ms(30));
                drop(inside);
            });
            let starts = move || is_started.recv_timeout(PATIENCE).unwrap();
            pikake::task::run_in_thread(starts).await.unwrap();
            task.cancel().await.unwrap();
            assert_eq!(Arc::strong_count(&held), 1);
            task.await.unwrap();
            // One that never ran has no thread.
            let task = spawn_thread(|| panic!("it never runs"));
            task.cancel().await.unwrap();
            assert!(task.await.unwrap_err().is_cancelled());
        });
    });
}

/// The thread goes on.
#[test]
fn cancel_drops_a_future_in_foreign_waits() {
    within(|| {
        pikake::run(async {
            let (waits, is_waiting) = mpsc::channel();
            let task = spawn_thread(move || {
                let told = block_on(move || {
                    waits.send(()).unwrap();
                    std::future::pending::<()>()
                });
                (told, block_on(|| async { "and on" }))
            });
            let waits = move || is_waiting.recv_timeout(PATIENCE).unwrap();
            pikake::task::run_in_thread(waits).await.unwrap();
            task.request_cancel("enough");
            let (told, on) = task.await.unwrap();
            assert_eq!((told, on), (Err(Interrupted::cancelled("enough")), Ok("and on")));
        });
    });
}

#[test]
fn kernel_end_or_abort_detaches_the_thread() {
    within(|| {
        for aborts in [true, false] {
            let (told, is_told) = mpsc::channel();
            let (started, is_started) = mpsc::channel();
            let kernel = Kernel::new().unwrap();
            kernel.run(async {
                let task = spawn_thread(move || {
                    let first = block_on(move || {
                        started.send(()).unwrap();
                        sleep(FOREVER)
                    });
                    told.send(first.is_err()).unwrap();
                    told.send(block_on(|| async {}).is_err()).unwrap();
                });
                let starts = move || is_started.recv_timeout(PATIENCE).unwrap();
                pikake::task::run_in_thread(starts).await.unwrap();
                if aborts {
                    task.abort();
                    assert!(task.await.unwrap_err().is_cancelled());
                } else {
                    task.detach();
                }
            });
            if !aborts {
                drop(kernel);
            }
            assert_eq!(is_told.recv_timeout(PATIENCE), Ok(true));
            assert_eq!(is_told.recv_timeout(PATIENCE), Ok(true));
        }
    });
}

#[test]
fn shutdown_interrupts_the_thread_and_waits() {
    within(|| {
        let (told, is_told) = mpsc::channel();
        let kernel = Kernel::new().unwrap();
        kernel.run(async {
            let (started, is_started) = mpsc::channel();
            spawn_thread(move || {
                let slept = block_on(move || {
                    started.send(()).unwrap();
                    sleep(FOREVER)
                });
                // It says goodbye, and waits for that.
                block_on(|| sleep(ms(1))).unwrap().unwrap();
                let late = std::panic::catch_unwind(|| block_on(|| async { panic!("late") }));
                late.unwrap_err();
                told.send(slept.unwrap().unwrap_err().is_cancel()).unwrap();
            })
            .detach();
            let starts = move || is_started.recv_timeout(PATIENCE).unwrap();
            pikake::task::run_in_thread(starts).await.unwrap();
        });
        kernel.shutdown();
        assert_eq!(kernel.task_count(), 0);
        assert_eq!(is_told.try_recv(), Ok(true));
    });
}

#[test]
fn thread_has_its_tasks_name_and_await_locations() {
    within(|| {
        pikake::run(async {
            let task = named(
                "reader",
                in_thread(|| {
                    let name = threads::current().name().map(str::to_owned);
                    let (inside, place) = block_on(|| async {
                        (current().name().to_owned(), current().spawned_at())
                    })
                    .unwrap();
                    assert_eq!(place.file(), file!());
                    (name, inside)
                }),
            );
            assert_eq!(task.await.unwrap(), (Some("reader".to_owned()), "reader".to_owned()));
            let task = spawn_thread(|| threads::current().name().map(str::to_owned));
            assert_eq!(task.await.unwrap().as_deref(), Some("pikake-thread"));
        });
    });
}

#[test]
fn blocking_outside_a_thread_task_panics() {
    within(|| {
        let outside = threads::spawn(|| block_on(|| async {})).join().unwrap_err();
        let text = outside.downcast::<&str>().unwrap();
        assert!(text.contains("spawn_thread"), "{text}");
        let error = pikake::try_run(async { block_on(|| async {}) }).unwrap_err();
        assert!(error.panic_message().unwrap().contains("inside a kernel"));
    });
}

#[test]
fn many_interrupted_threads_end() {
    within(|| {
        pikake::run(async {
            let tasks: Vec<_> = (0..20_u64)
                .map(|number| {
                    spawn_thread(move || {
                        let mut done = 0;
                        for _ in 0..50 {
                            let length = Duration::from_micros(number * 10);
                            match thread::block_on(move || sleep(length)) {
                                Ok(Ok(())) => done += 1,
                                Ok(Err(_)) | Err(_) => return Err(done),
                            }
                        }
                        Ok(done)
                    })
                })
                .collect();
            let (send, receive) = futures::channel::oneshot::channel();
            spawn(async { send.send(sleep(ms(3)).await).unwrap() }).detach();
            future_wait(receive).await.unwrap().unwrap().unwrap();
            tasks.iter().step_by(2).for_each(|task| task.request_cancel(""));
            for (number, task) in tasks.into_iter().enumerate() {
                let done: Result<u32, TaskError> = match task.await {
                    Ok(Ok(done)) => Ok(done),
                    Ok(Err(done)) => {
                        assert_eq!(number % 2, 0, "the others were not cancelled");
                        Ok(done)
                    }
                    // It was cancelled before it began.
                    Err(error) => Err(error),
                };
                assert!(done.is_ok_and(|done| done <= 50));
            }
        });
    });
}

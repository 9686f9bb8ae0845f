//! The assertions of Shrapnel's `test_interrupt`, `test_with_timeout`, `test_in_parallel` and
//! `test_poller` that need no socket; `sockets.rs` has the others.

use std::cell::RefCell;
use std::rc::Rc;

use pikake::task::in_parallel;
use pikake::traps::{WaitQueue, blocking, park};
use pikake::{Task, sleep, spawn, timeout_after, yield_now};

use crate::runner::{Runner, describe, ms, on_every_kernel};

/// The wake comes before the cancel, after the cancel but before the step of the waiting task, or
/// after that step.
fn a_wake_before_the_step_beats_a_cancel<R: Runner>() {
    let events = R::run(async |world| {
        for steps_after_the_cancel in [None, Some(0), Some(1)] {
            let queue = Rc::new(WaitQueue::new());
            let task = spawn({
                let (world, queue) = (world.clone(), queue.clone());
                async move {
                    world.note(describe(park(&queue).await));
                    world.note(describe(sleep(ms(1)).await));
                }
            });
            yield_now().await.unwrap();
            let interrupts = spawn({
                let cancel = task.cancel();
                async move { cancel.await.unwrap() }
            });
            if let Some(steps) = steps_after_the_cancel {
                spawn(async move {
                    for _ in 0..steps {
                        yield_now().await.unwrap();
                    }
                    queue.wake(1);
                })
                .detach();
            } else {
                queue.wake(1);
            }
            interrupts.await.unwrap();
            task.await.unwrap();
        }
    });
    assert_eq!(events, ["0 ok", "0 cancelled", "0 ok", "0 cancelled", "0 cancelled", "1 ok"]);
}

fn interrupting_a_sleeper_removes_its_timer<R: Runner>() {
    let events = R::run(async |world| {
        let task = spawn({
            let world = world.clone();
            async move {
                world.note(describe(sleep(ms(50)).await));
                world.note(describe(sleep(ms(100)).await));
            }
        });
        sleep(ms(10)).await.unwrap();
        task.request_cancel("");
        task.await.unwrap();
    });
    assert_eq!(events, ["10 cancelled", "110 ok"]);
}

fn an_abort_of_a_dead_task_is_silent<R: Runner>() {
    R::run(async |_| {
        let task = spawn(async {});
        yield_now().await.unwrap();
        task.abort();
        task.abort();
        task.await.unwrap();
    });
}

fn aborting_each_other_leaves_one_of_two<R: Runner>() {
    let events = R::run(async |world| {
        let queue = Rc::new(WaitQueue::new());
        let handles: Rc<RefCell<Vec<Task<()>>>> = Rc::default();
        for number in 0..2 {
            let (world, queue, others) = (world.clone(), queue.clone(), handles.clone());
            let task = spawn(async move {
                park(&queue).await.unwrap();
                others.borrow()[1 - number].abort();
                world.note(format_args!("{number} goes on"));
            });
            handles.borrow_mut().push(task);
        }
        yield_now().await.unwrap();
        queue.wake(2); // both in one turn
        sleep(ms(1)).await.unwrap();
        assert!(handles.borrow().iter().all(Task::is_finished));
    });
    assert_eq!(events, ["0 0 goes on"]);
}

fn a_timeout_ends_a_loop_that_polls<R: Runner>() {
    let events = R::run(async |world| {
        let polling = async {
            let mut looks = 0;
            while sleep(ms(10)).await.is_ok() {
                looks += 1;
            }
            world.note(format_args!("looked {looks} times"));
        };
        world.note(format_args!("{:?}", timeout_after(ms(55), polling).await));
    });
    assert_eq!(events, ["55 looked 5 times", "55 Err(TimedOut)"]);
}

fn a_timeout_around_parallel_work_ends_all<R: Runner>() {
    let events = R::run(async |world| {
        let work = [10, 30, 50].map(|length| {
            let world = world.clone();
            async move {
                let _ended = world.on_drop("ended");
                sleep(ms(length)).await
            }
        });
        let outcome = timeout_after(ms(20), in_parallel(work)).await;
        world.note(outcome.is_err());
    });
    assert_eq!(events, ["10 ended", "20 ended", "20 ended", "20 true"]);
}

fn blocking_returns_the_value_or_the_panic<R: Runner>() {
    R::run(async |_| {
        assert_eq!(blocking(|| 6 * 7).await.unwrap(), 42);
        let error = blocking(|| panic!("over there")).await.unwrap_err();
        assert_eq!(error.panic_message(), Some("over there"));
    });
}

on_every_kernel! {
    in_order {
        a_wake_before_the_step_beats_a_cancel
        an_abort_of_a_dead_task_is_silent
        aborting_each_other_leaves_one_of_two
    }
    in_any_order {
        interrupting_a_sleeper_removes_its_timer
        a_timeout_ends_a_loop_that_polls
        a_timeout_around_parallel_work_ends_all
        blocking_returns_the_value_or_the_panic
    }
}

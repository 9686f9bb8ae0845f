//! Many outstanding traps in one task: combinators with wakers of their own, futures that move
//! between scopes and tasks, and futures that are dropped or forgotten.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::future::{FutureExt, Shared, join_all, select};
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::time::{ManualClock, elapsed_since};
use pikake::traps::{WaitQueue, park};
use pikake::{
    Kernel, TimedOut, check_interrupt, future_wait, ignore_after, pending_interrupt, shield, sleep,
    spawn, timed, timeout_after, yield_now,
};

use crate::support::{Log, kernel, ms, run};

#[test]
fn join_awaits_all_and_select_withdraws_the_loser() {
    run(async {
        let queue = WaitQueue::new();
        let (one, two) = futures::join!(sleep(ms(20)), sleep(ms(10)));
        assert!(one.is_ok() && two.is_ok());
        futures::select_biased! {
            _ = park(&queue).fuse() => unreachable!("nobody wakes the queue"),
            slept = sleep(ms(5)).fuse() => slept.unwrap(),
        }
        assert!(queue.is_empty(), "the loser has left the queue");
    });
}

#[test]
fn futures_unordered_polls_only_woken_futures() {
    let log = Log::default();
    run(async {
        let polls = Rc::new(Cell::new(0));
        let mut set: FuturesUnordered<_> = (0..50_u64)
            .map(|number| {
                let polls = polls.clone();
                async move {
                    let mut nap = sleep(ms(50 - number));
                    std::future::poll_fn(|cx| {
                        polls.set(polls.get() + 1);
                        nap.poll_unpin(cx)
                    })
                    .await
                    .unwrap();
                    number
                }
            })
            .collect();
        while let Some(number) = set.next().await {
            log.add(number);
        }
        assert_eq!(polls.get(), 100, "each sleep is polled to park and to collect, no more");
    });
    let expected: Vec<String> = (0..50).rev().map(|number: u64| number.to_string()).collect();
    assert_eq!(log.take(), expected);
}

#[test]
fn yields_inside_futures_unordered_do_not_spin() {
    run(async {
        let mut set: FuturesUnordered<_> =
            (0..10).map(|number| async move { yield_now().await.map(|()| number) }).collect();
        let mut sum = 0;
        while let Some(number) = set.next().await {
            sum += number.unwrap();
        }
        assert_eq!(sum, 45);
    });
}

#[test]
fn shared_future_wakes_every_waiting_task() {
    run(async {
        type Nap = Shared<Pin<Box<dyn Future<Output = u32>>>>;
        let nap: Nap = async {
            sleep(ms(10)).await.unwrap();
            7
        }
        .boxed_local()
        .shared();
        let tasks: Vec<_> = (0..5).map(|_| spawn(nap.clone())).collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 7);
        }
    });
}

#[test]
fn waiting_future_moves_to_another_task() {
    run(async {
        let mut nap = Box::pin(sleep(ms(50)));
        assert!(futures::poll!(nap.as_mut()).is_pending());
        let other = spawn(async move {
            nap.await.unwrap();
            "woken in the other task"
        });
        assert_eq!(other.await.unwrap(), "woken in the other task");
    });
}

#[test]
fn a_record_survives_the_end_of_its_task() {
    run(async {
        let keep = Rc::new(RefCell::new(None));
        let first = {
            let keep = keep.clone();
            spawn(async move {
                let mut nap = Box::pin(sleep(ms(50)));
                assert!(futures::poll!(nap.as_mut()).is_pending());
                *keep.borrow_mut() = Some(nap);
            })
        };
        first.await.unwrap();
        let nap = keep.borrow_mut().take().unwrap();
        nap.await.unwrap();
    });
}

#[test]
fn a_future_may_leave_one_scope_for_another() {
    run(async {
        let mut nap = pin!(sleep(ms(50)));
        // The first scope ends while the sleep in it was interrupted and nobody saw it.
        let first = timeout_after(ms(10), async {
            assert!(futures::poll!(nap.as_mut()).is_pending());
            std::future::pending::<()>().await;
        });
        assert_eq!(first.await, Err(TimedOut));
        // Neither that deadline nor its timer can be seen any more.
        assert_eq!(timeout_after(ms(1_000), nap).await, Ok(Ok(())));
    });
}

#[test]
fn an_interrupted_select_loses_no_deadline() {
    run(async {
        // Both branches are told; the one that is polled first is collected, the other dropped.
        let both = async {
            let (result, _) = select(sleep(ms(100)), sleep(ms(200))).await.factor_first();
            result
        };
        let result = timeout_after(ms(10), async {
            let result = both.await;
            assert!(result.as_ref().is_err_and(|e| e.is_timeout()));
            sleep(ms(5)).await.expect("the deadline is told once");
            result
        });
        assert_eq!(result.await, Err(TimedOut));
    });
}

#[test]
fn dropping_unpolled_waits_loses_no_deadline() {
    let clock = ManualClock::new();
    let kernel = Kernel::builder().clock(clock.clone()).build().unwrap();
    kernel.run(async {
        let queue = WaitQueue::new();
        let result = timeout_after(ms(10), async {
            {
                let mut one = pin!(sleep(ms(100)));
                let mut other = pin!(park(&queue));
                assert!(futures::poll!(one.as_mut()).is_pending());
                assert!(futures::poll!(other.as_mut()).is_pending());
                next_step().await;
                clock.advance(ms(20));
                next_step().await; // the deadline passes, which answers no wait
                assert_eq!(queue.len(), 1);
            } // both are dropped without having been polled
            assert!(queue.is_empty());
            sleep(ms(1)).await.expect_err("so this one is told");
            future_wait(next_step()).await.expect("and no other");
        });
        assert_eq!(result.await, Err(TimedOut));
    });
}

/// Suspends once, as a foreign future does.
async fn next_step() {
    let mut polled = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn forgotten_waiting_future_is_harmless() {
    run(async {
        let queue = Rc::new(WaitQueue::new());
        for _ in 0..3 {
            let queue = queue.clone();
            let mut waits = Box::pin(async move { park(&queue).await });
            assert!(futures::poll!(waits.as_mut()).is_pending());
            std::mem::forget(waits);
        }
        assert_eq!(queue.len(), 3);
        assert_eq!(queue.wake(1), 1);
        let mut nap = Box::pin(sleep(ms(10)));
        assert!(futures::poll!(nap.as_mut()).is_pending());
        std::mem::forget(nap);
        sleep(ms(20)).await.unwrap();
    });
}

#[test]
fn many_waits_of_one_task_end_together() {
    run(async {
        let naps = (0..1_000).map(|number| sleep(ms(number % 17)));
        assert!(join_all(naps).await.into_iter().all(|slept| slept.is_ok()));
    });
}

#[test]
fn trap_outside_a_kernel_panics_with_advice() {
    let line = line!() + 1;
    let mut nap = pin!(sleep(ms(1)));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = nap.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }))
    .unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    for part in ["`sleep`", "pikake::run", &format!("combinators.rs:{line}")] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
}

#[test]
fn waiting_future_panics_in_another_kernel() {
    let one = kernel();
    let other = kernel();
    let mut nap = Box::pin(sleep(ms(10)));
    one.run(async { assert!(futures::poll!(nap.as_mut()).is_pending()) });
    let error = other.try_run(async { nap.as_mut().await }).unwrap_err();
    assert!(error.panic_message().unwrap().contains("stays with its kernel"), "{error}");
    // Nor is it needed any more when its kernel is gone.
    drop(one);
    drop(nap);
}

#[test]
fn a_shield_holds_back_and_lets_go_afterwards() {
    run(async {
        let task = spawn(async {
            let inside = shield(async {
                sleep(ms(20)).await.expect("held back");
                assert_eq!(check_interrupt(), Ok(()), "not due in here");
                assert_eq!(timeout_after(ms(5), sleep(ms(50))).await, Err(TimedOut));
                "done"
            });
            assert_eq!(inside.await, "done");
            assert!(pending_interrupt().is_some());
            let told = sleep(ms(1)).await.unwrap_err();
            sleep(ms(1)).await.expect("told once");
            told
        });
        sleep(ms(5)).await.unwrap();
        task.request_cancel("from outside");
        assert_eq!(task.await.unwrap().reason(), Some("from outside"));
    });
}

#[test]
fn shield_does_not_reach_the_other_branch() {
    run(async {
        let outcome = timeout_after(ms(10), async {
            futures::join!(shield(sleep(ms(30))), sleep(ms(30)), async {
                shield(shield(sleep(ms(20)))).await.unwrap();
                sleep(ms(1)).await
            })
        });
        assert_eq!(outcome.await, Err(TimedOut));
        let timed = timed(ms(10), async {
            futures::join!(shield(sleep(ms(30))), sleep(ms(30)), async {
                shield(shield(sleep(ms(20)))).await.unwrap();
                sleep(ms(1)).await
            })
        });
        let timed = timed.await;
        assert!(timed.expired && timed.late == ms(20), "{timed:?}");
        let (shielded, open, afterwards) = timed.output.unwrap();
        assert!(shielded.is_ok() && open.is_err() && afterwards.is_err());
    });
}

#[test]
fn check_interrupt_collects_what_is_due() {
    run(async {
        pikake::current().request_cancel("");
        assert!(pending_interrupt().is_some_and(|why| why.is_cancel()));
        assert!(check_interrupt().is_err());
        assert_eq!((check_interrupt(), pending_interrupt()), (Ok(()), None));
        sleep(ms(1)).await.expect("it has been collected");
        assert_eq!(ignore_after(ms(5), sleep(ms(50))).await, None);
        assert_eq!(ignore_after(ms(5), async { 3 }).await, Some(3));
    });
}

#[test]
fn cleanup_through_a_foreign_future_has_a_grace() {
    run(async {
        // A driver of another runtime, which needs 300 ms to roll back.
        let roll_back = |length| {
            let (send, receive) = futures::channel::oneshot::channel();
            spawn(async move {
                sleep(length).await.unwrap();
                let _ = send.send("rolled back");
            })
            .detach();
            receive
        };
        for (length, expected) in [(ms(300), Some(Ok("rolled back"))), (ms(3_000), None)] {
            let started = pikake::now();
            let outcome = timed(ms(10), async {
                sleep(ms(1_000)).await.unwrap_err();
                roll_back(length).await
            });
            let outcome = outcome.await;
            assert!(outcome.expired);
            assert_eq!(outcome.output, expected);
            let took = elapsed_since(started);
            assert_eq!(took, if expected.is_some() { ms(310) } else { ms(1_010) });
        }
    });
}

#[test]
fn scope_is_dropped_after_its_grace() {
    let log = Log::default();
    run(async {
        let started = pikake::now();
        let stubborn = timeout_after(
            ms(10),
            shield(async {
                let _guard = Noted(log.clone());
                loop {
                    let _ = sleep(ms(7)).await;
                }
            }),
        );
        assert_eq!(stubborn.grace(ms(50)).await, Err::<(), _>(TimedOut));
        assert_eq!(elapsed_since(started), ms(60));
    });
    assert_eq!(log.take(), ["dropped"]);
}

struct Noted(Log);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.add("dropped");
    }
}

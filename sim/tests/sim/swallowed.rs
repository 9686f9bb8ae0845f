//! Interruptions that a task swallows: each is a failure of its own kind, and cleanup is none.

use std::fmt::Display;
use std::future::pending;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use pikake::net::TcpListener;
use pikake::sim::{Cause, Failure, Sim};
use pikake::sync::broadcast::{self, RecvError};
use pikake::sync::mpsc;
use pikake::testing::{Injector, interrupt_everywhere};
use pikake::traps::{HowSwallowed, Swallowed};
use pikake::{Interrupted, Kernel, Task, select, shield, sleep, spawn, timeout_after, yield_now};

const SECOND: Duration = Duration::from_secs(1);

/// A line of this file.
#[track_caller]
fn line() -> u32 {
    Location::caller().line()
}

fn run(program: impl AsyncFnOnce()) -> Result<(), Box<Failure>> {
    let ran = Sim::new(3).run_here("host", program())?;
    ran.outcome.unwrap();
    Ok(())
}

#[track_caller]
fn swallowed(program: impl AsyncFnOnce()) -> Swallowed {
    let failure = run(program).unwrap_err();
    let Cause::Swallowed { host, swallowed } = failure.cause else { panic!("{failure}") };
    assert_eq!(host, "host");
    assert_eq!(swallowed.caught_at.file(), file!());
    assert_eq!(swallowed.awaited_at.file(), file!());
    *swallowed
}

/// Lets a task begin, and cancels it.
async fn cancel<T>(task: Task<T>) {
    sleep(SECOND / 10).await.unwrap();
    task.cancel().await.unwrap();
}

fn log(error: impl Display) {
    assert!(!error.to_string().is_empty());
}

/// On tokio, `recv` fails when the receiver lags, or the channel is closed. The same `match` does
/// not compile here, so its author adds an arm.
#[test]
fn loop_that_logs_a_lagging_receiver_swallows() {
    let mut at = 0;
    let found = swallowed(async || {
        let (send, mut receive) = broadcast::channel(2);
        at = line() + 3;
        let server = spawn(async move {
            loop {
                match receive.recv().await {
                    Ok(Ok(_)) => {}
                    Ok(Err(RecvError::Closed)) => break,
                    Ok(Err(lagged)) => log(lagged),
                    Err(error) => log(error), // "lagged again", says the author
                }
            }
        });
        for number in 0..5 {
            let _ = send.send(number);
        }
        cancel(server).await;
    });
    assert_eq!((found.caught_at.line(), found.awaited_at.line()), (at, at));
    assert_eq!((found.how, found.waits), (HowSwallowed::WaitsAgain, 1));
    let text = found.to_string();
    let place = found.caught_at;
    assert!(text.contains(&format!("caught the interruption at {place} and has begun 1 wait")));
    assert!(text.contains("return the error, or put cleanup under a shield"), "{text}");
}

#[test]
fn retry_that_turns_errors_into_text_swallows() {
    async fn attempt() -> Result<(), Interrupted> {
        sleep(10 * SECOND).await?;
        sleep(10 * SECOND).await
    }
    let found = swallowed(async || {
        cancel(spawn(async {
            let mut last = String::new();
            for _ in 0..50 {
                match attempt().await {
                    Ok(()) => return Ok(()),
                    Err(error) => last = error.to_string(),
                }
            }
            Err(last)
        }))
        .await;
    });
    assert_eq!((found.how, found.waits), (HowSwallowed::WaitsAgain, 1));
    assert_eq!(found.caught_at, found.awaited_at);
}

/// The backoff is interrupted, and the next attempt is another wait. Then the backoff comes again.
#[test]
fn retry_that_ignores_its_backoff_swallows() {
    let found = swallowed(async || {
        cancel(spawn(async {
            for _ in 0..50 {
                let _ = timeout_after(SECOND / 100, pending::<()>()).await;
                yield_now().await.ok();
                let _ = sleep(SECOND).await;
            }
        }))
        .await;
    });
    assert_eq!((found.how, found.waits), (HowSwallowed::WaitsAgain, 2));
}

/// The first item is lost, and the others are sent.
#[test]
fn sends_in_a_loop_that_ignore_errors_swallow() {
    let found = swallowed(async || {
        let (send, receive) = mpsc::channel(1);
        cancel(spawn(async move {
            for item in 0..5 {
                let _ = send.send(item).await;
            }
        }))
        .await;
        drop(receive);
    });
    assert_eq!(found.how, HowSwallowed::WaitsAgain);
}

#[test]
fn connection_after_an_interruption_is_swallowed() {
    let found = swallowed(async || {
        cancel(spawn(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if sleep(SECOND).await.is_err() {
                drop(listener.accept().await);
            }
        }))
        .await;
    });
    assert_eq!((found.how, found.trap.name()), (HowSwallowed::Accepts, "read_wait"));
}

#[test]
fn wait_that_outlasts_the_limit_swallows() {
    let found = swallowed(async || {
        cancel(spawn(async {
            let error = sleep(60 * SECOND).await.unwrap_err();
            sleep(60 * SECOND).await.unwrap();
            drop(error);
        }))
        .await;
    });
    assert_eq!((found.how, found.waits), (HowSwallowed::GoesOn, 1));
    assert_eq!(found.after.as_secs(), 30);
    assert_ne!(found.caught_at, found.awaited_at);
}

#[test]
fn child_of_a_set_that_outlasts_the_limit_swallows() {
    let found = swallowed(async || {
        cancel(spawn(async {
            let child = async {
                let error = sleep(60 * SECOND).await.unwrap_err();
                sleep(60 * SECOND).await.unwrap();
                drop(error);
            };
            let mut set: FuturesUnordered<_> = [child].into_iter().collect();
            set.next().await
        }))
        .await;
    });
    assert_eq!((found.how, found.waits), (HowSwallowed::GoesOn, 1));
}

#[test]
fn body_of_a_timeout_swallows_its_deadline() {
    let found = swallowed(async || {
        let body = async {
            loop {
                if let Err(error) = sleep(10 * SECOND).await {
                    log(error);
                }
            }
        };
        let _: Result<(), _> = timeout_after(SECOND, body).await;
    });
    assert_eq!(found.how, HowSwallowed::WaitsAgain);
    assert_eq!(found.interruption, "a deadline passed");
}

/// The rollback waits at the place that was interrupted, and the error is returned afterwards.
#[test]
fn rollback_by_the_same_function_is_cleanup() {
    async fn command(takes: Duration) -> Result<(), Interrupted> {
        sleep(takes).await
    }
    run(async || {
        cancel(spawn(async {
            let Err(interrupted) = command(SECOND).await else { return Ok(()) };
            for _ in 0..3 {
                command(SECOND).await?;
            }
            Err(interrupted)
        }))
        .await;
    })
    .unwrap();
}

#[test]
fn cleanup_may_wait_often_at_other_places() {
    run(async || {
        let (send, mut receive) = mpsc::channel(1);
        let reader = spawn(async move { while let Ok(Some(_)) = receive.recv().await {} });
        cancel(spawn(async move {
            sleep(SECOND).await.unwrap_err();
            for item in 0..100 {
                send.send(item).await.unwrap();
                sleep(SECOND / 10).await.unwrap();
            }
        }))
        .await;
        reader.await.unwrap();
    })
    .unwrap();
}

#[test]
fn shield_hides_every_wait() {
    run(async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        cancel(spawn(async move {
            let nap = async || sleep(20 * SECOND).await;
            nap().await.unwrap_err();
            let cleanup = async {
                for _ in 0..3 {
                    nap().await.unwrap();
                    assert!(timeout_after(SECOND, listener.accept()).await.is_err());
                }
            };
            shield(cleanup).await;
        }))
        .await;
    })
    .unwrap();
}

/// The owner of each deadline has ended when its error is caught.
#[test]
fn own_timeouts_in_a_loop_are_never_named() {
    run(async || {
        let (send, mut receive) = mpsc::channel::<u8>(1);
        let polling = spawn(async move {
            let mut timeouts = 0;
            loop {
                match timeout_after(SECOND, receive.recv()).await {
                    Err(pikake::TimedOut) => timeouts += 1,
                    Ok(Ok(None)) => return timeouts,
                    Ok(Ok(Some(_))) => {}
                    Ok(Err(_)) => unreachable!("nobody cancels it"),
                }
            }
        });
        sleep(100 * SECOND + SECOND / 2).await.unwrap();
        drop(send);
        assert_eq!(polling.await.unwrap(), 100);
    })
    .unwrap();
}

/// The branches await at one place, and each of them is told.
#[test]
fn branches_of_one_function_are_told_apart() {
    async fn branch(rest: u64) -> Result<(), Interrupted> {
        for _ in 0..rest {
            sleep(SECOND).await?;
        }
        Ok(())
    }
    run(async || {
        let joined = async { join_all((0..5).map(|rest| branch(10 + rest))).await };
        cancel(spawn(joined)).await;
        let selected = async {
            select! {
                done = branch(10) => done,
                done = branch(20) => done,
            }
        };
        cancel(spawn(selected)).await;
        let both = async { futures::join!(branch(10), branch(10)) };
        assert!(timeout_after(SECOND, both).await.is_err());
        let set = async {
            let mut set: FuturesUnordered<_> = (0..5).map(|rest| branch(10 + rest)).collect();
            while set.next().await.is_some() {}
        };
        assert!(timeout_after(SECOND, set).await.is_err());
    })
    .unwrap();
}

/// The cleanup is shielded, and what waits beside the timeout is not the timeout's.
#[test]
fn waits_beside_a_timeout_do_not_outlast_its_limit() {
    run(async || {
        let mut set: FuturesUnordered<_> = [sleep(100 * SECOND)].into_iter().collect();
        let cleanup = async {
            let error = sleep(60 * SECOND).await.unwrap_err();
            shield(sleep(60 * SECOND)).await.unwrap();
            drop(error);
        };
        let (_, timed_out) = futures::join!(set.next(), timeout_after(SECOND, cleanup));
        assert!(timed_out.is_err());
    })
    .unwrap();
}

/// A task that is joined by value, and a stream's next item, have a line of a library.
#[test]
fn lines_of_libraries_are_no_places_to_return_to() {
    run(async || {
        let [one, other] = [10, 1].map(|length| spawn(sleep(length * SECOND)));
        cancel(spawn(async move {
            assert!(matches!(timeout_after(60 * SECOND, one).await, Ok(Err(_))));
            timeout_after(60 * SECOND, other).await.unwrap().unwrap().unwrap();
        }))
        .await;
        let (send, mut orders) = mpsc::channel::<u8>(1);
        let (receipt, mut receipts) = mpsc::channel::<u8>(1);
        let sending = spawn(async move {
            sleep(SECOND).await.unwrap();
            receipt.send(1).await.unwrap();
        });
        cancel(spawn(async move {
            while let Some(Ok(_)) = orders.next().await {}
            assert_eq!(receipts.next().await.unwrap().unwrap(), 1);
        }))
        .await;
        sending.await.unwrap();
        drop(send);
    })
    .unwrap();
}

#[test]
fn limit_is_settable_and_can_be_left_out() {
    let program = async || {
        cancel(spawn(async {
            let error = sleep(90 * SECOND).await.unwrap_err();
            sleep(90 * SECOND).await.unwrap();
            drop(error);
        }))
        .await;
    };
    let ran = Sim::new(3).cleanup_limit(Some(100 * SECOND)).run_here("host", program());
    ran.unwrap().outcome.unwrap();
    let stubborn = async || {
        cancel(spawn(async { while sleep(SECOND).await.is_err() {} })).await;
    };
    let ran = Sim::new(3).cleanup_limit(None).run_here("host", stubborn());
    ran.unwrap().outcome.unwrap();
}

/// An own grace says how long the body may go on.
#[test]
fn grace_of_a_timeout_replaces_the_limit() {
    run(async || {
        let body = async {
            let error = sleep(90 * SECOND).await.unwrap_err();
            sleep(90 * SECOND).await.unwrap();
            drop(error);
        };
        assert!(timeout_after(SECOND, body).grace(60 * SECOND).await.is_err());
    })
    .unwrap();
}

async fn log_and_continue() {
    for _ in 0..3 {
        if let Err(error) = sleep(SECOND).await {
            log(error);
        }
    }
}

#[test]
#[should_panic(expected = "swallowed an interruption (cancelled: injected)")]
fn interrupting_everywhere_finds_it() {
    interrupt_everywhere(log_and_continue, |_| {});
}

#[test]
fn interrupting_everywhere_can_leave_it_out() {
    let report = Injector::new().cleanup_limit(None).run(log_and_continue, |_| {});
    assert_eq!((report.suspensions, report.cancels), (3, 6));
}

/// As `#[pikake::test]` runs its function.
#[test]
#[should_panic(expected = ", where it had caught it")]
fn kernel_with_a_limit_stops() {
    let kernel = Kernel::builder().cleanup_limit(Some(Duration::MAX)).build().unwrap();
    let shared = Rc::new(());
    kernel.run(async {
        let task = spawn(async move {
            loop {
                let _ = sleep(60 * SECOND).await;
                drop(shared.clone());
            }
        });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
    });
}

#[pikake::test]
#[should_panic(expected = ", where it had caught it")]
async fn test_that_swallows_fails() {
    let task = spawn(async {
        loop {
            let _ = sleep(60 * SECOND).await;
        }
    });
    yield_now().await.unwrap();
    task.cancel().await.unwrap();
}

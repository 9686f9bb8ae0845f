//! Tests of the injector.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use pikake::net::UnixStream;
use pikake::testing::{Kind, Run, interrupt_everywhere};
use pikake::traps::{WaitQueue, park};
use pikake::{shield, sleep, spawn, yield_now};

use crate::support::insist::{FOREVER, ms};

/// The message of a run that fails.
fn failure<F: Future>(program: impl FnMut() -> F, check: impl FnMut(&Run<F::Output>)) -> String {
    let failing = std::panic::AssertUnwindSafe(|| interrupt_everywhere(program, check));
    let panic = std::panic::catch_unwind(failing).expect_err("it fails");
    *panic.downcast::<String>().expect("a text")
}

#[test]
fn everything_is_interrupted_once() {
    let kinds = RefCell::new(Vec::new());
    let report = interrupt_everywhere(
        || async {
            yield_now().await?;
            sleep(ms(1)).await
        },
        |run| {
            let by = run.interruption.as_ref();
            kinds.borrow_mut().push(by.map(|by| (by.kind, by.suspension, by.suspensions)));
        },
    );
    let expected = [
        None,
        Some((Kind::CancelWhileWaiting, 1, 2)),
        Some((Kind::CancelWhileWaiting, 2, 2)),
        Some((Kind::CancelGoingOn, 1, 2)),
        Some((Kind::CancelGoingOn, 2, 2)),
        // As it begins to wait in each; the first goes on in the same instant. As the second goes
        // on, it ends: the event beats the timeout.
        Some((Kind::Timeout, 1, 2)),
        Some((Kind::Timeout, 2, 2)),
        None,
    ];
    assert_eq!(kinds.take(), expected);
    assert_eq!((report.suspensions, report.cancels, report.timeouts, report.missed), (2, 4, 2, 1));
}

#[test]
fn a_check_that_fails_says_where() {
    let line = line!() + 2;
    let text = failure(
        || async { sleep(ms(1)).await.is_ok() },
        |run| assert_eq!(run.output, Some(true), "it sleeps well"),
    );
    let place = format!("suspension 1 of 1, `sleep` at tests/injection/injector.rs:{line}:");
    for part in ["with a cancel while it waited in ", &place, "it sleeps well"] {
        assert!(text.contains(part), "{part:?} is missing in {text:?}");
    }
    let text = failure(|| async { panic!("at once") }, |_| {});
    assert_eq!(text, "in a run that was not interrupted:\nat once");
    let text = failure(|| async { sleep(ms(1)).await.unwrap() }, |_| {});
    assert!(text.contains("with a cancel while it waited") && text.contains("unwrap"), "{text}");
}

#[test]
fn a_program_that_does_not_end_is_found() {
    let text = failure(
        || async {
            let queue = WaitQueue::new();
            if sleep(ms(1)).await.is_err() {
                let _ = park(&queue).await;
            }
        },
        |_| {},
    );
    assert!(text.contains("suspension 1 of 1") && text.contains("`park`"), "{text}");
    assert!(text.contains("swallowed an interruption") && text.contains("30s later"), "{text}");
    let text = failure(|| async { while sleep(ms(1)).await.is_ok() {} }, |_| {});
    assert!(text.contains("does not end: its tasks made 200000 steps"), "{text}");
    let text = failure(
        || async {
            spawn(async {
                loop {
                    let _ = sleep(ms(1)).await;
                }
            })
            .detach();
            yield_now().await
        },
        |_| {},
    );
    assert!(text.contains("task 2") && text.contains("where it had caught it"), "{text}");
    let text = failure(
        || async {
            spawn(shield(async {
                loop {
                    let _ = sleep(ms(1)).await;
                }
            }))
            .detach();
            yield_now().await
        },
        |_| {},
    );
    assert!(text.contains("tasks that were asked to end, and do not: 1"), "{text}");
}

#[test]
fn leftover_sockets_and_waits_are_reported() {
    let kept = RefCell::new(Vec::new());
    let text = failure(
        || async {
            kept.borrow_mut().push(UnixStream::pair().unwrap());
        },
        |_| {},
    );
    assert!(text.contains("sockets that are still open: 2"), "{text}");
    let queue = WaitQueue::new();
    let text = failure(
        || async {
            let mut nap = Box::pin(sleep(FOREVER));
            let _ = poll_fn(|cx| Poll::Ready(nap.as_mut().poll(cx).is_pending())).await;
            std::mem::forget(nap);
            let mut parked = pin!(park(&queue));
            let _ = poll_fn(|cx| Poll::Ready(parked.as_mut().poll(cx).is_pending())).await;
        },
        |_| {},
    );
    assert!(text.contains("waits that were never answered or withdrawn: 1"), "{text}");
}

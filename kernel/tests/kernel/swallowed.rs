//! A task that catches an interruption and goes on: the warning, the listing, the stop.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use pikake::time::ManualClock;
use pikake::traps::{HowSwallowed, swallowed};
use pikake::{Kernel, TaskError, shield, sleep, spawn, timeout_after, yield_now};
use tracing::field::{Field, Visit};

use crate::support::ms;
use crate::support::warnings::OnWarning;

/// The message of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The warnings of a program in virtual time, without the path of this file.
fn warnings(program: impl Future<Output = ()>) -> Vec<String> {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let notes = noted.clone();
    let on_warning = OnWarning(move |event: &tracing::Event<'_>| {
        let mut message = Message::default();
        event.record(&mut message);
        notes.lock().unwrap().push(message.0.replace(file!(), "here"));
    });
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    tracing::subscriber::with_default(on_warning, || kernel.run(program));
    noted.lock().unwrap().clone()
}

#[test]
fn warning_names_both_places_and_the_waits() {
    let first = line!() + 4;
    let warnings = warnings(async {
        let task = spawn(async {
            for _ in 0..50 {
                if sleep(ms(100)).await.is_err() {
                    continue;
                }
            }
        });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
    });
    // After the interruption a wait begins at once, and ten more within a second.
    let expected = format!(
        "caught the interruption at here:{first}:20 and has begun 11 waits since, now `sleep` at \
         here:{first}:20: return the error, or put cleanup under a shield"
    );
    assert_eq!(warnings, [expected]);
}

#[test]
fn warning_names_the_wait_of_a_set() {
    let first = line!() + 4;
    let warnings = warnings(async {
        let task = spawn(async {
            let child = async {
                drop(sleep(ms(100)).await);
                sleep(ms(2_000)).await.unwrap();
            };
            let mut set: FuturesUnordered<_> = [child].into_iter().collect();
            set.next().await
        });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
    });
    let expected = format!(
        "caught the interruption at here:{first}:22 and has begun 1 wait since, now `sleep` at \
         here:{}:17: return the error, or put cleanup under a shield",
        first + 1
    );
    assert_eq!(warnings, [expected]);
}

#[test]
fn cleanup_under_a_shield_counts_no_waits() {
    let warnings = warnings(async {
        let task = spawn(async {
            sleep(ms(100)).await.unwrap_err();
            shield(sleep(ms(2_000))).await.unwrap();
        });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(warnings, ["cleaning up after an interruption takes long"]);
}

#[test]
fn cleanup_that_holds_the_error_is_not_told_to_return_it() {
    let warnings = warnings(async {
        let task = spawn(async {
            let error = sleep(ms(100)).await.unwrap_err();
            sleep(ms(2_000)).await.unwrap();
            drop(error);
        });
        yield_now().await.unwrap();
        task.cancel().await.unwrap();
    });
    assert_eq!(warnings, ["cleaning up after an interruption takes long"]);
}

#[test]
fn listing_tells_since_when_a_task_goes_on() {
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    kernel.run(async {
        let task = spawn(async move {
            let error = sleep(ms(100)).await.unwrap_err();
            for _ in 0..3 {
                sleep(ms(10)).await.unwrap();
            }
            drop(error);
            shield(sleep(ms(5_000))).await.unwrap();
        });
        yield_now().await.unwrap();
        assert_eq!(task.task_ref().goes_on(), None);
        task.request_cancel("stop");
        assert_eq!(task.task_ref().goes_on(), None, "no wait has returned it yet");
        sleep(ms(25)).await.unwrap();
        let goes_on = task.task_ref().goes_on().unwrap();
        assert_eq!((goes_on.asked, goes_on.waits), (ms(25), 3));
        assert_eq!(goes_on.caught_at.file(), file!());
        sleep(ms(3_175)).await.unwrap();
        let goes_on = task.task_ref().goes_on().unwrap();
        assert_eq!((goes_on.asked, goes_on.waits), (ms(3_200), 3));
        task.cancel().await.unwrap();
        assert_eq!(task.task_ref().goes_on(), None, "it has ended");
        assert_eq!(swallowed(), None);
    });
}

#[test]
fn kernel_without_a_limit_notes_the_first() {
    let kernel = Kernel::builder().clock(ManualClock::auto()).build().unwrap();
    kernel.run(async {
        for spoilt in ["first", "second"] {
            let task = spawn(async { while sleep(ms(100)).await.is_err() {} });
            yield_now().await.unwrap();
            task.request_cancel(spoilt);
            task.await.unwrap();
        }
        assert_eq!(swallowed().unwrap().interruption, "cancelled: first");
    });
    assert_eq!(kernel.swallowed().unwrap().how, HowSwallowed::WaitsAgain);
}

#[test]
fn kernel_with_a_limit_stops_at_the_first() {
    let limit = Some(Duration::from_secs(1));
    let kernel = Kernel::builder().clock(ManualClock::auto()).cleanup_limit(limit).build();
    let kernel = kernel.unwrap();
    let outcome = kernel.try_run(async {
        let task = spawn(async {
            let error = sleep(ms(100)).await.unwrap_err();
            sleep(ms(5_000)).await.unwrap();
            drop(error);
        });
        yield_now().await.unwrap();
        task.cancel().await
    });
    assert!(matches!(outcome, Err(TaskError::Stopped)));
    let swallowed = kernel.swallowed().unwrap();
    assert_eq!((swallowed.how, swallowed.after), (HowSwallowed::GoesOn, ms(1_000)));
    kernel.shutdown();
    assert_eq!(kernel.task_count(), 0);
}

/// The main task ends in the very step in which its timeout's body waits again.
#[test]
#[should_panic(expected = "swallowed an interruption")]
fn run_fails_though_the_main_task_returned() {
    let builder = Kernel::builder().clock(ManualClock::auto()).cleanup_limit(Some(Duration::MAX));
    builder.build().unwrap().run(async {
        let body = async { while sleep(ms(30)).await.is_err() {} };
        let _ =
            futures::future::select(Box::pin(timeout_after(ms(10), body)), Box::pin(sleep(ms(10))))
                .await;
    });
}

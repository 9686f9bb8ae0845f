//! Values and arguments that JSON has no word for, and those at its ends.

use pikake_jobs::{Call, JobError, SendError};
use pikake_macros::job;

use crate::{Stage, in_worlds, stage};

#[job(crate = pikake_jobs)]
async fn quotient(a: f64, b: f64) -> f64 {
    a / b
}

#[job(crate = pikake_jobs)]
async fn same(number: u64) -> u64 {
    number
}

#[job(crate = pikake_jobs)]
async fn wide(number: i128) -> i128 {
    number
}

/// A key that is no text.
#[job(crate = pikake_jobs)]
async fn no_json() -> std::collections::BTreeMap<(u8, u8), u8> {
    [((1, 2), 3)].into()
}

fn failed<T: std::fmt::Debug>(outcome: Result<T, JobError>) -> (String, String) {
    match outcome {
        Err(JobError::Failed(failure)) => (failure.kind, failure.message),
        other => panic!("not a failure: {other:?}"),
    }
}

#[test]
fn what_json_cannot_say_is_refused() {
    in_worlds(async || {
        let Stage { worker, .. } =
            stage(|app| app.jobs([quotient::JOB, same::JOB, wide::JOB, no_json::JOB])).await;
        assert_eq!(quotient::delay(1.0, 4.0).await.unwrap().wait().await.unwrap(), 0.25);
        // Of a number that is none, JSON makes null.
        for zero in [0.0, -0.0] {
            let outcome = quotient::delay(1.0, zero).await.unwrap().wait().await;
            assert!(matches!(outcome, Err(JobError::Value(_))), "{outcome:?}");
        }
        let outcome = quotient::delay(f64::NAN, 1.0).await.unwrap().wait().await;
        let (kind, message) = failed(outcome);
        assert_eq!(kind, "TypeError");
        assert!(message.contains("argument 'a'") && message.contains("null"), "{message}");
        let (kind, message) = failed(no_json::delay().await.unwrap().wait().await);
        assert_eq!(kind, "EncodeError");
        assert!(message.contains("key must be a string"), "{message}");
        let unsendable = Call::<u8>::named("x", [std::collections::BTreeMap::from([((1, 2), 3)])]);
        let error = unsendable.send().await.unwrap_err();
        assert!(matches!(error, SendError::Arguments(_)), "{error}");
        worker.end().await;
    });
}

#[test]
fn numbers_of_any_size() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([same::JOB, wide::JOB])).await;
        for number in [0, u64::MAX] {
            assert_eq!(same::delay(number).await.unwrap().wait().await.unwrap(), number);
        }
        for number in [i128::from(i64::MIN), i128::from(u64::MAX)] {
            assert_eq!(wide::delay(number).await.unwrap().wait().await.unwrap(), number);
        }
        // Arguments are text, and as long as they are; values end at 64 bits.
        for number in [i128::MIN, i128::MAX] {
            let (kind, message) = failed(wide::delay(number).await.unwrap().wait().await);
            assert_eq!(kind, "EncodeError");
            assert!(message.contains("out of range"), "{message}");
        }
        // A number that a job's own type has no room for, as Python sends it.
        let call = Call::<u64>::named("jobs::values::same", [u64::MAX]);
        assert_eq!(call.send().await.unwrap().wait().await.unwrap(), u64::MAX);
        let call = Call::<u64>::named("jobs::values::same", [1e300]);
        let (kind, message) = failed(call.send().await.unwrap().wait().await);
        assert_eq!(kind, "TypeError");
        assert!(message.contains("1e300") || message.contains("1e+300"), "{message}");
        worker.end().await;
    });
}

/// A handle that waits keeps an outcome, and is dropped here with its application.
#[test]
fn results_are_removed_at_their_age() {
    crate::in_worlds(async || {
        use pikake_jobs::{App, Handle};
        let (app, store) = crate::app();
        let app = app.result_age(10 * crate::SECOND).jobs([crate::add::JOB]);
        let worker = crate::Running::start(&app, crate::SECOND).await;
        let sender = App::on(std::rc::Rc::new(store.open())).connect().await.unwrap();
        let job = crate::add::with(1, 2).on(&sender).send().await.unwrap();
        let known = Handle::<i64>::from_id(&app, job.id().clone());
        assert_eq!(job.wait().await.unwrap(), 3);
        sender.close().await.unwrap();
        pikake_traps::sleep(9 * crate::SECOND).await.unwrap();
        assert!(known.status().await.unwrap().is_some());
        pikake_traps::sleep(2 * crate::SECOND).await.unwrap();
        assert_eq!(known.status().await.unwrap(), None);
        worker.end().await;
    });
}

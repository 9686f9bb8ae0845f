//! Failures and retries.

use std::cell::Cell;
use std::time::Duration;

use pikake_jobs::{Broker, Failure, JobError, JobId, Next, OutcomeState, current_job};
use pikake_macros::job;
use pikake_traps::{elapsed_since, now, sleep};

use crate::{SECOND, Stage, add, in_worlds, note, stage};

#[job(crate = pikake_jobs, retries = 3, backoff(first = "10s", cap = "15s"))]
async fn hopeless() -> Result<(), std::num::ParseIntError> {
    "x".parse::<i32>().map(drop)
}

thread_local!(static LEFT: Cell<u32> = const { Cell::new(0) });

#[job(crate = pikake_jobs, retries = 5)]
async fn flaky(failures: u32) -> Result<(u32, u32), String> {
    let job = current_job();
    if job.retries() < failures {
        job.retry_in(Duration::from_secs(30));
        return Err("not yet".into());
    }
    Ok((job.retries(), job.max_retries()))
}

#[job(crate = pikake_jobs)]
async fn bug() {
    LEFT.set(LEFT.get() + 1);
    panic!("a bug");
}

fn failed(error: JobError) -> Failure {
    match error {
        JobError::Failed(failure) => failure,
        other => panic!("not a failure: {other}"),
    }
}

#[test]
fn a_job_that_fails_is_tried_again_and_then_failed() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([hopeless::JOB])).await;
        let begin = now();
        let error = hopeless::delay().await.unwrap().wait().await.unwrap_err();
        let failure = failed(error);
        assert_eq!((&*failure.kind, &*failure.module), ("ParseIntError", "core::num::error"));
        assert_eq!(failure.message, "invalid digit found in string");
        assert!(elapsed_since(begin) < Duration::from_secs(40), "at most 10, 15 and 15 seconds");
        let stats = worker.end().await.stats;
        assert_eq!((stats.all.retried, stats.all.failed), (3, 1));
    });
}

#[test]
fn a_job_says_when_to_try_again() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.jobs([flaky::JOB])).await;
        let begin = now();
        let handle = flaky::delay(2).await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(handle.status().await.unwrap(), Some(OutcomeState::Retry));
        assert_eq!(handle.wait().await.unwrap(), (2, 5));
        assert_eq!(elapsed_since(begin).as_secs(), 60);
        // The sender has the last word about how often.
        let failure =
            failed(flaky::with(2).retries(1).send().await.unwrap().wait().await.unwrap_err());
        assert_eq!((&*failure.kind, &*failure.message), ("String", "not yet"));
        worker.end().await;
    });
}

#[test]
fn a_retry_is_the_same_message_once_more() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| app.jobs([flaky::JOB])).await;
        let _handle = flaky::with(9).id("one").send().await.unwrap();
        sleep(SECOND).await.unwrap();
        worker.end().await;
        sleep(30 * SECOND).await.unwrap();
        let mut deliveries = store.open().consume("pikake", 1).await.unwrap();
        let message = deliveries.next().await.unwrap().unwrap().message;
        let header = |name: &str| message.headers[name].clone();
        assert_eq!((header("id"), header("parent_id")), ("one".into(), "one".into()));
        assert_eq!((header("root_id"), header("retries")), ("one".into(), 1.into()));
        assert_eq!(message.correlation_id.as_deref(), Some("one"));
        assert!(header("eta").is_string());
    });
}

#[test]
fn a_panic_is_a_failure_and_the_worker_lives() {
    in_worlds(async || {
        LEFT.set(0);
        let Stage { app, worker, .. } =
            stage(|app| app.jobs([bug::JOB, flaky::JOB]).bury_failed()).await;
        let failure = failed(bug::delay().await.unwrap().wait().await.unwrap_err());
        assert_eq!((&*failure.kind, &*failure.message), ("Panic", "a bug"));
        assert_eq!(flaky::delay(0).await.unwrap().wait().await.unwrap(), (0, 5));
        let dead = app.broker().unwrap().dead("pikake", 10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].reason, "Panic: a bug");
        assert_eq!(LEFT.get(), 1);
        assert_eq!(worker.end().await.stats.all.dead, 1);
        let _ = JobId(String::new());
    });
}

#[job(crate = pikake_jobs, name = "tests.goes_on", retries = 3)]
async fn goes_on(from: u32, to: u32) -> Result<u32, String> {
    note(&format!("{from}"));
    current_job().retry_as(&goes_on::with(from + 1, to));
    if from < to { Err("not yet".into()) } else { Ok(from) }
}

#[test]
fn retry_has_other_arguments() {
    in_worlds(async || {
        let Stage { worker, events, .. } = stage(|app| app.jobs([goes_on::JOB, add::JOB])).await;
        let workflow = goes_on::with(1, 3).then(Next::<u32, i64>::named("tests.add", (10,)));
        assert_eq!(workflow.send().await.unwrap().wait().await.unwrap(), 13);
        let noted: Vec<_> =
            events.borrow().iter().map(|event| event[event.len() - 1..].to_owned()).collect();
        assert_eq!(noted, ["1", "2", "3"]);
        worker.end().await;
    });
}

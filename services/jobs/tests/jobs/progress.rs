//! What jobs tell of their progress: seen in listings at once, and stored now and then.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{Handle, OutcomeState, current_job};
use pikake_macros::job;
use pikake_traps::{Interrupted, sleep};
use serde_json::{Value, json};

use crate::meddled::{Asked, Meddled, at_once};
use crate::{App, Running, SECOND, Stage, app, in_worlds, stage};

const STEP: Duration = Duration::from_millis(10);

/// Tells of a hundred steps in a second, and then sleeps.
#[job(crate = pikake_jobs, name = "tests.import", retries = 1, backoff(first = "10s", cap = "10s"))]
async fn import(fails: bool) -> Result<u64, Interrupted> {
    for step in 1..=100_u64 {
        current_job().progress(json!({"current": step, "total": 100}));
        sleep(STEP).await?;
    }
    sleep(10 * SECOND).await?;
    match fails {
        true => Err(Interrupted::cancelled("a test")),
        false => Ok(7),
    }
}

/// In a thread.
#[job(crate = pikake_jobs, name = "tests.blocks")]
fn blocks() -> String {
    current_job().progress("half");
    // The value that is not JSON is ignored.
    current_job().progress(std::collections::BTreeMap::from([((), ())]));
    "done".to_owned()
}

async fn listed(app: &App) -> Vec<Option<Value>> {
    let running = app.control().running().await.unwrap();
    running.into_iter().map(|job| job.progress).collect()
}

fn at(step: u64) -> Option<Value> {
    Some(json!({"current": step, "total": 100}))
}

#[test]
fn progress_is_listed_and_kept() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| app.jobs([import::JOB])).await;
        let other = App::on(Rc::new(store.open())).connect().await.unwrap();
        let job = import::with(false).send().await.unwrap();
        assert_eq!(job.progress().await.unwrap(), None);
        sleep(SECOND / 2 + STEP / 2).await.unwrap();
        assert_eq!(listed(&other).await, [at(51)]);
        sleep(5 * SECOND).await.unwrap();
        let known = Handle::<u64>::from_id(&other, job.id().clone());
        assert_eq!(known.progress().await.unwrap(), at(100));
        assert_eq!(known.status().await.unwrap(), Some(OutcomeState::Progress));
        assert_eq!(job.wait().await.unwrap(), 7);
        assert_eq!(known.progress().await.unwrap(), None);
        worker.end().await;
    });
}

#[test]
fn progress_is_stored_once_a_second() {
    in_worlds(async || {
        let (_, store) = app();
        let stored = Rc::new(Cell::new(0));
        let count = stored.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| {
            if matches!(asked, Asked::Store(outcome) if outcome.state == OutcomeState::Progress) {
                count.set(count.get() + 1);
            }
            at_once(Ok(()))
        });
        let worker = Running::start(&App::on(Rc::new(broker)).jobs([import::JOB]), SECOND).await;
        let job = import::with(false).send().await.unwrap();
        let ignored = import::with(false).ignore_result().send().await.unwrap();
        sleep(SECOND / 2).await.unwrap();
        assert!(stored.get() <= 1, "{}", stored.get());
        job.wait().await.unwrap();
        // The last one is stored, too.
        assert!((1..=3).contains(&stored.get()), "{}", stored.get());
        assert_eq!(ignored.progress().await.unwrap(), None);
        worker.end().await;
    });
}

#[test]
fn a_retry_begins_without_progress() {
    in_worlds(async || {
        let Stage { worker, .. } = stage(|app| app.clone().jobs([import::JOB])).await;
        let job = import::with(true).send().await.unwrap();
        sleep(5 * SECOND).await.unwrap();
        assert_eq!(job.progress().await.unwrap(), at(100));
        let mut states = Vec::new();
        while states.last() != Some(&OutcomeState::Failure) {
            sleep(STEP).await.unwrap();
            let state = job.status().await.unwrap().unwrap();
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
        use OutcomeState::{Failure, Progress, Retry};
        assert_eq!(states, [Progress, Retry, Progress, Failure]);
        worker.end().await;
    });
}

#[test]
fn a_thread_tells_of_its_progress() {
    in_worlds(async || {
        let (app, store) = app();
        let told = Rc::new(Cell::new(None));
        let into = told.clone();
        let broker = Meddled::new(Rc::new(store.open()), move |asked| {
            if let Asked::Store(outcome) = asked {
                if outcome.state == OutcomeState::Progress {
                    into.set(Some(outcome.result.clone()));
                }
            }
            at_once(Ok(()))
        });
        drop(app);
        let worker = Running::start(&App::on(Rc::new(broker)).jobs([blocks::JOB]), SECOND).await;
        assert_eq!(blocks::delay().await.unwrap().wait().await.unwrap(), "done");
        // The thread may have ended before it was looked at.
        assert!(told.take().is_none_or(|told| told == json!("half")));
        worker.end().await;
    });
}

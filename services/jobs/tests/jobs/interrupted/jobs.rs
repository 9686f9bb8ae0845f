//! Waits for jobs, and workers: no job is lost, and each ends once.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{
    App, Broker, Call, JobError, MemoryStore, OutcomeState, Worker, current_batch, current_job,
};
use pikake_macros::job;
use pikake_traps::{sleep, spawn, timeout_after};

use super::{BOTH, Interruption, Kind, STEP, at_every_moment, at_moments};
use crate::{Running, SECOND, add};

#[job(crate = pikake_jobs, retries = 1, backoff(first = "5ms", cap = "5ms"))]
async fn busy(fails: bool) -> Result<u64, String> {
    sleep(3 * STEP).await.map_err(|why| why.to_string())?;
    if fails && current_job().retries() == 0 { Err("once".into()) } else { Ok(7) }
}

/// The same in a thread, for which it may have to wait.
#[job(crate = pikake_jobs, soft_limit = "1s", retries = 1, backoff(first = "5ms", cap = "5ms"))]
fn threaded(fails: bool) -> Result<u64, String> {
    if fails && current_job().retries() == 0 { Err("once".into()) } else { Ok(7) }
}

#[job(crate = pikake_jobs, batch(size = 3, wait = "10s"), retries = 1, backoff(first = 0, cap = 0))]
async fn batched(fail: Vec<bool>) -> Result<Vec<Result<u64, String>>, String> {
    let jobs = current_batch();
    let retries = jobs.iter().map(|job| job.retries());
    let one = |(fails, retries)| if fails && retries == 0 { Err("once".into()) } else { Ok(7) };
    Ok(fail.into_iter().zip(retries).map(one).collect())
}

#[test]
fn wait_for_job() {
    let mut met = 0;
    for kind in BOTH {
        let moments = (0..60).map(|steps| steps * STEP);
        met += at_moments(kind, moments, async |interruption| {
            let store = MemoryStore::new();
            let app = App::on(Rc::new(store.open())).jobs([add::JOB]);
            let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
            let worker = Running::start(&app, SECOND).await;
            let sent = OnceCell::new();
            let sum = async {
                // The broker in memory takes a message without waiting.
                let handle = add::with(1, 2).on(&sender).send().await.unwrap();
                sent.get_or_init(|| handle).wait().await
            };
            let sum = interruption.call(sum).await;
            let handle = sent.into_inner().unwrap();
            let sum = match sum {
                Ok(sum) => sum,
                // The handle is whole.
                Err(_) => handle.wait().await.unwrap(),
            };
            assert_eq!((sum, handle.status().await.unwrap()), (3, Some(OutcomeState::Success)));
            assert_eq!(add::delay(20, 3).await.unwrap().wait().await.unwrap(), 23);
            let stats = worker.end().await.stats.all;
            assert_eq!((stats.done, stats.running), (2, 0));
        });
    }
    assert!(met > 0, "its only suspension was never met");
}

#[test]
fn wait_for_job_that_expires() {
    for kind in BOTH {
        let met = at_every_moment(kind, STEP, async |interruption| {
            let app = App::on(Rc::new(MemoryStore::new().open())).connect().await.unwrap();
            let handle = add::with(1, 2).expires(10 * STEP).on(&app).send().await.unwrap();
            let wait = async || match handle.wait().await {
                Err(JobError::Revoked(_)) => Ok(()),
                waited => waited.map(|sum| panic!("the job gave {sum}")),
            };
            drop(interruption.call(wait()).await);
            wait().await.unwrap();
        });
        assert!((5..20).contains(&met), "{met} were interrupted");
    }
}

const JOBS: u64 = 4;

/// Has a worker end at each of these moments, and another one do what is left: each job ends once.
/// Counts the moments at which something was left. `end` runs the first worker, and tells how many
/// jobs it has done, if it can.
fn worker_ends(
    kind: Kind,
    moments: impl Iterator<Item = Duration>,
    call: fn(bool) -> Call<u64>,
    end: impl AsyncFn(Worker, &Interruption) -> Option<u64>,
) -> usize {
    at_moments(kind, moments, async |interruption| {
        let store = MemoryStore::new();
        let app = || App::on(Rc::new(store.open()));
        let sender = app().connect().await.unwrap();
        let mut handles = Vec::new();
        for number in 0..JOBS {
            handles.push(call(number == 1).on(&sender).send().await.unwrap());
        }
        let app = || app().jobs([busy::JOB, threaded::JOB, batched::JOB]);
        let done = end(app().concurrency(2).worker(), interruption).await;
        let counts = async || {
            let counts = store.open().counts("pikake").await.unwrap();
            (counts.ready + counts.delayed, counts.taken)
        };
        if let Some(done) = done {
            assert_eq!(counts().await, (JOBS - done, Some(0)));
        }
        let worker = Running::start(&app(), SECOND).await;
        for handle in &handles {
            let waited = timeout_after(60 * SECOND, handle.wait()).await.expect("it is not lost");
            assert_eq!(waited.unwrap(), 7);
        }
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.running, counts().await), (0, (0, Some(0))));
        assert!(done.is_none_or(|done| stats.done + done == JOBS), "{stats} after {done:?}");
        interruption.is_met.set(done != Some(JOBS));
    })
}

fn interrupted_worker(
    moments: impl Iterator<Item = Duration> + Clone,
    grace: Duration,
    call: fn(bool) -> Call<u64>,
    least: usize,
) {
    for kind in BOTH {
        let met = worker_ends(kind, moments.clone(), call, async |worker, interruption| {
            // Interrupted before it was connected, it says so; after that it ends in good order.
            let report = interruption.call(worker.grace(grace).run()).await;
            Some(report.map_or(0, |report| report.stats.all.done))
        });
        assert!(met >= least, "{met} were cut short");
    }
}

#[test]
fn worker() {
    let moments = (0..200).map(|steps| steps * STEP);
    interrupted_worker(moments, 2 * STEP, busy::with, 21);
}

#[test]
fn worker_with_threads() {
    let moments = (0..400).map(|number| 10 * number * STEP);
    interrupted_worker(moments, 2 * STEP, threaded::with, 21);
}

#[test]
fn worker_with_batches() {
    let moments = (0..80).map(|steps| steps * STEP);
    interrupted_worker(moments, Duration::ZERO, batched::with, 10);
}

/// A worker with batches is dropped, as if it were killed.
#[test]
fn worker_that_is_lost() {
    let seconds = (0..14).map(|number| number * SECOND);
    let call = batched::with;
    worker_ends(Kind::Cancel, seconds, call, async |worker, interruption| {
        let worker = spawn(worker.run());
        sleep(interruption.after).await.unwrap();
        worker.abort();
        None
    });
}

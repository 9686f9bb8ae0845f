//! A thousand jobs of all kinds, with failures, panics, retries, cancels and workers that come and
//! go: each ends exactly once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, Broker, JobError, MemoryStore, current_job};
use pikake_macros::job;
use pikake_sim::Sim;
use pikake_traps::{Interrupted, random, sleep};

use crate::{Running, SECOND};

const JOBS: u64 = 1_000;

thread_local! {
    /// Values that were returned, by the number of the job.
    static RETURNED: RefCell<BTreeMap<u64, u32>> = const { RefCell::new(BTreeMap::new()) };
}

#[job(crate = pikake_jobs, retries = 3, backoff(first = "1s", cap = "5s"))]
async fn risky(number: u64) -> Result<u64, String> {
    let job = current_job();
    sleep(Duration::from_millis(random::range(0..2_000))).await.map_err(|why| why.to_string())?;
    match random::range(0..10) {
        0 if job.retries() < 3 => Err("bad luck".into()),
        1 => panic!("worse luck"),
        2 => Err("bad luck, for good or not".into()),
        _ => {
            RETURNED.with_borrow_mut(|all| *all.entry(number).or_default() += 1);
            Ok(number)
        }
    }
}

#[job(crate = pikake_jobs, soft_limit = "1s")]
async fn slow(number: u64) -> Result<u64, Interrupted> {
    sleep(Duration::from_millis(random::range(0..2_000))).await?;
    RETURNED.with_borrow_mut(|all| *all.entry(number).or_default() += 1);
    Ok(number)
}

#[job(crate = pikake_jobs)]
fn threaded(number: u64) -> u64 {
    number
}

async fn program() {
    RETURNED.take();
    let store = MemoryStore::new();
    let app = |concurrency| {
        App::on(Rc::new(store.open()))
            .jobs([risky::JOB, slow::JOB, threaded::JOB])
            .concurrency(concurrency)
    };
    let sender = app(1).connect().await.unwrap();
    let mut handles = Vec::new();
    for number in 0..JOBS {
        let handle = match number % 3 {
            0 => risky::with(number).on(&sender).send().await.unwrap(),
            1 => slow::with(number).on(&sender).send().await.unwrap(),
            _ => threaded::with(number).on(&sender).send().await.unwrap(),
        };
        handles.push(handle);
    }
    // Workers that are ended in the middle, and one that stays.
    let mut received = 0;
    for _ in 0..5 {
        let app = app(20);
        let worker = Running::start(&app, SECOND / 2).await;
        sleep(2 * SECOND).await.unwrap();
        worker.shutdown.warm();
        if random::range(0..2) == 0 {
            worker.shutdown.cold();
        }
        let stats = worker.task.await.unwrap().unwrap().stats.all;
        assert_eq!(stats.running, 0);
        received += stats.done + stats.failed + stats.revoked;
    }
    let app = app(20);
    let worker = Running::start(&app, SECOND).await;
    let (mut values, mut failed) = (0, 0);
    for (number, handle) in handles.iter().enumerate() {
        match handle.wait().await {
            Ok(value) => {
                assert_eq!(value, number as u64);
                values += 1;
            }
            Err(JobError::Failed(_)) => failed += 1,
            Err(error) => panic!("{number}: {error}"),
        }
    }
    assert_eq!(values + failed, JOBS);
    let stats = worker.end().await.stats.all;
    received += stats.done + stats.failed + stats.revoked;
    assert_eq!(received, JOBS, "each of them ended once");
    let counts = store.open().counts("pikake").await.unwrap();
    assert_eq!((counts.ready, counts.taken, counts.delayed, counts.dead), (0, Some(0), 0, 0));
    RETURNED.with_borrow(|all| {
        assert!(all.values().all(|times| *times == 1), "none returned a value twice");
    });
}

#[test]
fn a_thousand_jobs_end_once_each() {
    for seed in 0..5 {
        let ran = Sim::new(seed).tolerate_panics().run_here("jobs", program());
        let ran = ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        if let Err(error) = ran.outcome {
            panic!("seed {seed}: {error}");
        }
    }
}

//! When a message is acknowledged: before its job is run, or after its outcome was stored.

use std::cell::Cell;
use std::rc::Rc;

use pikake_jobs::{App, Broker, Call, JobError, MemoryStore};
use pikake_macros::job;
use pikake_traps::{Interrupted, elapsed_since, now, shield, sleep, sleep_until};

use crate::meddled::{Asked, Meddled, at_once};
use crate::{Running, SECOND, Stage, app, in_worlds, stage};

thread_local!(static BEGUN: Cell<u32> = const { Cell::new(0) });

async fn begin() -> Result<u32, Interrupted> {
    BEGUN.set(BEGUN.get() + 1);
    sleep(10 * SECOND).await?;
    Ok(BEGUN.get())
}

#[job(crate = pikake_jobs, acks = "early")]
async fn early() -> Result<u32, Interrupted> {
    begin().await
}

#[job(crate = pikake_jobs, acks = "late")]
async fn late() -> Result<u32, Interrupted> {
    begin().await
}

#[job(crate = pikake_jobs, acks = "early")]
async fn stubborn() {
    loop {
        let _ = shield(sleep(60 * SECOND)).await;
    }
}

/// Fails the first time.
#[job(crate = pikake_jobs, acks = "early", retries = 1, backoff(first = "1s", cap = "1s"))]
async fn early_again() -> Result<u32, String> {
    match pikake_jobs::current_job().retries() {
        0 => Err("the first time".into()),
        retries => Ok(retries),
    }
}

#[test]
fn a_job_that_is_acknowledged_early_is_run_once_at_most() {
    in_worlds(async || {
        for (is_early, left) in [(true, 0), (false, 1)] {
            BEGUN.set(0);
            let Stage { app, store, worker, .. } =
                stage(|app| app.jobs([early::JOB, late::JOB])).await;
            let call = if is_early { early::with() } else { late::with() };
            call.send().await.unwrap();
            sleep(SECOND).await.unwrap();
            let broker = store.open();
            let counts = broker.counts("pikake").await.unwrap();
            assert_eq!((counts.ready, counts.taken), (0, Some(left)), "while it runs");
            worker.task.abort();
            sleep(SECOND).await.unwrap();
            drop(app);
            assert_eq!(broker.counts("pikake").await.unwrap().ready, left, "its worker was lost");
            let other = App::on(Rc::new(store.open())).jobs([early::JOB, late::JOB]);
            let worker = Running::start(&other, SECOND).await;
            sleep(20 * SECOND).await.unwrap();
            worker.end().await;
            assert_eq!(u64::from(BEGUN.get()), 1 + left);
        }
    });
}

#[test]
fn what_a_shutdown_interrupts_is_told_if_it_was_acknowledged_early() {
    in_worlds(async || {
        BEGUN.set(0);
        let (app, store) = app();
        let app = app.jobs([early::JOB]);
        let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
        let worker = Running::start(&app, SECOND).await;
        let handle = early::with().on(&sender).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        let report = worker.end().await;
        match handle.wait().await {
            Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "Interrupted"),
            other => panic!("{other:?}"),
        }
        assert_eq!((report.stats.all.failed, report.stats.all.given_back), (1, 0));
        assert_eq!(store.open().counts("pikake").await.unwrap().ready, 0);
    });
}

#[test]
fn what_a_shutdown_drops_is_told_if_it_was_acknowledged_early() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([stubborn::JOB]);
        let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
        let worker = Running::start(&app, SECOND).await;
        let handle = stubborn::with().on(&sender).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        let report = worker.end().await;
        match handle.wait().await {
            Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "WorkerLostError"),
            other => panic!("{other:?}"),
        }
        assert_eq!((report.stats.all.failed, report.stats.all.given_back), (1, 0));
    });
}

#[test]
fn a_retry_of_one_that_was_acknowledged_early_comes() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| app.jobs([early_again::JOB])).await;
        assert_eq!(early_again::delay().await.unwrap().wait().await.unwrap(), 1);
        worker.end().await;
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.delayed), (0, Some(0), 0));
    });
}

#[job(crate = pikake_jobs, acks = "early")]
async fn early_with(number: u32) -> u32 {
    number
}

#[job(crate = pikake_jobs, acks = "early")]
fn early_thread_with(number: u32) -> u32 {
    number
}

/// Its arguments are read here before it has a process at all.
#[job(crate = pikake_jobs, process, acks = "early")]
fn early_process_with(number: u32) -> u32 {
    number
}

#[test]
fn arguments_that_do_not_fit_are_found_out_before() {
    in_worlds(async || {
        let Stage { store, worker, .. } = stage(|app| {
            app.jobs([early_with::JOB, early_thread_with::JOB, early_process_with::JOB])
        })
        .await;
        for name in ["early_with", "early_thread_with", "early_process_with"] {
            let call = Call::<u32>::named(format!("jobs::acks::{name}"), ("x",));
            match call.send().await.unwrap().wait().await {
                Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "TypeError", "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        sleep(SECOND).await.unwrap();
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.dead, stats.failed), (3, 0));
        assert_eq!(store.open().counts("pikake").await.unwrap().dead, 3);
    });
}

#[test]
fn limits_of_one_that_was_acknowledged_early_begin_afterwards() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let broker = Meddled::new(Rc::new(store.open()), |asked| match asked {
            Asked::Ack(_) => Box::pin(async { Ok(sleep(5 * SECOND).await?) }),
            _ => at_once(Ok(())),
        });
        let app = App::on(Rc::new(broker)).jobs([early_deadline::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let begun = now();
        let left = early_deadline::delay().await.unwrap().wait().await.unwrap();
        assert_eq!((elapsed_since(begun).as_secs(), left), (15, 8));
        worker.end().await;
    });
}

/// Tells how many seconds are left to it after two.
#[job(crate = pikake_jobs, acks = "early", soft_limit = "10s")]
async fn early_deadline() -> Result<u64, Interrupted> {
    sleep(2 * SECOND).await?;
    let deadline = pikake_jobs::current_job().deadline().unwrap();
    let begun = now();
    let _told_or_not = sleep_until(deadline).await;
    Ok(elapsed_since(begun).as_secs_f64().round() as u64)
}

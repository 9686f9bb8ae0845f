//! A sender and a worker on a real kernel, each with its own connection to the embedded broker.

use std::cell::RefCell;
use std::time::Duration;

use pikake_jobs::{App, JobError, ShutdownHandle, current_job};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{Interrupted, TimedOut, sleep, spawn, timeout_after};
use serde_json::Value;

#[job(crate = pikake_jobs, retries = 1, backoff(first = "20ms", cap = "20ms"))]
async fn flaky(number: u64) -> Result<u64, String> {
    if number % 10 == 0 && current_job().retries() == 0 {
        return Err("the first time".into());
    }
    Ok(number * 2)
}

#[job(crate = pikake_jobs)]
fn threaded(text: String) -> String {
    text.to_uppercase()
}

#[job(crate = pikake_jobs)]
async fn bug() {
    panic!("a bug");
}

#[test]
fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("jobs.db").display());
    Kernel::new().unwrap().run(async {
        let app = App::new(&url).unwrap().jobs([flaky::JOB, threaded::JOB, bug::JOB]);
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        let worker = spawn(app.run_worker());
        let mut handles = Vec::new();
        for number in 0..100 {
            handles.push(flaky::with(number).on(&sender).send().await.unwrap());
        }
        let late = flaky::with(7).countdown(Duration::from_secs(2)).on(&sender);
        let late = late.send().await.unwrap();
        let waited = timeout_after(Duration::from_millis(50), late.wait()).await;
        assert!(matches!(waited, Err(TimedOut)));
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(handle.wait().await.unwrap(), number as u64 * 2);
        }
        let text = threaded::with("loud".into()).on(&sender).send().await.unwrap();
        assert_eq!(text.wait().await.unwrap(), "LOUD");
        let failure = bug::with().on(&sender).send().await.unwrap().wait().await;
        assert!(matches!(failure, Err(JobError::Failed(failure)) if failure.message == "a bug"));
        assert_eq!(late.wait().await.unwrap(), 14);
        worker.request_cancel("the test is over");
        let stats = worker.await.unwrap().unwrap().stats.all;
        assert_eq!((stats.done, stats.retried, stats.failed, stats.running), (102, 10, 1, 0));
    });
}

/// A list in a list, so many deep.
#[job(crate = pikake_jobs)]
async fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::Null, |inner, _| vec![inner].into())
}

#[test]
fn a_value_comes_as_it_is_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("jobs.db").display());
    Kernel::new().unwrap().run(async {
        let worker = spawn(App::new(&url).unwrap().jobs([nested::JOB]).run_worker());
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        for depth in [1, 100, 120, 121, 127, 128, 200] {
            match nested::with(depth).on(&sender).send().await.unwrap().wait().await {
                Ok(value) => assert_eq!(value, nested(depth).await, "{depth}"),
                Err(JobError::Failed(failure)) => {
                    assert_eq!(failure.kind, "EncodeError", "{failure}");
                    assert!(depth > 120, "{failure}");
                }
                Err(error) => panic!("{depth}: {error}"),
            }
        }
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

thread_local!(static SHUTDOWN: RefCell<Option<ShutdownHandle>> = const { RefCell::new(None) });

/// Ends its worker, and has ended itself before anything else happens.
#[job(crate = pikake_jobs, acks = "early", ignore_result)]
async fn last() {
    SHUTDOWN.take().expect("a worker that runs").warm();
}

#[job(crate = pikake_jobs)]
async fn nap(length: Duration) {
    let _ = sleep(length).await;
}

#[test]
fn what_was_fetched_goes_back_before_what_runs_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("jobs.db").display());
    Kernel::new().unwrap().run(async {
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        let (nothing, long) = (Duration::ZERO, Duration::from_secs(8));
        nap::with(long).on(&sender).send().await.unwrap();
        last::with().on(&sender).send().await.unwrap();
        for _ in 0..6 {
            nap::with(nothing).on(&sender).send().await.unwrap();
        }
        let app = App::new(&url).unwrap().jobs([nap::JOB, last::JOB]).concurrency(2).prefetch(20);
        let worker = app.worker().on_start(|handle| SHUTDOWN.set(Some(handle)));
        let worker = spawn(worker.run());
        let broker = sender.broker().unwrap();
        let back = timeout_after(long * 3 / 4, async {
            while broker.counts("pikake").await.unwrap().taken != Some(1) {
                sleep(Duration::from_millis(10)).await.unwrap();
            }
        });
        back.await.expect("six are back, and one runs");
        assert_eq!(broker.counts("pikake").await.unwrap().ready, 6);
        assert_eq!(worker.await.unwrap().unwrap().stats.all.done, 2);
    });
}

#[job(crate = pikake_jobs, acks = "early", ignore_result)]
async fn early(millis: u64) {
    let _ = sleep(Duration::from_millis(millis)).await;
}

#[job(crate = pikake_jobs, acks = "early")]
async fn early_and_told() -> Result<(), Interrupted> {
    sleep(Duration::from_secs(60)).await
}

/// One of two runs, and is not the broker's any more; the other one is held.
async fn first_is_acknowledged(sender: &App, app: &App) {
    let is_so = async || {
        let counts = sender.broker().unwrap().counts("pikake").await.unwrap();
        app.stats().all.running == 1 && (counts.ready, counts.taken) == (0, Some(1))
    };
    while !is_so().await {
        sleep(Duration::from_millis(10)).await.unwrap();
    }
}

#[test]
fn who_is_interrupted_while_it_is_acknowledged_early_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let url = format!("sqlite://{}", path.display());
    Kernel::new().unwrap().run(async {
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        early::with(2_000).on(&sender).send().await.unwrap();
        let job = early_and_told::with().on(&sender).send().await.unwrap();
        let app = App::new(&url).unwrap().jobs([early::JOB, early_and_told::JOB]).concurrency(1);
        let worker = spawn(app.run_worker());
        first_is_acknowledged(&sender, &app).await;
        // Somebody else writes when the second one begins.
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        sleep(Duration::from_millis(2_500)).await.unwrap();
        worker.abort();
        sleep(Duration::from_millis(50)).await.unwrap();
        other.execute_batch("COMMIT").unwrap();
        let told = timeout_after(Duration::from_secs(5), job.wait()).await;
        let counts = sender.broker().unwrap().counts("pikake").await.unwrap();
        assert!(matches!(told, Ok(Err(JobError::Failed(_)))), "{told:?}, and {counts:?}");
    });
}

#[test]
fn who_is_cancelled_while_it_is_acknowledged_early_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let url = format!("sqlite://{}", path.display());
    Kernel::new().unwrap().run(async {
        let app = App::new(&url).unwrap().jobs([early::JOB, early_and_told::JOB]).concurrency(1);
        let app = app.connect().await.unwrap();
        early::delay(2_000).await.unwrap();
        let job = early_and_told::delay().await.unwrap();
        let worker = spawn(app.run_worker());
        first_is_acknowledged(&app, &app).await;
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        sleep(Duration::from_millis(2_500)).await.unwrap();
        job.cancel();
        other.execute_batch("COMMIT").unwrap();
        let told = timeout_after(Duration::from_secs(5), job.wait()).await;
        assert!(matches!(told, Ok(Err(JobError::Revoked(_)))), "{told:?}");
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

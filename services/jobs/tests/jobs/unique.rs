//! Unique jobs, from the call to the release of the lock.

use std::cell::Cell;
use std::rc::Rc;

use pikake_jobs::{
    App, Broker, BrokerError, Handle, JobError, MemoryStore, SendError, Unique, UntilWhen,
};
use pikake_macros::job;
use pikake_traps::{Interrupted, sleep};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, Stage, add, app, in_worlds, stage};

#[job(crate = pikake_jobs, name = "tests.refresh", unique_for = "10m")]
async fn refresh(user: u64, seconds: u64) -> Result<u64, Interrupted> {
    sleep(SECOND * seconds as u32).await?;
    Ok(user)
}

#[job(crate = pikake_jobs, name = "tests.waits", unique_for = "10m", unique_until = "begun", unique_by = "user")]
async fn waits(user: u64, seconds: u64) -> Result<u64, Interrupted> {
    refresh(user, seconds).await
}

#[job(crate = pikake_jobs, name = "tests.rarely", unique_for = "60s", unique_until = "elapsed")]
async fn rarely() {}

#[job(crate = pikake_jobs, name = "tests.flaky", unique_for = "10m", retries = 1, backoff(first = "10s", cap = "10s"))]
async fn flaky() -> Result<(), String> {
    Err("no".into())
}

/// The id of the job that has the lock.
fn first<T>(sent: Result<Handle<T>, SendError>) -> String {
    match sent {
        Err(SendError::Duplicate { first: Some(first), .. }) => first.0,
        Err(error) => panic!("{error}"),
        Ok(job) => panic!("{} was sent", job.id()),
    }
}

async fn with_worker() -> (App, Running) {
    let Stage { app, worker, .. } =
        stage(|app| app.jobs([refresh::JOB, waits::JOB, rarely::JOB, flaky::JOB, add::JOB])).await;
    (app, worker)
}

#[test]
fn unique_until_it_has_ended() {
    in_worlds(async || {
        let (app, worker) = with_worker().await;
        let job = refresh::delay(7, 10).await.unwrap();
        let other = refresh::delay(8, 10).await.unwrap();
        sleep(SECOND).await.unwrap();
        let error = refresh::delay(7, 10).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("is the only one of `tests.refresh:[7,10]`"), "{error}");
        let known = first(refresh::delay(7, 10).await);
        assert_eq!(known, job.id().0);
        // The caller that was refused waits for the outcome of the first job.
        let handle = Handle::<u64>::from_id(&app, pikake_jobs::JobId(known));
        assert_eq!(handle.wait().await.unwrap(), 7);
        refresh::delay(7, 10).await.unwrap().wait().await.unwrap();
        other.wait().await.unwrap();
        worker.end().await;
    });
}

#[test]
fn unique_until_it_has_begun() {
    in_worlds(async || {
        let (app, worker) = with_worker().await;
        let job = waits::with(7, 10).countdown(5 * SECOND).send().await.unwrap();
        assert_eq!(first(waits::delay(7, 1).await), job.id().0);
        sleep(6 * SECOND).await.unwrap();
        waits::delay(7, 1).await.unwrap().wait().await.unwrap();
        assert_eq!(app.control().running().await.unwrap().len(), 1);
        job.wait().await.unwrap();
        worker.end().await;
    });
}

#[test]
fn unique_for_a_time() {
    in_worlds(async || {
        let (_app, worker) = with_worker().await;
        let job = rarely::delay().await.unwrap();
        let id = job.id().0.clone();
        job.wait().await.unwrap();
        sleep(50 * SECOND).await.unwrap();
        assert_eq!(first(rarely::delay().await), id);
        sleep(10 * SECOND).await.unwrap();
        rarely::delay().await.unwrap().wait().await.unwrap();
        worker.end().await;
    });
}

#[test]
fn a_retry_keeps_the_lock() {
    in_worlds(async || {
        let (_app, worker) = with_worker().await;
        let job = flaky::delay().await.unwrap();
        // It waits for its retry.
        sleep(SECOND / 100).await.unwrap();
        assert_eq!(first(flaky::delay().await), job.id().0);
        job.wait().await.unwrap_err();
        sleep(SECOND / 100).await.unwrap();
        flaky::delay().await.unwrap();
        worker.end().await;
    });
}

#[test]
fn a_job_that_never_begins_releases_its_lock() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([refresh::JOB, waits::JOB]).connect().await.unwrap();
        // Purged.
        let purged = refresh::delay(7, 1).await.unwrap();
        store.open().purge("pikake").await.unwrap();
        assert!(matches!(purged.wait().await, Err(JobError::Revoked(_))));
        // Expired, and revoked.
        let expired = refresh::with(7, 1).expires(SECOND).send().await.unwrap();
        let revoked = waits::delay(7, 1).await.unwrap();
        revoked.cancel();
        sleep(2 * SECOND).await.unwrap();
        let worker = Running::start(&app, SECOND).await;
        assert!(matches!(expired.wait().await, Err(JobError::Revoked(_))));
        assert!(matches!(revoked.wait().await, Err(JobError::Revoked(_))));
        sleep(SECOND / 100).await.unwrap();
        refresh::delay(7, 1).await.unwrap().wait().await.unwrap();
        waits::delay(7, 1).await.unwrap().wait().await.unwrap();
        worker.end().await;
    });
}

#[test]
fn a_terminated_job_releases_its_lock() {
    in_worlds(async || {
        let (_app, worker) = with_worker().await;
        let job = refresh::delay(7, 1_000).await.unwrap();
        sleep(SECOND).await.unwrap();
        job.cancel();
        job.wait().await.unwrap_err();
        sleep(SECOND / 100).await.unwrap();
        refresh::delay(7, 1_000).await.unwrap().cancel();
        worker.end().await;
    });
}

/// The lock of a call has the call's own key; and workflows are refused.
#[test]
fn calls_have_keys_of_their_own() {
    in_worlds(async || {
        let (_app, worker) = with_worker().await;
        let unique = Unique::new(60 * SECOND).until(UntilWhen::Elapsed);
        let job = add::with(1, 2).unique("k", unique).send().await.unwrap();
        assert_eq!(first(add::with(3, 4).unique("k", unique).send().await), job.id().0);
        add::with(1, 2).unique("l", unique).send().await.unwrap();
        add::with(1, 2).send().await.unwrap();
        let error = refresh::with(1, 1).then(refresh::after(1)).send().await.map(drop).unwrap_err();
        assert!(
            error.to_string().contains("is unique, and a job of a workflow cannot be"),
            "{error}"
        );
        worker.end().await;
    });
}

thread_local! {
    /// Whether the job below has begun in this world.
    static BEGUN: Cell<bool> = const { Cell::new(false) };
}

#[job(crate = pikake_jobs, name = "tests.noted", unique_for = "10m", unique_until = "begun")]
async fn noted() {
    BEGUN.set(true);
}

/// An application whose broker takes ten seconds to release a lock, or is lost for it.
fn slow_to_unlock(is_lost: bool) -> (App, MemoryStore) {
    BEGUN.set(false);
    let store = MemoryStore::new();
    let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
        Asked::Unlock if is_lost => at_once(Err(lost())),
        Asked::Unlock => {
            Box::pin(async { sleep(10 * SECOND).await.map_err(BrokerError::Interrupted) })
        }
        _ => at_once(Ok(())),
    });
    (App::on(Rc::new(broker)).jobs([noted::JOB]), store)
}

#[test]
fn a_job_cancelled_while_it_is_unlocked_does_not_begin() {
    in_worlds(async || {
        let (app, _store) = slow_to_unlock(false);
        let worker = Running::start(&app, 60 * SECOND).await;
        let job = noted::delay().await.unwrap();
        sleep(SECOND).await.unwrap();
        job.cancel();
        assert!(matches!(job.wait().await, Err(JobError::Revoked(_))));
        assert!(!BEGUN.get());
        assert_eq!(worker.end().await.stats.all.revoked, 1);
    });
}

#[test]
fn a_worker_that_ends_while_it_unlocks_requeues_the_job() {
    for is_lost in [false, true] {
        in_worlds(async || {
            let (app, store) = slow_to_unlock(is_lost);
            let worker = Running::start(&app, 60 * SECOND).await;
            let _job = noted::delay().await.unwrap();
            sleep(SECOND).await.unwrap();
            worker.shutdown.cold();
            let report = worker.task.await.unwrap().unwrap();
            assert_eq!(report.stats.all.given_back, 1);
            assert!(!BEGUN.get());
            assert_eq!(store.open().counts("pikake").await.unwrap().ready, 1);
        });
    }
}

#[job(crate = pikake_jobs, name = "tests.letter", unique_for = "10m")]
async fn letter(_text: String) {}

#[test]
fn a_long_key_is_hashed() {
    in_worlds(async || {
        let (app, store) = app();
        let _app = app.connect().await.unwrap();
        let text = |end| "x".repeat(200_000) + end;
        let first_one = letter::delay(text("a")).await.unwrap();
        assert_eq!(first(letter::delay(text("a")).await), first_one.id().0);
        letter::delay(text("b")).await.unwrap();
        let mut jobs = store.open().consume("pikake", 1).await.unwrap();
        let headers = jobs.next().await.unwrap().unwrap().message.headers;
        let length = serde_json::to_string(&headers["pikake_unique"]).unwrap().len();
        assert!(length < 300, "{length}");
    });
}

#[job(crate = pikake_jobs, name = "tests.unlocks", unique_for = "10m", unique_until = "begun", acks = "early")]
async fn unlocks() {
    BEGUN.set(true);
}

/// The job was acknowledged, and so it is lost; its lock is not.
#[test]
fn a_job_that_is_lost_before_it_begins_releases_its_lock() {
    in_worlds(async || {
        BEGUN.set(false);
        let (store, tries) = (MemoryStore::new(), Cell::new(0));
        let broker = Meddled::new(Rc::new(store.open()), move |asked| {
            // The first one does not end.
            if matches!(asked, Asked::Unlock) && tries.replace(tries.get() + 1) == 0 {
                return Box::pin(std::future::pending());
            }
            at_once(Ok(()))
        });
        let app = App::on(Rc::new(broker)).jobs([unlocks::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
        let job = unlocks::with().on(&sender).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        worker.shutdown.cold();
        worker.task.await.unwrap().unwrap();
        assert!(matches!(job.wait().await, Err(JobError::Failed(_))));
        assert!(!BEGUN.get());
        unlocks::with().on(&sender).send().await.unwrap();
    });
}

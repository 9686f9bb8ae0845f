//! What a worker cannot give back, acknowledge or tell at once, since the broker is lost or takes
//! its time.

use std::cell::Cell;
use std::rc::Rc;

use pikake_jobs::{App, Broker, BrokerError, JobError, MemoryStore};
use pikake_macros::job;
use pikake_traps::{elapsed_since, now, sleep, timeout_after};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, in_worlds, nap};

#[job(crate = pikake_jobs, acks = "early")]
async fn early() -> u32 {
    7
}

/// Waits for nothing that an interruption reaches, so it is dropped.
#[job(crate = pikake_jobs)]
async fn foreign() {
    std::future::pending().await
}

#[job(crate = pikake_jobs, acks = "early")]
async fn early_and_foreign() {
    std::future::pending().await
}

/// While it is set, some calls come to nothing.
type Trouble = Rc<Cell<bool>>;

/// An application whose broker is lost for some calls while there is trouble.
fn in_trouble(is_lost: fn(&Asked<'_>) -> bool) -> (App, MemoryStore, Trouble) {
    let (store, trouble) = (MemoryStore::new(), Trouble::default());
    let is_there = trouble.clone();
    let broker = Meddled::new(Rc::new(store.open()), move |asked| match asked {
        // What goes back goes back, but nothing can be buried.
        Asked::Bury if is_there.get() => at_once(Err(BrokerError::Refused("not now".into()))),
        asked => at_once(if is_there.get() && is_lost(&asked) { Err(lost()) } else { Ok(()) }),
    });
    (App::on(Rc::new(broker)), store, trouble)
}

#[test]
fn what_cannot_be_acknowledged_early_is_run_when_it_can() {
    in_worlds(async || {
        let is_lost = |asked: &Asked<'_>| matches!(asked, Asked::Ack(_) | Asked::GiveBack);
        let (app, store, trouble) = in_trouble(is_lost);
        let app = app.jobs([early::JOB]).prefetch(1);
        trouble.set(true);
        let worker = Running::start(&app, SECOND).await;
        let first = early::delay().await.unwrap();
        let second = early::delay().await.unwrap();
        sleep(10 * SECOND).await.unwrap();
        trouble.set(false);
        for job in [first, second] {
            let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is run");
            assert_eq!(waited.unwrap(), 7);
        }
        assert_eq!(worker.end().await.stats.all.done, 2);
        assert_eq!(store.open().counts("pikake").await.unwrap().taken, Some(0));
    });
}

#[test]
fn what_cannot_be_given_back_does_not_keep_others_out() {
    in_worlds(async || {
        let (app, store, trouble) = in_trouble(|asked| matches!(asked, Asked::GiveBack));
        let app = app.jobs([early::JOB]).prefetch(1);
        trouble.set(true);
        let worker = Running::start(&app, SECOND).await;
        let poison = pikake_jobs::Call::<()>::named("tests.nope", ()).send().await.unwrap();
        let job = early::delay().await.unwrap();
        sleep(60 * SECOND).await.unwrap();
        trouble.set(false);
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is run");
        assert_eq!(waited.unwrap(), 7);
        assert!(matches!(poison.wait().await, Err(JobError::Failed(_))));
        worker.end().await;
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.dead), (0, Some(0), 1));
    });
}

#[test]
fn what_was_dropped_half_way_is_told_when_it_can_be() {
    in_worlds(async || {
        let (app, store, trouble) = in_trouble(|asked| matches!(asked, Asked::Store(_)));
        let app = app.jobs([foreign::JOB, early_and_foreign::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let cancelled = foreign::delay().await.unwrap();
        sleep(SECOND).await.unwrap();
        trouble.set(true);
        cancelled.cancel();
        sleep(10 * SECOND).await.unwrap();
        trouble.set(false);
        let waited = timeout_after(60 * SECOND, cancelled.wait()).await.expect("it is told");
        assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");

        // At the end of the worker, too, for a while.
        let sender = App::on(Rc::new(store.open())).connect().await.unwrap();
        let dropped = early_and_foreign::with().on(&sender).send().await.unwrap();
        sleep(SECOND).await.unwrap();
        trouble.set(true);
        let ending = pikake_traps::spawn(worker.end());
        sleep(3 * SECOND).await.unwrap();
        trouble.set(false);
        let stats = ending.await.unwrap().stats.all;
        assert_eq!((stats.revoked, stats.failed, stats.running), (1, 1, 0));
        let waited = timeout_after(60 * SECOND, dropped.wait()).await.expect("it is told");
        assert!(matches!(waited, Err(JobError::Failed(_))), "{waited:?}");
        assert_eq!(store.open().counts("pikake").await.unwrap().taken, Some(0));
    });
}

/// An application of which each message takes a second to be given back or acknowledged.
fn slow() -> (App, MemoryStore) {
    let store = MemoryStore::new();
    let broker = Meddled::new(Rc::new(store.open()), |asked| match asked {
        Asked::GiveBack | Asked::Ack(_) => Box::pin(async { Ok(sleep(SECOND).await?) }),
        _ => at_once(Ok(())),
    });
    (App::on(Rc::new(broker)).jobs([foreign::JOB, nap::JOB]), store)
}

#[test]
fn what_goes_back_does_not_prolong_the_grace() {
    in_worlds(async || {
        let (app, store) = slow();
        let worker = Running::start(&app.concurrency(50), 2 * SECOND).await;
        let mut jobs = Vec::new();
        for _ in 0..50 {
            jobs.push(foreign::delay().await.unwrap());
        }
        // One that was fetched.
        nap::delay(600).await.unwrap();
        sleep(SECOND).await.unwrap();
        for cancelled in jobs.iter().take(25) {
            cancelled.cancel();
        }
        let begun = now();
        let report = worker.end().await;
        // The grace, in which 25 are told and acknowledged and one goes back; the others it leaves
        // to the broker.
        assert!(elapsed_since(begun) < 3 * SECOND, "{:?}", elapsed_since(begun));
        let stats = report.stats.all;
        assert_eq!((stats.revoked, stats.given_back, report.left.len()), (25, 26, 25));
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (26, Some(0)));
    });
}

#[test]
fn a_cold_shutdown_does_not_wait_for_what_goes_back() {
    in_worlds(async || {
        let (app, store) = slow();
        let worker = Running::start(&app.concurrency(1), 600 * SECOND).await;
        for _ in 0..2 {
            nap::delay(600).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        let begun = now();
        worker.shutdown.warm();
        sleep(SECOND / 2).await.unwrap();
        worker.shutdown.cold();
        let report = worker.task.await.unwrap().unwrap();
        assert!(elapsed_since(begun) < SECOND, "{:?}", elapsed_since(begun));
        assert_eq!((report.stats.all.given_back, report.left.len()), (2, 1));
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (2, Some(0)));
    });
}

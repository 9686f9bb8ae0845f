//! How a worker ends: what it waits for, what it interrupts, and what it gives back.

use std::cell::RefCell;
use std::rc::Rc;

use pikake_jobs::{App, AppError, Broker, ShutdownHandle};
use pikake_macros::job;
use pikake_traps::{Interrupted, elapsed_since, now, shield, sleep, spawn};

use crate::{Running, SECOND, Stage, add, app, in_worlds, nap, stage};

#[job(crate = pikake_jobs)]
async fn stubborn() {
    loop {
        let _ = shield(sleep(60 * SECOND)).await;
    }
}

#[job(crate = pikake_jobs)]
async fn foreign() {
    std::future::pending().await
}

thread_local!(static CLEANUP: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

#[job(crate = pikake_jobs)]
async fn tidy() -> Result<(), Interrupted> {
    let end = sleep(600 * SECOND).await;
    sleep(SECOND).await?;
    let why = end.as_ref().unwrap_err().reason().unwrap().to_owned();
    CLEANUP.with_borrow_mut(|all| all.push(why));
    end
}

#[test]
fn warm_waits_for_what_runs() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([nap::JOB, add::JOB]).concurrency(2).prefetch(3);
        let worker = Running::start(&app, 20 * SECOND).await;
        for _ in 0..2 {
            nap::delay(10).await.unwrap();
        }
        for _ in 0..5 {
            add::delay(1, 1).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        let begin = now();
        let report = worker.end().await;
        assert_eq!(elapsed_since(begin).as_secs(), 9);
        assert_eq!((report.stats.all.done, report.left.len()), (2, 0));
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (5, Some(0)));
    });
}

#[test]
fn what_does_not_end_in_time_is_interrupted_and_given_back() {
    in_worlds(async || {
        CLEANUP.take();
        let (app, store) = app();
        let app = app.jobs([tidy::JOB, stubborn::JOB, foreign::JOB]);
        let worker = Running::start(&app, 2 * SECOND).await;
        tidy::delay().await.unwrap();
        stubborn::delay().await.unwrap();
        foreign::delay().await.unwrap();
        sleep(SECOND).await.unwrap();
        let begin = now();
        let report = worker.end().await;
        assert_eq!(elapsed_since(begin).as_secs(), 7, "the grace, and five seconds to clean up");
        assert_eq!(CLEANUP.take(), ["the worker is being shut down"]);
        let mut left: Vec<_> = report.left.iter().map(|left| left.name.as_str()).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["jobs::shutdown::foreign", "jobs::shutdown::stubborn", "jobs::shutdown::tidy"]
        );
        assert_eq!((report.stats.all.given_back, report.stats.all.running), (3, 0));
        assert_eq!(store.open().counts("pikake").await.unwrap().ready, 3);
    });
}

#[test]
fn cold_does_not_wait() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([nap::JOB]);
        let worker = Running::start(&app, 600 * SECOND).await;
        nap::delay(60).await.unwrap();
        sleep(SECOND).await.unwrap();
        let begin = now();
        worker.shutdown.warm();
        sleep(SECOND).await.unwrap();
        worker.shutdown.cold();
        let report = worker.task.await.unwrap().unwrap();
        assert_eq!((elapsed_since(begin).as_secs(), report.left.len()), (1, 1));
        // Another worker has it.
        let other = App::on(Rc::new(store.open())).jobs([nap::JOB]);
        let worker = Running::start(&other, SECOND).await;
        sleep(61 * SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.done, 1);
    });
}

#[test]
fn an_interruption_of_its_task_is_a_warm_shutdown() {
    in_worlds(async || {
        let (app, _) = app();
        let app = app.jobs([nap::JOB]);
        let worker = Running::start(&app, 20 * SECOND).await;
        nap::delay(5).await.unwrap();
        sleep(SECOND).await.unwrap();
        worker.task.request_cancel("SIGTERM");
        let report = worker.task.await.unwrap().unwrap();
        assert_eq!(report.interrupted.unwrap().reason(), Some("SIGTERM"));
        assert_eq!((report.stats.all.done, report.left.len()), (1, 0));
    });
}

#[test]
fn a_worker_that_is_dropped_leaves_its_messages_to_the_broker() {
    in_worlds(async || {
        let Stage { app, store, worker, .. } =
            stage(|app| app.jobs([nap::JOB, foreign::JOB])).await;
        nap::delay(60).await.unwrap();
        foreign::delay().await.unwrap();
        sleep(SECOND).await.unwrap();
        worker.task.abort();
        sleep(SECOND).await.unwrap();
        drop(app);
        assert_eq!(store.open().counts("pikake").await.unwrap().ready, 2);
    });
}

#[test]
fn a_kernel_that_ends_gives_back_what_runs() {
    let store = pikake_jobs::MemoryStore::new();
    let clock = pikake_time::ManualClock::auto();
    let kernel = pikake_kernel::Kernel::builder().clock(clock).build().unwrap();
    let app = App::on(Rc::new(store.open())).jobs([nap::JOB, foreign::JOB]);
    let worker = kernel.run(async {
        let worker = Running::start(&app, SECOND).await;
        nap::delay(60).await.unwrap();
        foreign::delay().await.unwrap();
        sleep(SECOND).await.unwrap();
        worker
    });
    kernel.shutdown();
    drop((worker, app, kernel));
    let kernel = pikake_kernel::Kernel::new().unwrap();
    kernel.run(async {
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (2, Some(0)));
    });
}

thread_local!(static SHUTDOWN: RefCell<Option<ShutdownHandle>> = const { RefCell::new(None) });

/// Ends its own worker.
#[job(crate = pikake_jobs)]
async fn last() {
    SHUTDOWN.take().expect("a worker that runs").warm();
}

#[test]
fn a_job_that_ends_its_worker_is_the_last_one_begun() {
    in_worlds(async || {
        let (app, store) = app();
        let app = app.jobs([last::JOB, nap::JOB]).concurrency(1);
        let worker = Running::start(&app, 20 * SECOND).await;
        SHUTDOWN.set(Some(worker.shutdown.clone()));
        last::delay().await.unwrap();
        for _ in 0..4 {
            nap::delay(10).await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken), (4, Some(0)), "they are back at once");
        assert_eq!(worker.task.await.unwrap().unwrap().stats.all.done, 1);
    });
}

#[test]
fn an_application_has_one_worker() {
    in_worlds(async || {
        let (app, _) = app();
        let app = app.jobs([nap::JOB]).setup(async |_| sleep(SECOND).await);
        let (one, other) = (spawn(app.run_worker()), spawn(app.run_worker()));
        sleep(2 * SECOND).await.unwrap();
        one.request_cancel("the test is over");
        other.request_cancel("the test is over");
        let ended = [one.await.unwrap(), other.await.unwrap()];
        let refused = |end: &&Result<_, _>| matches!(end, Err(AppError::AlreadyRunning));
        assert_eq!(ended.iter().filter(refused).count(), 1, "{ended:?}");
    });
}

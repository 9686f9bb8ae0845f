//! Blocking jobs in threads, for real: what a limit counts, and what a job leaves behind.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pikake_jobs::{App, Handle, JobError, JobState, MemoryStore, current_job};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{sleep, spawn};
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);

#[job(crate = pikake_jobs, soft_limit = "4s", hard_limit = "4500ms")]
fn takes_a_second() -> bool {
    std::thread::sleep(SECOND);
    current_job().is_cancelled()
}

#[job(crate = pikake_jobs, soft_limit = "200ms")]
fn looks_at_its_flag() -> u32 {
    (0..).take_while(|_| !current_job().is_cancelled()).count() as u32
}

#[job(crate = pikake_jobs)]
fn panics() {
    panic!("a bug");
}

#[job(crate = pikake_jobs)]
fn quick() -> u32 {
    7
}

/// How many of these jobs have begun, and how many of them have noticed their cancel.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static NOTICED: AtomicU32 = AtomicU32::new(0);

#[job(crate = pikake_jobs)]
fn works_until_cancelled() {
    BEGUN.fetch_add(1, Ordering::Relaxed);
    while !current_job().is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    NOTICED.fetch_add(1, Ordering::Relaxed);
}

/// Set once the jobs below may end.
static IS_RELEASED: AtomicBool = AtomicBool::new(false);

#[job(crate = pikake_jobs)]
fn looks_at_no_flag() {
    while !IS_RELEASED.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(5)).await.unwrap();
    }
}

async fn assert_revoked<T: serde::de::DeserializeOwned + std::fmt::Debug>(job: &Handle<T>) {
    match job.wait().await {
        Err(JobError::Revoked(why)) => assert_eq!(why, "cancelled"),
        other => panic!("{other:?}"),
    }
}

/// Runs a program beside a worker, in a kernel with so many threads for blocking jobs.
fn with_worker(threads: usize, program: impl AsyncFnOnce(App)) {
    let kernel = Kernel::builder().helper_threads(threads).build().unwrap();
    kernel.run(async {
        let app = App::on(Rc::new(MemoryStore::new().open()));
        let app = app.jobs([
            takes_a_second::JOB,
            looks_at_its_flag::JOB,
            panics::JOB,
            quick::JOB,
            works_until_cancelled::JOB,
            looks_at_no_flag::JOB,
        ]);
        let app = app.connect().await.unwrap();
        let worker = spawn(app.run_worker());
        program(app).await;
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

#[test]
fn limits_begin_when_there_is_a_thread() {
    with_worker(1, async |_| {
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(takes_a_second::delay().await.unwrap());
        }
        for job in all {
            assert!(!job.wait().await.unwrap());
        }
    });
}

#[test]
fn one_that_is_over_its_limit_is_told_and_not_waited_for() {
    with_worker(2, async |_| {
        match looks_at_its_flag::delay().await.unwrap().wait().await {
            Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "SoftTimeLimitExceeded"),
            other => panic!("{other:?}"),
        }
        assert_eq!(quick::delay().await.unwrap().wait().await.unwrap(), 7);
    });
}

#[test]
fn a_panic_costs_no_thread() {
    with_worker(1, async |_| {
        for _ in 0..3 {
            match panics::delay().await.unwrap().wait().await {
                Err(JobError::Failed(failure)) => {
                    assert_eq!((&*failure.kind, &*failure.message), ("Panic", "a bug"));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(quick::delay().await.unwrap().wait().await.unwrap(), 7);
    });
}

/// Its thread ends when the job looks at its flag; a job that has no thread yet never gets one.
#[test]
fn terminated_jobs_are_revoked_and_their_threads_notice() {
    with_worker(1, async |app| {
        let running = works_until_cancelled::delay().await.unwrap();
        until(|| BEGUN.load(Ordering::Relaxed) == 1).await;
        let waiting = works_until_cancelled::delay().await.unwrap();
        let control = app.control();
        while control.query(&waiting.id().0).await.unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await.unwrap();
        }
        assert_eq!(control.running().await.unwrap()[0].state, JobState::Running);
        for job in [&waiting, &running] {
            assert_eq!(NOTICED.load(Ordering::Relaxed), 0);
            let answers = control.revoke(&job.id().0, true).await.unwrap();
            let terminated = json!({"ok": format!("terminate: {}", job.id())});
            assert_eq!(answers[0].result, Ok(terminated));
            assert_revoked(job).await;
        }
        until(|| NOTICED.load(Ordering::Relaxed) == 1).await;
        // The thread is free again.
        assert_eq!(quick::delay().await.unwrap().wait().await.unwrap(), 7);
        assert_eq!(BEGUN.load(Ordering::Relaxed), 1);
        let stats = app.stats().all;
        assert_eq!((stats.revoked, stats.done, stats.running), (2, 1, 0));
    });
}

/// The job is revoked at once; its thread goes on, and its value goes nowhere.
#[test]
fn terminated_job_that_looks_at_no_flag_is_not_waited_for() {
    with_worker(2, async |app| {
        for signal in ["SIGTERM", "SIGKILL"] {
            let job = looks_at_no_flag::delay().await.unwrap();
            while app.control().running().await.unwrap().is_empty() {
                sleep(Duration::from_millis(5)).await.unwrap();
            }
            let arguments = json!({"task_id": job.id().0, "terminate": true, "signal": signal});
            app.control().tell("revoke", arguments).await.unwrap();
            assert_revoked(&job).await;
        }
        IS_RELEASED.store(true, Ordering::Relaxed);
        assert_eq!(quick::delay().await.unwrap().wait().await.unwrap(), 7);
        let stats = app.stats().all;
        assert_eq!((stats.revoked, stats.done, stats.running), (2, 1, 0));
    });
}

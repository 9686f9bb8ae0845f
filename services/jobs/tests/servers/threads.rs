//! Blocking jobs in threads, for real: what a limit counts, and what a job leaves behind.

use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, JobError, MemoryStore, current_job};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::spawn;

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

/// Runs a program beside a worker, in a kernel with so many threads for blocking jobs.
fn with_worker(threads: usize, program: impl AsyncFnOnce()) {
    let kernel = Kernel::builder().helper_threads(threads).build().unwrap();
    kernel.run(async {
        let app = App::on(Rc::new(MemoryStore::new().open()));
        let app = app.jobs((takes_a_second, looks_at_its_flag, panics, quick));
        let app = app.connect().await.unwrap();
        let worker = spawn(app.run_worker());
        program().await;
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

#[test]
fn limits_begin_when_there_is_a_thread() {
    with_worker(1, async || {
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(takes_a_second.delay().await.unwrap());
        }
        for job in all {
            assert!(!job.wait().await.unwrap());
        }
    });
}

#[test]
fn one_that_is_over_its_limit_is_told_and_not_waited_for() {
    with_worker(2, async || {
        match looks_at_its_flag.delay().await.unwrap().wait().await {
            Err(JobError::Failed(failure)) => assert_eq!(failure.kind, "SoftTimeLimitExceeded"),
            other => panic!("{other:?}"),
        }
        assert_eq!(quick.delay().await.unwrap().wait().await.unwrap(), 7);
    });
}

#[test]
fn a_panic_costs_no_thread() {
    with_worker(1, async || {
        for _ in 0..3 {
            match panics.delay().await.unwrap().wait().await {
                Err(JobError::Failed(failure)) => {
                    assert_eq!((&*failure.kind, &*failure.message), ("Panic", "a bug"));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(quick.delay().await.unwrap().wait().await.unwrap(), 7);
    });
}

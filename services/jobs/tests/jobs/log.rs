//! What the log says of jobs.

use pikake_jobs::{Call, Failure, current_job};
use pikake_macros::job;
use pikake_sim::Sim;
use pikake_traps::sleep;
use tracing::Level;

use crate::lines::Lines;
use crate::{Running, SECOND, app, nap};

#[job(crate = pikake_jobs, name = "tests.flaky", retries = 1)]
async fn flaky() -> Result<(), Failure> {
    sleep(SECOND).await.map_err(|_| Failure::new("Interrupted", "", ""))?;
    current_job().retry_in(30 * SECOND);
    Err(Failure::new("ValueError", "builtins", "no"))
}

/// The lines of three jobs that end in turn and one that is cancelled, down to a level.
fn lines_of_jobs(level: Level) -> Vec<String> {
    let (lines, _guard) = Lines::collect(&["pikake::jobs"], level);
    let ran = Sim::new(0).run_here("test", async {
        let (app, _store) = app();
        let app = app.jobs([nap::JOB, flaky::JOB]);
        let worker = Running::start(&app, SECOND).await;
        let slept = nap::with(2).id("slept").send().await.unwrap();
        slept.wait().await.unwrap();
        let failed = flaky::with().id("failed").send().await.unwrap();
        failed.wait().await.unwrap_err();
        let unknown = Call::<()>::named("tests.nope", ()).id("unknown").send().await.unwrap();
        unknown.wait().await.unwrap_err();
        let cancelled = nap::with(600).id("cancelled").send().await.unwrap();
        sleep(3 * SECOND).await.unwrap();
        cancelled.cancel();
        cancelled.wait().await.unwrap_err();
        nap::with(600).id("left").send().await.unwrap();
        sleep(SECOND).await.unwrap();
        worker.end().await;
    });
    ran.unwrap().outcome.unwrap();
    lines.take()
}

#[test]
fn each_end_of_a_job_is_a_line() {
    assert_eq!(
        lines_of_jobs(Level::INFO),
        [
            "info done: id=slept job=tests.nap queue=pikake seconds=2",
            "info retried: id=failed job=tests.flaky queue=pikake seconds=1 error=ValueError: no retry_in=30",
            "error failed: id=failed job=tests.flaky queue=pikake seconds=1 error=ValueError: no",
            "error dead: id=unknown job=tests.nope queue=pikake error=no job `tests.nope` is registered here",
            "info revoked: id=cancelled job=tests.nap queue=pikake seconds=3 error=cancelled",
        ]
    );
}

#[test]
fn starts_and_requeues_are_debug_lines() {
    let lines = lines_of_jobs(Level::DEBUG);
    let debug: Vec<_> = lines.iter().filter(|line| line.starts_with("debug")).collect();
    assert_eq!(
        debug,
        [
            "debug started: id=slept job=tests.nap queue=pikake retries=0",
            "debug started: id=failed job=tests.flaky queue=pikake retries=0",
            "debug started: id=failed job=tests.flaky queue=pikake retries=1",
            "debug started: id=cancelled job=tests.nap queue=pikake retries=0",
            "debug started: id=left job=tests.nap queue=pikake retries=0",
            "debug requeued: id=left job=tests.nap queue=pikake",
        ]
    );
}

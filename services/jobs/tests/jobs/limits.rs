//! Time limits.

use std::cell::Cell;
use std::time::Duration;

use pikake_jobs::{JobError, current_job};
use pikake_macros::job;
use pikake_traps::{Interrupted, elapsed_since, now, shield, sleep};

use crate::{SECOND, Stage, in_worlds, stage};

thread_local!(static CLEANED: Cell<u32> = const { Cell::new(0) });

#[job(crate = pikake_jobs, soft_limit = "2s")]
async fn soft(seconds: u64) -> Result<String, Interrupted> {
    assert!(current_job().deadline().is_some());
    sleep(Duration::from_secs(seconds)).await.map(|()| "in time".into())
}

#[job(crate = pikake_jobs, soft_limit = "2s")]
async fn graceful() -> String {
    match sleep(60 * SECOND).await {
        Ok(()) => "all".into(),
        Err(_) => {
            sleep(SECOND).await.unwrap();
            CLEANED.set(CLEANED.get() + 1);
            "as far as we got".into()
        }
    }
}

#[job(crate = pikake_jobs, soft_limit = 2, hard_limit = 3.5)]
async fn stubborn() -> Result<(), Interrupted> {
    let _ = sleep(60 * SECOND).await;
    shield(sleep(60 * SECOND)).await
}

#[job(crate = pikake_jobs, soft_limit = "2s")]
async fn foreign() {
    std::future::pending().await
}

fn kind(error: JobError) -> String {
    match error {
        JobError::Failed(failure) => failure.kind,
        other => panic!("not a failure: {other}"),
    }
}

#[test]
fn soft_interrupts_and_hard_drops() {
    in_worlds(async || {
        CLEANED.set(0);
        let Stage { worker, .. } =
            stage(|app| app.jobs([soft::JOB, graceful::JOB, stubborn::JOB, foreign::JOB])).await;
        assert_eq!(soft::delay(1).await.unwrap().wait().await.unwrap(), "in time");
        let begin = now();
        let error = soft::delay(9).await.unwrap().wait().await.unwrap_err();
        assert_eq!(
            (kind(error).as_str(), elapsed_since(begin).as_secs()),
            ("SoftTimeLimitExceeded", 2)
        );
        assert_eq!(graceful::delay().await.unwrap().wait().await.unwrap(), "as far as we got");
        assert_eq!(CLEANED.get(), 1);
        let begin = now();
        let error = stubborn::delay().await.unwrap().wait().await.unwrap_err();
        assert_eq!(
            (kind(error).as_str(), elapsed_since(begin).as_secs()),
            ("TimeLimitExceeded", 3)
        );
        let error = foreign::delay().await.unwrap().wait().await.unwrap_err();
        assert_eq!(kind(error), "SoftTimeLimitExceeded");
        // The sender's limits go before those of the definition.
        let begin = now();
        let call = soft::with(60).soft_limit(7 * SECOND);
        let error = call.send().await.unwrap().wait().await.unwrap_err();
        assert_eq!(
            (kind(error).as_str(), elapsed_since(begin).as_secs()),
            ("SoftTimeLimitExceeded", 7)
        );
        let stats = worker.end().await.stats.all;
        assert_eq!((stats.done, stats.failed), (2, 4));
    });
}

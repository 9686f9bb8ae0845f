//! A sender and a worker on a real kernel, each with its own connection to the embedded broker.

use std::time::Duration;

use pikake_jobs::{App, JobError, current_job};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{TimedOut, spawn, timeout_after};

#[job(crate = pikake_jobs, retries = 1, backoff(first = "20ms", cap = "20ms"))]
async fn flaky(number: u64) -> Result<u64, String> {
    if number.is_multiple_of(10) && current_job().retries() == 0 {
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
        let app = App::new(&url).unwrap().jobs((flaky, threaded, bug));
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        let worker = spawn(app.run_worker());
        let mut handles = Vec::new();
        for number in 0..100 {
            handles.push(flaky.with(number).on(&sender).send().await.unwrap());
        }
        let late = flaky.with(7).countdown(Duration::from_millis(300)).on(&sender);
        let late = late.send().await.unwrap();
        let waited = timeout_after(Duration::from_millis(50), late.wait()).await;
        assert!(matches!(waited, Err(TimedOut)));
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(handle.wait().await.unwrap(), number as u64 * 2);
        }
        let text = threaded.with("loud".into()).on(&sender).send().await.unwrap();
        assert_eq!(text.wait().await.unwrap(), "LOUD");
        let failure = bug.with().on(&sender).send().await.unwrap().wait().await;
        assert!(matches!(failure, Err(JobError::Failed(failure)) if failure.message == "a bug"));
        assert_eq!(late.wait().await.unwrap(), 14);
        worker.request_cancel("the test is over");
        let stats = worker.await.unwrap().unwrap().stats.all;
        assert_eq!((stats.done, stats.retried, stats.failed, stats.running), (102, 10, 1, 0));
    });
}

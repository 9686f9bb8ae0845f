//! Big values: one that RabbitMQ does not take, of which whoever waits is told; and one that SQLite
//! takes.

use std::time::Duration;

use pikake_jobs::{App, JobError};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{spawn, timeout_after};

/// RabbitMQ takes 128 MiB at most, unless it was told otherwise.
const TOO_BIG: usize = (128 << 20) + 1;

#[job(crate = pikake_jobs)]
async fn value(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[test]
fn sqlite_takes_a_hundred_megabytes() {
    let folder = tempfile::TempDir::new().unwrap();
    let url = format!("sqlite://{}", folder.path().join("jobs.db").display());
    Kernel::new().unwrap().run(async {
        let app = App::new(url).unwrap().jobs([value::JOB]).connect().await.unwrap();
        let worker = spawn(app.run_worker());
        let handle = value::delay(100_000_000).await.unwrap();
        let text = timeout_after(Duration::from_secs(120), handle.wait()).await.unwrap().unwrap();
        assert_eq!(text.len(), 100_000_000);
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
    });
}

#[test]
fn whoever_waits_is_told() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let sender = App::new(&url).unwrap().connect().await.unwrap();
        // Over a connection of its own: the message costs the channel over which answers come.
        let app = App::new(&url).unwrap().jobs([value::JOB]);
        let worker = spawn(app.run_worker());
        let handle = value::with(TOO_BIG).on(&sender).send().await.unwrap();
        let told = timeout_after(Duration::from_secs(120), handle.wait()).await;
        match told.expect("it is told") {
            Err(JobError::Failed(failure)) => {
                assert_eq!(failure.kind, "EncodeError");
                assert!(failure.message.contains("cannot be stored"), "{}", failure.message);
            }
            other => panic!("{:?}", other.map(|text| text.len())),
        }
        assert_eq!(value::with(3).on(&sender).send().await.unwrap().wait().await.unwrap(), "xxx");
        worker.request_cancel("the test is over");
        assert_eq!(worker.await.unwrap().unwrap().stats.all.dead, 1);
    });
}

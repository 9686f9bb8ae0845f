//! Lengths and numbers that nobody means, and that somebody sends.

use std::time::{Duration, SystemTime};

use pikake_jobs::{Broker, Message, current_job};
use pikake_macros::job;
use pikake_traps::sleep;
use serde_json::json;

use crate::{SECOND, Stage, add, in_worlds, stage};

#[job(crate = pikake_jobs, name = "tests.much_later", retries = 1)]
async fn much_later() -> Result<(), String> {
    current_job().retry_in(Duration::MAX);
    Err("not now".into())
}

#[job(crate = pikake_jobs, name = "tests.attempt")]
async fn attempt() -> u32 {
    current_job().attempt()
}

#[test]
fn a_length_without_an_end_is_as_long_as_can_be_said() {
    in_worlds(async || {
        let Stage { app, store, worker, .. } =
            stage(|app| app.jobs([add::JOB, much_later::JOB])).await;
        let all = add::with(2, 3).expires(Duration::MAX).soft_limit(Duration::MAX);
        let all = all.hard_limit(Duration::MAX).send().await.unwrap();
        assert_eq!(all.wait().await.unwrap(), 5);

        add::with(2, 3).countdown(Duration::MAX).send().await.unwrap();
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 60);
        add::with(2, 3).eta(end).send().await.unwrap();
        much_later::delay().await.unwrap();
        sleep(3_600 * SECOND).await.unwrap();
        let counts = store.open().counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.taken, counts.delayed), (0, Some(0), 3));
        assert_eq!((app.stats().all.done, app.stats().all.retried), (1, 1));
        worker.end().await;
    });
}

#[test]
fn numbers_at_their_end_do_no_harm() {
    in_worlds(async || {
        let Stage { app, store, worker, .. } =
            stage(|app| app.jobs([attempt::JOB, much_later::JOB])).await;
        let broker = store.open();
        for (name, value) in [("retries", json!(u32::MAX)), ("pikake_max_retries", json!(u32::MAX))]
        {
            let mut message = message("tests.much_later", name);
            message.headers.insert("retries".into(), json!(u32::MAX));
            message.headers.insert(name.into(), value);
            broker.publish("pikake", message, None).await.unwrap();
        }
        let mut message = message("tests.attempt", "kills");
        message.headers.insert("pikake_kills".into(), json!(u32::MAX));
        broker.publish("pikake", message, None).await.unwrap();
        sleep(SECOND).await.unwrap();
        let all = app.stats().all;
        assert_eq!((all.done, all.failed, all.given_back), (1, 2, 0), "{all:?}");
        worker.end().await;
    });
}

fn message(job: &str, id: &str) -> Message {
    let mut message = Message::default();
    message.content_type = Some("application/json".into());
    message.headers.insert("task".into(), job.into());
    message.headers.insert("id".into(), id.into());
    message.body = b"[[], {}, {}]".to_vec();
    message
}

#[test]
#[should_panic(expected = "the prefetch of a worker is at least 1")]
fn a_worker_without_prefetch_is_refused() {
    let _app = crate::app().0.prefetch(0);
}

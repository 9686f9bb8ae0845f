//! Jobs whose values are facts of their own messages: Python's `self.request`.

use std::time::{Duration, UNIX_EPOCH};

use pikake::jobs::{Definition, JobOptions, Runner, current_job};
use serde_json::{Value, json};

use crate::retries::{ONCE, countdown_of, retry_after};

#[pikake::job(name = "t.integration.tasks.ids")]
async fn ids(i: Value) -> (String, Option<String>, Value) {
    let job = current_job();
    (job.root_id().to_owned(), job.parent_id().map(str::to_owned), i)
}

#[pikake::job(name = "t.integration.tasks.collect_ids")]
async fn collect_ids(res: Value, i: Value) -> (Value, (String, Option<String>, Value)) {
    (res, ids(i).await)
}

const RETURN_PRIORITY: Definition = Definition::new(
    "t.integration.tasks.return_priority",
    JobOptions::DEFAULT,
    Runner::Task(|_, _| {
        Ok(Box::pin(async { Ok(json!(format!("Priority: {}", current_job().priority())).into()) }))
    }),
);

const RETRY_ONCE_PRIORITY: Definition = Definition::new(
    "t.integration.tasks.retry_once_priority",
    ONCE,
    Runner::Task(|_, kwargs| {
        let countdown = countdown_of(kwargs);
        Ok(Box::pin(async move {
            match current_job().retries() {
                0 => Err(retry_after(countdown)),
                _ => Ok(json!(current_job().priority()).into()),
            }
        }))
    }),
);

/// Seconds since 1970; Python returns a text.
#[pikake::job(name = "t.integration.tasks.return_request_eta")]
async fn return_request_eta() -> Option<f64> {
    Some(current_job().eta()?.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
}

#[pikake::job(name = "t.integration.tasks.return_request_time_limits")]
async fn return_request_time_limits() -> Value {
    let job = current_job();
    let [hard, soft] =
        [job.hard_limit(), job.soft_limit()].map(|limit| limit.as_ref().map(Duration::as_secs));
    json!({ "time_limit": hard, "soft_time_limit": soft })
}

#[pikake::job(
    name = "t.integration.tasks.task_with_declared_time_limits",
    soft_limit = "45s",
    hard_limit = "60s"
)]
async fn task_with_declared_time_limits() -> Value {
    return_request_time_limits().await
}

pub(crate) const JOBS: [Definition; 7] = [
    ids::JOB,
    collect_ids::JOB,
    RETURN_PRIORITY,
    RETRY_ONCE_PRIORITY,
    return_request_eta::JOB,
    return_request_time_limits::JOB,
    task_with_declared_time_limits::JOB,
];

//! Jobs that are retried. Python's `self.retry(countdown=…)` is `current_job().retry_in(…)` and an
//! error.

#![expect(clippy::disallowed_names, reason = "the names of the arguments in Python")]

use std::time::Duration;

use pikake::jobs::{Definition, Failure, JobOptions, Runner, current_job};
use serde_json::{Map, Value, json};

use crate::failures::{expected, unpickleable};

/// The error of a `self.retry()` without an exception.
pub(crate) fn retry_after(countdown: f64) -> Failure {
    current_job().retry_in(Duration::from_secs_f64(countdown));
    Failure::new("Retry", "celery.exceptions", "Task can be retried")
}

#[pikake::job(name = "t.integration.tasks.retry", retries = 3)]
async fn retry(return_value: Option<Value>) -> Result<Value, Failure> {
    match return_value {
        Some(value) if current_job().retries() >= 3 => Ok(value),
        _ => {
            current_job().retry_in(Duration::from_secs(5));
            Err(expected(Vec::new()))
        }
    }
}

#[pikake::job(name = "t.integration.tasks.retry_unpickleable", retries = 1)]
async fn retry_unpickleable(
    text: String,
    other: String,
    retry_kwargs: Map<String, Value>,
) -> Result<(), Failure> {
    drop(other);
    let countdown = retry_kwargs.get("countdown").and_then(Value::as_f64);
    current_job().retry_in(Duration::from_secs_f64(countdown.unwrap_or_default()));
    Err(unpickleable(text))
}

/// Options of a job that is retried once.
pub(crate) const ONCE: JobOptions = {
    let mut options = JobOptions::DEFAULT;
    options.retries = 1;
    options
};

/// The countdown that a job takes by name.
pub(crate) fn countdown_of(kwargs: &str) -> f64 {
    let kwargs: Map<String, Value> = serde_json::from_str(kwargs).unwrap_or_default();
    kwargs.get("countdown").and_then(Value::as_f64).unwrap_or(0.1)
}

const RETRY_ONCE: Definition = Definition::new(
    "t.integration.tasks.retry_once",
    {
        let mut options = ONCE;
        options.expires = Some(Duration::from_secs(120));
        options
    },
    Runner::Task(|_, kwargs| {
        let countdown = countdown_of(kwargs);
        Ok(Box::pin(async move {
            match current_job().retries() {
                0 => Err(retry_after(countdown)),
                retries => Ok(Value::from(retries).into()),
            }
        }))
    }),
);

const RETRY_ONCE_HEADERS: Definition = Definition::new(
    "t.integration.tasks.retry_once_headers",
    ONCE,
    Runner::Task(|_, kwargs| {
        let countdown = countdown_of(kwargs);
        Ok(Box::pin(async move {
            let name = "x-test-header";
            match (current_job().retries(), current_job().header(name)) {
                (0, _) => Err(retry_after(countdown)),
                (_, header) => {
                    let header = header.map(|value| (name, value.clone()));
                    Ok(Value::from_iter(header).into())
                }
            }
        }))
    }),
);

#[pikake::job(name = "t.integration.tasks.retry_once_ignore_result", retries = 1, ignore_result)]
async fn retry_once_ignore_result() -> Result<u32, Failure> {
    retry_once_with_result().await
}

#[pikake::job(name = "t.integration.tasks.retry_once_with_result", retries = 1)]
async fn retry_once_with_result() -> Result<u32, Failure> {
    match current_job().retries() {
        0 => Err(retry_after(0.0)),
        retries => Ok(retries),
    }
}

#[pikake::job(name = "t.integration.tasks.retry_with_args_after_kwargs", retries = 1)]
async fn retry_with_args_after_kwargs(
    foo: i64,
    bar: i64,
    label: Option<String>,
) -> Result<Value, Failure> {
    let job = current_job();
    if job.retries() == 0 {
        job.retry_as(&retry_with_args_after_kwargs::with(foo + 1, bar + 1, label));
        return Err(retry_after(0.0));
    }
    let retries = job.retries();
    Ok(json!({ "foo": foo, "bar": bar, "label": label, "retries": retries, "is_eager": false }))
}

#[pikake::job(name = "t.integration.tasks.retry_with_kwargs_after_args", retries = 1)]
async fn retry_with_kwargs_after_args(foo: i64, bar: i64) -> Result<Value, Failure> {
    let job = current_job();
    if job.retries() == 0 {
        job.retry_as(&retry_with_kwargs_after_args::with(foo + 1, bar));
        return Err(retry_after(0.0));
    }
    Ok(json!({ "foo": foo, "bar": bar, "retries": job.retries(), "is_eager": false }))
}

#[pikake::job(name = "auto_retry_class_task", retries = 1)]
async fn auto_retry_class_task() -> Result<u32, Failure> {
    match current_job().retries() {
        0 => Err(Failure::new("ValueError", "builtins", "")),
        retries => Ok(retries),
    }
}

/// Python rejects the message, and the broker delivers it again. Here the second run is a retry.
#[pikake::job(name = "t.integration.tasks.reject_then_succeed", retries = 1)]
async fn reject_then_succeed() -> Result<String, Failure> {
    match current_job().retries() {
        0 => Err(retry_after(0.0)),
        _ => Ok("second-pass".to_owned()),
    }
}

pub(crate) const JOBS: [Definition; 10] = [
    retry::JOB,
    retry_unpickleable::JOB,
    RETRY_ONCE,
    RETRY_ONCE_HEADERS,
    retry_once_ignore_result::JOB,
    retry_once_with_result::JOB,
    retry_with_args_after_kwargs::JOB,
    retry_with_kwargs_after_args::JOB,
    auto_retry_class_task::JOB,
    reject_then_succeed::JOB,
];

//! Jobs that fail.

use pikake::jobs::{Definition, Failure, JobOptions, Runner};
use serde_json::Value;

/// Where the tests define their exceptions.
const MODULE: &str = "t.integration.tasks";

/// The arguments by position of a job that takes any: Python's `*args`.
pub(crate) fn positional(args: &str) -> Vec<Value> {
    serde_json::from_str(args).unwrap_or_default()
}

/// `ExpectedException(*args)`
pub(crate) fn expected(args: Vec<Value>) -> Failure {
    Failure::new("ExpectedException", MODULE, "expected").with_arguments(args)
}

/// `UnpickleableException(foo, bar)`, whose `args` have the first alone.
pub(crate) fn unpickleable(text: String) -> Failure {
    Failure::new("UnpickleableException", MODULE, text)
}

const FAIL: Definition = Definition::new(
    "t.integration.tasks.fail",
    JobOptions::DEFAULT,
    Runner::Task(|args, _| {
        let mut all = vec![Value::from("Task expected to fail")];
        all.extend(positional(args));
        Ok(Box::pin(async { Err(expected(all)) }))
    }),
);

const RAISE_ERROR: Definition = Definition::new(
    "t.integration.tasks.raise_error",
    JobOptions::DEFAULT,
    Runner::Task(|_, _| {
        let error = Failure::new("ValueError", "builtins", "deliberate error");
        Ok(Box::pin(async { Err(error) }))
    }),
);

#[pikake::job(name = "t.integration.tasks.fail_unpickleable")]
async fn fail_unpickleable(text: String, other: String) -> Result<(), Failure> {
    drop(other);
    Err(unpickleable(text))
}

#[pikake::job(name = "t.integration.tasks.reject_without_requeue")]
async fn reject_without_requeue() -> Result<(), Failure> {
    Err(Failure::new("Reject", "celery.exceptions", "rejected"))
}

pub(crate) const JOBS: [Definition; 4] =
    [FAIL, RAISE_ERROR, fail_unpickleable::JOB, reject_without_requeue::JOB];

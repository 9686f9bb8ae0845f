//! The result of a job that has not failed, as JSON: a value, or a workflow in its place.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::wire::failure::Failure;
use crate::wire::signature::CanvasSignature;

/// The result of one run of a job: the value or workflow that it has returned, or its failure.
pub type Returned = Result<Completion, Failure>;

/// The result of a job that has not failed, as JSON. Made from a value, or by the expansion of
/// `#[pikake::job]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Completion(pub(crate) Kind);

/// The kinds of results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Kind {
    Value(Value),
    /// A workflow that takes the place of the job.
    Workflow(Box<CanvasSignature>),
    /// A value, and workflows that become members of the job's chord.
    Members(Value, Vec<CanvasSignature>),
}

impl From<Value> for Completion {
    fn from(value: Value) -> Self {
        Self(Kind::Value(value))
    }
}

/// The result of a job that returns no `Result`. Called by the expansion of `#[pikake::job]`.
#[doc(hidden)]
pub fn returned<T: Serialize>(value: T) -> Returned {
    to_json(value).map(Completion::from)
}

pub(crate) fn to_json<T: Serialize>(value: T) -> Result<Value, Failure> {
    let refused = |why: String| Failure::new("EncodeError", "kombu.exceptions", why);
    let value = serde_json::to_value(value)
        .map_err(|error| refused(format!("the value is not JSON: {error}")))?;
    match is_nested_at_most(MAX_NESTING, &value) {
        true => Ok(value),
        false => Err(refused(format!("the value is nested more than {MAX_NESTING} deep"))),
    }
}

/// How deep a value may be nested: `serde_json` reads 127 levels, and the message around the value
/// has a few.
const MAX_NESTING: usize = 120;

fn is_nested_at_most(depth: usize, value: &Value) -> bool {
    match value {
        Value::Array(values) => {
            depth > 0 && values.iter().all(|value| is_nested_at_most(depth - 1, value))
        }
        Value::Object(values) => {
            depth > 0 && values.values().all(|value| is_nested_at_most(depth - 1, value))
        }
        _ => true,
    }
}

/// The result of a job that returns a `Result`, whose success has a result of its own. Called by
/// the expansion of `#[pikake::job]`.
#[doc(hidden)]
pub fn returned_result<T, E: fmt::Display + 'static>(
    result: Result<T, E>,
    success: fn(T) -> Returned,
) -> Returned {
    match result {
        Ok(value) => success(value),
        Err(error) => Err(Failure::of(&error)),
    }
}

//! A job's definition: its name, its options, and how its arguments and values are read and
//! written.
//!
//! `#[pikake::job]` makes a [`Definition`], and that is all that a worker knows of a job.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batch::RunBatch;
use crate::broker::LocalFuture;
use crate::options::JobOptions;
use crate::wire::arguments::WrongArguments;
use crate::wire::failure::Failure;
use crate::wire::signature::CanvasSignature;

/// The result of one run of a job: the value or workflow that it has returned, or its failure.
pub type Returned = Result<Completion, Failure>;

/// What a job has returned, as JSON. Made from a value, or by the expansion of `#[pikake::job]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Completion(pub(crate) Kind);

/// What a job may return.
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

/// Where a job runs, and the function that reads its arguments and runs it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Runner {
    /// As a task of the kernel.
    Task(RunTask),
    /// In a helper thread of the kernel.
    Thread(RunBlocking),
    /// In a process of the same binary.
    Process(RunBlocking),
    /// As a task of the kernel, together with other messages of the job.
    Batch(RunBatch),
}

/// Reads `args` and `kwargs`, and gives the future of the job.
pub type RunTask = fn(&str, &str) -> Result<LocalFuture<'static, Returned>, WrongArguments>;

/// Reads `args` and `kwargs`, and gives the closure of the job.
pub type RunBlocking =
    fn(&str, &str) -> Result<Box<dyn FnOnce() -> Returned + Send>, WrongArguments>;

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Task(_) => "Task",
            Self::Thread(_) => "Thread",
            Self::Process(_) => "Process",
            Self::Batch(_) => "Batch",
        })
    }
}

/// A job as workers register it: the `JOB` of a function with the attribute `#[pikake::job]`.
///
/// # Examples
///
/// Jobs that are registered together have a list in their module:
///
/// ```
/// use pikake::jobs::App;
///
/// mod mail {
///     use pikake::jobs::Definition;
///
///     #[pikake::job]
///     pub async fn send(to: String) {}
///
///     #[pikake::job]
///     pub async fn receive() {}
///
///     /// All jobs of this module.
///     pub const JOBS: [Definition; 2] = [send::JOB, receive::JOB];
/// }
///
/// #[pikake::job]
/// async fn clean_up() {}
///
/// let app = App::new("memory://")?.jobs([clean_up::JOB]).jobs(mail::JOBS);
/// assert_eq!(app.stats().by_job.len(), 3);
/// # Ok::<_, pikake::jobs::AppError>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Definition {
    /// The name in the job's messages.
    pub name: &'static str,
    /// The options of all runs.
    pub options: JobOptions,
    /// The names of the arguments, if they are known.
    pub(crate) parameters: &'static [&'static str],
    /// Where the job runs, and its function.
    pub runner: Runner,
}

impl Definition {
    /// A definition without `#[pikake::job]`, for example under a name that is known only at run
    /// time.
    pub const fn new(name: &'static str, options: JobOptions, runner: Runner) -> Self {
        Self { name, options, parameters: &[], runner }
    }

    /// Sets the names of the arguments. For the expansion of `#[pikake::job]`.
    #[doc(hidden)]
    pub const fn with_parameters(self, parameters: &'static [&'static str]) -> Self {
        Self { parameters, ..self }
    }
}

/// A list of jobs, for [`App::jobs`](crate::App::jobs): anything that iterates over
/// [`Definition`]s, such as `[add::JOB, send_mail::JOB]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of jobs",
    label = "not a list of jobs",
    note = "a list of jobs is an array or a `Vec` of their definitions: `[add::JOB, send_mail::JOB]`"
)]
pub trait Jobs: IntoIterator<Item = Definition> {}

#[diagnostic::do_not_recommend]
impl<I: IntoIterator<Item = Definition>> Jobs for I {}

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

/// The result of a job that returns a `Result`, whose success has a result of its own. Called by the
/// expansion of `#[pikake::job]`.
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

//! A job's definition: its name, its options, and how its arguments and values are read and written.
//!
//! `#[pikake::job]` implements [`Job`]; the worker knows jobs by their [`Definition`] only.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::broker::LocalFuture;
use crate::options::JobOptions;
use crate::wire::arguments::WrongArguments;
use crate::wire::failure::Failure;

/// What one run of a job came to: its value as JSON, or how it failed.
pub type Returned = Result<Value, Failure>;

/// A job's definition, as a type. Implemented by `#[pikake::job]`.
///
/// What cannot be a job is refused where it is written: a method, a generic function, borrowed arguments, arguments
/// or a value that are not JSON, and options that contradict each other.
///
/// ```compile_fail
/// #[pikake_macros::job(crate = pikake_jobs)]
/// async fn borrows(name: &str) {}
/// ```
///
/// ```compile_fail
/// #[pikake_macros::job(crate = pikake_jobs)]
/// async fn generic<T>(it: T) {}
/// ```
///
/// ```compile_fail
/// #[pikake_macros::job(crate = pikake_jobs)]
/// async fn no_json() -> std::rc::Rc<std::cell::Cell<fn()>> { unimplemented!() }
/// ```
///
/// ```compile_fail
/// #[pikake_macros::job(crate = pikake_jobs, process)]
/// async fn contradicts() {}
/// ```
///
/// ```compile_fail
/// #[pikake_macros::job(crate = pikake_jobs, retry = 3)]
/// async fn unknown_option() {}
/// ```
///
/// The same without the mistakes:
///
/// ```
/// #[pikake_macros::job(crate = pikake_jobs, retries = 3)]
/// async fn fine(name: String) {}
///
/// #[pikake_macros::job(crate = pikake_jobs, process)]
/// fn fine_too() -> Vec<u8> { Vec::new() }
/// ```
pub trait Job: Copy + 'static {
    /// The arguments, as a tuple.
    type Arguments: Serialize + DeserializeOwned;
    /// The value.
    type Output: Serialize + DeserializeOwned + 'static;
    /// The name it is sent under.
    const NAME: &'static str;
    /// The names of its arguments, in their order.
    const PARAMETERS: &'static [&'static str];
    /// What holds of all its runs.
    const OPTIONS: JobOptions;

    /// How it is run.
    fn runner() -> Runner;
}

/// Where a job is run, and the function that reads its arguments and runs it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Runner {
    /// As a task of the kernel.
    Task(RunTask),
    /// In a helper thread of the kernel.
    Thread(RunBlocking),
    /// In a process of the same binary.
    Process(RunBlocking),
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
        })
    }
}

/// A job as workers know it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Definition {
    /// The name it is sent under.
    pub name: &'static str,
    /// What holds of all its runs.
    pub options: JobOptions,
    /// How it is run.
    pub runner: Runner,
}

impl Definition {
    /// The definition of a job.
    pub fn of<J: Job>(_: J) -> Self {
        Self { name: J::NAME, options: J::OPTIONS, runner: J::runner() }
    }
}

/// One job, or several of them in a tuple: what [`App::jobs`](crate::App::jobs) takes.
pub trait Jobs {
    /// Their definitions.
    fn definitions(self) -> Vec<Definition>;
}

impl<J: Job> Jobs for J {
    fn definitions(self) -> Vec<Definition> {
        vec![Definition::of(self)]
    }
}

macro_rules! tuples {
    ($($name:ident)+) => {
        #[expect(non_snake_case, reason = "a variable for each type")]
        impl<$($name: Jobs),+> Jobs for ($($name,)+) {
            fn definitions(self) -> Vec<Definition> {
                let ($($name,)+) = self;
                let mut all = Vec::new();
                $(all.extend($name.definitions());)+
                all
            }
        }
    };
}

tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

/// What a job that returns no `Result` came to. Called by what `#[pikake::job]` makes.
#[doc(hidden)]
pub fn returned<T: Serialize>(value: T) -> Returned {
    let refused = |why: String| Failure::new("EncodeError", "kombu.exceptions", why);
    let value = serde_json::to_value(value)
        .map_err(|error| refused(format!("the value is not JSON: {error}")))?;
    match is_at_most(DEEPEST, &value) {
        true => Ok(value),
        false => Err(refused(format!("the value is nested more than {DEEPEST} deep"))),
    }
}

/// How deep a value may be nested: whoever reads it again takes 127, of which those that carry it need a few.
const DEEPEST: usize = 120;

fn is_at_most(depth: usize, value: &Value) -> bool {
    match value {
        Value::Array(values) => {
            depth > 0 && values.iter().all(|value| is_at_most(depth - 1, value))
        }
        Value::Object(values) => {
            depth > 0 && values.values().all(|value| is_at_most(depth - 1, value))
        }
        _ => true,
    }
}

/// What a job that returns a `Result` came to. Called by what `#[pikake::job]` makes.
#[doc(hidden)]
pub fn returned_result<T: Serialize, E: fmt::Display + 'static>(result: Result<T, E>) -> Returned {
    match result {
        Ok(value) => returned(value),
        Err(error) => Err(Failure::of(&error)),
    }
}

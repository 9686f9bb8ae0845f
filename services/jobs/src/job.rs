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

/// The result of one run of a job: its value as JSON, or its failure.
pub type Returned = Result<Value, Failure>;

/// A job's definition, as a type. Implemented by `#[pikake::job]`.
///
/// These do not compile: a method, a generic function, borrowed arguments, arguments or a value that are not JSON,
/// and options that contradict each other.
///
/// ```compile_fail
/// #[pikake::job]
/// async fn borrows(name: &str) {}
/// ```
///
/// ```compile_fail
/// #[pikake::job]
/// async fn generic<T>(it: T) {}
/// ```
///
/// ```compile_fail
/// #[pikake::job]
/// async fn no_json() -> std::rc::Rc<std::cell::Cell<fn()>> { unimplemented!() }
/// ```
///
/// ```compile_fail
/// #[pikake::job(process)]
/// async fn contradicts() {}
/// ```
///
/// ```compile_fail
/// #[pikake::job(retry = 3)]
/// async fn unknown_option() {}
/// ```
///
/// The same without the mistakes:
///
/// ```
/// #[pikake::job(retries = 3)]
/// async fn fine(name: String) {}
///
/// #[pikake::job(process)]
/// fn fine_too() -> Vec<u8> { Vec::new() }
/// ```
pub trait Job: Copy + 'static {
    /// The arguments, as a tuple.
    type Arguments: Serialize + DeserializeOwned;
    /// The value.
    type Output: Serialize + DeserializeOwned + 'static;
    /// The name in the job's messages.
    const NAME: &'static str;
    /// The names of the arguments, in their order.
    const PARAMETERS: &'static [&'static str];
    /// The options of all runs.
    const OPTIONS: JobOptions;

    /// Where the job runs, and its function.
    fn runner() -> Runner;
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

/// A job as workers register it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Definition {
    /// The name in the job's messages.
    pub name: &'static str,
    /// The options of all runs.
    pub options: JobOptions,
    /// Where the job runs, and its function.
    pub runner: Runner,
}

impl Definition {
    /// The definition of a job.
    pub fn of<J: Job>(_: J) -> Self {
        Self { name: J::NAME, options: J::OPTIONS, runner: J::runner() }
    }
}

/// One job, or a tuple of several, for [`App::jobs`](crate::App::jobs).
///
/// A tuple has at most 16 elements, and each is a job or a tuple of jobs again.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a job nor a tuple of 16 jobs at most",
    label = "not a job, and no tuple of at most 16 jobs",
    note = "a job is a function with the attribute `#[pikake::job]`",
    note = "for more than 16 jobs, call `jobs` again: `app.jobs((a, b)).jobs((c, d))`, or nest tuples: `((a, b), (c, d))`"
)]
pub trait Jobs {
    /// The definition of each job.
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
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);
tuples!(A B C D E F G H I J K L M);
tuples!(A B C D E F G H I J K L M N);
tuples!(A B C D E F G H I J K L M N O);
tuples!(A B C D E F G H I J K L M N O P);

/// The result of a job that returns no `Result`. Called by the expansion of `#[pikake::job]`.
#[doc(hidden)]
pub fn returned<T: Serialize>(value: T) -> Returned {
    let refused = |why: String| Failure::new("EncodeError", "kombu.exceptions", why);
    let value = serde_json::to_value(value)
        .map_err(|error| refused(format!("the value is not JSON: {error}")))?;
    match is_nested_at_most(MAX_NESTING, &value) {
        true => Ok(value),
        false => Err(refused(format!("the value is nested more than {MAX_NESTING} deep"))),
    }
}

/// How deep a value may be nested: `serde_json` reads 127 levels, and the message around the value has a few.
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

/// The result of a job that returns a `Result`. Called by the expansion of `#[pikake::job]`.
#[doc(hidden)]
pub fn returned_result<T: Serialize, E: fmt::Display + 'static>(result: Result<T, E>) -> Returned {
    match result {
        Ok(value) => returned(value),
        Err(error) => Err(Failure::of(&error)),
    }
}

//! A job's definition: its name, its options, and how its arguments and values are read and
//! written.
//!
//! `#[pikake::job]` implements [`Job`]; the worker knows jobs by their [`Definition`] only.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::batch::RunBatch;
use crate::broker::LocalFuture;
use crate::options::JobOptions;
use crate::wire::arguments::WrongArguments;
use crate::wire::failure::Failure;

/// The result of one run of a job: its value as JSON, or its failure.
pub type Returned = Result<Value, Failure>;

/// A job's definition, as a type. Implemented by `#[pikake::job]`.
///
/// These do not compile: a method, a generic function, borrowed arguments, arguments or a value
/// that are not JSON, and options that contradict each other.
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

/// A job as workers register it.
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
    /// The definition of a job.
    pub fn of<J: Job>(_: J) -> Self {
        Self { parameters: J::PARAMETERS, ..Self::new(J::NAME, J::OPTIONS, J::runner()) }
    }

    /// A definition without `#[pikake::job]`, for example under a name that is known only at run
    /// time.
    pub const fn new(name: &'static str, options: JobOptions, runner: Runner) -> Self {
        Self { name, options, parameters: &[], runner }
    }
}

/// One job or several, for [`App::jobs`](crate::App::jobs).
///
/// | type | jobs |
/// | --- | --- |
/// | a job, or its [`Definition`] | 1 |
/// | a tuple | up to 64, each of them anything in this table |
/// | an array, a `Vec` | any number of one type, such as `Definition` |
///
/// # Examples
///
/// Jobs that are registered together have a list in their module:
///
/// ```
/// use pikake::jobs::App;
///
/// mod mail {
///     use pikake::jobs::{Definition, Jobs};
///
///     #[pikake::job]
///     pub async fn send(to: String) {}
///
///     #[pikake::job]
///     pub async fn receive() {}
///
///     /// All jobs of this module.
///     pub fn jobs() -> impl Jobs {
///         [Definition::of(send), Definition::of(receive)]
///     }
/// }
///
/// #[pikake::job]
/// async fn clean_up() {}
///
/// let app = App::new("memory://")?.jobs((clean_up, mail::jobs()));
/// assert_eq!(app.stats().by_job.len(), 3);
/// # Ok::<_, pikake::jobs::AppError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a job nor a list of jobs",
    label = "not a job, and no tuple, array or `Vec` of jobs",
    note = "a job is a function with the attribute `#[pikake::job]`",
    note = "for more than 64 jobs, nest tuples: `((a, b), (c, d))`, or give an array: `[Definition::of(a), …]`"
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

impl Jobs for Definition {
    fn definitions(self) -> Vec<Definition> {
        vec![self]
    }
}

impl<T: Jobs> Jobs for Vec<T> {
    fn definitions(self) -> Vec<Definition> {
        self.into_iter().flat_map(Jobs::definitions).collect()
    }
}

impl<T: Jobs, const N: usize> Jobs for [T; N] {
    fn definitions(self) -> Vec<Definition> {
        self.into_iter().flat_map(Jobs::definitions).collect()
    }
}

/// Implements [`Jobs`] for a tuple, and for all shorter ones.
macro_rules! tuples {
    () => {};
    ($first:ident $($name:ident)*) => {
        tuples!($($name)*);

        #[expect(non_snake_case, reason = "a variable for each type")]
        impl<$first: Jobs, $($name: Jobs),*> Jobs for ($first, $($name,)*) {
            fn definitions(self) -> Vec<Definition> {
                let ($first, $($name,)*) = self;
                let mut all = Vec::new();
                all.extend($first.definitions());
                $(all.extend($name.definitions());)*
                all
            }
        }
    };
}

tuples!(
    A1 A2 A3 A4 A5 A6 A7 A8 B1 B2 B3 B4 B5 B6 B7 B8 C1 C2 C3 C4 C5 C6 C7 C8 D1 D2 D3 D4 D5 D6 D7 D8
    E1 E2 E3 E4 E5 E6 E7 E8 F1 F2 F3 F4 F5 F6 F7 F8 G1 G2 G3 G4 G5 G6 G7 G8 H1 H2 H3 H4 H5 H6 H7 H8
);

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

/// The result of a job that returns a `Result`. Called by the expansion of `#[pikake::job]`.
#[doc(hidden)]
pub fn returned_result<T: Serialize, E: fmt::Display + 'static>(result: Result<T, E>) -> Returned {
    match result {
        Ok(value) => returned(value),
        Err(error) => Err(Failure::of(&error)),
    }
}

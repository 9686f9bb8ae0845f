//! A job's definition: its name, its options, and how its arguments and values are read and
//! written.
//!
//! `#[pikake::job]` makes a [`Definition`], and that is all that a worker knows of a job.

use std::fmt;

use crate::batch::RunBatch;
use crate::broker::LocalFuture;
use crate::completion::Returned;
use crate::options::JobOptions;
use crate::wire::arguments::WrongArguments;

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

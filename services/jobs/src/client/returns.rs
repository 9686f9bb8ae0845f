//! Jobs that return a workflow, or further members of their chord, in the place of a value.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::client::call::Call;
use crate::client::workflow::Workflow;
use crate::completion::{Completion, Kind, Returned, to_json};
use crate::wire::failure::Failure;
use crate::wire::signature::CanvasSignature;

/// The type of a job that decides at run time whether it returns a value or a workflow.
///
/// A job that returns [`Returns<T>`], or [`Workflow<T>`] if it returns one always, is a job of
/// value `T`: its [`Call`] and [`Handle`](crate::Handle) have that type, and so do the jobs that
/// follow it. Either may be inside a `Result`. The macro knows both types by their names, and not
/// by an alias. Celery has `Task.replace` and `Task.add_to_chord` for the same.
///
/// # A workflow takes the place of its job
///
/// The workflow's last job gets the id of the job that has returned it, and whatever follows that
/// one. So a wait for the job ends with the workflow, and the jobs after it, its errbacks and its
/// chord follow the workflow. A job in the workflow may return a workflow again. The jobs of the
/// workflow are on their own otherwise: their queues, retries, limits, expiries and priorities are
/// those of their calls, and they are sent by the worker that has run the job, whatever
/// [`Workflow::on`] says. A priority has no effect in a queue without priorities. A job of the
/// workflow cannot be unique. The lock of a [unique](crate::Unique) job ends with the job itself. A
/// cancel concerns the job, or the last one of its workflow: the others go on.
///
/// Delivery is at least once, as for any job: a worker that is lost after it has sent some of the
/// jobs leaves the message to another one, and the job runs again, with a higher
/// [`attempt`](crate::CurrentJob::attempt). If it returns the same workflow, in the same JSON, the
/// jobs get the same ids. If it returns another one, both run, and the handle gets one of their
/// values.
///
/// # Examples
///
/// ```
/// use pikake::jobs::{App, Returns, Workflow, map};
///
/// #[pikake::job]
/// async fn words(file: String) -> u64 {
///     file.len() as u64
/// }
///
/// #[pikake::job]
/// async fn sum(counts: Vec<u64>) -> u64 {
///     counts.into_iter().sum()
/// }
///
/// /// Counts the words of all files of a folder, which has more files every day.
/// #[pikake::job]
/// async fn words_of_folder(folder: String) -> Workflow<u64> {
///     let files = ["a.txt", "bc.txt"].map(|file| format!("{folder}/{file}"));
///     map(words::with, files).then(sum::after())
/// }
///
/// #[pikake::job]
/// async fn factorial(number: u64, product: u64) -> Returns<u64> {
///     match number {
///         0 => Returns::Value(product),
///         number => factorial::with(number - 1, number * product).into(),
///     }
/// }
///
/// # pikake::sim::example(async {
/// let jobs = [words::JOB, sum::JOB, words_of_folder::JOB, factorial::JOB];
/// let app = App::new("memory://")?.jobs(jobs);
/// let worker = pikake::spawn(app.run_worker());
/// # let app = app.connect().await?;
/// let counted = words_of_folder::delay("texts".into()).await?;
/// assert_eq!(counted.wait().await?, 23);
/// assert_eq!(factorial::delay(5, 1).await?.wait().await?, 120);
/// # worker.request_cancel("over"); worker.await??;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub enum Returns<T> {
    /// The job's value.
    Value(T),
    /// A workflow that takes the place of the job.
    Workflow(Workflow<T>),
    /// The job's value, and workflows that become members of the chord that the job is a member of:
    /// the job after the group, which takes a `Vec`, gets their values, too, behind that of this
    /// job. They are sent when the job has ended. A job that is not the last one of a member of
    /// such a group fails with a `ValueError`, and adds none.
    Members(T, Vec<Workflow<T>>),
}

impl<T> From<Workflow<T>> for Returns<T> {
    fn from(workflow: Workflow<T>) -> Self {
        Self::Workflow(workflow)
    }
}

impl<T> From<Call<T>> for Returns<T> {
    fn from(call: Call<T>) -> Self {
        Self::Workflow(call.into())
    }
}

impl<T: fmt::Debug> fmt::Debug for Returns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Workflow(workflow) => f.debug_tuple("Workflow").field(workflow).finish(),
            Self::Members(value, members) => {
                f.debug_tuple("Members").field(value).field(members).finish()
            }
        }
    }
}

/// The result of a job that returns a workflow, or decides at run time. Called by the expansion of
/// `#[pikake::job]`.
#[doc(hidden)]
pub fn completed<T: Serialize>(returns: impl Into<Returns<T>>) -> Returned {
    let kind = match returns.into() {
        Returns::Value(value) => Kind::Value(to_json(value)?),
        Returns::Workflow(workflow) => Kind::Workflow(Box::new(signature(&workflow)?)),
        Returns::Members(value, members) => {
            let value: Value = to_json(value)?;
            Kind::Members(value, members.iter().map(signature).collect::<Result<_, _>>()?)
        }
    };
    Ok(Completion(kind))
}

/// The workflow as the worker sends it, which knows the queues of its jobs.
fn signature<T>(workflow: &Workflow<T>) -> Result<CanvasSignature, Failure> {
    let refused = |why| Failure::new("ValueError", "builtins", why);
    workflow.check().map_err(refused)?;
    workflow.to_canvas(&|_| None).map_err(refused)
}

//! Batches: jobs whose function runs once for several messages.
//!
//! This is what `#[pikake::job(batch(…))]` expands to. The worker's part is in `worker/batches.rs`.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use crate::broker::LocalFuture;
use crate::completion::{Returned, returned};
use crate::wire::arguments::WrongArguments;
use crate::wire::failure::Failure;

/// How a worker gathers the messages of a batch, and the functions that read a message and run them
/// all.
///
/// Made by `#[pikake::job(batch(size = 100, wait = "5s"))]`, on an `async fn` with one argument, a
/// `Vec`. Each message has one element of it, and callers send single jobs as always. So do
/// Celery's clients, with one argument.
///
/// # When it runs
///
/// A worker runs a batch when it has `size` messages of the job, or when `wait` is over since the
/// first one came, or when a warm shutdown begins. Messages of several queues may meet, in any
/// order; two of one id do not. A batch counts as one job against the concurrency, and takes one
/// turn of the job's rate; messages that gather count as none. A batch has no more messages than
/// the worker's prefetch: with [`App::prefetch`](crate::App::prefetch) below `size`, batches are
/// smaller, and the worker says so. Without it, the job's queue has a prefetch that is larger by
/// two batches.
///
/// # What each message keeps
///
/// * **Its acknowledgement.** A message stays unacknowledged until its outcome is stored, so a lost
///   worker loses none. With `acks = "early"` it is acknowledged when the batch begins.
/// * **Its outcome.** The function returns nothing, or a `Vec` with the value of each message. A
///   value that is written as a `Result` may be the failure of that message. A failure of the whole
///   function (a `Result` around all) or a panic is the failure of every message. Workflows go on
///   from each message alone. A `Vec` of another length is a panic.
/// * **Its retries**, with its own count, delay and id. A retry joins a later batch.
/// * **Its arguments.** A message whose argument is wrong is moved to the dead, and the batch runs
///   without it.
/// * **Its expiry and cancel.** Both are checked when the batch begins. A message that is cancelled
///   while the batch gathers is revoked. One that is cancelled while the function runs is revoked
///   at once; the function goes on for the others, and its value for that message is dropped. The
///   function itself is interrupted when no other message is left.
/// * **Its time limits**, which count from the begin of the batch. The function is interrupted when
///   the soft limits of all messages are over, and a value that it returns counts. It is dropped
///   when all their hard limits are.
/// * **Its events and figures.** A message that gathers is shown as reserved, and one whose batch
///   runs as active. Each counts as a job in all statistics.
///
/// In the function, [`current_batch`](crate::current_batch) has the facts of each message, and
/// [`try_current_job`](crate::try_current_job) is `None`: jobs that it sends have no parent.
///
/// # Examples
///
/// ```
/// use pikake::jobs::{App, current_batch};
///
/// #[pikake::job(batch(size = 100, wait = "5s"), retries = 3)]
/// async fn index(documents: Vec<String>) -> Vec<Result<usize, String>> {
///     assert_eq!(current_batch().len(), documents.len());
///     let indexed = |document: &String| match document.as_str() {
///         "" => Err("an empty document".to_owned()),
///         text => Ok(text.len()),
///     };
///     documents.iter().map(indexed).collect()
/// }
///
/// # pikake::sim::example(async {
/// let app = App::new("memory://")?.jobs([index::JOB]);
/// let worker = pikake::spawn(app.run_worker());
/// # let app = app.connect().await?;
/// let one = index::delay("one".into()).await?;
/// let none = index::with("".into()).retries(0).send().await?;
/// assert_eq!(one.wait().await?, 3);
/// assert!(none.wait().await.is_err());
/// # worker.request_cancel("the example is over");
/// # worker.await??;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct RunBatch {
    /// How many messages a batch has at most.
    pub size: NonZeroU16,
    /// How long the first message waits for others at most.
    pub wait: Duration,
    pub(crate) read: ReadCall,
    pub(crate) run: RunCalls,
}

/// Reads `args` and `kwargs`, and gives the element of the batch.
pub type ReadCall = fn(&str, &str) -> Result<Box<dyn Any>, WrongArguments>;

/// Runs a batch of elements. Its output is the result of each in their order, or the failure of
/// all.
pub type RunCalls = fn(Vec<Box<dyn Any>>) -> LocalFuture<'static, Result<Vec<Returned>, Failure>>;

impl RunBatch {
    /// A batch of this size at most, whose first message waits for this length at most.
    ///
    /// # Panics
    ///
    /// If the size is zero.
    #[track_caller]
    pub const fn new(size: u16, wait: Duration, read: ReadCall, run: RunCalls) -> Self {
        match NonZeroU16::new(size) {
            Some(size) => Self { size, wait, read, run },
            None => panic!("a batch has one message at least"),
        }
    }
}

impl fmt::Debug for RunBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunBatch")
            .field("size", &self.size)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// The elements of a batch. Called by the expansion of `#[pikake::job]`, as are all functions
/// below.
#[doc(hidden)]
pub fn elements<T: 'static>(calls: Vec<Box<dyn Any>>) -> Vec<T> {
    let element = |call: Box<dyn Any>| *call.downcast().expect("the job's own `read` made it");
    calls.into_iter().map(element).collect()
}

/// The results of a batch that returns one for each message.
#[doc(hidden)]
pub fn each<V>(values: Vec<V>, result: fn(V) -> Returned) -> Vec<Returned> {
    values.into_iter().map(result).collect()
}

/// The results of a batch that returns no values.
#[doc(hidden)]
pub fn all_done(count: usize) -> Vec<Returned> {
    vec![returned(()); count]
}

/// The failure of a whole batch.
#[doc(hidden)]
pub fn failed<E: fmt::Display + 'static>(error: E) -> Failure {
    Failure::of(&error)
}

//! The current job, for the code that it runs.
//!
//! A job is current on a thread while that thread polls its future or runs its closure.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use pikake_time::Deadline;
use pikake_traps::CancelFlag;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The jobs that run the calling code.
#[derive(Debug, Clone)]
pub(crate) enum Current {
    Job(CurrentJob),
    /// The jobs of a batch, in the order of its elements.
    Batch(Rc<[CurrentJob]>),
}

/// The job that runs the calling code.
///
/// # Examples
///
/// A job that sets its own delay before the next retry:
///
/// ```
/// use pikake::jobs::current_job;
/// use std::time::{Duration, SystemTime};
///
/// fn busy() -> Result<(), String> {
///     let job = current_job();
///     if job.retries() < job.max_retries() {
///         job.retry_in(Duration::from_secs(60));
///     }
///     Err("the other side is busy".into())
/// }
/// ```
///
/// # Panics
///
/// Outside a job, in a task that a job has spawned, and in a batch, which has
/// [several](current_batch).
#[track_caller]
pub fn current_job() -> CurrentJob {
    try_current_job()
        .expect("`current_job` is for code that a job runs itself, and no job runs here")
}

/// The job that runs the calling code; `None` outside a job, and in a batch.
pub fn try_current_job() -> Option<CurrentJob> {
    CURRENT.with_borrow(|current| match current {
        Some(Current::Job(job)) => Some(job.clone()),
        Some(Current::Batch(_)) | None => None,
    })
}

/// The jobs of the [batch](crate::RunBatch) that runs the calling code, in the order of its
/// elements.
///
/// # Examples
///
/// ```
/// use pikake::jobs::current_batch;
///
/// #[pikake::job(batch(size = 50, wait = "2s"))]
/// async fn index(documents: Vec<String>) {
///     for (job, document) in current_batch().iter().zip(&documents) {
///         println!("{}, try {}: {document}", job.id(), job.retries() + 1);
///     }
/// }
/// ```
///
/// # Panics
///
/// Outside a batch, and in a task that a batch has spawned.
#[track_caller]
pub fn current_batch() -> Rc<[CurrentJob]> {
    CURRENT
        .with_borrow(|current| match current {
            Some(Current::Batch(jobs)) => Some(jobs.clone()),
            Some(Current::Job(_)) | None => None,
        })
        .expect("`current_batch` is for code that a batch runs itself, and no batch runs here")
}

/// The facts of a running job. Returned by [`current_job`].
#[derive(Debug, Clone)]
pub struct CurrentJob {
    pub(crate) facts: Arc<Facts>,
    pub(crate) cancel: Option<CancelFlag>,
}

#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) id: String,
    pub(crate) name: &'static str,
    pub(crate) queue: String,
    pub(crate) root_id: String,
    pub(crate) retries: u32,
    pub(crate) max_retries: u32,
    pub(crate) attempt: u32,
    pub(crate) replacements: u32,
    /// The headers that are the sender's own.
    pub(crate) headers: Map<String, Value>,
    pub(crate) sent: Sent,
    /// When the soft limit interrupts the job. Set when the limits begin.
    pub(crate) deadline: OnceLock<Deadline>,
    pub(crate) next_retry: Mutex<NextRetry>,
    pub(crate) progress: Mutex<Progress>,
    /// Called when the job has told of its progress.
    pub(crate) on_progress: Option<OnProgress>,
}

/// The next retry, as far as the job has set it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct NextRetry {
    pub(crate) delay: Option<Duration>,
    /// `args` and `kwargs` as JSON.
    pub(crate) arguments: Option<[String; 2]>,
}

/// More facts of the message.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) parent_id: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) priority: u8,
    pub(crate) eta: Option<SystemTime>,
    /// The limits of the run, also those of the definition.
    pub(crate) soft_limit: Option<Duration>,
    pub(crate) hard_limit: Option<Duration>,
}

/// What a job has last told of its progress, and whether that is new.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    value: Option<Value>,
    is_new: bool,
}

/// A call when a job has told of its progress, on the job's own thread.
#[derive(Clone)]
pub(crate) struct OnProgress(Arc<dyn Fn(&Value) + Send + Sync>);

impl OnProgress {
    pub(crate) fn new(call: impl Fn(&Value) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }
}

impl fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnProgress")
    }
}

impl Facts {
    /// Sets what the job tells of its progress.
    pub(crate) fn set_progress(&self, value: Value) {
        {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            *progress = Progress { value: Some(value.clone()), is_new: true };
        }
        if let Some(OnProgress(call)) = &self.on_progress {
            call(&value);
        }
    }

    /// What the job has last told of its progress.
    pub(crate) fn progress(&self) -> Option<Value> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).value.clone()
    }

    /// The same, if it is new since the last call.
    pub(crate) fn take_progress(&self) -> Option<Value> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = std::mem::take(&mut progress.is_new);
        progress.value.clone().filter(|_| is_new)
    }

    /// The next retry, as the job has set it.
    pub(crate) fn next_retry(&self) -> MutexGuard<'_, NextRetry> {
        self.next_retry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CurrentJob {
    /// The job's id.
    pub fn id(&self) -> &str {
        &self.facts.id
    }

    /// The name of the job's definition.
    pub fn name(&self) -> &str {
        self.facts.name
    }

    /// The queue that the message came from.
    pub fn queue(&self) -> &str {
        &self.facts.queue
    }

    /// The id of the first job of the workflow, or of the first that sent another one; without
    /// either, the job's own id.
    pub fn root_id(&self) -> &str {
        &self.facts.root_id
    }

    /// The id of the job that this one follows, or that has sent this one; of a retry, the job's
    /// own.
    pub fn parent_id(&self) -> Option<&str> {
        self.facts.sent.parent_id.as_deref()
    }

    /// The id of the group whose member the job is.
    pub fn group(&self) -> Option<&str> {
        self.facts.sent.group.as_deref()
    }

    /// The priority of the message.
    pub fn priority(&self) -> u8 {
        self.facts.sent.priority
    }

    /// The time before which the job was not to run: that of the last retry, or of the call.
    pub fn eta(&self) -> Option<SystemTime> {
        self.facts.sent.eta
    }

    /// How long the run may take before it is interrupted: the limit of the call, or of the
    /// definition.
    pub fn soft_limit(&self) -> Option<Duration> {
        self.facts.sent.soft_limit
    }

    /// How long the run may take before it is dropped, or its process killed.
    pub fn hard_limit(&self) -> Option<Duration> {
        self.facts.sent.hard_limit
    }

    /// How many retries were made before this run.
    pub fn retries(&self) -> u32 {
        self.facts.retries
    }

    /// How many retries the job has in all.
    pub fn max_retries(&self) -> u32 {
        self.facts.max_retries
    }

    /// The earlier deliveries of this message, plus the worker processes that the job has ended,
    /// plus the earlier deliveries of the jobs before this one in its workflow, each of which may
    /// have sent this one. With 0, nothing tells that the job has begun before.
    pub fn attempt(&self) -> u32 {
        self.facts.attempt
    }

    /// In the place of how many jobs this one runs, one after the other, each of which has returned
    /// a [workflow](crate::Returns): 0 for a job that was sent as itself. Celery's
    /// `replaced_task_nesting`.
    pub fn replacements(&self) -> u32 {
        self.facts.replacements
    }

    /// A header that the sender has set with [`Call::header`](crate::Call::header), or a Celery
    /// client with `headers`.
    ///
    /// The headers `traceparent`, `tracestate` and `baggage` of a trace travel on to the jobs that
    /// this one sends, and that follow it.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::current_job;
    ///
    /// fn tenant() -> Option<String> {
    ///     Some(current_job().header("tenant")?.as_str()?.to_owned())
    /// }
    /// ```
    pub fn header(&self, name: &str) -> Option<&Value> {
        self.facts.headers.get(name)
    }

    /// The end of the soft time limit, by the kernel's clock; `None` without a limit, and in a
    /// thread or process, which has no such clock.
    pub fn deadline(&self) -> Option<Deadline> {
        self.facts.deadline.get().copied()
    }

    /// Whether a job in a thread has been interrupted, so that its value is no longer used.
    ///
    /// A task is interrupted at its next wait instead, and a process is killed.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelFlag::is_cancelled)
    }

    /// Sets the delay before the next retry if this run fails, in place of the back-off's.
    ///
    /// The retry counts as any other: without one left, the job fails for good.
    pub fn retry_in(&self, length: Duration) {
        self.facts.next_retry().delay = Some(length);
    }

    /// Tells how far the job is: any value that becomes JSON, such as a number, a text or
    /// `{"current": 3, "total": 10}`.
    ///
    /// The value is seen at once by [`Control::running`](crate::Control::running) and all that
    /// shows running jobs. Once a second at most, the worker stores the latest value for
    /// [`Handle::progress`](crate::Handle::progress), as an outcome in Celery's state `PROGRESS`:
    /// `AsyncResult.info` has it. A retry begins without progress. A value that is not JSON is
    /// ignored. Never waits.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::current_job;
    /// use serde_json::json;
    ///
    /// #[pikake::job]
    /// async fn import(pages: Vec<String>) {
    ///     for (number, page) in pages.iter().enumerate() {
    ///         current_job().progress(json!({"current": number, "total": pages.len()}));
    ///         println!("{page}");
    ///     }
    /// }
    /// ```
    pub fn progress(&self, value: impl Serialize) {
        match serde_json::to_value(value) {
            Ok(value) => self.facts.set_progress(value),
            Err(error) => tracing::debug!(id = self.id(), %error, "progress is not JSON"),
        }
    }
}

impl Current {
    /// Makes these the current jobs during a call.
    pub(crate) fn run<R>(self, work: impl FnOnce() -> R) -> R {
        struct Before(Option<Current>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(Some(self)));
        work()
    }
}

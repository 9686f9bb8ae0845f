//! What code can find out about the job that runs it.
//!
//! A job is current while its future is polled or its closure runs, on whichever thread.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::CancelFlag;

thread_local! {
    static JOB: RefCell<Option<CurrentJob>> = const { RefCell::new(None) };
}

/// The job that is being run here.
///
/// # Examples
///
/// A job that knows better than its back-off when to try again:
///
/// ```
/// use pikake_jobs::current_job;
/// use std::time::Duration;
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
/// Outside a job: in a task that the job has spawned, too.
#[track_caller]
pub fn current_job() -> CurrentJob {
    try_current_job()
        .expect("`current_job` is for code that a job runs itself, and no job runs here")
}

/// The job that is being run here; `None` outside of jobs.
pub fn try_current_job() -> Option<CurrentJob> {
    JOB.with_borrow(Clone::clone)
}

/// What a job can know of itself. Given by [`current_job`].
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
    /// Set when its limits begin.
    pub(crate) deadline: OnceLock<Deadline>,
    pub(crate) retry_in: Mutex<Option<Duration>>,
}

impl Facts {
    pub(crate) fn wanted_retry(&self) -> Option<Duration> {
        *self.retry_in.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CurrentJob {
    /// The job's id.
    pub fn id(&self) -> &str {
        &self.facts.id
    }

    /// The name of its definition.
    pub fn name(&self) -> &str {
        self.facts.name
    }

    /// The queue that it came from.
    pub fn queue(&self) -> &str {
        &self.facts.queue
    }

    /// How often it was tried again after a failure, before this time.
    pub fn retries(&self) -> u32 {
        self.facts.retries
    }

    /// How often it may be.
    pub fn max_retries(&self) -> u32 {
        self.facts.max_retries
    }

    /// How often this try was begun before, by workers that were lost.
    pub fn attempt(&self) -> u32 {
        self.facts.attempt
    }

    /// When its soft time limit is over, by its kernel's clock; `None` without one, and for jobs that are no tasks, which
    /// have no such clock.
    pub fn deadline(&self) -> Option<Deadline> {
        self.facts.deadline.get().copied()
    }

    /// Whether a job in a thread has been interrupted: nobody waits for its end any more.
    ///
    /// Jobs that are tasks are told at their next wait, those in processes are killed.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelFlag::is_cancelled)
    }

    /// Should this try fail, the next one is not begun before so long, whatever the back-off says.
    ///
    /// It counts as a retry: without one left, nothing comes of it.
    pub fn retry_in(&self, length: Duration) {
        *self.facts.retry_in.lock().unwrap_or_else(PoisonError::into_inner) = Some(length);
    }

    /// Makes it the current job for the length of a call.
    pub(crate) fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        struct Before(Option<CurrentJob>);
        impl Drop for Before {
            fn drop(&mut self) {
                JOB.set(self.0.take());
            }
        }
        let _before = Before(JOB.replace(Some(self.clone())));
        work()
    }
}

//! The jobs that a worker runs: their tasks, and why each was cancelled.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use pikake_traps::{Interrupted, TaskRef};
use slab::Slab;

use crate::current::Facts;

/// How many ids of cancelled jobs are kept for messages that are still to come; the oldest are dropped first.
const REVOKED_LIMIT: usize = 10_000;

/// Why a running job was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelReason {
    /// The worker shuts down.
    Shutdown,
    /// A [`Handle`](crate::Handle) cancelled the job.
    Revoked,
}

#[derive(Default)]
struct RunningJob {
    task: Option<TaskRef>,
    facts: Option<Arc<Facts>>,
    /// Why the job was first cancelled.
    reason: Option<CancelReason>,
}

/// The jobs that a worker runs, by keys that are reused.
#[derive(Default)]
pub(crate) struct RunningJobs(RefCell<Slab<RunningJob>>);

impl RunningJobs {
    /// Adds a job that is about to run.
    pub(crate) fn add(&self) -> usize {
        self.0.borrow_mut().insert(RunningJob::default())
    }

    pub(crate) fn set_task(&self, key: usize, task: &TaskRef) {
        // A spawned task runs after this step, but a kernel that shuts down drops it at once, with its entry here.
        if let Some(job) = self.0.borrow_mut().get_mut(key) {
            job.task = Some(task.clone());
        }
    }

    /// Sets the facts of a job whose arguments were read. From here on the job can be revoked.
    pub(crate) fn set_facts(&self, key: usize, facts: Arc<Facts>) {
        self.0.borrow_mut()[key].facts = Some(facts);
    }

    pub(crate) fn cancel_reason(&self, key: usize) -> Option<CancelReason> {
        self.0.borrow()[key].reason
    }

    /// Removes a job that has ended. Returns why it was cancelled.
    pub(crate) fn remove(&self, key: usize) -> Option<CancelReason> {
        self.0.borrow_mut().remove(key).reason
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Interrupts all jobs, for a shutdown.
    pub(crate) fn interrupt_all(&self, why: &str) {
        self.interrupt(CancelReason::Shutdown, why, |_| true);
    }

    /// Interrupts the job if it runs here, and returns whether it does.
    pub(crate) fn revoke(&self, id: &str) -> bool {
        let has_id = |job: &RunningJob| job.facts.as_ref().is_some_and(|facts| facts.id == id);
        self.interrupt(CancelReason::Revoked, "the job was cancelled", has_id)
    }

    fn interrupt(
        &self,
        reason: CancelReason,
        why: &str,
        is_affected: impl Fn(&RunningJob) -> bool,
    ) -> bool {
        let mut tasks = Vec::new();
        for (_, job) in self.0.borrow_mut().iter_mut().filter(|(_, job)| is_affected(job)) {
            job.reason.get_or_insert(reason);
            tasks.extend(job.task.clone());
        }
        for task in &tasks {
            task.request_cancel(Interrupted::cancelled(why));
        }
        !tasks.is_empty()
    }

    /// Aborts the tasks of all jobs.
    pub(crate) fn abort_all(&self) {
        let tasks: Vec<_> =
            self.0.borrow().iter().filter_map(|(_, job)| job.task.clone()).collect();
        for task in tasks {
            task.request_abort(Interrupted::cancelled("the worker's grace is over"));
        }
    }
}

impl fmt::Debug for RunningJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningJobs").field("count", &self.0.borrow().len()).finish()
    }
}

/// The ids of the jobs that were cancelled last, at most [`REVOKED_LIMIT`].
#[derive(Debug, Default)]
pub(crate) struct Revoked {
    ids: BTreeSet<String>,
    order: VecDeque<String>,
}

impl Revoked {
    pub(crate) fn insert(&mut self, id: String) {
        if !self.ids.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > REVOKED_LIMIT {
            if let Some(oldest) = self.order.pop_front() {
                self.ids.remove(&oldest);
            }
        }
    }

    /// Whether the job was cancelled. The id is kept, since its message may be delivered again.
    pub(crate) fn contains(&self, id: &str) -> bool {
        !self.ids.is_empty() && self.ids.contains(id)
    }
}

//! The jobs that a worker runs: their tasks and messages, and why each was cancelled.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use pikake_time::Ticks;
use pikake_traps::{Interrupted, TaskRef};
use serde_json::Value;
use slab::Slab;

use crate::broker::Delivery;
use crate::current::Facts;

/// Why a running job was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelReason {
    /// The worker shuts down.
    Shutdown,
    /// A [`Handle`](crate::Handle) cancelled the job, or an operator has terminated it.
    Revoked,
}

struct RunningJob {
    task: Option<TaskRef>,
    delivery: Rc<Delivery>,
    /// The facts of the job and the moment of its begin; `None` before.
    begun: Option<(Arc<Facts>, Ticks)>,
    /// Whether the job has not begun, and waits for others of its batch.
    gathers: bool,
    /// Why the job was first cancelled.
    reason: Option<CancelReason>,
    /// Whether the job has ended, and its message is being settled.
    has_returned: bool,
}

impl RunningJob {
    /// Whether this is the job of an id, and it can be terminated: it has begun, or waits for
    /// others of its batch.
    fn is(&self, id: &str) -> bool {
        match &self.begun {
            Some((facts, _)) => facts.id == id,
            None => self.gathers && self.delivery.message.job() == Some(id),
        }
    }
}

/// The jobs that a worker runs, by keys that are reused.
#[derive(Default)]
pub(crate) struct RunningJobs {
    jobs: RefCell<Slab<RunningJob>>,
    /// How many messages of the worker wait until one of these jobs ends.
    pub(crate) waiting: Cell<usize>,
}

impl RunningJobs {
    /// Adds a job that is about to run.
    pub(crate) fn add(&self, delivery: Rc<Delivery>) -> usize {
        let job = RunningJob {
            task: None,
            delivery,
            begun: None,
            gathers: false,
            reason: None,
            has_returned: false,
        };
        self.jobs.borrow_mut().insert(job)
    }

    /// A job has ended. Its message is settled, however long that takes, unless the worker ends.
    pub(crate) fn set_returned(&self, key: usize) {
        self.jobs.borrow_mut()[key].has_returned = true;
    }

    pub(crate) fn set_task(&self, key: usize, task: &TaskRef) {
        // A spawned task runs after this step, but a kernel that shuts down drops it at once, with
        // its entry here.
        if let Some(job) = self.jobs.borrow_mut().get_mut(key) {
            job.task = Some(task.clone());
        }
    }

    /// A job waits for others of its batch, or does so no longer.
    pub(crate) fn set_gathers(&self, key: usize, gathers: bool) {
        self.jobs.borrow_mut()[key].gathers = gathers;
    }

    /// A job's arguments were read, and it begins. From here on the job can be terminated.
    pub(crate) fn set_began(&self, key: usize, facts: Arc<Facts>, now: Ticks) {
        self.jobs.borrow_mut()[key].begun = Some((facts, now));
    }

    /// Calls `each` for all jobs, with their facts and the moment of their begin; `None`: the job
    /// has not begun.
    pub(crate) fn each(&self, mut each: impl FnMut(&Delivery, Option<(&Facts, Ticks)>)) {
        for (_, job) in self.jobs.borrow().iter() {
            each(&job.delivery, job.begun.as_ref().map(|(facts, begun)| (&**facts, *begun)));
        }
    }

    /// The keys of all jobs.
    pub(crate) fn keys(&self) -> Vec<usize> {
        self.jobs.borrow().iter().map(|(key, _)| key).collect()
    }

    /// What a job has told of its progress since the last call, with its message.
    pub(crate) fn take_progress(&self, key: usize) -> Option<(Rc<Delivery>, Value)> {
        let jobs = self.jobs.borrow();
        let job = jobs.get(key)?;
        let (facts, _) = job.begun.as_ref()?;
        Some((job.delivery.clone(), facts.take_progress()?))
    }

    /// Whether one of the messages is as `is_it` says.
    pub(crate) fn any(&self, is_it: impl Fn(&Delivery) -> bool) -> bool {
        self.jobs.borrow().iter().any(|(_, job)| is_it(&job.delivery))
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.borrow().len()
    }

    pub(crate) fn cancel_reason(&self, key: usize) -> Option<CancelReason> {
        self.jobs.borrow()[key].reason
    }

    /// Removes a job that has ended. Returns why it was cancelled.
    pub(crate) fn remove(&self, key: usize) -> Option<CancelReason> {
        self.jobs.borrow_mut().remove(key).reason
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.borrow().is_empty()
    }

    /// Interrupts all jobs, for a shutdown.
    pub(crate) fn interrupt_all(&self, why: &str) {
        self.interrupt(CancelReason::Shutdown, why, |_| true);
    }

    /// Interrupts the job if it runs here, and returns whether it does.
    pub(crate) fn revoke(&self, id: &str) -> bool {
        self.interrupt(CancelReason::Revoked, "the job was cancelled", |job| job.is(id))
    }

    /// Aborts the job if it still runs here, and was revoked.
    pub(crate) fn abort_revoked(&self, id: &str) {
        let jobs = self.jobs.borrow();
        let is_revoked = |job: &RunningJob| job.reason == Some(CancelReason::Revoked);
        let revoked = jobs.iter().filter(|(_, job)| is_revoked(job) && !job.has_returned);
        let tasks: Vec<_> =
            revoked.filter(|(_, job)| job.is(id)).filter_map(|(_, job)| job.task.clone()).collect();
        drop(jobs);
        for task in tasks {
            task.request_abort(Interrupted::cancelled("the job's grace is over"));
        }
    }

    fn interrupt(
        &self,
        reason: CancelReason,
        why: &str,
        is_affected: impl Fn(&RunningJob) -> bool,
    ) -> bool {
        let mut tasks = Vec::new();
        for (_, job) in self.jobs.borrow_mut().iter_mut().filter(|(_, job)| is_affected(job)) {
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
            self.jobs.borrow().iter().filter_map(|(_, job)| job.task.clone()).collect();
        for task in tasks {
            task.request_abort(Interrupted::cancelled("the worker's grace is over"));
        }
    }
}

impl fmt::Debug for RunningJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningJobs").field("count", &self.jobs.borrow().len()).finish()
    }
}

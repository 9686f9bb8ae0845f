//! The state that the tasks of a running worker share.
//!
//! ```text
//!            (1)            (2)
//!   taken ────────▶ runs ────────▶ acknowledged, buried or requeued by its run
//!                    │
//!                    │ (3)            (4)
//!                    └──────▶ unfinished ──────▶ requeued, revoked or lost
//! ```
//!
//! (1) `run::start`. (2) `Run::settle`. (3) The task of the job was dropped half-way: an abort, an
//! interruption while only foreign futures were awaited, or a broker that was lost to the end. (4)
//! [`WorkerState::settle_unfinished`], by the worker's own task.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use pikake_sync::{Event, Semaphore, SemaphorePermit, shared};
use pikake_traps::{Interrupted, wall_time};

use crate::broker::outcomes::revoked;
use crate::broker::{Broker, BrokerError, Delivery};
use crate::client::app::App;
use crate::control::events::Events;
use crate::current::OnProgress;
use crate::job::Runner;
use crate::report::Left;
use crate::running::{CancelReason, RunningJobs};
use crate::worker::batches::Batches;
use crate::worker::consumers::Consumers;
use crate::worker::log;
use crate::worker::processes::Processes;
use crate::worker::unfinished::{End, UnfinishedJobs};

/// The phases of a worker, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The worker takes jobs.
    Open,
    /// The worker takes no more jobs, and lets the running ones end.
    Warm,
    /// The running jobs are interrupted.
    Cold,
}

/// A worker that runs.
pub(crate) struct WorkerState {
    pub(crate) app: App,
    pub(crate) broker: Rc<dyn Broker>,
    pub(crate) permits: Semaphore,
    /// How many running jobs release no permit at their end, since the concurrency was lowered.
    excess: Cell<usize>,
    pub(crate) batches: Batches,
    pub(crate) consumers: Consumers,
    pub(crate) events: Events,
    /// When the worker began.
    pub(crate) since: SystemTime,
    pub(crate) processes: Processes,
    pub(crate) running: Rc<RunningJobs>,
    pub(crate) unfinished: UnfinishedJobs,
    /// Set when the worker's own task has to look at the state again.
    pub(crate) changed: Event,
    /// Set when a job has told of its progress, on any thread; and the call that sets it.
    pub(crate) progressed: Arc<shared::Event>,
    pub(crate) on_progress: OnProgress,
    phase: Cell<Phase>,
    left: RefCell<Vec<Left>>,
    failure: RefCell<Option<BrokerError>>,
}

impl WorkerState {
    pub(crate) fn new(app: App, broker: Rc<dyn Broker>, processes: Processes) -> Self {
        let permits = Semaphore::new(app.0.concurrency.get());
        let events = Events::new(&app.worker_name(), app.0.control.sends_events.get());
        let progressed = Arc::new(shared::Event::new());
        let told = progressed.clone();
        Self {
            app,
            broker,
            permits,
            excess: Cell::new(0),
            batches: Batches::default(),
            consumers: Consumers::default(),
            events,
            since: wall_time(),
            processes,
            running: Rc::default(),
            unfinished: UnfinishedJobs::default(),
            changed: Event::new(),
            progressed,
            on_progress: OnProgress::new(move |_| told.set()),
            phase: Cell::new(Phase::Open),
            left: RefCell::default(),
            failure: RefCell::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// Goes on to a later phase; never back.
    pub(crate) fn advance(&self, to: Phase) {
        if self.phase.get() < to {
            self.phase.set(to);
            self.changed.set();
            // Runs that wait for their turn are requeued.
            self.restart_limiters();
            self.batches.hurry();
        }
    }

    /// Has the runs that wait for their turn ask again.
    pub(crate) fn restart_limiters(&self) {
        for job in self.app.0.jobs.borrow().values() {
            job.limiter.restart();
        }
    }

    /// Ends the worker with an error.
    pub(crate) fn fail(&self, error: BrokerError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.advance(Phase::Warm);
    }

    pub(crate) fn take_failure(&self) -> Option<BrokerError> {
        self.failure.take()
    }

    /// Waits with one message until one more job may run.
    pub(crate) async fn permit(&self) -> Result<SemaphorePermit<'_>, Interrupted> {
        struct Waiting<'a>(&'a Cell<usize>);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }

        let waiting = &self.running.waiting;
        waiting.set(waiting.get() + 1);
        let _waiting = Waiting(waiting);
        self.permits.acquire().await
    }

    /// Releases a permit that was forgotten when a job began.
    pub(crate) fn release_permit(&self) {
        match self.excess.get() {
            0 => self.release(1),
            excess => self.excess.set(excess - 1),
        }
    }

    /// Removes a job whose task has ended. A delivery that is left was not settled.
    pub(crate) fn leave(
        &self,
        key: usize,
        left: Option<Rc<Delivery>>,
        is_acked: bool,
        is_unlocked: bool,
        has_permit: bool,
    ) {
        let reason = self.running.remove(key);
        if let Some(delivery) = left {
            self.add_unfinished(delivery, reason, is_acked, is_unlocked);
        }
        if self.running.is_empty() && self.phase.get() > Phase::Open {
            self.changed.set();
        }
        if has_permit {
            self.release_permit();
        }
    }

    fn release(&self, count: usize) {
        self.permits.add_permits(count).expect("the permits have no bound");
    }

    /// Sets how many jobs run at a time. Running jobs go on.
    pub(crate) fn set_concurrency(&self, limit: usize) {
        let before = self.app.0.concurrency.replace(limit);
        if limit > before {
            let more = limit - before;
            let excess = self.excess.get();
            self.excess.set(excess.saturating_sub(more));
            self.release(more.saturating_sub(excess));
        }
        for _ in limit..before {
            match self.permits.try_acquire() {
                Ok(permit) => permit.forget(),
                Err(_) => self.excess.set(self.excess.get() + 1),
            }
        }
    }

    /// How many unsettled messages of each queue the worker may hold, without batches.
    pub(crate) fn prefetch(&self) -> u16 {
        let app = &self.app.0;
        let twice = || u16::try_from(app.concurrency.get().saturating_mul(2)).unwrap_or(u16::MAX);
        app.prefetch.get().unwrap_or_else(twice)
    }

    /// How many unsettled messages of a queue the worker may hold: by default there is room for a
    /// batch that runs and one that gathers.
    pub(crate) fn prefetch_of(&self, queue: &str) -> u16 {
        let app = &self.app;
        let mut prefetch = self.prefetch();
        if app.0.prefetch.get().is_none() {
            for (name, job) in &*app.0.jobs.borrow() {
                match job.definition.runner {
                    Runner::Batch(batch) if app.queue_of(name) == queue => {
                        prefetch = prefetch.saturating_add(batch.size.get().saturating_mul(2));
                    }
                    _ => {}
                }
            }
        }
        prefetch
    }

    /// Warns of batches that the prefetch keeps from being full.
    pub(crate) fn check_batches(&self) {
        let Some(prefetch) = self.app.0.prefetch.get() else { return };
        for (job, registered) in &*self.app.0.jobs.borrow() {
            match registered.definition.runner {
                Runner::Batch(batch) if batch.size.get() > prefetch => {
                    let size = batch.size;
                    tracing::warn!(
                        job,
                        size,
                        prefetch,
                        "its batches are no larger than the prefetch"
                    );
                }
                _ => {}
            }
        }
    }

    /// A message has arrived.
    pub(crate) fn arrived(&self, delivery: &Delivery) {
        if self.events.is_on() {
            self.events.received(&delivery.message);
        }
    }

    /// Leaves a delivery to the worker whose job has not begun.
    pub(crate) fn leave_unbegun(&self, delivery: Delivery) {
        self.add_unfinished(Rc::new(delivery), None, false, false);
    }

    /// Leaves a delivery to the worker, and counts its job.
    fn add_unfinished(
        &self,
        delivery: Rc<Delivery>,
        reason: Option<CancelReason>,
        is_acked: bool,
        is_unlocked: bool,
    ) {
        let id = delivery.message.job().unwrap_or_default();
        let name = delivery.message.headers.get("task").and_then(|name| name.as_str());
        let job = name.and_then(|name| self.app.0.jobs.borrow().get(name).cloned());
        let counters = job.as_ref().map_or(&self.app.0.unknown, |job| &job.counters);
        let end = match reason {
            Some(CancelReason::Revoked) => {
                counters.count(|stats| stats.revoked += 1);
                log::dropped_by_cancel(&delivery);
                if self.events.is_on() {
                    self.events.ended(id, &revoked("cancelled"), 0.0, true);
                }
                End::Revoked { is_acked }
            }
            _ if is_acked => {
                counters.count(|stats| stats.failed += 1);
                log::lost(&delivery);
                End::Lost
            }
            reason => {
                counters.count(|stats| stats.given_back += 1);
                log::requeued(&delivery);
                if reason == Some(CancelReason::Shutdown) {
                    let (id, name) = (id.to_owned(), name.unwrap_or_default().to_owned());
                    self.left.borrow_mut().push(Left { id, name });
                }
                End::GivenBack
            }
        };
        self.unfinished.add(delivery, end, is_unlocked);
    }

    /// Settles unfinished jobs. Never ends: to be polled beside the worker, in a shield.
    pub(crate) async fn settle_unfinished(&self) -> Infallible {
        self.unfinished.settle_all(&self.app, &*self.broker, &self.changed).await
    }

    /// Whether no job runs, and the worker's end waits for no unfinished one.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && !self.unfinished.hold_up(self.phase.get() >= Phase::Cold)
    }

    pub(crate) fn take_left(&self) -> Vec<Left> {
        self.left.take()
    }
}

impl fmt::Debug for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerState")
            .field("phase", &self.phase.get())
            .field("running", &self.running)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

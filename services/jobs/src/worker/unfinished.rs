//! Messages whose runs were dropped before they were settled: requeued, revoked, or failed.
//!
//! The broker may be lost or slow, and the worker goes on meanwhile. Each message is retried until
//! the broker answers. A message that the worker could not requeue before its end is requeued when
//! the consumers are dropped.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use pikake_sync::Event;
use pikake_traps::sleep;

use crate::broker::outcomes::{job_with_outcome, revoked};
use crate::broker::{Broker, BrokerError, Delivery, LocalFuture};
use crate::client::app::App;
use crate::client::carry_out::carry_out_rest;
use crate::message::{Message, Outcome};
use crate::unique::UniqueLock;
use crate::wire::failure::Failure;
use crate::worker::follow::Follow;

/// The pause before a message is retried at a lost broker.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// A delivery whose run was dropped before it was settled.
struct UnfinishedJob {
    delivery: Rc<Delivery>,
    end: End,
    /// Whether the lock that is released when the job begins has been released.
    is_unlocked: bool,
}

/// What follows from an unfinished job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    GivenBack,
    /// The outcome says that the job was revoked; the message is acknowledged unless it has been.
    Revoked {
        is_acked: bool,
    },
    /// The message was acknowledged before the run; the outcome says that the job was lost.
    Lost,
}

/// The unfinished jobs of a worker.
#[derive(Default)]
pub(crate) struct UnfinishedJobs {
    /// Jobs that `settle_all` has not begun with.
    new: RefCell<Vec<UnfinishedJob>>,
    /// Set when `new` has jobs.
    added: Event,
    /// The number of jobs to be requeued of which none was tried yet.
    untried: Cell<usize>,
    /// The number of jobs with outcomes to be stored.
    without_outcome: Cell<usize>,
}

impl UnfinishedJobs {
    pub(crate) fn add(&self, delivery: Rc<Delivery>, end: End, is_unlocked: bool) {
        let count = self.counted(end);
        count.set(count.get() + 1);
        self.new.borrow_mut().push(UnfinishedJob { delivery, end, is_unlocked });
        self.added.set();
    }

    /// Whether all have been tried, and have outcomes.
    pub(crate) fn is_empty(&self) -> bool {
        self.untried.get() == 0 && self.without_outcome.get() == 0
    }

    /// The count of such jobs, which the worker's end waits for.
    fn counted(&self, end: End) -> &Cell<usize> {
        if end == End::GivenBack { &self.untried } else { &self.without_outcome }
    }

    /// Whether the worker's end waits for some. A cold end does not wait for messages to be
    /// requeued.
    pub(crate) fn hold_up(&self, is_cold: bool) -> bool {
        self.without_outcome.get() > 0 || (self.untried.get() > 0 && !is_cold)
    }

    /// Settles the jobs, all of them concurrently. Never ends: to be polled beside the worker, in a
    /// shield. Sets `changed` when the worker's end waits for fewer jobs.
    pub(crate) async fn settle_all(
        &self,
        app: &App,
        broker: &dyn Broker,
        changed: &Event,
    ) -> Infallible {
        let mut settling: Vec<LocalFuture<'_, ()>> = Vec::new();
        loop {
            let mut added = pin!(self.added.wait());
            let more = poll_fn(|cx| {
                settling.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                added.as_mut().poll(cx)
            });
            // Not interrupted, in its shield.
            drop(more.await);
            self.added.clear();
            for job in self.new.take() {
                settling.push(Box::pin(self.settle(app, broker, changed, job)));
            }
        }
    }

    /// Settles one job, as soon as the broker answers.
    async fn settle(&self, app: &App, broker: &dyn Broker, changed: &Event, job: UnfinishedJob) {
        let UnfinishedJob { delivery, end, is_unlocked } = job;
        let Delivery { receipt, message, .. } = &*delivery;
        let mut waits = true;
        loop {
            let done = match end {
                End::GivenBack => broker.give_back(*receipt).await,
                End::Revoked { is_acked } => {
                    match end_with(app, broker, message, revoked("cancelled"), is_unlocked).await {
                        Ok(()) if !is_acked => broker.ack(*receipt).await,
                        stored => stored,
                    }
                }
                End::Lost => {
                    let what =
                        "its worker has ended in the middle of it, and it is not to be run twice";
                    let lost = Failure::new("WorkerLostError", "billiard.exceptions", what);
                    end_with(app, broker, message, lost.into_outcome(), is_unlocked).await
                }
            };
            let is_lost = matches!(
                done,
                Err(BrokerError::Lost(_) | BrokerError::ResultsLost(_) | BrokerError::Io(_))
            );
            // The worker's end waits for one try to requeue, and until an outcome is stored.
            if waits && (!is_lost || end == End::GivenBack) {
                waits = false;
                let count = self.counted(end);
                count.set(count.get() - 1);
                changed.set();
            }
            let Err(error) = done else { return };
            let id = message.job().unwrap_or_default();
            tracing::debug!(id, %error, "an unfinished job could not be settled");
            if !is_lost {
                return;
            }
            // No jitter: jobs that failed together are retried together.
            drop(sleep(AGAIN_PAUSE).await);
        }
    }
}

/// Stores an outcome, unless the job's sender ignores it, and does what follows from it.
async fn end_with(
    app: &App,
    broker: &dyn Broker,
    message: &Message,
    outcome: Outcome,
    is_unlocked: bool,
) -> Result<(), BrokerError> {
    let mut actions = Follow::first(app, message).outcome(&outcome);
    if job_with_outcome(message).is_some() {
        broker.store(message, outcome).await?;
    }
    carry_out_rest(app, broker, &mut actions).await?;
    match UniqueLock::of(message).filter(|lock| lock.ends_with_job(is_unlocked)) {
        Some(lock) => broker.unlock(&lock).await,
        None => Ok(()),
    }
}

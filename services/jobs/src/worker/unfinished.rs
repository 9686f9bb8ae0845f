//! Messages whose jobs were left without an end, and what becomes of them.
//!
//! The broker may be lost or slow, and the worker goes on meanwhile. Each message is tried until the broker is there; one
//! that could not be given back by the worker's end is the broker's again when the consumers are dropped.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use pikake_sync::Event;
use pikake_traps::sleep;

use crate::broker::outcomes::{job_to_tell_of, revoked};
use crate::broker::{Broker, BrokerError, Delivery, LocalFuture};
use crate::message::{Message, Outcome};
use crate::wire::failure::Failure;

/// How long to wait before messages are tried again for which the broker was lost.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// A delivery that was left without an end.
struct UnfinishedJob {
    delivery: Delivery,
    end: End,
}

/// What an unfinished job comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    GivenBack,
    /// It is told to be revoked, and acknowledged unless it has been.
    Revoked {
        is_acked: bool,
    },
    /// It was acknowledged before its job was run, and is told to be lost.
    Lost,
}

/// The unfinished jobs of a worker.
#[derive(Default)]
pub(crate) struct UnfinishedJobs {
    /// Those that nobody has looked at.
    new: RefCell<Vec<UnfinishedJob>>,
    /// Set when there are such.
    came: Event,
    /// How many go back that were not tried yet.
    untried: Cell<usize>,
    /// How many there are that somebody is to be told of.
    untold: Cell<usize>,
}

impl UnfinishedJobs {
    pub(crate) fn add(&self, delivery: Delivery, end: End) {
        let count = self.counted(end);
        count.set(count.get() + 1);
        self.new.borrow_mut().push(UnfinishedJob { delivery, end });
        self.came.set();
    }

    /// Where one is counted for which the worker's end waits.
    fn counted(&self, end: End) -> &Cell<usize> {
        if end == End::GivenBack { &self.untried } else { &self.untold }
    }

    /// Whether the worker's end waits for some. A cold end leaves to the broker what is not given back yet.
    pub(crate) fn hold_up(&self, is_cold: bool) -> bool {
        self.untold.get() > 0 || (self.untried.get() > 0 && !is_cold)
    }

    /// Gives back what is left without an end, or says that it will come to none, all of it side by side. Never ends; to
    /// be polled beside what the worker does, in a shield. Sets the event when the worker's end waits for less.
    pub(crate) async fn settle_all(&self, broker: &dyn Broker, changed: &Event) -> Infallible {
        let mut settling: Vec<LocalFuture<'_, ()>> = Vec::new();
        loop {
            let mut came = pin!(self.came.wait());
            let more = poll_fn(|cx| {
                settling.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                came.as_mut().poll(cx)
            });
            // In a shield, so it is not interrupted.
            drop(more.await);
            self.came.clear();
            for job in self.new.take() {
                settling.push(Box::pin(self.settle(broker, changed, job)));
            }
        }
    }

    /// Brings one to its end, as soon as the broker is there.
    async fn settle(&self, broker: &dyn Broker, changed: &Event, job: UnfinishedJob) {
        let UnfinishedJob { delivery: Delivery { receipt, message, .. }, end } = job;
        let mut waits = true;
        loop {
            let done = match end {
                End::GivenBack => broker.give_back(receipt).await,
                End::Revoked { is_acked } => {
                    match store(broker, &message, revoked("cancelled")).await {
                        Ok(()) if !is_acked => broker.ack(receipt).await,
                        stored => stored,
                    }
                }
                End::Lost => {
                    let what =
                        "its worker has ended in the middle of it, and it is not to be run twice";
                    let lost = Failure::new("WorkerLostError", "billiard.exceptions", what);
                    store(broker, &message, lost.into_outcome()).await
                }
            };
            let is_lost = matches!(done, Err(BrokerError::Lost(_) | BrokerError::Io(_)));
            // The worker's end waits until one that goes back was tried, and until others are told.
            if waits && (!is_lost || end == End::GivenBack) {
                waits = false;
                let count = self.counted(end);
                count.set(count.get() - 1);
                changed.set();
            }
            let Err(error) = done else { return };
            let id = message.job().unwrap_or_default();
            tracing::debug!(id, %error, "a job that was left could not be settled");
            if !is_lost {
                return;
            }
            // All that failed together are tried again together.
            drop(sleep(AGAIN_PAUSE).await);
        }
    }
}

/// Stores an outcome, if somebody wants one.
async fn store(
    broker: &dyn Broker,
    message: &Message,
    outcome: Outcome,
) -> Result<(), BrokerError> {
    match job_to_tell_of(message) {
        Some(_) => broker.store(message, outcome).await,
        None => Ok(()),
    }
}

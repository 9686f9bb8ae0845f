//! Messages whose jobs were left without an end, and what becomes of them.
//!
//! Apart from what runs (`state.rs`): the broker may be lost or slow, and the worker goes on meanwhile. Each orphan is
//! tried until the broker is there; what could not be given back to the worker's end is the broker's again when the
//! consumers are dropped.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use pikake_sync::Event;
use pikake_traps::sleep;

use crate::broker::outcomes::{job_to_tell_of, revoked};
use crate::broker::{BrokerError, Delivery, LocalFuture};
use crate::message::{Message, Outcome};
use crate::wire::failure::Failure;
use crate::worker::shutdown::Phase;
use crate::worker::state::{Hall, Told};

/// How long to wait before orphans are tried again for which the broker was lost.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// A delivery that was left without an end.
struct Orphan {
    delivery: Delivery,
    end: End,
}

/// What an orphan comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    GivenBack,
    /// It is told to be revoked, and acknowledged unless it has been.
    Revoked {
        is_acked: bool,
    },
    /// It was acknowledged before its job was run, and is told to be lost.
    Lost,
}

/// The orphans of a worker.
#[derive(Default)]
pub(crate) struct Orphans {
    /// Those that nobody has looked at.
    new: RefCell<Vec<Orphan>>,
    /// Set when there are such.
    came: Event,
    /// How many go back that were not tried yet.
    untried: Cell<usize>,
    /// How many there are that somebody is to be told of.
    untold: Cell<usize>,
}

impl Orphans {
    fn add(&self, orphan: Orphan) {
        let count = self.counted(orphan.end);
        count.set(count.get() + 1);
        self.new.borrow_mut().push(orphan);
        self.came.set();
    }

    /// Where one is counted for which the worker's end waits.
    fn counted(&self, end: End) -> &Cell<usize> {
        if end == End::GivenBack { &self.untried } else { &self.untold }
    }

    /// Whether the worker's end waits for some. A cold one leaves to the broker what is not given back yet.
    pub(crate) fn are_waited_for(&self, phase: Phase) -> bool {
        self.untold.get() > 0 || (self.untried.get() > 0 && phase < Phase::Cold)
    }
}

impl Hall {
    /// Leaves a delivery to the worker, to be brought to an end.
    pub(crate) fn add_orphan(&self, delivery: Delivery, told: Option<Told>, is_acked: bool) {
        let id = delivery.message.job().unwrap_or_default();
        let name = delivery.message.headers.get("task").and_then(|name| name.as_str());
        let job = name.and_then(|name| self.app.0.jobs.borrow().get(name).cloned());
        let counters = job.as_ref().map_or(&self.app.0.nameless, |job| &job.counters);
        let end = match told {
            Some(Told::Revoked) => {
                counters.count(|stats| stats.revoked += 1);
                End::Revoked { is_acked }
            }
            _ if is_acked => {
                counters.count(|stats| stats.failed += 1);
                End::Lost
            }
            told => {
                counters.count(|stats| stats.given_back += 1);
                if told == Some(Told::Shutdown) {
                    self.note_left(id, name.unwrap_or_default());
                }
                End::GivenBack
            }
        };
        self.orphans.add(Orphan { delivery, end });
    }

    /// Gives back what is left without an end, or says that it will come to none, all of it side by side. Never ends; to
    /// be polled beside what the worker does, in a shield.
    pub(crate) async fn tend_orphans(&self) -> Infallible {
        let mut tending: Vec<LocalFuture<'_, ()>> = Vec::new();
        loop {
            let mut orphaned = pin!(self.orphans.came.wait());
            let more = poll_fn(|cx| {
                tending.retain_mut(|one| one.as_mut().poll(cx).is_pending());
                orphaned.as_mut().poll(cx)
            });
            // In a shield, so it is not interrupted.
            drop(more.await);
            self.orphans.came.clear();
            for orphan in self.orphans.new.take() {
                tending.push(Box::pin(self.tend(orphan)));
            }
        }
    }

    /// Stores an outcome, if somebody wants one.
    async fn store(&self, message: &Message, outcome: Outcome) -> Result<(), BrokerError> {
        match job_to_tell_of(message) {
            Some(_) => self.broker.store(message, outcome).await,
            None => Ok(()),
        }
    }

    /// Brings an orphan to its end, as soon as the broker is there.
    async fn tend(&self, Orphan { delivery: Delivery { receipt, message, .. }, end }: Orphan) {
        let mut waits = true;
        loop {
            let done = match end {
                End::GivenBack => self.broker.give_back(receipt).await,
                End::Revoked { is_acked } => {
                    match self.store(&message, revoked("cancelled")).await {
                        Ok(()) if !is_acked => self.broker.ack(receipt).await,
                        stored => stored,
                    }
                }
                End::Lost => {
                    let what =
                        "its worker has ended in the middle of it, and it is not to be run twice";
                    let lost = Failure::new("WorkerLostError", "billiard.exceptions", what);
                    self.store(&message, lost.into_outcome()).await
                }
            };
            let is_lost = matches!(done, Err(BrokerError::Lost(_) | BrokerError::Io(_)));
            // The worker's end waits until one that goes back was tried, and until others are told.
            if waits && (!is_lost || end == End::GivenBack) {
                waits = false;
                let count = self.orphans.counted(end);
                count.set(count.get() - 1);
                self.changed.set();
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

//! The queues that a worker takes messages from, each by a task of its own; and the messages that wait for a permit.
//!
//! ```text
//!   (none) ──add──▶ active ──remove, pause──▶ ended ──▶ (gone)
//!                      ▲                        │
//!                      └──── add, resume ───────┘  another consumer
//! ```
//!
//! An ended consumer is kept while jobs that it delivered may be unsettled: they are acknowledged through it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pikake_sync::Permit;
use pikake_traps::{CancelOnDrop, Interrupted, shield, sleep, spawn};

use crate::broker::{BrokerError, Deliveries, Delivery, QueueOptions};
use crate::worker::run;
use crate::worker::settle::Pauses;
use crate::worker::state::{Phase, WorkerState};

/// The task of a consumer, which returns the deliveries through which its jobs are acknowledged.
type Consumer = CancelOnDrop<Vec<Box<dyn Deliveries>>>;

/// A consumer, and a flag that is cleared when it has to end.
type Active = (Rc<Cell<bool>>, Consumer);

/// The consumers of a worker.
#[derive(Default)]
pub(crate) struct Consumers {
    /// The queues to take messages from, paused ones included.
    queues: RefCell<BTreeSet<String>>,
    active: RefCell<BTreeMap<String, Active>>,
    /// How many unsettled messages each of the active consumers may hold.
    prefetch: Cell<u16>,
    ended: RefCell<Vec<(String, Consumer)>>,
    /// The messages of each queue that wait for a permit.
    reserved: RefCell<BTreeMap<String, VecDeque<Delivery>>>,
}

impl Consumers {
    /// The queues to take messages from, paused ones included.
    pub(crate) fn queues(&self) -> BTreeSet<String> {
        self.queues.borrow().clone()
    }

    pub(crate) fn add(&self, queue: &str) {
        self.queues.borrow_mut().insert(queue.to_owned());
    }

    pub(crate) fn remove(&self, queue: &str) {
        self.queues.borrow_mut().remove(queue);
    }

    /// Calls `each` for the messages that wait for a permit.
    pub(crate) fn each_reserved(&self, mut each: impl FnMut(&Delivery)) {
        for delivery in self.reserved.borrow().values().flatten() {
            each(delivery);
        }
    }

    fn with_reserved<T>(&self, queue: &str, work: impl FnOnce(&mut VecDeque<Delivery>) -> T) -> T {
        let mut reserved = self.reserved.borrow_mut();
        match reserved.get_mut(queue) {
            Some(reserved) => work(reserved),
            None => work(reserved.entry(queue.to_owned()).or_default()),
        }
    }

    /// Drops all consumers, whose messages are requeued.
    pub(crate) fn clear(&self) {
        let (active, ended) = (self.active.take(), self.ended.take());
        drop((active, ended));
    }

    /// Ends all consumers, and returns the deliveries, through which running jobs are acknowledged.
    pub(crate) async fn stop(&self) -> Vec<Box<dyn Deliveries>> {
        let active = self.active.take().into_values().map(|(_, consumer)| consumer);
        let ended = self.ended.take().into_iter().map(|(_, consumer)| consumer);
        let consumers: Vec<_> = active.chain(ended).collect();
        for consumer in &consumers {
            consumer.request_cancel("the worker takes no more jobs");
        }
        let mut deliveries = Vec::new();
        for consumer in consumers {
            deliveries.extend(consumer.await.into_iter().flatten());
        }
        deliveries
    }
}

impl WorkerState {
    /// Begins consumers of the queues that lack one, and ends those of queues that are paused or were removed. Replaces all
    /// of them if the prefetch has changed.
    pub(crate) fn update_consumers(self: &Rc<Self>) {
        if self.phase() > Phase::Open {
            return;
        }
        let consumers = &self.consumers;
        let mut wanted = consumers.queues();
        let paused = &self.app.0.control.paused;
        wanted.retain(|queue| !paused.borrow().contains(queue));
        let mut active = consumers.active.borrow_mut();
        let mut ended = consumers.ended.borrow_mut();
        let replaces_all = consumers.prefetch.replace(self.prefetch()) != self.prefetch();
        let is_unwanted = |queue: &&String| replaces_all || !wanted.contains(*queue);
        let unwanted: Vec<_> = active.keys().filter(is_unwanted).cloned().collect();
        for queue in unwanted {
            let Some((goes_on, consumer)) = active.remove(&queue) else { continue };
            goes_on.set(false);
            consumer.request_cancel("the worker takes no more jobs of this queue");
            ended.push((queue, consumer));
        }
        let holds_none = |queue: &str| !self.running.has_of(queue) && self.unfinished.is_empty();
        ended.retain(|(queue, consumer)| !(consumer.is_finished() && holds_none(queue)));
        for queue in wanted {
            active.entry(queue.clone()).or_insert_with(|| {
                let goes_on = Rc::new(Cell::new(true));
                let consumer = consume(self.clone(), queue, goes_on.clone());
                (goes_on, spawn(consumer).cancel_on_drop())
            });
        }
    }
}

/// Takes messages of a queue until it is interrupted.
///
/// A broker may cancel a consumer, as when the queue moves to another node: another consumer replaces it. The first is kept
/// for the jobs that it delivered.
async fn consume(
    worker: Rc<WorkerState>,
    queue: String,
    goes_on: Rc<Cell<bool>>,
) -> Vec<Box<dyn Deliveries>> {
    let mut kept = Vec::new();
    let mut pauses = Pauses::new();
    while worker.phase() == Phase::Open && goes_on.get() {
        let begun = async {
            // A queue that was added by a command may be missing.
            worker.app.ensure_queue(&queue).await?;
            worker.broker.consume(&queue, worker.prefetch()).await
        };
        match begun.await {
            Ok(mut deliveries) => {
                let goes_on = take(&worker, &queue, &goes_on, &mut *deliveries, &mut pauses).await;
                kept.push(deliveries);
                if !goes_on {
                    break;
                }
                tracing::warn!(
                    queue,
                    "the broker has cancelled the consumer, as when a queue is deleted: declares the queue again, and \
                     starts another"
                );
                let options = worker.app.queues().remove(&queue);
                let options = options.unwrap_or_else(QueueOptions::unspecified);
                match worker.app.declare(&queue, &options).await {
                    Ok(()) => {}
                    Err(BrokerError::Interrupted(_)) => break,
                    Err(error) => tracing::warn!(queue, %error, "the queue cannot be declared"),
                }
            }
            Err(BrokerError::Interrupted(_)) => break,
            Err(error) if error.is_lost() => {}
            Err(error) => {
                worker.fail(error);
                break;
            }
        }
        if sleep(pauses.next()).await.is_err() {
            break;
        }
    }
    kept
}

/// Starts a job for each message; `true` if the broker has cancelled the consumer, and the worker needs another.
async fn take(
    worker: &Rc<WorkerState>,
    queue: &str,
    goes_on: &Cell<bool>,
    deliveries: &mut dyn Deliveries,
    pauses: &mut Pauses,
) -> bool {
    let consumers = &worker.consumers;
    let mut waiting = 0_usize;
    while worker.phase() == Phase::Open {
        let next = {
            let mut next = deliveries.next();
            loop {
                if waiting == 0 {
                    break next.await;
                }
                let mut permit = pin!(worker.permit());
                let first = poll_fn(|cx| match permit.as_mut().poll(cx) {
                    Poll::Ready(permit) => Poll::Ready(First::Permit(permit)),
                    Poll::Pending => next.as_mut().poll(cx).map(First::Delivery),
                });
                match first.await {
                    First::Delivery(delivery) => break delivery,
                    // The permit may come from the job that has ended the worker.
                    First::Permit(Ok(permit)) if worker.phase() == Phase::Open && goes_on.get() => {
                        waiting -= 1;
                        let oldest = consumers.with_reserved(queue, VecDeque::pop_front);
                        if let Some(delivery) = oldest {
                            permit.forget();
                            run::start(worker, delivery);
                            *pauses = Pauses::new();
                        }
                    }
                    First::Permit(Ok(_)) => break Err(BrokerError::Closed),
                    First::Permit(Err(why)) => break Err(BrokerError::Interrupted(why)),
                }
            }
        };
        match next {
            // The worker or this consumer may have ended while this task waited.
            Ok(Some(delivery)) if worker.phase() > Phase::Open || !goes_on.get() => {
                worker.leave_unbegun(delivery);
                break;
            }
            Ok(Some(delivery)) => {
                worker.arrived(&delivery);
                match worker.permits.try_acquire() {
                    Some(permit) if waiting == 0 => {
                        permit.forget();
                        run::start(worker, delivery);
                        *pauses = Pauses::new();
                    }
                    _ => {
                        waiting += 1;
                        consumers.with_reserved(queue, |reserved| reserved.push_back(delivery));
                    }
                }
            }
            Ok(None) => {
                leave_reserved(worker, queue);
                return true;
            }
            Err(BrokerError::Interrupted(_)) => break,
            // As above: the worker has ended meanwhile.
            Err(_) if worker.phase() > Phase::Open || !goes_on.get() => break,
            Err(error) if error.is_lost() => {
                // The broker itself tells of outages.
                tracing::debug!(%error, "no jobs come");
                if sleep(pauses.next()).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                leave_reserved(worker, queue);
                worker.fail(error);
                return false;
            }
        }
    }
    leave_reserved(worker, queue);
    // In a shield: an interruption in here would leave the messages that have arrived held until the worker's end.
    shield(async {
        // A failed call has cancelled the consumer, too.
        drop(deliveries.cancel().await);
        while let Ok(Some(delivery)) = deliveries.next().await {
            worker.leave_unbegun(delivery);
        }
    })
    .await;
    false
}

/// Requeues the messages that wait for a permit, in their order.
fn leave_reserved(worker: &WorkerState, queue: &str) {
    for delivery in worker.consumers.with_reserved(queue, std::mem::take) {
        worker.leave_unbegun(delivery);
    }
}

enum First<'a> {
    Permit(Result<Permit<'a>, Interrupted>),
    Delivery(Result<Option<Delivery>, BrokerError>),
}

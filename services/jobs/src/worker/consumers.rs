//! The queues that a worker takes messages from, each by a task of its own; and the messages that
//! wait for a permit.
//!
//! ```text
//!   (none) ──add──▶ active ──remove, pause──▶ ended ──▶ (gone)
//!                      ▲                        │
//!                      └──── add, resume ───────┘  another consumer
//! ```
//!
//! An ended consumer is kept while jobs that it delivered may be unsettled: they are acknowledged
//! through it.
//!
//! A prefetch is fixed when a consumer begins. If the worker's prefetch grows, a queue gets a
//! further consumer for the rest: to replace the first would requeue its messages, which brokers
//! count as deliveries. For the same reason a smaller prefetch replaces consumers only if these
//! hold more than four times as much.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pikake_sync::SemaphorePermit;
use pikake_traps::{CancelOnDrop, Interrupted, shield, sleep, spawn};

use crate::broker::{BrokerError, Deliveries, Delivery, QueueOptions};
use crate::wire::protocol_one;
use crate::worker::run;
use crate::worker::settle::Pauses;
use crate::worker::state::{Phase, WorkerState};

/// Deliveries through which jobs are acknowledged.
type Kept = Vec<Box<dyn Deliveries>>;

/// What the task of a consumer and the worker share.
struct Shared {
    queue: String,
    /// How many unsettled messages the consumer may hold.
    prefetch: u16,
    /// Whether the consumer has to end.
    is_ended: Cell<bool>,
    /// The sessions of the receipts of its messages.
    sessions: RefCell<BTreeSet<u64>>,
}

impl Shared {
    /// Whether the worker may hold messages of these sessions.
    fn holds(&self, worker: &WorkerState, sessions: &BTreeSet<u64>) -> bool {
        let is_of = |delivery: &Delivery| {
            delivery.queue == self.queue && sessions.contains(&delivery.receipt.session)
        };
        let is_reserved = || {
            let reserved = worker.consumers.reserved.borrow();
            reserved.get(&self.queue).is_some_and(|reserved| reserved.iter().any(is_of))
        };
        !worker.unfinished.is_empty() || worker.running.any(is_of) || is_reserved()
    }

    /// Adds deliveries that have ended, and drops those of which the worker holds no message.
    fn keep(&self, worker: &WorkerState, kept: &mut Vec<Ended>, deliveries: Box<dyn Deliveries>) {
        kept.retain(|(sessions, _)| self.holds(worker, sessions));
        let is_known = |session: &u64| kept.iter().any(|(sessions, _)| sessions.contains(session));
        let mut sessions = self.sessions.borrow_mut();
        let new = sessions.iter().filter(|session| !is_known(session)).copied().collect();
        kept.push((new, deliveries));
        *sessions = kept.iter().flat_map(|(sessions, _)| sessions).copied().collect();
    }
}

/// Deliveries that have ended, with the sessions of their receipts.
type Ended = (BTreeSet<u64>, Box<dyn Deliveries>);

struct Consumer {
    shared: Rc<Shared>,
    task: CancelOnDrop<Kept>,
}

impl Consumer {
    fn start(worker: &Rc<WorkerState>, queue: &str, prefetch: u16) -> Self {
        let shared = Rc::new(Shared {
            queue: queue.to_owned(),
            prefetch,
            is_ended: Cell::new(false),
            sessions: RefCell::default(),
        });
        let task = spawn(consume(worker.clone(), shared.clone())).cancel_on_drop();
        Self { shared, task }
    }
}

/// The consumers of a worker.
#[derive(Default)]
pub(crate) struct Consumers {
    /// The queues to take messages from, paused ones included.
    queues: RefCell<BTreeSet<String>>,
    active: RefCell<BTreeMap<String, Vec<Consumer>>>,
    ended: RefCell<Vec<Consumer>>,
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
    pub(crate) async fn stop(&self) -> Kept {
        let active = self.active.take().into_values().flatten();
        let consumers: Vec<_> = active.chain(self.ended.take()).collect();
        for consumer in &consumers {
            consumer.task.request_cancel("the worker takes no more jobs");
        }
        let mut deliveries = Vec::new();
        for consumer in consumers {
            deliveries.extend(consumer.task.await.into_iter().flatten());
        }
        deliveries
    }
}

impl WorkerState {
    /// Begins consumers of the queues whose prefetch is not reached, and ends those of queues that
    /// are paused or were removed.
    pub(crate) fn update_consumers(self: &Rc<Self>) {
        if self.phase() > Phase::Open {
            return;
        }
        let consumers = &self.consumers;
        let mut wanted = consumers.queues();
        let paused = &self.app.0.control.paused;
        wanted.retain(|queue| !paused.borrow().contains(queue));
        let prefetch = |queue: &str| usize::from(self.prefetch_of(queue));
        let mut active = consumers.active.borrow_mut();
        let mut ended = consumers.ended.borrow_mut();
        for (queue, of_queue) in &mut *active {
            if !wanted.contains(queue) || total_prefetch(of_queue) > 4 * prefetch(queue) {
                for consumer in of_queue.drain(..) {
                    consumer.shared.is_ended.set(true);
                    let why = "the worker takes no more jobs of this queue";
                    consumer.task.request_cancel(why);
                    ended.push(consumer);
                }
            }
        }
        active.retain(|_, of_queue| !of_queue.is_empty());
        ended.retain(|Consumer { shared, task }| {
            !task.is_finished() || shared.holds(self, &shared.sessions.borrow())
        });
        for queue in wanted {
            let of_queue = active.entry(queue.clone()).or_default();
            let (present, prefetch) = (total_prefetch(of_queue), prefetch(&queue));
            if present < prefetch {
                // At least as many again, so that a prefetch that grows by ones needs few
                // consumers.
                let more = u16::try_from((prefetch - present).max(present)).unwrap_or(u16::MAX);
                of_queue.push(Consumer::start(self, &queue, more));
            }
        }
    }
}

fn total_prefetch(consumers: &[Consumer]) -> usize {
    consumers.iter().map(|consumer| usize::from(consumer.shared.prefetch)).sum()
}

/// Takes messages of a queue until it is interrupted.
///
/// A broker may cancel a consumer, as when the queue moves to another node: another consumer
/// replaces it. The first is kept for the jobs that it delivered.
async fn consume(worker: Rc<WorkerState>, shared: Rc<Shared>) -> Kept {
    let queue = &*shared.queue;
    let mut kept = Vec::new();
    let mut pauses = Pauses::new();
    while worker.phase() == Phase::Open && !shared.is_ended.get() {
        let begun = async {
            // A queue that was added by a command may be missing.
            worker.app.ensure_queue(queue).await?;
            worker.broker.consume(queue, shared.prefetch).await
        };
        match begun.await {
            Ok(mut deliveries) => {
                let is_cancelled = take(&worker, &shared, &mut *deliveries, &mut pauses).await;
                shared.keep(&worker, &mut kept, deliveries);
                if !is_cancelled {
                    break;
                }
                tracing::warn!(
                    queue,
                    "the broker has cancelled the consumer, as when a queue is deleted: declares the queue again, and \
                     starts another"
                );
                let options = worker.app.queues().remove(queue);
                let options = options.unwrap_or_else(QueueOptions::unspecified);
                match worker.app.declare(queue, &options).await {
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
    kept.into_iter().map(|(_, deliveries)| deliveries).collect()
}

/// Starts a job for each message; `true` if the broker has cancelled the consumer, and the worker
/// needs another.
async fn take(
    worker: &Rc<WorkerState>,
    shared: &Shared,
    deliveries: &mut dyn Deliveries,
    pauses: &mut Pauses,
) -> bool {
    let consumers = &worker.consumers;
    let queue = &*shared.queue;
    let is_open = || worker.phase() == Phase::Open && !shared.is_ended.get();
    let mut waiting = 0_usize;
    // Kept over deliveries, for its place among those who wait; polled while messages wait only.
    let mut permit = pin!(worker.permits.acquire());
    while worker.phase() == Phase::Open {
        let next = {
            let mut next = deliveries.next();
            loop {
                if waiting == 0 {
                    break next.await;
                }
                let first = poll_fn(|cx| match permit.as_mut().poll(cx) {
                    Poll::Ready(permit) => Poll::Ready(First::Permit(permit)),
                    Poll::Pending => next.as_mut().poll(cx).map(First::Delivery),
                });
                let acquired = match first.await {
                    First::Delivery(delivery) => break delivery,
                    First::Permit(acquired) => acquired,
                };
                permit.set(worker.permits.acquire());
                match acquired {
                    // The permit may come from the job that has ended the worker.
                    Ok(permit) if is_open() => {
                        waiting = waiting.saturating_sub(1 + leave_lost(worker, queue));
                        let oldest = consumers.with_reserved(queue, VecDeque::pop_front);
                        if let Some(delivery) = oldest {
                            count_waiting(worker, |count| count - 1);
                            permit.forget();
                            run::start(worker, delivery);
                            *pauses = Pauses::new();
                        }
                    }
                    Ok(_) => break Err(BrokerError::Closed),
                    Err(why) => break Err(BrokerError::Interrupted(why)),
                }
            }
        };
        match next {
            // The worker or this consumer may have ended while this task waited.
            Ok(Some(delivery)) if !is_open() => {
                worker.leave_unbegun(delivery);
                break;
            }
            Ok(Some(mut delivery)) => {
                protocol_one::upgrade(&mut delivery.message);
                worker.arrived(&delivery);
                shared.sessions.borrow_mut().insert(delivery.receipt.session);
                let permit = if waiting == 0 { worker.permits.try_acquire().ok() } else { None };
                match permit {
                    Some(permit) => {
                        permit.forget();
                        run::start(worker, delivery);
                        *pauses = Pauses::new();
                    }
                    None => {
                        waiting = waiting.saturating_sub(leave_lost(worker, queue)) + 1;
                        count_waiting(worker, |count| count + 1);
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
            Err(_) if !is_open() => break,
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
    // In a shield: an interruption in here would leave the messages that have arrived held until
    // the worker's end.
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
        count_waiting(worker, |count| count - 1);
        worker.leave_unbegun(delivery);
    }
}

/// Leaves out the oldest messages that wait for a permit and that the broker has requeued. Returns
/// how many they were.
fn leave_lost(worker: &WorkerState, queue: &str) -> usize {
    let is_lost = |delivery: &&Delivery| !worker.broker.holds(delivery.receipt);
    let lost: Vec<_> = worker.consumers.with_reserved(queue, |reserved| {
        let count = reserved.iter().take_while(is_lost).count();
        reserved.drain(..count).collect()
    });
    let count = lost.len();
    for delivery in lost {
        count_waiting(worker, |count| count - 1);
        worker.leave_unbegun(delivery);
    }
    count
}

fn count_waiting(worker: &WorkerState, change: impl FnOnce(usize) -> usize) {
    let waiting = &worker.running.waiting;
    waiting.set(change(waiting.get()));
}

enum First<'a> {
    Permit(Result<SemaphorePermit<'a>, Interrupted>),
    Delivery(Result<Option<Delivery>, BrokerError>),
}

//! The broker in memory: for tests, simulations, and programs that are one process.
//!
//! This file has the waits; the store itself never waits (`state.rs`). Several brokers may share a
//! store, on one kernel or on many, as connections share a server. In a simulation, hosts share it
//! as well, and no fault affects it.

mod bus;
mod outcomes;
mod queue;
mod state;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use pikake_traps::wall_time;

use crate::broker::bus::Bus;
use crate::broker::outcomes::{job_of, wait_until};
use crate::broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, Delivery, LocalFuture, PublishError,
    QueueOptions, Receipt,
};
use crate::brokers::memory::state::{Next, StoreState};
use crate::message::{AllMembers, ChordMember, JobId, Message, Outcome};
use crate::unique::{UniqueLock, UniqueSent};

/// How often the waiter of a job that was running when it expired checks whether the job was
/// requeued.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The stores that have a name, until the process ends.
static STORES: LazyLock<Mutex<BTreeMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);

/// The queues and outcomes that brokers in memory share.
///
/// Any number of brokers, of any kernels and threads, may be opened on a store. An expected outcome
/// is kept until every waiter has forgotten it or closed its broker; other outcomes for an hour
/// ([`App::result_age`](crate::App::result_age) sets another length for the whole store), ten
/// thousand at most.
///
/// # Examples
///
/// ```
/// use pikake::jobs::{Broker, MemoryStore, Message, QueueOptions};
///
/// # pikake::sim::example(async {
/// let store = MemoryStore::new();
/// let (one, other) = (store.open(), store.open());
/// one.declare("mail", &QueueOptions::default()).await?;
/// one.publish("mail", Message::default(), None).await?;
/// let mut deliveries = other.consume("mail", 10).await?;
/// let delivery = deliveries.next().await?.expect("it was not cancelled");
/// other.ack(delivery.receipt).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<StoreState>>);

impl MemoryStore {
    /// A new empty store without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// The store with this name in this process, as in `memory://name`.
    pub fn named(name: &str) -> Self {
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.entry(name.to_owned()).or_default().clone()
    }

    /// Gives the name to a new empty store. Brokers that were opened before keep theirs.
    ///
    /// A test, or each run of a simulation, begins with this call to see no messages of an earlier
    /// run.
    pub fn fresh(name: &str) -> Self {
        let store = Self::new();
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        stores.insert(name.to_owned(), store.clone());
        store
    }

    /// A broker on this store.
    pub fn open(&self) -> MemoryBroker {
        let id = self.change(StoreState::open_session);
        MemoryBroker(Rc::new(Session { store: self.clone(), id }))
    }

    /// Changes the state, then sets the events that the change has queued.
    fn change<T>(&self, change: impl FnOnce(&mut StoreState) -> T) -> T {
        let (done, notifications) = {
            // No user code runs under the lock, so the state is consistent even if the lock is
            // poisoned.
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (change(&mut state), state.take_notifications())
        };
        for event in notifications {
            event.set();
        }
        done
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// A broker in memory, like one connection to a [`MemoryStore`].
///
/// When the broker and its consumers are dropped, their unacknowledged messages are requeued.
#[derive(Debug)]
pub struct MemoryBroker(Rc<Session>);

/// The session that a broker and its consumers share.
#[derive(Debug)]
struct Session {
    store: MemoryStore,
    id: u64,
}

impl Session {
    fn change<T>(
        &self,
        change: impl FnOnce(&mut StoreState, SystemTime) -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        let now = wall_time();
        self.store.change(|state| {
            state.check_open(self.id)?;
            change(state, now)
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.store.change(|state| state.close_session(self.id));
    }
}

impl Broker for MemoryBroker {
    fn declare<'a>(
        &'a self,
        queue: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move { self.0.change(|state, _| state.declare(queue, options)) })
    }

    fn max_priority<'a>(
        &'a self,
        queue: &'a str,
    ) -> LocalFuture<'a, Result<Option<u8>, BrokerError>> {
        let asked = self.0.change(|state, _| Ok(Some(state.queue(queue)?.max_priority())));
        Box::pin(async move { asked })
    }

    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>> {
        Box::pin(async move {
            let now = wall_time();
            let Session { store, id } = &*self.0;
            store.change(|state| state.publish(*id, queue, message, not_before, now))
        })
    }

    fn publish_unique<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: &'a UniqueLock,
    ) -> LocalFuture<'a, Result<UniqueSent, PublishError>> {
        Box::pin(async move {
            let now = wall_time();
            let Session { store, id } = &*self.0;
            store.change(|state| state.publish_unique(*id, queue, message, not_before, now, lock))
        })
    }

    fn unlock<'a>(&'a self, lock: &'a UniqueLock) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, _| {
                state.unlock(lock);
                Ok(())
            })
        })
    }

    fn consume<'a>(
        &'a self,
        queue: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>> {
        Box::pin(async move {
            let session = self.0.clone();
            let id = session.change(|state, _| state.consume(session.id, queue, prefetch))?;
            Ok(Box::new(MemoryDeliveries { session, id }) as Box<dyn Deliveries>)
        })
    }

    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move { self.0.change(|state, now| state.ack(self.0.id, receipt, now)) })
    }

    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(
            async move { self.0.change(|state, now| state.give_back(self.0.id, receipt, now)) },
        )
    }

    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, now| state.bury(self.0.id, receipt, message, reason, now))
        })
    }

    fn queues(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(async move { self.0.change(|state, _| Ok(Some(state.names()))) })
    }

    fn counts<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>> {
        Box::pin(async move { self.0.change(|state, now| state.counts(queue, now)) })
    }

    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move { self.0.change(|state, now| state.purge(queue, now)) })
    }

    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>> {
        Box::pin(async move { self.0.change(|state, _| Ok(state.queue(queue)?.dead(limit))) })
    }

    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move { self.0.change(|state, now| state.replay(queue, job, now)) })
    }

    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let (job, expires) = (job_of(message)?, message.expires);
            self.0.change(|state, _| {
                state.outcomes.expect(self.0.id, job, expires);
                Ok(())
            })
        })
    }

    fn store<'a>(
        &'a self,
        message: &'a Message,
        outcome: Outcome,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let job = job_of(message)?;
            self.0.change(|state, now| {
                let waiter = state.outcomes.store(job, outcome, now);
                state.notify(waiter);
                Ok(())
            })
        })
    }

    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>> {
        Box::pin(
            async move { self.0.change(|state, now| Ok(state.outcomes.get(job, now).cloned())) },
        )
    }

    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>> {
        Box::pin(async move {
            loop {
                let found = self.0.change(|state, now| {
                    let arrival = state.outcomes.arrival(self.0.id, job);
                    if arrival
                        .as_ref()
                        .is_some_and(|(_, expires)| expires.is_some_and(|it| it <= now))
                    {
                        // Queues without a consumer expire messages only here.
                        state.expire_all(now);
                    }
                    let known = state.outcomes.get(job, now);
                    match known.filter(|outcome| outcome.state.is_final()) {
                        Some(outcome) => Ok(Ok(outcome.clone())),
                        None => {
                            let (arrived, expires) = arrival.ok_or(BrokerError::NoOutcome)?;
                            // A job that was running when it expired may still be requeued.
                            let recheck_at = |expires| {
                                if expires > now { expires } else { now + RECHECK_INTERVAL }
                            };
                            Ok(Err((arrived, expires.map(recheck_at))))
                        }
                    }
                })?;
                match found {
                    Ok(outcome) => return Ok(outcome),
                    Err((arrived, expires)) => wait_until(&arrived, expires).await?,
                }
            }
        })
    }

    fn join_chord<'a>(
        &'a self,
        member: &'a ChordMember,
    ) -> LocalFuture<'a, Result<Option<AllMembers>, BrokerError>> {
        Box::pin(async move {
            let joined = self.0.change(|state, now| Ok(state.join_chord(member, now)));
            joined.map(|members| members.map(AllMembers::new))
        })
    }

    fn end_chord<'a>(&'a self, chord: &'a str) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.change(|state, _| {
                state.end_chord(chord);
                Ok(())
            })
        })
    }

    fn forget(&self, job: &JobId) {
        self.0.store.change(|state| {
            let waiter = state.outcomes.forget(self.0.id, job);
            state.notify(waiter);
        });
    }

    fn keep_outcomes(&self, length: Duration) {
        self.0.store.change(|state| state.outcomes.set_lifetime(length));
    }

    fn bus(&self) -> Option<&dyn Bus> {
        Some(self)
    }

    fn state(&self) -> String {
        let is_open = self.0.store.change(|state| state.check_open(self.0.id).is_ok());
        if is_open { "open" } else { "closed" }.to_owned()
    }

    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.store.change(|state| state.close_session(self.0.id));
            Ok(())
        })
    }
}

/// A consumer of a queue in memory.
#[derive(Debug)]
struct MemoryDeliveries {
    session: Rc<Session>,
    id: u64,
}

impl MemoryDeliveries {
    async fn wait_for_next(&mut self) -> Result<Option<Delivery>, BrokerError> {
        // A consumer gets messages only while it waits.
        let _waiting = Waiting(self);
        loop {
            let now = wall_time();
            match self.session.store.change(|state| state.next(self.id, now)) {
                Next::Message(delivery) => return Ok(Some(*delivery)),
                Next::Cancelled => return Ok(None),
                Next::Closed => return Err(BrokerError::Closed),
                Next::Wait(changed, due) => wait_until(&changed, due).await?,
            }
        }
    }
}

impl Deliveries for MemoryDeliveries {
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>> {
        Box::pin(self.wait_for_next())
    }

    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move { self.session.change(|state, _| state.cancel(self.id)) })
    }
}

impl Drop for MemoryDeliveries {
    fn drop(&mut self) {
        self.session.store.change(|state| state.remove_consumer(self.id));
    }
}

/// Removes a consumer from its queue's waiting consumers on drop.
struct Waiting<'a>(&'a MemoryDeliveries);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.session.store.change(|state| state.stop_waiting(self.0.id));
    }
}

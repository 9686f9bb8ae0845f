//! The state of a memory store: its queues, their consumers, and the outcomes.
//!
//! Every operation completes without waiting, under the store's lock, and queues the events to set
//! in `notifications`.
//!
//! ```text
//!   publish ─▶ ready ──1──▶ taken ──2──▶ (gone)        1 deliver_ready   2 ack, bury
//!                ▲            │                        3 give_back, remove_consumer
//!                └─────3──────┘
//! ```
//!
//! A message is taken for a consumer when the consumer asks for one, or waits for one. The message
//! is then in the consumer's `arrived` until the next `next`, so an interruption in between loses
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use pikake_sync::shared::Event;

use crate::broker::outcomes::{CHORD_LIFETIME, expired, job_with_outcome, purged};
use crate::broker::{
    BrokerError, Counts, Delivery, PublishError, PublishFailure, QueueOptions, Receipt,
};
use crate::brokers::memory::bus::MemoryBus;
use crate::brokers::memory::outcomes::Outcomes;
use crate::brokers::memory::queue::{Entry, Queue};
use crate::message::{ChordMember, JobId, Message, Outcome};
use crate::unique::{UniqueLock, UniqueSent};

#[derive(Debug, Default)]
pub(crate) struct StoreState {
    queues: Vec<Queue>,
    names: BTreeMap<String, usize>,
    /// The open brokers.
    sessions: BTreeSet<u64>,
    consumers: BTreeMap<u64, Consumer>,
    pub(crate) outcomes: Outcomes,
    pub(crate) bus: MemoryBus,
    /// The members that have ended, by the chord's id.
    chords: BTreeMap<String, Chord>,
    /// The locks of unique jobs, by key, with the job and the end; and the ends in their order.
    locks: BTreeMap<String, (JobId, SystemTime)>,
    lock_ends: BTreeSet<(SystemTime, String)>,
    /// The last id of a session, consumer or delivery.
    last_id: u64,
    /// The events of waiters that must check again, to be set when the store is unlocked.
    notifications: Vec<Arc<Event>>,
}

/// The members of a chord that have ended, by their places and ids.
#[derive(Debug)]
struct Chord {
    since: SystemTime,
    members: BTreeMap<(u64, String), ChordMember>,
}

#[derive(Debug)]
struct Consumer {
    session: u64,
    queue: usize,
    prefetch: usize,
    taken: BTreeMap<u64, Entry>,
    /// The message in `taken` that `next` has not returned yet.
    arrived: Option<u64>,
    is_cancelled: bool,
    /// Set when the consumer has to call `next` again.
    changed: Arc<Event>,
}

impl Consumer {
    fn has_room(&self) -> bool {
        self.taken.len() < self.prefetch && !self.is_cancelled
    }
}

/// The answer to a consumer that asks for a message.
#[derive(Debug)]
pub(crate) enum Next {
    Message(Box<Delivery>),
    /// The consumer was cancelled.
    Cancelled,
    /// The session is closed.
    Closed,
    /// No message is ready: ask again when the event is set, or at that time.
    Wait(Arc<Event>, Option<SystemTime>),
}

impl StoreState {
    /// An id that is unique in this store.
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Opens a broker and returns its id.
    pub(crate) fn open_session(&mut self) -> u64 {
        let session = self.next_id();
        self.sessions.insert(session);
        session
    }

    pub(crate) fn check_open(&self, session: u64) -> Result<(), BrokerError> {
        self.sessions.contains(&session).then_some(()).ok_or(BrokerError::Closed)
    }

    pub(crate) fn take_notifications(&mut self) -> Vec<Arc<Event>> {
        std::mem::take(&mut self.notifications)
    }

    pub(crate) fn notify(&mut self, waiters: impl IntoIterator<Item = Arc<Event>>) {
        self.notifications.extend(waiters);
    }

    fn index(&self, name: &str) -> Result<usize, BrokerError> {
        let index = self.names.get(name).copied();
        index.ok_or_else(|| {
            BrokerError::Refused(format!("there is no queue `{name}`: declare it first"))
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    pub(crate) fn queue(&mut self, name: &str) -> Result<&mut Queue, BrokerError> {
        let index = self.index(name)?;
        Ok(&mut self.queues[index])
    }

    pub(crate) fn declare(
        &mut self,
        name: &str,
        options: &QueueOptions,
    ) -> Result<(), BrokerError> {
        if let Some(index) = self.names.get(name) {
            let (is, wanted) = (self.queues[*index].max_priority(), options.max_priority);
            return match options.as_found || is == wanted {
                true => Ok(()),
                false => Err(BrokerError::Refused(format!(
                    "queue `{name}` has priorities up to {is}, not {wanted}"
                ))),
            };
        }
        self.names.insert(name.to_owned(), self.queues.len());
        self.queues.push(Queue::new(name, options));
        Ok(())
    }

    pub(crate) fn publish(
        &mut self,
        session: u64,
        name: &str,
        message: Message,
        not_before: Option<SystemTime>,
        now: SystemTime,
    ) -> Result<(), PublishError> {
        let index = match self.check_open(session).and_then(|()| self.index(name)) {
            Ok(index) => index,
            Err(error) => {
                return Err(PublishError::new(message, false, PublishFailure::Broker(error)));
            }
        };
        let is_next_due = self.queues[index].put(message, not_before, now);
        if is_next_due {
            // The consumers that wait must shorten their waits.
            self.notify_waiting(index);
        }
        self.deliver_ready(index, now);
        Ok(())
    }

    /// Publishes a message unless another job has the lock.
    pub(crate) fn publish_unique(
        &mut self,
        session: u64,
        name: &str,
        message: Message,
        not_before: Option<SystemTime>,
        now: SystemTime,
        lock: &UniqueLock,
    ) -> Result<UniqueSent, PublishError> {
        while let Some((_, key)) = self.lock_ends.first().filter(|(ends, _)| *ends <= now) {
            self.locks.remove(key);
            self.lock_ends.pop_first();
        }
        if let Some((job, _)) = self.locks.get(&lock.key) {
            return Ok(UniqueSent::Held(Some(job.clone())));
        }
        self.publish(session, name, message, not_before, now)?;
        self.locks.insert(lock.key.clone(), (lock.job.clone(), lock.ends));
        self.lock_ends.insert((lock.ends, lock.key.clone()));
        Ok(UniqueSent::Sent)
    }

    /// Releases a lock, if the job has it.
    pub(crate) fn unlock(&mut self, lock: &UniqueLock) {
        if let Some((job, ends)) = self.locks.get(&lock.key) {
            if *job == lock.job {
                self.lock_ends.remove(&(*ends, lock.key.clone()));
                self.locks.remove(&lock.key);
            }
        }
    }

    /// Has all consumers that wait for a message of the queue ask again.
    fn notify_waiting(&mut self, queue: usize) {
        let waiting = self.queues[queue].waiting.iter().filter_map(|id| self.consumers.get(id));
        self.notifications.extend(waiting.map(|consumer| consumer.changed.clone()));
    }

    pub(crate) fn consume(
        &mut self,
        session: u64,
        name: &str,
        prefetch: u16,
    ) -> Result<u64, BrokerError> {
        let queue = self.index(name)?;
        if prefetch == 0 {
            return Err(BrokerError::Refused("a prefetch of 0 admits no message".to_owned()));
        }
        let id = self.next_id();
        let consumer = Consumer {
            session,
            queue,
            prefetch: prefetch.into(),
            taken: BTreeMap::new(),
            arrived: None,
            is_cancelled: false,
            changed: Arc::new(Event::new()),
        };
        self.consumers.insert(id, consumer);
        Ok(id)
    }

    /// The next message of a consumer. Without one, the consumer is among those that wait.
    pub(crate) fn next(&mut self, id: u64, now: SystemTime) -> Next {
        let Some(consumer) = self.consumers.get(&id) else { return Next::Closed };
        let queue = consumer.queue;
        if !self.queues[queue].waiting.contains(&id) {
            self.queues[queue].waiting.push_back(id);
        }
        self.deliver_ready(queue, now);
        let Some(consumer) = self.consumers.get_mut(&id) else { return Next::Closed };
        consumer.changed.clear();
        if let Some(tag) = consumer.arrived.take() {
            let entry = &consumer.taken[&tag];
            let receipt = Receipt { session: id, tag };
            let name = self.queues[queue].name.clone();
            let (attempt, message) = (entry.deliveries - 1, entry.message.clone());
            return Next::Message(Box::new(Delivery::new(receipt, name, attempt, message)));
        }
        if consumer.is_cancelled {
            self.stop_waiting(id);
            return Next::Cancelled;
        }
        Next::Wait(consumer.changed.clone(), self.queues[queue].next_due())
    }

    /// Removes a consumer from those that wait.
    pub(crate) fn stop_waiting(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.get(&id) {
            self.queues[consumer.queue].waiting.retain(|waiting| *waiting != id);
        }
    }

    /// Drops the expired messages of a queue, and stores their outcomes.
    fn expire(&mut self, queue: usize, now: SystemTime) {
        while let Some(message) = self.queues[queue].take_expired(now) {
            self.settle_dropped(&message, expired(), now);
        }
    }

    /// Stores the outcome of a message that was dropped unread, and notifies its waiters.
    fn settle_dropped(&mut self, message: &Message, outcome: Outcome, now: SystemTime) {
        if let Some(lock) = UniqueLock::of(message) {
            self.unlock(&lock);
        }
        if let Some(job) = job_with_outcome(message) {
            let waiter = self.outcomes.store(job, outcome, now);
            self.notify(waiter);
        }
    }

    /// Drops the expired messages of all queues.
    pub(crate) fn expire_all(&mut self, now: SystemTime) {
        for queue in 0..self.queues.len() {
            self.expire(queue, now);
        }
    }

    /// Delivers ready messages to consumers that wait and have room.
    fn deliver_ready(&mut self, queue: usize, now: SystemTime) {
        self.expire(queue, now);
        let StoreState { queues, consumers, last_id, notifications, .. } = self;
        // Consumers are numbered in the order in which they began.
        let mut of_queue = consumers.iter().filter(|(_, consumer)| consumer.queue == queue);
        let only = match queues[queue].is_single {
            true => of_queue.find(|(_, consumer)| !consumer.is_cancelled).map(|(id, _)| *id),
            false => None,
        };
        let queue = &mut queues[queue];
        let mut position = 0;
        while let Some(id) = queue.waiting.get(position).copied() {
            let Some(consumer) = consumers.get_mut(&id) else {
                queue.waiting.remove(position);
                continue;
            };
            if consumer.arrived.is_some() {
                queue.waiting.remove(position);
                continue;
            }
            if !consumer.has_room() || only.is_some_and(|only| only != id) {
                position += 1;
                continue;
            }
            let Some(entry) = queue.take(now) else { return };
            *last_id += 1;
            consumer.taken.insert(*last_id, entry);
            consumer.arrived = Some(*last_id);
            notifications.push(consumer.changed.clone());
            queue.waiting.remove(position);
        }
    }

    /// Takes a delivered message from its consumer, to ack, requeue or bury.
    fn take(&mut self, session: u64, receipt: Receipt) -> Result<(usize, Entry), BrokerError> {
        let consumer = self.consumers.get_mut(&receipt.session);
        let consumer = consumer.filter(|consumer| consumer.session == session);
        let consumer = consumer.ok_or(BrokerError::Stale)?;
        let entry = consumer.taken.remove(&receipt.tag).ok_or(BrokerError::Stale)?;
        Ok((consumer.queue, entry))
    }

    pub(crate) fn ack(
        &mut self,
        session: u64,
        receipt: Receipt,
        now: SystemTime,
    ) -> Result<(), BrokerError> {
        let (queue, _) = self.take(session, receipt)?;
        self.deliver_ready(queue, now);
        Ok(())
    }

    pub(crate) fn give_back(
        &mut self,
        session: u64,
        receipt: Receipt,
        now: SystemTime,
    ) -> Result<(), BrokerError> {
        let (queue, entry) = self.take(session, receipt)?;
        self.queues[queue].put_back(entry);
        self.deliver_ready(queue, now);
        Ok(())
    }

    pub(crate) fn bury(
        &mut self,
        session: u64,
        receipt: Receipt,
        message: Message,
        reason: String,
        now: SystemTime,
    ) -> Result<(), BrokerError> {
        let (queue, _) = self.take(session, receipt)?;
        self.queues[queue].bury(message, reason, now);
        self.deliver_ready(queue, now);
        Ok(())
    }

    pub(crate) fn replay(
        &mut self,
        name: &str,
        job: Option<&JobId>,
        now: SystemTime,
    ) -> Result<u64, BrokerError> {
        let index = self.index(name)?;
        let count = self.queues[index].replay(job, now);
        self.deliver_ready(index, now);
        Ok(count)
    }

    pub(crate) fn counts(&mut self, name: &str, now: SystemTime) -> Result<Counts, BrokerError> {
        let index = self.index(name)?;
        self.expire(index, now);
        let (ready, delayed) = self.queues[index].waiting_messages(now);
        let of_queue = self.consumers.values().filter(|consumer| consumer.queue == index);
        let taken = of_queue.clone().map(|consumer| consumer.taken.len() as u64).sum();
        let consumers = of_queue.filter(|consumer| !consumer.is_cancelled).count() as u64;
        let dead = self.queues[index].dead_len();
        let (taken, consumers) = (Some(taken), Some(consumers));
        Ok(Counts { ready, taken, delayed, dead, consumers, ..Counts::default() })
    }

    pub(crate) fn purge(&mut self, name: &str, now: SystemTime) -> Result<u64, BrokerError> {
        let index = self.index(name)?;
        self.expire(index, now);
        let purged_messages = self.queues[index].purge();
        for message in &purged_messages {
            self.settle_dropped(message, purged(), now);
        }
        Ok(purged_messages.len() as u64)
    }

    pub(crate) fn cancel(&mut self, id: u64) -> Result<(), BrokerError> {
        let consumer = self.consumers.get_mut(&id).ok_or(BrokerError::Closed)?;
        consumer.is_cancelled = true;
        self.notifications.push(consumer.changed.clone());
        // Of a queue with a single consumer, it is the next one's turn.
        let queue = consumer.queue;
        self.notify_waiting(queue);
        Ok(())
    }

    /// Removes a consumer, and requeues its messages at their old positions.
    ///
    /// A consumer may be dropped outside any kernel, where there is no clock; so the others are
    /// notified to ask again.
    pub(crate) fn remove_consumer(&mut self, id: u64) {
        self.stop_waiting(id);
        let Some(consumer) = self.consumers.remove(&id) else { return };
        let queue = &mut self.queues[consumer.queue];
        for (tag, mut entry) in consumer.taken {
            if consumer.arrived == Some(tag) {
                entry.deliveries -= 1;
            }
            queue.put_back(entry);
        }
        self.notifications.push(consumer.changed);
        self.notify_waiting(consumer.queue);
    }

    /// Adds a member of a chord; all members, once they are there.
    pub(crate) fn join_chord(
        &mut self,
        member: &ChordMember,
        now: SystemTime,
    ) -> Option<Vec<ChordMember>> {
        if !self.chords.contains_key(&member.chord) {
            let is_young = |chord: &mut Chord| {
                now.duration_since(chord.since).unwrap_or_default() < CHORD_LIFETIME
            };
            self.chords.retain(|_, chord| is_young(chord));
        }
        let new = || Chord { since: now, members: BTreeMap::new() };
        let chord = self.chords.entry(member.chord.clone()).or_insert_with(new);
        chord.since = now;
        let key = (member.index, member.id.clone());
        chord.members.entry(key).or_insert_with(|| member.clone());
        let is_whole = chord.members.len() >= member.size as usize;
        is_whole.then(|| chord.members.values().cloned().collect())
    }

    pub(crate) fn end_chord(&mut self, chord: &str) {
        self.chords.remove(chord);
    }

    /// Closes a session: removes its consumers and cancels the outcomes that it expects.
    pub(crate) fn close_session(&mut self, session: u64) {
        self.sessions.remove(&session);
        let of_session = self.consumers.iter().filter(|(_, consumer)| consumer.session == session);
        let ids: Vec<u64> = of_session.map(|(id, _)| *id).collect();
        for id in ids {
            self.remove_consumer(id);
        }
        let waiters = self.outcomes.forget_session(session);
        self.notifications.extend(waiters);
        let subscribers = self.bus.close_session(session);
        self.notifications.extend(subscribers);
    }
}

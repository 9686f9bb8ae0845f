//! What a store in memory knows: its queues, who consumes them, and the outcomes.
//!
//! Nothing here waits: every operation is done at once, under the
//! store's lock, and leaves in `calls` who has to look again.
//!
//! ```text
//!   publish ─▶ ready ──1──▶ taken ──2──▶ (gone)        1 hand_out   2 ack, bury
//!                ▲            │                        3 give_back, end (of the consumer)
//!                └─────3──────┘
//! ```
//!
//! A message is taken for a consumer when the consumer asks for one, or waits for one. Then it is in
//! the consumer's `arrived` until that looks: an interruption in between loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use pikake_sync::shared::Event;

use crate::broker::outcomes::{expired, job_to_tell_of, purged};
use crate::broker::{
    BrokerError, Counts, Delivery, PublishError, PublishFailure, QueueOptions, Receipt,
};
use crate::brokers::memory::outcomes::Outcomes;
use crate::brokers::memory::queue::{Entry, Queue};
use crate::message::{JobId, Message, Outcome};

#[derive(Debug, Default)]
pub(crate) struct State {
    queues: Vec<Queue>,
    names: BTreeMap<String, usize>,
    /// The brokers that are open.
    sessions: BTreeSet<u64>,
    consumers: BTreeMap<u64, Consumer>,
    pub(crate) outcomes: Outcomes,
    /// Counts sessions, consumers and deliveries.
    numbers: u64,
    /// Those that have something new to look at, to be called when the store is unlocked.
    calls: Vec<Arc<Event>>,
}

#[derive(Debug)]
struct Consumer {
    session: u64,
    queue: usize,
    prefetch: usize,
    taken: BTreeMap<u64, Entry>,
    /// The one of `taken` that it has not seen yet.
    arrived: Option<u64>,
    is_cancelled: bool,
    /// Set when it has something to look at.
    look: Arc<Event>,
}

impl Consumer {
    fn has_room(&self) -> bool {
        self.taken.len() < self.prefetch && !self.is_cancelled
    }
}

/// What a consumer that asks for a message is told.
#[derive(Debug)]
pub(crate) enum Next {
    Message(Box<Delivery>),
    /// It was cancelled.
    Cancelled,
    /// Its session is over.
    Closed,
    /// It waits: until it is called, and until then at most.
    Wait(Arc<Event>, Option<SystemTime>),
}

impl State {
    /// A number that nothing else of this store has.
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A broker is opened; the answer is its number.
    pub(crate) fn join(&mut self) -> u64 {
        let session = self.number();
        self.sessions.insert(session);
        session
    }

    pub(crate) fn is_open(&self, session: u64) -> Result<(), BrokerError> {
        self.sessions.contains(&session).then_some(()).ok_or(BrokerError::Closed)
    }

    pub(crate) fn take_calls(&mut self) -> Vec<Arc<Event>> {
        std::mem::take(&mut self.calls)
    }

    pub(crate) fn call(&mut self, who: impl IntoIterator<Item = Arc<Event>>) {
        self.calls.extend(who);
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
        let index = match self.is_open(session).and_then(|()| self.index(name)) {
            Ok(index) => index,
            Err(error) => {
                return Err(PublishError::new(message, false, PublishFailure::Broker(error)));
            }
        };
        let is_next_due = self.queues[index].put(message, not_before, now);
        if is_next_due {
            // Whoever waits has to wait for less long now.
            self.call_waiting(index);
        }
        self.hand_out(index, now);
        Ok(())
    }

    /// Has all look that wait for a message of the queue.
    fn call_waiting(&mut self, queue: usize) {
        let looks = self.queues[queue].waiting.iter().filter_map(|id| self.consumers.get(id));
        self.calls.extend(looks.map(|consumer| consumer.look.clone()));
    }

    pub(crate) fn consume(
        &mut self,
        session: u64,
        name: &str,
        prefetch: u16,
    ) -> Result<u64, BrokerError> {
        let queue = self.index(name)?;
        if prefetch == 0 {
            return Err(BrokerError::Refused("a prefetch of 0 would never be met".to_owned()));
        }
        let id = self.number();
        let consumer = Consumer {
            session,
            queue,
            prefetch: prefetch.into(),
            taken: BTreeMap::new(),
            arrived: None,
            is_cancelled: false,
            look: Arc::new(Event::new()),
        };
        self.consumers.insert(id, consumer);
        Ok(id)
    }

    /// The next message of a consumer; if there is none, it is in the line of those that wait.
    pub(crate) fn next(&mut self, id: u64, now: SystemTime) -> Next {
        let Some(consumer) = self.consumers.get(&id) else { return Next::Closed };
        let queue = consumer.queue;
        if !self.queues[queue].waiting.contains(&id) {
            self.queues[queue].waiting.push_back(id);
        }
        self.hand_out(queue, now);
        let Some(consumer) = self.consumers.get_mut(&id) else { return Next::Closed };
        consumer.look.clear();
        if let Some(tag) = consumer.arrived.take() {
            let entry = &consumer.taken[&tag];
            let receipt = Receipt { session: id, tag };
            let name = self.queues[queue].name.clone();
            let (attempt, message) = (entry.deliveries - 1, entry.message.clone());
            return Next::Message(Box::new(Delivery::new(receipt, name, attempt, message)));
        }
        if consumer.is_cancelled {
            self.leave_line(id);
            return Next::Cancelled;
        }
        Next::Wait(consumer.look.clone(), self.queues[queue].next_due())
    }

    /// The consumer does not wait any more.
    pub(crate) fn leave_line(&mut self, id: u64) {
        if let Some(consumer) = self.consumers.get(&id) {
            self.queues[consumer.queue].waiting.retain(|waiting| *waiting != id);
        }
    }

    /// Drops what has expired in a queue, and tells whoever waits for it.
    fn expire(&mut self, queue: usize, now: SystemTime) {
        while let Some(message) = self.queues[queue].take_expired(now) {
            self.tell_of(&message, expired(), now);
        }
    }

    /// A message was dropped unread: whoever waits for its job is told why.
    fn tell_of(&mut self, message: &Message, outcome: Outcome, now: SystemTime) {
        if let Some(job) = job_to_tell_of(message) {
            let told = self.outcomes.store(job, outcome, now);
            self.call(told);
        }
    }

    /// The same in all queues.
    pub(crate) fn expire_all(&mut self, now: SystemTime) {
        for queue in 0..self.queues.len() {
            self.expire(queue, now);
        }
    }

    /// Gives what is ready to those that wait and have room.
    fn hand_out(&mut self, queue: usize, now: SystemTime) {
        self.expire(queue, now);
        let State { queues, consumers, numbers, calls, .. } = self;
        let queue = &mut queues[queue];
        let mut place = 0;
        while let Some(id) = queue.waiting.get(place).copied() {
            let Some(consumer) = consumers.get_mut(&id) else {
                queue.waiting.remove(place);
                continue;
            };
            if consumer.arrived.is_some() {
                queue.waiting.remove(place);
                continue;
            }
            if !consumer.has_room() {
                place += 1;
                continue;
            }
            let Some(entry) = queue.take(now) else { return };
            *numbers += 1;
            consumer.taken.insert(*numbers, entry);
            consumer.arrived = Some(*numbers);
            calls.push(consumer.look.clone());
            queue.waiting.remove(place);
        }
    }

    /// What a session was given to ack, give back or bury.
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
        self.hand_out(queue, now);
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
        self.hand_out(queue, now);
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
        self.hand_out(queue, now);
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
        self.hand_out(index, now);
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
        Ok(Counts { ready, taken: Some(taken), delayed, dead, consumers: Some(consumers) })
    }

    pub(crate) fn purge(&mut self, name: &str, now: SystemTime) -> Result<u64, BrokerError> {
        let index = self.index(name)?;
        self.expire(index, now);
        let purged_messages = self.queues[index].purge();
        for message in &purged_messages {
            self.tell_of(message, purged(), now);
        }
        Ok(purged_messages.len() as u64)
    }

    pub(crate) fn cancel(&mut self, id: u64) -> Result<(), BrokerError> {
        let consumer = self.consumers.get_mut(&id).ok_or(BrokerError::Closed)?;
        consumer.is_cancelled = true;
        self.calls.push(consumer.look.clone());
        Ok(())
    }

    /// The consumer is gone: what it has taken goes back to where it was.
    ///
    /// It may be dropped outside of any kernel, where nobody can say what time it is; so others are
    /// called to look for themselves.
    pub(crate) fn end(&mut self, id: u64) {
        self.leave_line(id);
        let Some(consumer) = self.consumers.remove(&id) else { return };
        let queue = &mut self.queues[consumer.queue];
        for (tag, mut entry) in consumer.taken {
            if consumer.arrived == Some(tag) {
                entry.deliveries -= 1;
            }
            queue.put_back(entry);
        }
        self.calls.push(consumer.look);
        self.call_waiting(consumer.queue);
    }

    /// The session is gone, with its consumers and what it expected.
    pub(crate) fn leave(&mut self, session: u64) {
        self.sessions.remove(&session);
        let of_session = self.consumers.iter().filter(|(_, consumer)| consumer.session == session);
        let ids: Vec<u64> = of_session.map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id);
        }
        let told = self.outcomes.leave(session);
        self.calls.extend(told);
    }
}

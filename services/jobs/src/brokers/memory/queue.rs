//! One queue of a memory store: its ready, delayed and dead messages.
//!
//! Of its consumers, a queue knows only the order in which they wait. Callers pass in the time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use crate::broker::{DeadJob, QueueOptions};
use crate::message::{JobId, Message};

/// A message in a queue.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The position among messages of one priority; kept when the message is requeued.
    sequence: u64,
    /// How often the message was delivered.
    pub(crate) deliveries: u32,
    pub(crate) message: Message,
}

/// Sorts by priority, highest first, then by sequence number.
type Key = (Reverse<u8>, u64);

#[derive(Debug)]
struct Dead {
    reason: String,
    since: SystemTime,
    message: Message,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: String,
    max_priority: u8,
    /// Whether one consumer gets all messages.
    pub(crate) is_single: bool,
    ready: BTreeMap<Key, Entry>,
    /// The keys of ready messages that expire, earliest first.
    expiring: BTreeSet<(SystemTime, Key)>,
    /// Delayed messages, by the time of delivery and then by sequence number.
    delayed: BTreeMap<(SystemTime, u64), Message>,
    dead: VecDeque<Dead>,
    /// The last sequence number of a ready or delayed message.
    last_sequence: u64,
    /// Consumers that wait for a message, first come first.
    pub(crate) waiting: VecDeque<u64>,
}

impl Queue {
    pub(crate) fn new(name: &str, options: &QueueOptions) -> Self {
        Self {
            name: name.to_owned(),
            max_priority: options.max_priority,
            is_single: options.single_consumer,
            ready: BTreeMap::new(),
            expiring: BTreeSet::new(),
            delayed: BTreeMap::new(),
            dead: VecDeque::new(),
            last_sequence: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The option in which two declarations of a queue must agree.
    pub(crate) fn max_priority(&self) -> u8 {
        self.max_priority
    }

    fn next_sequence(&mut self) -> u64 {
        self.last_sequence += 1;
        self.last_sequence
    }

    /// Adds a message at the end, or among the delayed ones. Returns whether it is the next delayed
    /// one.
    pub(crate) fn put(
        &mut self,
        message: Message,
        not_before: Option<SystemTime>,
        now: SystemTime,
    ) -> bool {
        let sequence = self.next_sequence();
        match not_before.filter(|moment| *moment > now) {
            Some(moment) => {
                let is_first = self.next_due().is_none_or(|due| moment < due);
                self.delayed.insert((moment, sequence), message);
                is_first
            }
            None => {
                self.put_back(Entry { sequence, deliveries: 0, message });
                false
            }
        }
    }

    /// Requeues a message at its old position.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        let priority = entry.message.priority.min(self.max_priority);
        let key = (Reverse(priority), entry.sequence);
        if let Some(expires) = entry.message.expires {
            self.expiring.insert((expires, key));
        }
        self.ready.insert(key, entry);
    }

    /// Takes the next message. Expired ones must have been removed.
    pub(crate) fn take(&mut self, now: SystemTime) -> Option<Entry> {
        self.promote(now);
        let (key, mut entry) = self.ready.pop_first()?;
        if let Some(expires) = entry.message.expires {
            self.expiring.remove(&(expires, key));
        }
        entry.deliveries += 1;
        Some(entry)
    }

    /// Removes a message that has expired.
    pub(crate) fn take_expired(&mut self, now: SystemTime) -> Option<Message> {
        self.promote(now);
        let (_, key) = self.expiring.first().filter(|(expires, _)| *expires <= now)?;
        let entry = self.ready.remove(key);
        self.expiring.pop_first();
        entry.map(|entry| entry.message)
    }

    /// Makes delayed messages ready whose time has come.
    fn promote(&mut self, now: SystemTime) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            let message = first.remove();
            let sequence = self.next_sequence();
            self.put_back(Entry { sequence, deliveries: 0, message });
        }
    }

    /// When the next delayed message is due.
    pub(crate) fn next_due(&self) -> Option<SystemTime> {
        self.delayed.first_key_value().map(|((moment, _), _)| *moment)
    }

    /// How many messages are ready, and how many delayed. Expired ones must have been removed.
    pub(crate) fn waiting_messages(&mut self, now: SystemTime) -> (u64, u64) {
        self.promote(now);
        (self.ready.len() as u64, self.delayed.len() as u64)
    }

    /// Removes all ready and delayed messages.
    pub(crate) fn purge(&mut self) -> Vec<Message> {
        self.expiring.clear();
        let ready = std::mem::take(&mut self.ready).into_values().map(|entry| entry.message);
        ready.chain(std::mem::take(&mut self.delayed).into_values()).collect()
    }

    pub(crate) fn bury(&mut self, message: Message, reason: String, now: SystemTime) {
        self.dead.push_back(Dead { reason, since: now, message });
    }

    pub(crate) fn dead_len(&self) -> u64 {
        self.dead.len() as u64
    }

    pub(crate) fn dead(&self, limit: usize) -> Vec<DeadJob> {
        let job =
            |dead: &Dead| DeadJob::new(dead.reason.clone(), Some(dead.since), dead.message.clone());
        self.dead.iter().take(limit).map(job).collect()
    }

    /// Adds dead messages at the end of the queue again, as new ones that do not expire.
    pub(crate) fn replay(&mut self, job: Option<&JobId>, now: SystemTime) -> u64 {
        let is_selected = |dead: &Dead| job.is_none_or(|job| dead.message.job() == Some(&*job.0));
        let (selected, others): (VecDeque<_>, _) = self.dead.drain(..).partition(is_selected);
        self.dead = others;
        let count = selected.len() as u64;
        for dead in selected {
            self.put(dead.message.for_replay(), None, now);
        }
        count
    }
}

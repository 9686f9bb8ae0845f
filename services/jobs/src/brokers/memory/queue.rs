//! One queue of a store in memory: what is ready, what waits for its time, what is dead.
//!
//! A queue knows nothing of consumers but the line in which they wait.
//! Nothing here reads a clock: the caller says what time it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::SystemTime;

use crate::broker::{DeadJob, QueueOptions};
use crate::message::{JobId, Message};

/// A message in a queue.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its place among those of its priority; kept when it is given back.
    place: u64,
    /// How often it was delivered.
    pub(crate) deliveries: u32,
    pub(crate) message: Message,
}

/// The highest priority first, of one priority the lowest place.
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
    ready: BTreeMap<Key, Entry>,
    /// Those of `ready` that expire, the first one first.
    expiring: BTreeSet<(SystemTime, Key)>,
    /// By the time from when on they may be delivered; of one time, the one that came first.
    delayed: BTreeMap<(SystemTime, u64), Message>,
    dead: VecDeque<Dead>,
    /// Counts places of ready and of delayed messages.
    places: u64,
    /// Consumers that wait for a message, in the order in which they came.
    pub(crate) waiting: VecDeque<u64>,
}

impl Queue {
    pub(crate) fn new(name: &str, options: &QueueOptions) -> Self {
        Self {
            name: name.to_owned(),
            max_priority: options.max_priority,
            ready: BTreeMap::new(),
            expiring: BTreeSet::new(),
            delayed: BTreeMap::new(),
            dead: VecDeque::new(),
            places: 0,
            waiting: VecDeque::new(),
        }
    }

    /// What of the options keeps two declarations from meaning the same queue.
    pub(crate) fn max_priority(&self) -> u8 {
        self.max_priority
    }

    fn next_place(&mut self) -> u64 {
        self.places += 1;
        self.places
    }

    /// Puts a message at the end, or aside until its time; tells whether it is the next of those.
    pub(crate) fn put(
        &mut self,
        message: Message,
        not_before: Option<SystemTime>,
        now: SystemTime,
    ) -> bool {
        let place = self.next_place();
        match not_before.filter(|moment| *moment > now) {
            Some(moment) => {
                let is_first = self.next_due().is_none_or(|due| moment < due);
                self.delayed.insert((moment, place), message);
                is_first
            }
            None => {
                self.put_back(Entry { place, deliveries: 0, message });
                false
            }
        }
    }

    /// Puts a message where it was.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        let priority = entry.message.priority.min(self.max_priority);
        let key = (Reverse(priority), entry.place);
        if let Some(expires) = entry.message.expires {
            self.expiring.insert((expires, key));
        }
        self.ready.insert(key, entry);
    }

    /// The next message, if there is one. What has expired is to be taken out before.
    pub(crate) fn take(&mut self, now: SystemTime) -> Option<Entry> {
        self.promote(now);
        let (key, mut entry) = self.ready.pop_first()?;
        if let Some(expires) = entry.message.expires {
            self.expiring.remove(&(expires, key));
        }
        entry.deliveries += 1;
        Some(entry)
    }

    /// Takes a message out that has expired.
    pub(crate) fn take_expired(&mut self, now: SystemTime) -> Option<Message> {
        self.promote(now);
        let (_, key) = self.expiring.first().filter(|(expires, _)| *expires <= now)?;
        let entry = self.ready.remove(key);
        self.expiring.pop_first();
        entry.map(|entry| entry.message)
    }

    /// Lets those join the line whose time has come.
    fn promote(&mut self, now: SystemTime) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let message = first.remove();
            let place = self.next_place();
            self.put_back(Entry { place, deliveries: 0, message });
        }
    }

    /// When the next delayed message is due.
    pub(crate) fn next_due(&self) -> Option<SystemTime> {
        self.delayed.first_key_value().map(|((moment, _), _)| *moment)
    }

    /// How many are ready, and how many wait for their time. What has expired is to be taken out before.
    pub(crate) fn waiting_messages(&mut self, now: SystemTime) -> (u64, u64) {
        self.promote(now);
        (self.ready.len() as u64, self.delayed.len() as u64)
    }

    /// Takes all out that waits.
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

    /// Dead messages at the end of the line again, as new ones that do not expire.
    pub(crate) fn replay(&mut self, job: Option<&JobId>, now: SystemTime) -> u64 {
        let is_meant = |dead: &Dead| job.is_none_or(|job| dead.message.job() == Some(&*job.0));
        let (meant, others): (VecDeque<_>, _) = self.dead.drain(..).partition(is_meant);
        self.dead = others;
        let count = meant.len() as u64;
        for dead in meant {
            self.put(dead.message.revived(), None, now);
        }
        count
    }
}

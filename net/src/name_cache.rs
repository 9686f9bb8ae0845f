//! The cache of a resolver.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use pikake_time::Deadline;
use pikake_traps::{deadline_after, now};

use crate::names::NameError;

/// The outcome of a lookup: addresses, or an error.
pub(crate) type Outcome = Result<Rc<[IpAddr]>, NameError>;

/// Names with the outcome of their lookup, up to a capacity.
pub(crate) struct NameCache {
    capacity: usize,
    entries: BTreeMap<String, (Outcome, Deadline)>,
}

impl NameCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, entries: BTreeMap::new() }
    }

    pub(crate) fn get(&mut self, host: &str) -> Option<Outcome> {
        let (outcome, until) = self.entries.get(host)?;
        if until.is_due(now()) {
            self.entries.remove(host);
            return None;
        }
        Some(outcome.clone())
    }

    pub(crate) fn put(&mut self, host: &str, outcome: Outcome, ttl: Duration) {
        if ttl.is_zero() || self.capacity == 0 {
            return;
        }
        if self.entries.len() >= self.capacity && !self.entries.contains_key(host) {
            self.make_room();
        }
        self.entries.insert(host.to_owned(), (outcome, deadline_after(ttl)));
    }

    /// Removes expired entries, or else those that expire first.
    fn make_room(&mut self) {
        let now = now();
        self.entries.retain(|_, (_, until)| !until.is_due(now));
        while self.entries.len() >= self.capacity {
            let first = self.entries.iter().min_by_key(|(_, (_, until))| *until);
            let Some(host) = first.map(|(host, _)| host.clone()) else { return };
            self.entries.remove(&host);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

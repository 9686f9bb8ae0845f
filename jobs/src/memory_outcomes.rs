//! The outcomes that a store in memory has, and who waits for them.
//!
//! Apart from the queues, which have nothing to do with them. What somebody expects is kept until
//! they forget it or are gone; what nobody expects is kept for a while, as somebody may ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pikake_sync::shared::Event;

use crate::message::{JobId, Outcome};
use crate::outcomes::replaces;

/// How long an outcome that nobody expects is kept.
pub(crate) const UNEXPECTED_LIFE: Duration = Duration::from_secs(3_600);

/// How many outcomes that nobody expects are kept.
pub(crate) const UNEXPECTED_LIMIT: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    known: BTreeMap<JobId, Known>,
    expected: BTreeMap<JobId, Expected>,
    /// Outcomes that nobody expects, the oldest first; some may be gone or expected by now.
    unexpected: VecDeque<(SystemTime, JobId)>,
}

#[derive(Debug)]
struct Known {
    outcome: Outcome,
    since: SystemTime,
}

#[derive(Debug, Default)]
struct Expected {
    /// The sessions that expect it.
    by: BTreeSet<u64>,
    /// When the job is worth nothing any more.
    expires: Option<SystemTime>,
    /// Set once the final outcome is there.
    arrived: Arc<Event>,
}

impl Outcomes {
    pub(crate) fn expect(&mut self, session: u64, job: JobId, expires: Option<SystemTime>) {
        let expected = self.expected.entry(job).or_default();
        expected.by.insert(session);
        expected.expires = expires;
    }

    /// Whose wait ends by this outcome is in the answer.
    pub(crate) fn store(
        &mut self,
        job: JobId,
        outcome: Outcome,
        now: SystemTime,
    ) -> Option<Arc<Event>> {
        let is_final = outcome.state.is_final();
        if self.get(&job).is_some_and(|known| !replaces(outcome.state, known.state)) {
            return None;
        }
        self.known.insert(job.clone(), Known { outcome, since: now });
        let Some(expected) = self.expected.get(&job) else {
            self.keep_for_a_while(job, now);
            return None;
        };
        is_final.then(|| expected.arrived.clone())
    }

    pub(crate) fn get(&self, job: &JobId) -> Option<&Outcome> {
        self.known.get(job).map(|known| &known.outcome)
    }

    /// What is set when the outcome comes that this session expects, and when its job expires.
    pub(crate) fn arrival(
        &self,
        session: u64,
        job: &JobId,
    ) -> Option<(Arc<Event>, Option<SystemTime>)> {
        let expected = self.expected.get(job)?;
        expected.by.contains(&session).then(|| (expected.arrived.clone(), expected.expires))
    }

    /// The session asks no more; what is returned is to be told so.
    pub(crate) fn forget(&mut self, session: u64, job: &JobId) -> Option<Arc<Event>> {
        let Some(expected) = self.expected.get_mut(job) else {
            self.known.remove(job);
            return None;
        };
        expected.by.remove(&session);
        let arrived = expected.arrived.clone();
        if expected.by.is_empty() {
            self.expected.remove(job);
            self.known.remove(job);
        }
        Some(arrived)
    }

    /// The session is gone. What it expected is kept for a while.
    pub(crate) fn leave(&mut self, session: u64) -> Vec<Arc<Event>> {
        let mut told = Vec::new();
        let mut left = Vec::new();
        for (job, expected) in &mut self.expected {
            if expected.by.remove(&session) {
                told.push(expected.arrived.clone());
                if expected.by.is_empty() {
                    left.push(job.clone());
                }
            }
        }
        for job in left {
            self.expected.remove(&job);
            if let Some(known) = self.known.get(&job) {
                self.unexpected.push_back((known.since, job));
            }
        }
        told
    }

    /// Nobody expects it. Those go that are too old, or too many.
    fn keep_for_a_while(&mut self, job: JobId, now: SystemTime) {
        self.unexpected.push_back((now, job));
        while let Some((since, job)) = self.unexpected.front() {
            let age = now.duration_since(*since).unwrap_or_default();
            if self.unexpected.len() <= UNEXPECTED_LIMIT && age < UNEXPECTED_LIFE {
                break;
            }
            // It may have been stored again, or expected, after it came into this line.
            let is_as_old = self.known.get(job).is_some_and(|known| known.since <= *since);
            if is_as_old && !self.expected.contains_key(job) {
                self.known.remove(job);
            }
            self.unexpected.pop_front();
        }
    }
}

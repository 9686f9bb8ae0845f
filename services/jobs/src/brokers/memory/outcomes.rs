//! The outcomes that a store in memory has, and who waits for them.
//!
//! What somebody expects is kept until
//! they forget it or are gone; what nobody expects is kept for a while, as somebody may ask.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pikake_sync::shared::Event;

use crate::broker::outcomes::replaces;
use crate::message::{JobId, Outcome};

/// How long an outcome that nobody expects is kept.
pub(crate) const UNEXPECTED_LIFE: Duration = Duration::from_secs(3_600);

/// How many outcomes that nobody expects are kept.
pub(crate) const UNEXPECTED_LIMIT: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// By hash, since there may be very many of them, and ids are long: a tree would compare as many as it is deep, each
    /// somewhere else in memory. Never gone through in its own order.
    jobs: HashMap<JobId, Entry>,
    /// Outcomes that nobody expects, the oldest first; some may be gone or expected by now.
    unexpected: VecDeque<(SystemTime, JobId)>,
}

/// What is known of a job, or expected.
#[derive(Debug, Default)]
struct Entry {
    /// With the time since when.
    known: Option<(Outcome, SystemTime)>,
    expected: Option<Expected>,
}

#[derive(Debug, Default)]
struct Expected {
    /// The sessions that expect it, each as often as it does; almost always one.
    by: Vec<u64>,
    /// When the job is worth nothing any more.
    expires: Option<SystemTime>,
    /// Set once the final outcome is there. Who expects it no more leaves others a new one.
    arrived: Arc<Event>,
}

impl Expected {
    /// The session expects it once less, if it did: what is returned is to be told so. Who expects it still looks again, and
    /// waits on.
    fn remove(&mut self, session: u64) -> Option<Arc<Event>> {
        let at = self.by.iter().position(|by| *by == session)?;
        self.by.swap_remove(at);
        Some(std::mem::take(&mut self.arrived))
    }

    /// The session is gone, however often it expected it; as above.
    fn remove_all(&mut self, session: u64) -> Option<Arc<Event>> {
        let told = self.remove(session)?;
        self.by.retain(|by| *by != session);
        Some(told)
    }
}

impl Outcomes {
    pub(crate) fn expect(&mut self, session: u64, job: JobId, expires: Option<SystemTime>) {
        let expected = self.jobs.entry(job).or_default().expected.get_or_insert_default();
        expected.expires = expires;
        expected.by.push(session);
    }

    /// Whose wait ends by this outcome is in the answer.
    pub(crate) fn store(
        &mut self,
        job: JobId,
        outcome: Outcome,
        now: SystemTime,
    ) -> Option<Arc<Event>> {
        let is_final = outcome.state.is_final();
        match self.jobs.get_mut(&job) {
            Some(entry) => {
                if entry.known.as_ref().is_some_and(|(old, _)| !replaces(outcome.state, old.state))
                {
                    return None;
                }
                entry.known = Some((outcome, now));
                if let Some(expected) = &entry.expected {
                    return is_final.then(|| expected.arrived.clone());
                }
            }
            None => {
                let entry = Entry { known: Some((outcome, now)), expected: None };
                self.jobs.insert(job.clone(), entry);
            }
        }
        self.keep_for_a_while(job, now);
        None
    }

    pub(crate) fn get(&self, job: &JobId) -> Option<&Outcome> {
        self.jobs.get(job)?.known.as_ref().map(|(outcome, _)| outcome)
    }

    /// What is set when the outcome comes that this session expects, and when its job expires.
    pub(crate) fn arrival(
        &self,
        session: u64,
        job: &JobId,
    ) -> Option<(Arc<Event>, Option<SystemTime>)> {
        let expected = self.jobs.get(job)?.expected.as_ref()?;
        expected.by.contains(&session).then(|| (expected.arrived.clone(), expected.expires))
    }

    /// The session asks no more; what is returned is to be told so.
    pub(crate) fn forget(&mut self, session: u64, job: &JobId) -> Option<Arc<Event>> {
        let Some(expected) = self.jobs.get_mut(job)?.expected.as_mut() else {
            self.jobs.remove(job);
            return None;
        };
        let told = expected.remove(session);
        if expected.by.is_empty() {
            self.jobs.remove(job);
        }
        told
    }

    /// The session is gone. What it expected is kept for a while.
    pub(crate) fn leave(&mut self, session: u64) -> Vec<Arc<Event>> {
        let mut told = Vec::new();
        let mut left = Vec::new();
        for (job, entry) in &mut self.jobs {
            let Some(expected) = &mut entry.expected else { continue };
            if let Some(arrived) = expected.remove_all(session) {
                told.push((job.clone(), arrived));
                if expected.by.is_empty() {
                    entry.expected = None;
                    left.push((entry.known.as_ref().map(|(_, since)| *since), job.clone()));
                }
            }
        }
        // In an order that a simulation repeats.
        left.sort();
        told.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (since, job) in left {
            match since {
                Some(since) => self.unexpected.push_back((since, job)),
                None => drop(self.jobs.remove(&job)),
            }
        }
        told.into_iter().map(|(_, arrived)| arrived).collect()
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
            let is_as_old = |entry: &Entry| {
                entry.expected.is_none()
                    && entry.known.as_ref().is_some_and(|(_, known)| known <= since)
            };
            if self.jobs.get(job).is_some_and(is_as_old) {
                self.jobs.remove(job);
            }
            self.unexpected.pop_front();
        }
    }
}

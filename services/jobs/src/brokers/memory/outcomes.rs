//! The outcomes in a memory store, and their waiters.
//!
//! An expected outcome is kept until its waiters forget it or close their sessions; any other for a
//! limited time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pikake_sync::shared::Event;

use crate::broker::outcomes::replaces;
use crate::message::{JobId, Outcome};

/// How long an outcome without waiters is kept.
const UNEXPECTED_LIFETIME: Duration = Duration::from_secs(3_600);

/// How many outcomes without waiters are kept.
pub(crate) const UNEXPECTED_LIMIT: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// A hash map, since jobs may be many and ids are long: a tree would compare one id per level,
    /// each a cache miss. The map's iteration order must not become visible.
    jobs: HashMap<JobId, Entry>,
    /// Outcomes without waiters, the oldest first. Some may since have been removed or expected
    /// again.
    unexpected: VecDeque<(SystemTime, JobId)>,
    /// How long an outcome without waiters is kept, if not for [`UNEXPECTED_LIFETIME`].
    lifetime: Option<Duration>,
}

/// A job's outcome and its waiters.
#[derive(Debug, Default)]
struct Entry {
    /// The latest outcome, and when it was stored.
    known: Option<(Outcome, SystemTime)>,
    expected: Option<Expected>,
}

#[derive(Debug, Default)]
struct Expected {
    /// The sessions that expect the outcome, one entry for each `expect`; almost always one.
    by: Vec<u64>,
    /// When the job expires.
    expires: Option<SystemTime>,
    /// Set when the final outcome is stored. Replaced when a session stops expecting the outcome.
    arrived: Arc<Event>,
}

impl Expected {
    /// Removes one `expect` of the session. Returns the event to set: other waiters then check
    /// again and wait on.
    fn remove(&mut self, session: u64) -> Option<Arc<Event>> {
        let at = self.by.iter().position(|by| *by == session)?;
        self.by.swap_remove(at);
        Some(std::mem::take(&mut self.arrived))
    }

    /// Removes every `expect` of the session. Returns the event to set, as [`remove`](Self::remove)
    /// does.
    fn remove_all(&mut self, session: u64) -> Option<Arc<Event>> {
        let waiter = self.remove(session)?;
        self.by.retain(|by| *by != session);
        Some(waiter)
    }
}

impl Outcomes {
    pub(crate) fn expect(&mut self, session: u64, job: JobId, expires: Option<SystemTime>) {
        let expected = self.jobs.entry(job).or_default().expected.get_or_insert_default();
        expected.expires = expires;
        expected.by.push(session);
    }

    /// Stores an outcome. Returns the event to set if a wait ends by it.
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
        self.keep_unexpected(job, now);
        None
    }

    /// Sets how long outcomes without waiters are kept.
    pub(crate) fn set_lifetime(&mut self, length: Duration) {
        self.lifetime = Some(length);
    }

    fn is_too_old(&self, since: SystemTime, now: SystemTime) -> bool {
        let age = now.duration_since(since).unwrap_or_default();
        age >= self.lifetime.unwrap_or(UNEXPECTED_LIFETIME)
    }

    pub(crate) fn get(&self, job: &JobId, now: SystemTime) -> Option<&Outcome> {
        let entry = self.jobs.get(job)?;
        let (outcome, since) = entry.known.as_ref()?;
        let is_kept = entry.expected.is_some() || !self.is_too_old(*since, now);
        is_kept.then_some(outcome)
    }

    /// The event for an outcome that this session expects, and when its job expires.
    pub(crate) fn arrival(
        &self,
        session: u64,
        job: &JobId,
    ) -> Option<(Arc<Event>, Option<SystemTime>)> {
        let expected = self.jobs.get(job)?.expected.as_ref()?;
        expected.by.contains(&session).then(|| (expected.arrived.clone(), expected.expires))
    }

    /// Cancels one `expect` of the session. Returns the event to set.
    pub(crate) fn forget(&mut self, session: u64, job: &JobId) -> Option<Arc<Event>> {
        let Some(expected) = self.jobs.get_mut(job)?.expected.as_mut() else {
            self.jobs.remove(job);
            return None;
        };
        let waiter = expected.remove(session);
        if expected.by.is_empty() {
            self.jobs.remove(job);
        }
        waiter
    }

    /// Cancels every `expect` of a closed session; known outcomes become unexpected. Returns the
    /// events to set.
    pub(crate) fn forget_session(&mut self, session: u64) -> Vec<Arc<Event>> {
        let mut waiters = Vec::new();
        let mut left = Vec::new();
        for (job, entry) in &mut self.jobs {
            let Some(expected) = &mut entry.expected else { continue };
            if let Some(arrived) = expected.remove_all(session) {
                waiters.push((job.clone(), arrived));
                if expected.by.is_empty() {
                    entry.expected = None;
                    left.push((entry.known.as_ref().map(|(_, since)| *since), job.clone()));
                }
            }
        }
        // Sorted, so that the hash map's order does not show in a simulation.
        left.sort();
        waiters.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (since, job) in left {
            match since {
                Some(since) => self.unexpected.push_back((since, job)),
                None => drop(self.jobs.remove(&job)),
            }
        }
        waiters.into_iter().map(|(_, arrived)| arrived).collect()
    }

    /// Keeps an outcome without waiters, and removes those that are too old or too many.
    fn keep_unexpected(&mut self, job: JobId, now: SystemTime) {
        self.unexpected.push_back((now, job));
        while let Some((since, job)) = self.unexpected.front() {
            if self.unexpected.len() <= UNEXPECTED_LIMIT && !self.is_too_old(*since, now) {
                break;
            }
            // The outcome may have been stored again, or expected, since it was queued here.
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

//! The outcomes in a database: stored, and read while a task waits for one.
//!
//! The thread of the database and the waiting tasks share [`Watches`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pikake_sync::shared::Event;
use rusqlite::{Connection, Result};

use crate::brokers::sqlite::inbox::lock;
use crate::brokers::sqlite::row::{micros_of, wall_now};
use crate::brokers::sqlite::statements::{self as sql, OUTCOME_LIFE};
use crate::message::{JobId, Outcome};

/// The state that the thread of a database keeps for outcomes.
pub(crate) struct Outcomes {
    pub(crate) watches: Arc<Watches>,
    /// The id of the last outcome that was read, while a task waits for one.
    last: Option<i64>,
    /// The same as of the last committed transaction.
    committed_last: Option<i64>,
    /// Outcomes to deliver once the transaction has been committed.
    stored: Vec<(JobId, Outcome)>,
    /// How much longer than [`OUTCOME_LIFE`] outcomes are kept, in microseconds; negative: how much
    /// shorter. They are dated ahead or back by it.
    pub(crate) ahead: i64,
}

impl Outcomes {
    pub(crate) fn new(watches: Arc<Watches>) -> Self {
        Self { watches, last: None, committed_last: None, stored: Vec::new(), ahead: 0 }
    }

    pub(crate) fn store(
        &mut self,
        db: &Connection,
        job: JobId,
        outcome: Outcome,
        now: i64,
    ) -> Result<()> {
        if sql::store(db, &job.0, &outcome, now, self.ahead)? && outcome.state.is_final() {
            self.stored.push((job, outcome));
        }
        Ok(())
    }

    /// Reads the outcome of a job for a task that waits; from now on `look` reads what other
    /// processes store.
    pub(crate) fn ask(&mut self, db: &Connection, job: &JobId) -> Result<Option<Outcome>> {
        if self.last.is_none() {
            self.last = Some(sql::last_outcome(db)?);
        }
        sql::outcome_of(db, &job.0, wall_now())
    }

    /// Notifies the waiters of the outcomes that other processes have stored; `true` if there were
    /// any.
    pub(crate) fn look(&mut self, db: &Connection) -> Result<bool> {
        let Some(last) = self.last else { return Ok(false) };
        for (id, job) in sql::outcomes_after(db, last)? {
            let job = JobId(job);
            if self.watches.get(&job).is_some() {
                let outcome = sql::outcome_of(db, &job.0, wall_now())?;
                if let Some(outcome) = outcome.filter(|outcome| outcome.state.is_final()) {
                    self.watches.arrive(&job, outcome);
                }
            }
            (self.last, self.committed_last) = (Some(id), Some(id));
        }
        Ok(self.last != Some(last))
    }

    /// Forgets the last outcome that was read: no task waits.
    pub(crate) fn rest(&mut self) {
        (self.last, self.committed_last) = (None, None);
    }

    /// The transaction has been committed.
    pub(crate) fn settle(&mut self) {
        self.committed_last = self.last;
        for (job, outcome) in std::mem::take(&mut self.stored) {
            self.watches.arrive(&job, outcome);
        }
    }

    /// The transaction was rolled back.
    pub(crate) fn unsettle(&mut self) {
        self.stored.clear();
        self.last = self.committed_last;
    }
}

/// The outcomes that this connection expects.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// With the number of times that each is expected.
    expected: Mutex<BTreeMap<JobId, (usize, Arc<Watch>)>>,
    waiting: AtomicUsize,
}

/// An outcome that is expected.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When the job expires.
    pub(crate) expires: Option<SystemTime>,
    /// When the outcome was last known to be missing still.
    known_missing: AtomicI64,
    outcome: Mutex<Option<Outcome>>,
    /// Set when the outcome has arrived, or is no longer expected.
    pub(crate) arrived: Event,
}

impl Watch {
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        lock(&self.outcome).clone()
    }

    /// Whether the outcome may have been stored and removed for its age since it was last looked
    /// for.
    pub(crate) fn may_be_gone(&self, now: i64) -> bool {
        self.known_missing.load(Ordering::Acquire) < now - micros_of(OUTCOME_LIFE)
    }

    /// The outcome is missing still, or was a moment ago.
    pub(crate) fn mark_missing(&self, now: i64) {
        self.known_missing.store(now, Ordering::Release);
    }
}

impl Watches {
    pub(crate) fn expect(&self, job: JobId, expires: Option<SystemTime>, now: i64) {
        let watch = || Arc::new(Watch { expires, known_missing: now.into(), ..Watch::default() });
        lock(&self.expected).entry(job).or_insert_with(|| (0, watch())).0 += 1;
    }

    pub(crate) fn get(&self, job: &JobId) -> Option<Arc<Watch>> {
        lock(&self.expected).get(job).map(|(_, watch)| watch.clone())
    }

    /// A final outcome has been stored.
    pub(crate) fn arrive(&self, job: &JobId, outcome: Outcome) {
        if let Some(watch) = self.get(job) {
            *lock(&watch.outcome) = Some(outcome);
            watch.arrived.set();
        }
    }

    /// Expects an outcome one time less; `true` if it is no longer expected.
    pub(crate) fn forget(&self, job: &JobId) -> bool {
        let mut expected = lock(&self.expected);
        if let Some((times, _)) = expected.get_mut(job).filter(|(times, _)| *times > 1) {
            *times -= 1;
            return false;
        }
        let gone = expected.remove(job);
        drop(expected);
        if let Some((_, watch)) = gone {
            watch.arrived.set();
        }
        true
    }

    /// Wakes all waiters: no outcome arrives any more.
    pub(crate) fn close(&self) {
        let all = std::mem::take(&mut *lock(&self.expected));
        for (_, watch) in all.values() {
            watch.arrived.set();
        }
    }

    /// Whether a task waits now.
    pub(crate) fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Counts a waiting task until the guard is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self)
    }
}

/// Counts a task that waits for an outcome.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Watches);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

//! The outcomes in a database: stored, and looked for while somebody waits for one.
//!
//! [`Watches`] is what the thread of the database shares with the tasks that wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pikake_sync::shared::Event;
use rusqlite::{Connection, Result};

use crate::brokers::sqlite::inbox::lock;
use crate::brokers::sqlite::row::micros_of;
use crate::brokers::sqlite::statements::{self as sql, OUTCOME_LIFE};
use crate::message::{JobId, Outcome};

/// What the thread of a database knows of outcomes.
pub(crate) struct Outcomes {
    pub(crate) watches: Arc<Watches>,
    /// The last outcome that was seen, while somebody waits for one.
    last: Option<i64>,
    /// What counts once the transaction has been committed.
    stored: Vec<(JobId, Outcome)>,
}

impl Outcomes {
    pub(crate) fn new(watches: Arc<Watches>) -> Self {
        Self { watches, last: None, stored: Vec::new() }
    }

    pub(crate) fn store(
        &mut self,
        db: &Connection,
        job: JobId,
        outcome: Outcome,
        now: i64,
    ) -> Result<()> {
        if sql::store(db, &job.0, &outcome, now)? && outcome.state.is_final() {
            self.stored.push((job, outcome));
        }
        Ok(())
    }

    /// Somebody waits for an outcome: what is known of it. From now on others' are looked for.
    pub(crate) fn ask(&mut self, db: &Connection, job: &JobId) -> Result<Option<Outcome>> {
        if self.last.is_none() {
            self.last = Some(sql::last_outcome(db)?);
        }
        sql::outcome_of(db, &job.0)
    }

    /// Tells those who wait of the outcomes that others have stored.
    pub(crate) fn look(&mut self, db: &Connection) -> Result<()> {
        let Some(last) = self.last else { return Ok(()) };
        for (id, job) in sql::outcomes_after(db, last)? {
            let job = JobId(job);
            if self.watches.get(&job).is_some()
                && let Some(outcome) = sql::outcome_of(db, &job.0)?
                && outcome.state.is_final()
            {
                self.watches.arrive(&job, outcome);
            }
            self.last = Some(id);
        }
        Ok(())
    }

    /// Nobody waits.
    pub(crate) fn rest(&mut self) {
        self.last = None;
    }

    /// The transaction has been committed.
    pub(crate) fn settle(&mut self) {
        for (job, outcome) in std::mem::take(&mut self.stored) {
            self.watches.arrive(&job, outcome);
        }
    }

    /// The transaction came to nothing.
    pub(crate) fn unsettle(&mut self) {
        self.stored.clear();
    }
}

/// The outcomes that this connection expects.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    /// With how often each is expected.
    expected: Mutex<BTreeMap<JobId, (usize, Arc<Watch>)>>,
    waiting: AtomicUsize,
}

/// An outcome that is expected.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When its job is worth nothing any more.
    pub(crate) expires: Option<SystemTime>,
    /// When its outcome was last known to be still to come.
    sure: AtomicI64,
    outcome: Mutex<Option<Outcome>>,
    /// Set when it has come, or is not expected any more.
    pub(crate) arrived: Event,
}

impl Watch {
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        lock(&self.outcome).clone()
    }

    /// Whether its outcome may have come and gone again, for its age, since somebody looked.
    pub(crate) fn is_in_doubt(&self, now: i64) -> bool {
        self.sure.load(Ordering::Acquire) < now - micros_of(OUTCOME_LIFE)
    }

    /// It is still to come, or was a moment ago.
    pub(crate) fn set_sure(&self, now: i64) {
        self.sure.store(now, Ordering::Release);
    }
}

impl Watches {
    pub(crate) fn expect(&self, job: JobId, expires: Option<SystemTime>, now: i64) {
        let watch = || Arc::new(Watch { expires, sure: now.into(), ..Watch::default() });
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

    /// Expects it once less; tells whether nobody here expects it any more.
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

    /// Nothing arrives any more.
    pub(crate) fn close(&self) {
        let all = std::mem::take(&mut *lock(&self.expected));
        for (_, watch) in all.values() {
            watch.arrived.set();
        }
    }

    /// Whether somebody waits now.
    pub(crate) fn are_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Somebody waits, until this is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self)
    }
}

/// Somebody who waits for an outcome.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Watches);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

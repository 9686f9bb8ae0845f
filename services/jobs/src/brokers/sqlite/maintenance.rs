//! What the thread of a database does unasked, and when: it looks for other processes' messages and outcomes, sends
//! heartbeats, and removes old outcomes.

use std::time::{Duration, Instant};

use rusqlite::Result;

use crate::brokers::sqlite::database::Database;
use crate::brokers::sqlite::row::{micros_of, wall_now};
use crate::brokers::sqlite::schema::failed;
use crate::brokers::sqlite::statements::{self as sql, OUTCOME_LIFE};

/// The pause between two looks after one that found something. It doubles with each look that finds nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// The longest pause between two looks. Half of it is the mean delay of another process' message.
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// How often old outcomes are removed.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// The pause after a transaction that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest sleep, when there is nothing to do at all.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

pub(crate) struct Maintenance {
    look_every: Duration,
    looked: Instant,
    forgotten: Option<Instant>,
    failed: Option<Instant>,
    /// A heartbeat is due, and there are leases.
    needs_heartbeat: bool,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            look_every: FIRST_PAUSE,
            looked: Instant::now(),
            forgotten: None,
            failed: None,
            needs_heartbeat: false,
        }
    }
}

impl Maintenance {
    /// How long the thread may sleep if no call comes.
    pub(crate) fn pause(&self, database: &Database) -> Duration {
        if self.needs_transaction(database) {
            let since = self.failed.map(|failed| failed.elapsed());
            return since.map_or(Duration::ZERO, |since| RETRY_AFTER.saturating_sub(since));
        }
        let mut pause = LONGEST_PAUSE;
        if watches_others(database) {
            pause = pause.min(self.look_every.saturating_sub(self.looked.elapsed()));
        }
        if let Some(due) = database.next_due() {
            let length = u64::try_from(due - wall_now()).unwrap_or(0);
            pause = pause.min(Duration::from_micros(length));
        }
        if sends_heartbeats(database) {
            pause = pause.min(database.lease.until_heartbeat());
        }
        pause
    }

    fn needs_transaction(&self, database: &Database) -> bool {
        self.needs_heartbeat || database.could_give()
    }

    /// Whether the last failure is long enough ago.
    pub(crate) fn may_try(&self) -> bool {
        self.failed.is_none_or(|failed| failed.elapsed() >= RETRY_AFTER)
    }

    /// Reads what has changed; `true` if a transaction is needed.
    pub(crate) fn look_around(&mut self, database: &mut Database) -> Result<bool> {
        let now = wall_now();
        for (queue, due) in &database.due {
            if *due <= now {
                database.full.insert(*queue);
            }
        }
        if sends_heartbeats(database) && database.lease.until_heartbeat().is_zero() {
            self.needs_heartbeat = !database.lease.skip_heartbeat(&database.db)?;
        }
        if watches_others(database) && self.looked.elapsed() >= self.look_every {
            self.look_at_others(database, now)?;
        }
        Ok(self.needs_transaction(database))
    }

    fn look_at_others(&mut self, database: &mut Database, now: i64) -> Result<()> {
        self.looked = Instant::now();
        database.check_file()?;
        let has_messages = database.look_for_messages(now)?;
        let has_outcomes = database.outcomes.look(&database.db)?;
        self.look_every = match has_messages || has_outcomes {
            true => FIRST_PAUSE,
            false => (self.look_every * 2).min(LAST_PAUSE),
        };
        Ok(())
    }

    /// What is done in each transaction, after the calls.
    pub(crate) fn work(&mut self, database: &mut Database) -> Result<()> {
        let now = wall_now();
        if self.needs_heartbeat {
            database.heartbeat(now)?;
        }
        if self.forgotten.is_none_or(|forgotten| forgotten.elapsed() >= FORGET_EVERY) {
            sql::forget_before(&database.db, now - micros_of(OUTCOME_LIFE))?;
            self.forgotten = Some(Instant::now());
        }
        database.fill(now)?;
        (self.needs_heartbeat, self.failed) = (false, None);
        Ok(())
    }

    /// The database could not be read or written.
    pub(crate) fn fail(&mut self, database: &Database, error: &rusqlite::Error) {
        self.failed = Some(Instant::now());
        database.fail(|| failed(&database.path, error));
    }
}

/// Whether a consumer or a waiter here needs what other processes do.
fn watches_others(database: &Database) -> bool {
    database.has_room() || database.outcomes.watches.are_awaited()
}

/// Whether this process has leases to renew, or has to find those that have expired.
fn sends_heartbeats(database: &Database) -> bool {
    !database.consumers.is_empty() || database.outcomes.watches.are_awaited()
}

//! The work that the thread of a database does without a call, and its times: it looks for other
//! processes' messages and outcomes, sends heartbeats, and removes old outcomes.

use std::time::{Duration, Instant};

use rusqlite::Result;

use crate::brokers::sqlite::database::Database;
use crate::brokers::sqlite::row::{micros_of, wall_now};
use crate::brokers::sqlite::schema::failed;
use crate::brokers::sqlite::statements::{self as sql, OUTCOME_LIFE};

/// The pause between two looks after one that found something. It doubles with each look that finds
/// nothing.
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
    /// When the last transaction failed, until one succeeds.
    failed: Option<Instant>,
    /// The same for heartbeats.
    heartbeat_failed: Option<Instant>,
    /// A heartbeat is due, and there are leases.
    needs_heartbeat: bool,
    /// The heartbeat could not begin its transaction, and has to be in the next one that can.
    is_heartbeat_late: bool,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            look_every: FIRST_PAUSE,
            looked: Instant::now(),
            forgotten: None,
            failed: None,
            heartbeat_failed: None,
            needs_heartbeat: false,
            is_heartbeat_late: false,
        }
    }
}

/// What is left of a pause that began at `since`.
fn left(since: Option<Instant>, pause: Duration) -> Duration {
    since.map_or(Duration::ZERO, |since| pause.saturating_sub(since.elapsed()))
}

impl Maintenance {
    /// How long the thread may sleep if no call comes.
    pub(crate) fn pause(&self, database: &Database) -> Duration {
        let mut pause = LONGEST_PAUSE;
        if database.needs_fill() {
            pause = pause.min(left(self.failed, RETRY_AFTER));
        }
        if let Some(until_alive) = database.bus.until_alive() {
            pause = pause.min(until_alive.max(left(self.failed, RETRY_AFTER)));
        }
        if watches_others(database) {
            pause = pause.min(left(Some(self.looked), self.look_every));
        }
        if let Some(due) = database.next_due() {
            let length = u64::try_from(due - wall_now()).unwrap_or(0);
            pause = pause.min(Duration::from_micros(length));
        }
        match self.needs_heartbeat {
            true => pause.min(left(self.heartbeat_failed, database.lease.retry_pause())),
            false if sends_heartbeats(database) => pause.min(database.lease.until_heartbeat()),
            false => pause,
        }
    }

    /// Whether a heartbeat is due, and the last failure of one is long enough ago.
    pub(crate) fn may_send_heartbeat(&self, database: &Database) -> bool {
        let retry_pause = database.lease.retry_pause();
        self.needs_heartbeat && left(self.heartbeat_failed, retry_pause).is_zero()
    }

    /// Whether a transaction is needed without calls, and the last failure is long enough ago.
    pub(crate) fn may_fill(&self, database: &Database) -> bool {
        let is_due = database.needs_fill() || database.bus.until_alive() == Some(Duration::ZERO);
        is_due && left(self.failed, RETRY_AFTER).is_zero()
    }

    /// Reads what has changed.
    pub(crate) fn look_around(&mut self, database: &mut Database) -> Result<()> {
        let now = wall_now();
        for (queue, due) in &database.due {
            if *due <= now {
                database.full.insert(*queue);
            }
        }
        if sends_heartbeats(database) && database.lease.until_heartbeat().is_zero() {
            // An error here is that of the heartbeat, too.
            self.needs_heartbeat = !database.lease.skip_heartbeat(&database.db).unwrap_or(false);
        }
        if watches_others(database) && self.looked.elapsed() >= self.look_every {
            self.look_at_others(database, now)?;
        }
        Ok(())
    }

    fn look_at_others(&mut self, database: &mut Database, now: i64) -> Result<()> {
        self.looked = Instant::now();
        self.look_every = (self.look_every * 2).min(LAST_PAUSE);
        database.check_file()?;
        let has_messages = database.look_for_messages(now)?;
        let has_outcomes = database.outcomes.look(&database.db)?;
        let has_notices = database.bus.look(&database.db)?;
        if has_messages || has_outcomes || has_notices {
            self.look_every = FIRST_PAUSE;
        }
        Ok(())
    }

    /// Work for each transaction, after the calls.
    pub(crate) fn work(&mut self, database: &mut Database) -> Result<()> {
        let now = wall_now();
        if left(self.forgotten, FORGET_EVERY).is_zero() {
            sql::forget_before(&database.db, now - micros_of(OUTCOME_LIFE))?;
            self.forgotten = Some(Instant::now());
        }
        if self.is_heartbeat_late {
            database.heartbeat()?;
        }
        database.bus.work(&database.db, now)?;
        database.fill(now)
    }

    /// A transaction has been committed, or has failed.
    pub(crate) fn worked(&mut self, database: &Database, done: Result<()>) {
        match done {
            Ok(()) => {
                self.failed = None;
                if self.is_heartbeat_late {
                    self.heartbeat_sent(database, Ok(()));
                }
            }
            Err(error) => {
                self.failed = Some(Instant::now());
                database.fail(|| failed(&database.path, &error));
            }
        }
    }

    /// A heartbeat has been committed, or has failed.
    pub(crate) fn heartbeat_sent(&mut self, database: &Database, sent: Result<()>) {
        match sent {
            Ok(()) => {
                (self.needs_heartbeat, self.heartbeat_failed) = (false, None);
                self.is_heartbeat_late = false;
            }
            Err(error) => {
                self.heartbeat_failed = Some(Instant::now());
                self.is_heartbeat_late =
                    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
                database.fail(|| failed(&database.path, &error));
            }
        }
    }

    /// Forgets what is kept only for consumers and waiters that are gone.
    pub(crate) fn rest(&mut self, database: &mut Database) {
        if !database.outcomes.watches.are_awaited() {
            database.outcomes.rest();
        }
        if !sends_heartbeats(database) {
            (self.needs_heartbeat, self.is_heartbeat_late) = (false, false);
            database.lease.rest();
        }
    }
}

/// Whether a consumer or a waiter here needs what other processes do.
fn watches_others(database: &Database) -> bool {
    database.has_room() || database.outcomes.watches.are_awaited() || database.bus.has_subscribers()
}

/// Whether this process has leases to renew, or has to find those that have expired.
fn sends_heartbeats(database: &Database) -> bool {
    !database.consumers.is_empty() || database.outcomes.watches.are_awaited()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::brokers::sqlite::row::Row;
    use crate::message::Message;

    /// The time of a delayed message has come, and its transaction has failed.
    #[test]
    fn a_failed_transaction_is_retried_after_a_pause() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("jobs.db");
        let mut database =
            Database::open(path, Duration::from_secs(10), Arc::default()).ok().unwrap();
        sql::make_queue(&database.db, "work", 0).unwrap();
        let queue = sql::queue(&database.db, "work").unwrap().unwrap();
        let row = Row::of(&Message::default());
        sql::publish(&database.db, queue, &row, Some(wall_now() - 1)).unwrap();
        database.add_consumer(1, queue.0, 1, false, Arc::default());
        database.due.insert(queue.0, wall_now() - 1);
        let mut maintenance = Maintenance { look_every: LONGEST_PAUSE, ..Maintenance::default() };
        maintenance.look_around(&mut database).unwrap();
        assert!(maintenance.may_fill(&database));
        maintenance.needs_heartbeat = false;
        maintenance.worked(&database, Err(rusqlite::Error::InvalidQuery));
        assert!(!maintenance.may_fill(&database));
        let pause = maintenance.pause(&database);
        assert!(pause > RETRY_AFTER / 4 && pause <= RETRY_AFTER, "{pause:?}");
    }
}

//! The lease under which an open database holds the messages that its consumers have taken.
//!
//! A process that holds messages renews its lease by a heartbeat every third of it. When a lease
//! has expired, the heartbeat of any other process ends the lease, and requeues its messages:
//! `kill -9` delays them for the length of a lease at most. A process that hung finds at its next
//! heartbeat that its lease has ended; until then its acknowledgements fail.
//!
//! Leases are in the database's time. Only heartbeats advance that time, each by what its process
//! has measured with the monotonic clock since its previous heartbeat. The wall clock has no part
//! in it, so setting the clock ends no lease. A process counts half a lease between two heartbeats
//! at most, and only committed heartbeats count: when all processes were stopped together, or none
//! could write, each has time to renew its lease before another process ends it.

use std::time::{Duration, Instant};

use rusqlite::{Connection, Result};

use crate::brokers::sqlite::row::micros_of;
use crate::brokers::sqlite::statements as sql;

/// The longest pause before a heartbeat that failed is retried. After a pause of all processes, the
/// holder of a lease has at least a sixth of the lease left.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Lease {
    length: Duration,
    committed: State,
    /// As the transaction under way leaves it.
    current: State,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The row of the lease, while the process may hold messages.
    id: Option<i64>,
    /// The database's time at the previous heartbeat, and when that was.
    pinned: Option<(i64, Instant)>,
    next_heartbeat: Instant,
}

impl Lease {
    pub(crate) fn new(length: Duration) -> Self {
        let state = State { id: None, pinned: None, next_heartbeat: Instant::now() };
        Self { length, committed: state, current: state }
    }

    pub(crate) fn id(&self) -> Option<i64> {
        self.current.id
    }

    /// How long until the next heartbeat.
    pub(crate) fn until_heartbeat(&self) -> Duration {
        self.current.next_heartbeat.saturating_duration_since(Instant::now())
    }

    /// Skips the heartbeat if there are no leases; `true` if it was skipped.
    pub(crate) fn skip_heartbeat(&mut self, db: &Connection) -> Result<bool> {
        let is_idle = self.current.id.is_none() && sql::first_expiry(db)?.is_none();
        if is_idle {
            let next_heartbeat = Instant::now() + self.length / 3;
            self.current = State { id: None, pinned: None, next_heartbeat };
            self.committed = self.current;
        }
        Ok(is_idle)
    }

    /// Forgets the database's time: from now on this process sends no heartbeats.
    pub(crate) fn rest(&mut self) {
        (self.current.pinned, self.committed.pinned) = (None, None);
    }

    /// The pause before a heartbeat that failed is retried.
    pub(crate) fn retry_pause(&self) -> Duration {
        RETRY_PAUSE.min(self.length / 12)
    }

    /// Advances the database's time, renews the lease (or ends it, if the process holds no
    /// messages) and ends the expired leases of other processes; `true` if there were any.
    pub(crate) fn heartbeat(&mut self, db: &Connection, holds_messages: bool) -> Result<bool> {
        let now = self.advance_clock(db)?;
        if !holds_messages {
            self.end(db)?;
        } else if let Some(id) = self.current.id {
            let is_renewed = sql::renew(db, id, now + micros_of(self.length))?;
            self.current.id = is_renewed.then_some(id);
        }
        let ended = sql::end_expired(db, now)?;
        let third = micros_of(self.length / 3);
        let pause = sql::first_expiry(db)?.map_or(third, |expiry| third.min(expiry - now));
        let pause = Duration::from_micros(u64::try_from(pause).unwrap_or_default());
        self.current.next_heartbeat = Instant::now() + pause;
        Ok(ended > 0)
    }

    /// The id of a lease under which this transaction may take messages.
    pub(crate) fn ensure(&mut self, db: &Connection) -> Result<i64> {
        if let Some(id) = self.current.id {
            if sql::has_lease(db, id)? {
                return Ok(id);
            }
        }
        let until = self.advance_clock(db)? + micros_of(self.length);
        let id = sql::begin_lease(db, until)?;
        self.current.id = Some(id);
        // The next heartbeat may be due sooner, for the lease of another process.
        let latest = Instant::now() + self.length / 3;
        self.current.next_heartbeat = self.current.next_heartbeat.min(latest);
        Ok(id)
    }

    /// Ends the lease, and requeues its messages.
    pub(crate) fn end(&mut self, db: &Connection) -> Result<()> {
        if let Some(id) = self.current.id.take() {
            sql::end_lease(db, id)?;
        }
        // The last heartbeat of this process, perhaps: it would forget the time that has passed.
        if self.current.pinned.is_some() && sql::first_expiry(db)?.is_some() {
            self.advance_clock(db)?;
        }
        Ok(())
    }

    fn advance_clock(&mut self, db: &Connection) -> Result<i64> {
        let stored = sql::clock(db)?;
        let measured = self
            .current
            .pinned
            .map_or(stored, |(then, at)| then + micros_of(at.elapsed().min(self.length / 2)));
        let now = stored.max(measured);
        sql::set_clock(db, now)?;
        self.current.pinned = Some((now, Instant::now()));
        Ok(now)
    }

    /// The transaction has been committed; `true` if the lease that there was before has ended.
    pub(crate) fn settle(&mut self) -> bool {
        let pinned = self.current.pinned.filter(|_| self.committed.pinned != self.current.pinned);
        if let Some((now, at)) = pinned {
            // The time that the commit took does not count: a slow disk would end leases.
            self.current.next_heartbeat += at.elapsed();
            self.current.pinned = Some((now, Instant::now()));
        }
        let has_ended = self.committed.id.is_some() && self.committed.id != self.current.id;
        self.committed = self.current;
        has_ended
    }

    /// The transaction was rolled back.
    pub(crate) fn unsettle(&mut self) {
        self.current = self.committed;
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::brokers::sqlite::row::Row;
    use crate::brokers::sqlite::schema;
    use crate::message::Message;

    const LEASE: Duration = Duration::from_secs(10);

    /// A lease on a connection of its own, with time that the test moves on.
    struct Process {
        db: Connection,
        lease: Lease,
        holds_messages: bool,
    }

    impl Process {
        fn new(directory: &TempDir) -> Self {
            let db = schema::open(&directory.path().join("jobs.db")).unwrap();
            Self { db, lease: Lease::new(LEASE), holds_messages: false }
        }

        /// Publishes a message and takes it.
        fn take(&mut self) -> i64 {
            if sql::queue(&self.db, "work").unwrap().is_none() {
                sql::make_queue(&self.db, "work", 0).unwrap();
            }
            let queue = sql::queue(&self.db, "work").unwrap().unwrap();
            sql::publish(&self.db, queue, &Row::of(&Message::default()), None).unwrap();
            let id = self.lease.ensure(&self.db).unwrap();
            let taken = sql::take(&self.db, queue.0, id, 1).unwrap();
            self.lease.settle();
            self.holds_messages = true;
            taken[0].id
        }

        fn pass(&mut self, length: Duration) {
            let state = &mut self.lease.committed;
            state.next_heartbeat -= length;
            if let Some((_, at)) = &mut state.pinned {
                *at -= length;
            }
            self.lease.current = self.lease.committed;
        }

        /// The answers of `heartbeat` and `settle`.
        fn heartbeat(&mut self) -> (bool, bool) {
            let ended_others = self.lease.heartbeat(&self.db, self.holds_messages).unwrap();
            (ended_others, self.lease.settle())
        }

        /// Whether the process could acknowledge that message.
        fn holds(&self, message: i64) -> bool {
            let sql = "SELECT 1 FROM message WHERE id = ?1 AND taken_by = ?2";
            self.db.prepare(sql).unwrap().exists((message, self.lease.id())).unwrap()
        }
    }

    fn two() -> (TempDir, Process, Process) {
        let directory = TempDir::new().unwrap();
        let (one, other) = (Process::new(&directory), Process::new(&directory));
        (directory, one, other)
    }

    #[test]
    fn a_renewed_lease_does_not_expire() {
        let (_directory, mut holder, mut other) = two();
        let message = holder.take();
        for _ in 0..20 {
            for process in [&mut other, &mut holder] {
                process.pass(Duration::from_secs(3));
                assert_eq!(process.heartbeat(), (false, false));
            }
        }
        assert!(holder.holds(message));
        assert!(sql::clock(&other.db).unwrap() >= micros_of(Duration::from_secs(60)));
    }

    #[test]
    fn an_expired_lease_requeues_messages() {
        let (_directory, mut hung, mut other) = two();
        let message = hung.take();
        other.heartbeat();
        for seconds in [3, 6, 9] {
            other.pass(Duration::from_secs(3));
            assert_eq!(other.heartbeat(), (false, false), "after {seconds} s");
        }
        // The next heartbeat is due when the lease expires, and not later.
        let left = other.lease.until_heartbeat();
        assert!(left < Duration::from_secs(2), "{left:?}");
        other.pass(Duration::from_secs(1));
        assert_eq!(other.heartbeat(), (true, false));
        assert!(!hung.holds(message));
        assert_eq!(hung.heartbeat(), (false, true), "the hung one finds out");
        assert_eq!(hung.lease.id(), None);
        assert!(other.lease.skip_heartbeat(&other.db).unwrap());
    }

    /// As in a suspended container.
    #[test]
    fn a_pause_of_all_processes_ends_no_lease() {
        let (_directory, mut holder, mut other) = two();
        let message = holder.take();
        other.heartbeat();
        for process in [&mut other, &mut holder] {
            process.pass(Duration::from_secs(3_600));
            assert_eq!(process.heartbeat(), (false, false));
        }
        assert!(holder.holds(message));
    }

    /// As on a full disk, where no process can write.
    #[test]
    fn failed_heartbeats_end_no_lease() {
        let (_directory, mut holder, mut other) = two();
        let message = holder.take();
        other.heartbeat();
        for _ in 0..20 {
            for process in [&mut other, &mut holder] {
                process.pass(Duration::from_secs(3));
                process.db.execute_batch("BEGIN IMMEDIATE").unwrap();
                let is_any_ended = process.lease.heartbeat(&process.db, true).unwrap();
                assert!(!is_any_ended);
                process.db.execute_batch("ROLLBACK").unwrap();
                process.lease.unsettle();
            }
        }
        assert_eq!(other.heartbeat(), (false, false));
        assert_eq!(holder.heartbeat(), (false, false));
        assert!(holder.holds(message));
    }

    /// Heartbeats that follow each other without a gap would keep the holder from writing.
    #[test]
    fn a_slow_commit_does_not_advance_the_clock() {
        let (_directory, mut holder, mut other) = two();
        holder.take();
        other.heartbeat();
        let before = sql::clock(&other.db).unwrap();
        for _ in 0..5 {
            other.lease.heartbeat(&other.db, false).unwrap();
            let slow = LEASE / 2;
            other.lease.current.next_heartbeat -= slow;
            other.lease.current.pinned =
                other.lease.current.pinned.map(|(now, at)| (now, at - slow));
            other.lease.settle();
            let left = other.lease.until_heartbeat();
            assert!(left > LEASE / 4, "{left:?}");
        }
        let passed = sql::clock(&other.db).unwrap() - before;
        assert!(passed < micros_of(LEASE / 4), "{passed} µs");
    }

    /// Else a pause of all processes could advance the clock by half a lease twice.
    #[test]
    fn a_process_at_rest_forgets_the_time() {
        let (_directory, mut holder, mut other) = two();
        other.heartbeat();
        other.lease.rest();
        holder.take();
        other.pass(LEASE);
        let before = sql::clock(&other.db).unwrap();
        other.heartbeat();
        let passed = sql::clock(&other.db).unwrap() - before;
        assert!(passed < micros_of(LEASE / 4), "{passed} µs");
    }

    /// As by a program that polls: consumes, takes a message, and drops the consumer.
    #[test]
    fn short_consumers_advance_the_clock() {
        let (_directory, mut killed, mut polls) = two();
        let message = killed.take();
        for _ in 0..4 {
            polls.take();
            polls.pass(Duration::from_secs(3));
            polls.lease.end(&polls.db).unwrap();
            polls.lease.settle();
            polls.lease.rest();
        }
        polls.heartbeat();
        assert!(!killed.holds(message));
    }

    #[test]
    fn an_idle_process_has_no_lease() {
        let (_directory, mut holder, mut other) = two();
        assert!(holder.lease.skip_heartbeat(&holder.db).unwrap());
        let message = holder.take();
        assert!(!other.lease.skip_heartbeat(&other.db).unwrap());
        let id = holder.lease.id().unwrap();
        assert!(sql::remove(&holder.db, message, id).unwrap());
        holder.holds_messages = false;
        assert_eq!(holder.heartbeat(), (false, true));
        assert!(holder.lease.skip_heartbeat(&holder.db).unwrap());
        // The next messages have a new lease, so no old receipt fits them.
        holder.take();
        assert!(holder.lease.id().unwrap() > id);
    }
}

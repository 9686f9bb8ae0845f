//! The SQL of the broker: one function a statement, to be called inside of a transaction unless it
//! only reads.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::broker::outcomes::{CHORD_LIFETIME, replaces};
use crate::brokers::sqlite::row::{Row, message, micros_of, number, outcome};
use crate::brokers::sqlite::schema::{CHORDS, LOCKS};
use crate::message::{ChordMember, Outcome, OutcomeState};
use crate::wire::request::DROPPED_ON_REPLAY;

/// How long an outcome is kept after its date. Celery keeps them for a day, too.
pub(crate) const OUTCOME_LIFE: Duration = Duration::from_secs(24 * 3_600);

/// A message that was taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) id: i64,
    rank: i64,
    pub(crate) deliveries: u32,
    pub(crate) expires: Option<i64>,
    pub(crate) properties: String,
    pub(crate) body: Vec<u8>,
}

/// A dead message.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) reason: String,
    pub(crate) since: i64,
    pub(crate) properties: String,
    pub(crate) body: Vec<u8>,
}

/// A queue: its number and its highest priority.
pub(crate) fn queue(db: &Connection, name: &str) -> Result<Option<(i64, u8)>> {
    db.prepare_cached("SELECT id, max_priority FROM queue WHERE name = ?1")?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

/// The names of all queues.
pub(crate) fn queues(db: &Connection) -> Result<Vec<String>> {
    let mut names = db.prepare_cached("SELECT name FROM queue ORDER BY name")?;
    names.query_map([], |row| row.get(0))?.collect()
}

pub(crate) fn make_queue(db: &Connection, name: &str, max_priority: u8) -> Result<()> {
    let sql = "INSERT INTO queue (name, max_priority) VALUES (?1, ?2)";
    db.prepare_cached(sql)?.execute(params![name, max_priority]).map(drop)
}

pub(crate) fn publish(
    db: &Connection,
    (queue, max_priority): (i64, u8),
    row: &Row,
    not_before: Option<i64>,
) -> Result<()> {
    let rank = -i64::from(row.priority.min(max_priority));
    let sql = "INSERT INTO message (queue, rank, not_before, expires, properties, body) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(sql)?
        .execute(params![queue, rank, not_before, row.expires, row.properties, row.body])
        .map(drop)
}

/// Makes the delayed messages ready whose time has come, in the order of their times.
pub(crate) fn promote(db: &Connection, queue: i64, now: i64) -> Result<()> {
    let sql = "INSERT INTO message (queue, rank, expires, deliveries, properties, body) \
               SELECT queue, rank, expires, deliveries, properties, body FROM message \
               WHERE queue = ?1 AND not_before <= ?2 ORDER BY not_before, id";
    if db.prepare_cached(sql)?.execute([queue, now])? > 0 {
        let sql = "DELETE FROM message WHERE queue = ?1 AND not_before <= ?2";
        db.prepare_cached(sql)?.execute([queue, now])?;
    }
    Ok(())
}

/// Whether a queue has a ready message, and when its next delayed one is due.
pub(crate) fn ready_and_due(db: &Connection, queue: i64) -> Result<(bool, Option<i64>)> {
    let sql = "SELECT \
        EXISTS (SELECT 1 FROM message WHERE queue = ?1 AND taken_by IS NULL AND not_before IS NULL), \
        (SELECT min(not_before) FROM message WHERE queue = ?1 AND not_before IS NOT NULL)";
    db.prepare_cached(sql)?.query_row([queue], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Whether there is a message of a job. Reads all messages if there is none.
pub(crate) fn has_message(db: &Connection, job: &str) -> Result<bool> {
    let mut statement = db.prepare_cached("SELECT properties FROM message ORDER BY id")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if message(row.get_ref(0)?.as_str()?, None, Vec::new()).job() == Some(job) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the expired messages that no consumer holds; the answer is their properties.
pub(crate) fn expire(db: &Connection, now: i64) -> Result<Vec<String>> {
    let sql = "DELETE FROM message WHERE expires <= ?1 AND taken_by IS NULL RETURNING properties";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([now], |row| row.get(0))?;
    rows.collect()
}

/// Takes the next messages of a queue, in their order.
pub(crate) fn take(db: &Connection, queue: i64, lease: i64, limit: usize) -> Result<Vec<Taken>> {
    let sql = "UPDATE message SET taken_by = ?1, deliveries = deliveries + 1 WHERE id IN \
               (SELECT id FROM message WHERE queue = ?2 AND taken_by IS NULL AND not_before IS NULL \
               ORDER BY rank, id LIMIT ?3) \
               RETURNING id, rank, deliveries, expires, properties, body";
    let mut statement = db.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([lease, queue, limit], |row| {
        Ok(Taken {
            id: row.get(0)?,
            rank: row.get(1)?,
            deliveries: row.get(2)?,
            expires: row.get(3)?,
            properties: row.get(4)?,
            body: row.get(5)?,
        })
    })?;
    let mut taken = rows.collect::<Result<Vec<_>>>()?;
    taken.sort_by_key(|taken| (taken.rank, taken.id));
    Ok(taken)
}

/// Removes a message that was taken under a lease; `false` if it is held under that lease no more.
pub(crate) fn remove(db: &Connection, id: i64, lease: i64) -> Result<bool> {
    let sql = "DELETE FROM message WHERE id = ?1 AND taken_by = ?2";
    Ok(db.prepare_cached(sql)?.execute([id, lease])? > 0)
}

/// Requeues a message that was taken under a lease, at its old position; `false` if it is held
/// under that lease no more. A message that no consumer has seen does not count as delivered.
pub(crate) fn put_back(db: &Connection, id: i64, lease: i64, was_seen: bool) -> Result<bool> {
    let sql = "UPDATE message SET taken_by = NULL, deliveries = deliveries - ?3 \
               WHERE id = ?1 AND taken_by = ?2";
    Ok(db.prepare_cached(sql)?.execute(params![id, lease, !was_seen])? > 0)
}

/// Buries a message; the answer is its number among the dead.
pub(crate) fn bury(db: &Connection, queue: i64, row: &Row, reason: &str, now: i64) -> Result<i64> {
    let sql = "INSERT INTO dead (queue, job, reason, since, properties, body) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    db.prepare_cached(sql)?.execute(params![
        queue,
        row.job,
        reason,
        now,
        row.properties,
        row.body
    ])?;
    Ok(db.last_insert_rowid())
}

pub(crate) fn unbury(db: &Connection, dead: i64) -> Result<()> {
    db.prepare_cached("DELETE FROM dead WHERE id = ?1")?.execute([dead]).map(drop)
}

pub(crate) fn dead(db: &Connection, queue: i64, limit: usize) -> Result<Vec<Dead>> {
    let sql = "SELECT reason, since, properties, body FROM dead WHERE queue = ?1 \
               ORDER BY id LIMIT ?2";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([queue, limit], |row| {
        Ok(Dead {
            reason: row.get(0)?,
            since: row.get(1)?,
            properties: row.get(2)?,
            body: row.get(3)?,
        })
    })?;
    rows.collect()
}

/// Requeues dead messages, at the end of their queue, as new ones that do not expire.
pub(crate) fn replay(
    db: &Connection,
    (queue, max_priority): (i64, u8),
    job: Option<&str>,
) -> Result<u64> {
    let sql = "INSERT INTO message (queue, rank, properties, body) SELECT queue, \
               -min(coalesce(properties ->> 'priority', 0), ?3), \
               json_remove(properties, '$.headers.' || ?4, '$.headers.' || ?5, '$.headers.' || ?6, \
               '$.headers.' || ?7), body \
               FROM dead WHERE queue = ?1 AND (?2 IS NULL OR job = ?2) ORDER BY id";
    let [expires, kills, deliveries, unique] = DROPPED_ON_REPLAY;
    let values = params![queue, job, max_priority, expires, kills, deliveries, unique];
    let count = db.prepare_cached(sql)?.execute(values)?;
    let sql = "DELETE FROM dead WHERE queue = ?1 AND (?2 IS NULL OR job = ?2)";
    db.prepare_cached(sql)?.execute(params![queue, job])?;
    Ok(count as u64)
}

/// Whether a message of a queue is held under another lease.
pub(crate) fn is_held_by_others(db: &Connection, queue: i64, lease: Option<i64>) -> Result<bool> {
    let sql =
        "SELECT 1 FROM message WHERE queue = ?1 AND taken_by IS NOT NULL AND taken_by IS NOT ?2";
    db.prepare_cached(sql)?.exists(params![queue, lease])
}

/// How many are ready, taken, delayed and dead.
pub(crate) fn counts(db: &Connection, queue: i64, now: i64) -> Result<[u64; 4]> {
    let sql = "SELECT \
        (SELECT count(*) FROM message WHERE queue = ?1 AND taken_by IS NULL \
            AND not_before IS NULL AND (expires IS NULL OR expires > ?2)) + \
        (SELECT count(*) FROM message WHERE queue = ?1 AND taken_by IS NULL \
            AND not_before <= ?2 AND (expires IS NULL OR expires > ?2)), \
        (SELECT count(*) FROM message WHERE queue = ?1 AND taken_by IS NOT NULL), \
        (SELECT count(*) FROM message WHERE queue = ?1 AND not_before > ?2), \
        (SELECT count(*) FROM dead WHERE queue = ?1)";
    db.prepare_cached(sql)?.query_row([queue, now], |row| {
        let count = |column| -> Result<u64> {
            Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or_default())
        };
        Ok([count(0)?, count(1)?, count(2)?, count(3)?])
    })
}

/// Removes the next messages after the id `after` that no consumer holds; the answer is their ids
/// and properties.
pub(crate) fn purge(
    db: &Connection,
    queue: i64,
    after: i64,
    limit: usize,
) -> Result<Vec<(i64, String)>> {
    let sql = "DELETE FROM message WHERE id IN (SELECT id FROM message WHERE queue = ?1 \
               AND taken_by IS NULL AND id > ?2 ORDER BY id LIMIT ?3) RETURNING id, properties";
    let mut statement = db.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([queue, after, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// The database's time, as the last heartbeat stored it.
pub(crate) fn clock(db: &Connection) -> Result<i64> {
    db.prepare_cached("SELECT now FROM clock")?.query_row([], |row| row.get(0))
}

pub(crate) fn set_clock(db: &Connection, now: i64) -> Result<()> {
    db.prepare_cached("UPDATE clock SET now = ?1")?.execute([now]).map(drop)
}

/// Begins a lease; the answer is its id.
pub(crate) fn begin_lease(db: &Connection, until: i64) -> Result<i64> {
    db.prepare_cached("INSERT INTO lease (until) VALUES (?1)")?.execute([until])?;
    Ok(db.last_insert_rowid())
}

pub(crate) fn has_lease(db: &Connection, lease: i64) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM lease WHERE id = ?1")?.exists([lease])
}

/// Renews a lease; `false` if it has ended.
pub(crate) fn renew(db: &Connection, lease: i64, until: i64) -> Result<bool> {
    let sql = "UPDATE lease SET until = ?2 WHERE id = ?1";
    Ok(db.prepare_cached(sql)?.execute([lease, until])? > 0)
}

/// When the first lease expires; `None` if there are none.
pub(crate) fn first_expiry(db: &Connection) -> Result<Option<i64>> {
    let sql = "SELECT min(until) FROM lease";
    db.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// Ends the expired leases, and requeues their messages; the answer is the number of leases.
pub(crate) fn end_expired(db: &Connection, now: i64) -> Result<usize> {
    let mut statement = db.prepare_cached("DELETE FROM lease WHERE until <= ?1 RETURNING id")?;
    let ended = statement.query_map([now], |row| row.get(0))?.collect::<Result<Vec<i64>>>()?;
    for lease in &ended {
        requeue_all(db, *lease)?;
    }
    Ok(ended.len())
}

/// Ends a lease, and requeues its messages.
pub(crate) fn end_lease(db: &Connection, lease: i64) -> Result<()> {
    db.prepare_cached("DELETE FROM lease WHERE id = ?1")?.execute([lease])?;
    requeue_all(db, lease)
}

fn requeue_all(db: &Connection, lease: i64) -> Result<()> {
    let sql = "UPDATE message SET taken_by = NULL WHERE taken_by = ?1";
    db.prepare_cached(sql)?.execute([lease]).map(drop)
}

/// Stores an outcome, unless there is a better one; `false` if there is. The outcome of a job that
/// has ended twice is dated ahead of others: two callers may have sent the job, and the one that
/// forgets the outcome must not remove it for the other. All are dated ahead by `ahead`, to be kept
/// longer than [`OUTCOME_LIFE`].
pub(crate) fn store(
    db: &Connection,
    job: &str,
    new: &Outcome,
    now: i64,
    ahead: i64,
) -> Result<bool> {
    let old = outcome_of(db, job, now)?.map(|old| old.state);
    let ended_twice = new.state.is_final() && old.is_some_and(OutcomeState::is_final);
    let since = now + ahead + if ended_twice { micros_of(OUTCOME_LIFE) } else { 0 };
    if old.is_some_and(|old| !replaces(new.state, old)) {
        if ended_twice {
            let sql = "UPDATE outcome SET since = ?2 WHERE job = ?1";
            db.prepare_cached(sql)?.execute(params![job, since])?;
        }
        return Ok(false);
    }
    let sql = "INSERT OR REPLACE INTO outcome (job, since, state, result, traceback) \
               VALUES (?1, ?2, ?3, ?4, ?5)";
    let (state, result) = (number(new.state), new.result.to_string());
    db.prepare_cached(sql)?.execute(params![job, since, state, result, new.traceback])?;
    Ok(true)
}

/// The outcome of a job, unless it is too old.
pub(crate) fn outcome_of(db: &Connection, job: &str, now: i64) -> Result<Option<Outcome>> {
    let sql = "SELECT state, result, traceback FROM outcome WHERE job = ?1 AND since >= ?2";
    db.prepare_cached(sql)?
        .query_row(params![job, now - micros_of(OUTCOME_LIFE)], |row| {
            Ok(outcome(row.get(0)?, row.get_ref(1)?.as_str()?, row.get(2)?))
        })
        .optional()
}

/// The outcomes that were stored after the one of that number: their numbers and jobs.
pub(crate) fn outcomes_after(db: &Connection, last: i64) -> Result<Vec<(i64, String)>> {
    let sql = "SELECT id, job FROM outcome WHERE id > ?1 ORDER BY id";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([last], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// The number of the last outcome that was stored.
pub(crate) fn last_outcome(db: &Connection) -> Result<i64> {
    let sql = "SELECT ifnull(max(id), 0) FROM outcome";
    db.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// Removes the outcome of a job, unless it is dated later than this.
pub(crate) fn forget(db: &Connection, job: &str, dated: i64) -> Result<()> {
    let sql = "DELETE FROM outcome WHERE job = ?1 AND since <= ?2";
    db.prepare_cached(sql)?.execute(params![job, dated]).map(drop)
}

pub(crate) fn forget_before(db: &Connection, before: i64) -> Result<()> {
    db.prepare_cached("DELETE FROM outcome WHERE since < ?1")?.execute([before]).map(drop)
}

/// Adds a member of a chord, once. Returns the places and outcomes of all members if they are
/// there, and else none.
pub(crate) fn join_chord(
    db: &Connection,
    member: &ChordMember,
    meta: &[u8],
    now: i64,
) -> Result<Vec<(u64, Vec<u8>)>> {
    db.execute_batch(CHORDS)?;
    let old = now - micros_of(CHORD_LIFETIME);
    db.prepare_cached("DELETE FROM chord WHERE since < ?1")?.execute([old])?;
    let place = i64::try_from(member.index).unwrap_or(i64::MAX);
    let sql = "INSERT INTO chord (chord, place, job, since, meta) VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT DO NOTHING";
    let values = params![member.chord, place, member.id, now, meta];
    db.prepare_cached(sql)?.execute(values)?;
    let count: u32 = db
        .prepare_cached("SELECT count(*) FROM chord WHERE chord = ?1")?
        .query_row([&member.chord], |row| row.get(0))?;
    if count < member.size {
        return Ok(Vec::new());
    }
    let sql = "SELECT place, meta FROM chord WHERE chord = ?1 ORDER BY place, job";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([&member.chord], |row| {
        Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
    })?;
    rows.collect()
}

pub(crate) fn end_chord(db: &Connection, chord: &str) -> Result<()> {
    db.execute_batch(CHORDS)?;
    db.prepare_cached("DELETE FROM chord WHERE chord = ?1")?.execute([chord]).map(drop)
}

/// The job that has the lock of a key. Removes locks that have ended.
pub(crate) fn lock_holder(db: &Connection, key: &str, now: i64) -> Result<Option<String>> {
    db.execute_batch(LOCKS)?;
    db.prepare_cached("DELETE FROM unique_lock WHERE ends <= ?1")?.execute([now])?;
    db.prepare_cached("SELECT job FROM unique_lock WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// Gives the free lock of a key to a job.
pub(crate) fn lock(db: &Connection, key: &str, job: &str, ends: i64) -> Result<()> {
    let sql = "INSERT INTO unique_lock (key, job, ends) VALUES (?1, ?2, ?3)";
    db.prepare_cached(sql)?.execute(params![key, job, ends]).map(drop)
}

/// Releases the lock of a key, if the job has it.
pub(crate) fn unlock(db: &Connection, key: &str, job: &str) -> Result<()> {
    db.execute_batch(LOCKS)?;
    let sql = "DELETE FROM unique_lock WHERE key = ?1 AND job = ?2";
    db.prepare_cached(sql)?.execute([key, job]).map(drop)
}

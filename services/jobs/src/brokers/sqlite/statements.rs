//! What is asked of the database, statement by statement.
//!
//! Each of these is called inside of a transaction, or reads one thing.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::broker::outcomes::replaces;
use crate::brokers::sqlite::row::{Row, message, micros_of, number, outcome};
use crate::message::Outcome;
use crate::wire::request::ENDED_WITH_DEATH;

/// How long an outcome is kept. Celery keeps them for a day, too.
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

/// Lets those join the line whose time has come, in the order of their times.
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

/// When the next delayed message of a queue is due.
pub(crate) fn next_due(db: &Connection, queue: i64) -> Result<Option<i64>> {
    let sql = "SELECT min(not_before) FROM message WHERE queue = ?1 AND not_before IS NOT NULL";
    db.prepare_cached(sql)?.query_row([queue], |row| row.get(0))
}

/// Whether there is a message to be taken.
pub(crate) fn is_ready(db: &Connection, queue: i64, now: i64) -> Result<bool> {
    let sql = "SELECT 1 FROM message WHERE queue = ?1 AND owner IS NULL AND not_before IS NULL";
    let is_ready = db.prepare_cached(sql)?.exists([queue])?;
    Ok(is_ready || next_due(db, queue)?.is_some_and(|due| due <= now))
}

/// Whether there is a message of that job. If there is none, all are read.
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

/// Removes what has expired and nobody has taken; the answer is what it was, but for the bodies.
pub(crate) fn expire(db: &Connection, now: i64) -> Result<Vec<String>> {
    let sql = "DELETE FROM message WHERE expires <= ?1 AND owner IS NULL RETURNING properties";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([now], |row| row.get(0))?;
    rows.collect()
}

/// Takes the next messages of a queue, in their order.
pub(crate) fn take(db: &Connection, queue: i64, owner: i64, limit: usize) -> Result<Vec<Taken>> {
    let sql = "UPDATE message SET owner = ?1, deliveries = deliveries + 1 WHERE id IN \
               (SELECT id FROM message WHERE queue = ?2 AND owner IS NULL AND not_before IS NULL \
               ORDER BY rank, id LIMIT ?3) \
               RETURNING id, rank, deliveries, expires, properties, body";
    let mut statement = db.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([owner, queue, limit], |row| {
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

/// Removes a message that an owner has; tells whether it had it.
pub(crate) fn remove(db: &Connection, id: i64, owner: i64) -> Result<bool> {
    let sql = "DELETE FROM message WHERE id = ?1 AND owner = ?2";
    Ok(db.prepare_cached(sql)?.execute([id, owner])? > 0)
}

/// Puts a message back where it was; one that nobody has seen does not count as delivered.
pub(crate) fn put_back(db: &Connection, id: i64, owner: i64, was_seen: bool) -> Result<bool> {
    let sql = "UPDATE message SET owner = NULL, deliveries = deliveries - ?3 \
               WHERE id = ?1 AND owner = ?2";
    Ok(db.prepare_cached(sql)?.execute(params![id, owner, !was_seen])? > 0)
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

/// Puts dead messages at the end of their line again, as new ones that do not expire.
pub(crate) fn replay(
    db: &Connection,
    (queue, max_priority): (i64, u8),
    job: Option<&str>,
) -> Result<u64> {
    let sql = "INSERT INTO message (queue, rank, properties, body) SELECT queue, \
               -min(coalesce(properties ->> 'priority', 0), ?3), \
               json_remove(properties, '$.headers.' || ?4, '$.headers.' || ?5), body \
               FROM dead WHERE queue = ?1 AND (?2 IS NULL OR job = ?2) ORDER BY id";
    let [expires, kills] = ENDED_WITH_DEATH;
    let count =
        db.prepare_cached(sql)?.execute(params![queue, job, max_priority, expires, kills])?;
    let sql = "DELETE FROM dead WHERE queue = ?1 AND (?2 IS NULL OR job = ?2)";
    db.prepare_cached(sql)?.execute(params![queue, job])?;
    Ok(count as u64)
}

/// How many are ready, taken, delayed and dead.
pub(crate) fn counts(db: &Connection, queue: i64, now: i64) -> Result<[u64; 4]> {
    let sql = "SELECT \
        (SELECT count(*) FROM message WHERE queue = ?1 AND owner IS NULL \
            AND ifnull(not_before, 0) <= ?2 AND (expires IS NULL OR expires > ?2)), \
        (SELECT count(*) FROM message WHERE queue = ?1 AND owner IS NOT NULL), \
        (SELECT count(*) FROM message WHERE queue = ?1 AND not_before > ?2), \
        (SELECT count(*) FROM dead WHERE queue = ?1)";
    db.prepare_cached(sql)?.query_row([queue, now], |row| {
        let count = |column| -> Result<u64> {
            Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or_default())
        };
        Ok([count(0)?, count(1)?, count(2)?, count(3)?])
    })
}

/// Removes the next messages after that one which nobody has taken; the answer is their numbers and what they were, but for
/// the bodies.
pub(crate) fn purge(
    db: &Connection,
    queue: i64,
    after: i64,
    limit: usize,
) -> Result<Vec<(i64, String)>> {
    let sql = "DELETE FROM message WHERE id IN (SELECT id FROM message WHERE queue = ?1 \
               AND owner IS NULL AND id > ?2 ORDER BY id LIMIT ?3) RETURNING id, properties";
    let mut statement = db.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([queue, after, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Registers an owner under the name of its lock.
pub(crate) fn make_owner(db: &Connection, lock: &str) -> Result<i64> {
    db.prepare_cached("INSERT INTO owner (lock) VALUES (?1)")?.execute([lock])?;
    Ok(db.last_insert_rowid())
}

/// Shows that an owner lives; tells whether it still is one.
pub(crate) fn beat(db: &Connection, owner: i64) -> Result<bool> {
    let sql = "UPDATE owner SET beats = beats + 1 WHERE id = ?1";
    Ok(db.prepare_cached(sql)?.execute([owner])? > 0)
}

/// Whether it is an owner still.
pub(crate) fn is_owner(db: &Connection, owner: i64) -> Result<bool> {
    db.prepare_cached("SELECT 1 FROM owner WHERE id = ?1")?.exists([owner])
}

/// All other owners: their numbers, locks and beats.
pub(crate) fn others(db: &Connection, owner: Option<i64>) -> Result<Vec<(i64, String, i64)>> {
    let sql = "SELECT id, lock, beats FROM owner WHERE id IS NOT ?1";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([owner], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// An owner is gone: what it had is there to be taken again. One that is thought to be gone for its beats is not if it has
/// others by now. Tells whether it was released.
pub(crate) fn release(db: &Connection, owner: i64, beats: Option<i64>) -> Result<bool> {
    let sql = "DELETE FROM owner WHERE id = ?1 AND (?2 IS NULL OR beats = ?2)";
    let is_gone = db.prepare_cached(sql)?.execute(params![owner, beats])? > 0;
    if is_gone {
        let sql = "UPDATE message SET owner = NULL WHERE owner = ?1";
        db.prepare_cached(sql)?.execute([owner])?;
    }
    Ok(is_gone)
}

/// Stores an outcome, unless there is a better one. Of a job that has ended twice it is dated ahead, for two may have sent
/// it: what one of them forgets is there for the other.
pub(crate) fn store(db: &Connection, job: &str, new: &Outcome, now: i64) -> Result<bool> {
    let old = outcome_of(db, job)?.map(|old| old.state);
    let since = match old {
        Some(old) if old.is_final() && new.state.is_final() => now + micros_of(OUTCOME_LIFE),
        _ => now,
    };
    if old.is_some_and(|old| !replaces(new.state, old)) {
        if since > now {
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

pub(crate) fn outcome_of(db: &Connection, job: &str) -> Result<Option<Outcome>> {
    let sql = "SELECT state, result, traceback FROM outcome WHERE job = ?1";
    db.prepare_cached(sql)?
        .query_row([job], |row| Ok(outcome(row.get(0)?, row.get_ref(1)?.as_str()?, row.get(2)?)))
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

/// Removes the outcome of a job, unless it is dated ahead.
pub(crate) fn forget(db: &Connection, job: &str, now: i64) -> Result<()> {
    let sql = "DELETE FROM outcome WHERE job = ?1 AND since <= ?2";
    db.prepare_cached(sql)?.execute(params![job, now]).map(drop)
}

pub(crate) fn forget_before(db: &Connection, before: i64) -> Result<()> {
    db.prepare_cached("DELETE FROM outcome WHERE since < ?1")?.execute([before]).map(drop)
}

/// A number that changes when another connection has changed the database.
pub(crate) fn data_version(db: &Connection) -> Result<i64> {
    db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}

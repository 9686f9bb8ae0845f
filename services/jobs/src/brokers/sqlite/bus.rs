//! The bus in a database: messages are rows that each process reads from the table, and removed
//! after a minute.
//!
//! A subscriber is a row as well, with the time at which its process last said that it lives.
//! Without subscribers no message is written. The thread of the database looks for messages when it
//! looks for those of other processes (`maintenance.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pikake_sync::shared::Event;
use rusqlite::{Connection, Result, params};

use crate::broker::bus::{Bus, Notice, Notices, SharedFact, SharedFacts, Topic};
use crate::broker::{BrokerError, LocalFuture};
use crate::brokers::sqlite::inbox::lock;
use crate::brokers::sqlite::row::{micros_of, wall_now};
use crate::brokers::sqlite::{Opened, SqliteBroker};

/// How often a process says that its subscribers live.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// After so long without that, a subscriber counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(15);
/// How long messages are kept, and subscribers that are gone.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// How many unread messages a subscriber has at most.
const UNREAD_LIMIT: usize = 10_000;
/// How many facts of a kind are kept, and for how long: as many as workers keep.
const FACTS: i64 = 50_000;
const FACT_LIFE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Programs that do not know these tables leave them alone, so they are no part of the schema's
/// version.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS notice (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL,
    key TEXT NOT NULL,
    since INTEGER NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS subscriber (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL,
    name TEXT NOT NULL,
    alive INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS fact (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL,
    name TEXT NOT NULL,
    since INTEGER NOT NULL,
    UNIQUE (kind, name)
) STRICT;
";

/// The kinds of facts.
const REVOKED: i64 = 0;
const PAUSED: i64 = 1;

/// Makes the tables, if there are none.
pub(crate) fn make_tables(db: &Connection) -> Result<()> {
    let wanted = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' \
                  AND name IN ('notice', 'subscriber', 'fact')";
    match db.query_row(wanted, [], |row| row.get::<_, i64>(0))? {
        3 => Ok(()),
        _ => db.execute_batch(TABLES),
    }
}

fn number(topic: Topic) -> i64 {
    match topic {
        Topic::Commands => 0,
        Topic::Replies => 1,
        Topic::Events => 2,
    }
}

/// A subscription of this process.
#[derive(Debug)]
struct Subscriber {
    topic: Topic,
    name: String,
    /// The last message that has been read.
    last: i64,
    unread: VecDeque<Notice>,
    changed: Arc<Event>,
}

impl Subscriber {
    fn receives(&self, topic: i64, key: &str) -> bool {
        number(self.topic) == topic
            && match self.topic {
                Topic::Commands => true,
                Topic::Replies => self.name == key,
                Topic::Events => key.starts_with(&self.name),
            }
    }
}

/// The subscriptions of a process, which the thread of the database and the tasks share.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions(Mutex<BTreeMap<i64, Subscriber>>);

/// The bus, for the thread of the database.
#[derive(Debug, Default)]
pub(crate) struct ThreadBus {
    pub(crate) subscriptions: Arc<Subscriptions>,
    /// When this process last said that its subscribers live.
    alive: Option<Instant>,
}

impl ThreadBus {
    pub(crate) fn has_subscribers(&self) -> bool {
        !lock(&self.subscriptions.0).is_empty()
    }

    /// How long until this process has to say that its subscribers live; `None` without one.
    pub(crate) fn until_alive(&self) -> Option<Duration> {
        let left = |alive: Instant| ALIVE_EVERY.saturating_sub(alive.elapsed());
        self.has_subscribers().then(|| self.alive.map_or(Duration::ZERO, left))
    }

    /// Says that the subscribers live, if that is due, and removes what is old.
    pub(crate) fn work(&mut self, db: &Connection, now: i64) -> Result<()> {
        if self.until_alive() != Some(Duration::ZERO) {
            return Ok(());
        }
        // The whole row, since another process may have removed it: the wall clock steps, and
        // processes are stopped.
        let sql = "INSERT INTO subscriber (id, topic, name, alive) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (id) DO UPDATE SET alive = ?4";
        let mut alive = db.prepare_cached(sql)?;
        for (id, subscriber) in &*lock(&self.subscriptions.0) {
            alive.execute(params![id, number(subscriber.topic), subscriber.name, now])?;
        }
        let old = now - micros_of(KEPT_FOR);
        db.prepare_cached("DELETE FROM subscriber WHERE alive < ?1")?.execute([old])?;
        db.prepare_cached("DELETE FROM notice WHERE since < ?1")?.execute([old])?;
        // If the transaction fails, the next time is soon enough.
        self.alive = Some(Instant::now());
        Ok(())
    }

    /// Reads what has come; `true` if there was something.
    pub(crate) fn look(&self, db: &Connection) -> Result<bool> {
        let mut subscriptions = lock(&self.subscriptions.0);
        let Some(last) = subscriptions.values().map(|one| one.last).min() else { return Ok(false) };
        let newest = db
            .prepare_cached("SELECT max(id) FROM notice")?
            .query_row([], |row| row.get::<_, Option<i64>>(0))?;
        if newest.is_none_or(|newest| newest <= last) {
            return Ok(false);
        }
        let sql = "SELECT id, topic, key, headers, body FROM notice WHERE id > ?1 ORDER BY id";
        let mut statement = db.prepare_cached(sql)?;
        let mut rows = statement.query([last])?;
        while let Some(row) = rows.next()? {
            let (id, topic, key): (i64, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            for subscriber in subscriptions.values_mut().filter(|one| one.last < id) {
                subscriber.last = id;
                if subscriber.receives(topic, &key) {
                    let mut notice = Notice::new(subscriber.topic, key.clone(), row.get(4)?);
                    let headers: String = row.get(3)?;
                    notice.headers = serde_json::from_str(&headers).unwrap_or_default();
                    if subscriber.unread.len() == UNREAD_LIMIT {
                        subscriber.unread.pop_front();
                    }
                    subscriber.unread.push_back(notice);
                    subscriber.changed.set();
                }
            }
        }
        Ok(true)
    }
}

/// However the thread ends, all waits end with it.
impl Drop for ThreadBus {
    fn drop(&mut self) {
        for subscriber in std::mem::take(&mut *lock(&self.subscriptions.0)).into_values() {
            subscriber.changed.set();
        }
    }
}

impl Bus for SqliteBroker {
    fn notify(&self, notice: Notice) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.0.link.call(move |database| {
            let sql = "INSERT INTO notice (topic, key, since, headers, body) \
                       SELECT ?1, ?2, ?3, ?4, ?5 \
                       WHERE EXISTS (SELECT 1 FROM subscriber WHERE topic = ?1)";
            let headers = serde_json::Value::Object(notice.headers).to_string();
            let row = params![number(notice.topic), notice.key, wall_now(), headers, notice.body];
            database.db.prepare_cached(sql)?.execute(row)?;
            Ok(())
        }))
    }

    fn subscribe<'a>(
        &'a self,
        topic: Topic,
        name: &'a str,
    ) -> LocalFuture<'a, Result<Box<dyn Notices>, BrokerError>> {
        let name = name.to_owned();
        Box::pin(async move {
            // Made first: if this is interrupted, its drop removes the row that the thread inserts
            // all the same.
            let notices = SqliteNotices { id: Arc::default(), opened: self.0.clone() };
            let link = &notices.opened.link;
            let (row, id) = (name.clone(), notices.id.clone());
            let inserted = link.call(move |database| {
                let sql = "INSERT INTO subscriber (topic, name, alive) VALUES (?1, ?2, ?3)";
                let row = params![number(topic), row, wall_now()];
                database.db.prepare_cached(sql)?.execute(row)?;
                id.store(database.db.last_insert_rowid(), Ordering::Relaxed);
                let sql = "SELECT coalesce(max(id), 0) FROM notice";
                Ok(database.db.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
            });
            let last: i64 = inserted.await?;
            let (unread, changed) = (VecDeque::new(), Arc::new(Event::new()));
            let subscriber = Subscriber { topic, name, last, unread, changed };
            lock(&link.subscriptions.0).insert(notices.id(), subscriber);
            // The thread may sleep, as it had nothing to look for.
            if !link.is_open() {
                return Err(BrokerError::Closed);
            }
            Ok(Box::new(notices) as Box<dyn Notices>)
        })
    }

    fn workers(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(self.0.link.call(|database| {
            let sql = "SELECT name FROM subscriber WHERE topic = ?1 AND abs(?2 - alive) < ?3";
            let mut statement = database.db.prepare_cached(sql)?;
            let of = params![number(Topic::Commands), wall_now(), micros_of(GONE_AFTER)];
            let names = statement.query_map(of, |row| row.get(0))?;
            Ok(Some(names.collect::<Result<_>>()?))
        }))
    }

    fn share<'a>(&'a self, fact: &'a SharedFact) -> LocalFuture<'a, Result<bool, BrokerError>> {
        let (kind, name, is_so) = match fact {
            SharedFact::Revoked(id) => (REVOKED, id.clone(), true),
            SharedFact::Paused(queue) => (PAUSED, queue.clone(), true),
            SharedFact::Resumed(queue) => (PAUSED, queue.clone(), false),
        };
        Box::pin(self.0.link.call(move |database| {
            let db = &database.db;
            let now = wall_now();
            match is_so {
                true => {
                    let sql = "INSERT OR IGNORE INTO fact (kind, name, since) VALUES (?1, ?2, ?3)";
                    db.prepare_cached(sql)?.execute(params![kind, name, now])?;
                    let sql = "DELETE FROM fact WHERE kind = ?1 AND (since < ?2 OR id <= \
                               (SELECT max(id) FROM fact WHERE kind = ?1) - ?3)";
                    let old = now - micros_of(FACT_LIFE);
                    if kind == REVOKED {
                        db.prepare_cached(sql)?.execute(params![kind, old, FACTS])?;
                    }
                }
                false => {
                    let sql = "DELETE FROM fact WHERE kind = ?1 AND name = ?2";
                    db.prepare_cached(sql)?.execute(params![kind, name])?;
                }
            }
            Ok(true)
        }))
    }

    fn shared(&self) -> LocalFuture<'_, Result<Option<SharedFacts>, BrokerError>> {
        Box::pin(self.0.link.call(|database| {
            let sql = "SELECT name FROM fact WHERE kind = ?1 ORDER BY id";
            let mut statement = database.db.prepare_cached(sql)?;
            let mut names = |kind: i64| -> Result<Vec<String>> {
                let names = statement.query_map([kind], |row| row.get(0))?;
                names.collect()
            };
            Ok(Some(SharedFacts { revoked: names(REVOKED)?, paused: names(PAUSED)? }))
        }))
    }
}

/// A subscription in a database.
#[derive(Debug)]
struct SqliteNotices {
    /// Zero until the row is inserted.
    id: Arc<AtomicI64>,
    opened: Rc<Opened>,
}

impl SqliteNotices {
    fn id(&self) -> i64 {
        self.id.load(Ordering::Relaxed)
    }
}

impl Notices for SqliteNotices {
    fn next(&mut self) -> LocalFuture<'_, Result<Notice, BrokerError>> {
        Box::pin(async move {
            loop {
                let changed = {
                    let mut subscriptions = lock(&self.opened.link.subscriptions.0);
                    let one = subscriptions.get_mut(&self.id()).ok_or(BrokerError::Closed)?;
                    one.changed.clear();
                    match one.unread.pop_front() {
                        Some(notice) => return Ok(notice),
                        None => one.changed.clone(),
                    }
                };
                changed.wait().await?;
            }
        })
    }
}

impl Drop for SqliteNotices {
    fn drop(&mut self) {
        lock(&self.opened.link.subscriptions.0).remove(&self.id());
        let id = self.id.clone();
        self.opened.link.post(move |database| {
            // Read here: the row may have been inserted after the drop.
            let id = id.load(Ordering::Relaxed);
            let sql = "DELETE FROM subscriber WHERE id = ?1";
            database.db.prepare_cached(sql)?.execute([id])?;
            Ok(())
        });
    }
}

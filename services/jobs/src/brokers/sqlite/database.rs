//! The state of a database's thread: the consumers of this process, and the messages that they
//! hold.
//!
//! Its methods run inside of a transaction, and their changes take effect when the transaction has
//! been committed. The thread's loop (`thread.rs`) decides when a transaction begins.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use rusqlite::{Connection, Result};

use crate::broker::outcomes::{expired, job_with_outcome, purged};
use crate::broker::{BrokerError, Receipt};
use crate::brokers::sqlite::bus::ThreadBus;
use crate::brokers::sqlite::inbox::{Arrived, Inbox, InboxState};
use crate::brokers::sqlite::lease::Lease;
use crate::brokers::sqlite::outcomes::{Outcomes, Watches};
use crate::brokers::sqlite::row::message;
use crate::brokers::sqlite::schema;
use crate::brokers::sqlite::statements::{self as sql, Taken};
use crate::message::JobId;
use crate::unique::UniqueLock;
use crate::wire::request::UNIQUE;

/// Device and inode.
type FileId = (u64, u64);

pub(crate) struct Database {
    pub(crate) db: Connection,
    /// The path as it was given.
    pub(crate) path: PathBuf,
    /// The file that the path led to when it was opened.
    file: FileId,
    pub(crate) lease: Lease,
    /// Before this moment, no transaction begins: others may be waiting for the lock.
    pub(crate) gap_until: Instant,
    /// Whether the last transaction that wrote found no room.
    pub(crate) is_disk_full: bool,
    tags: u64,
    /// The number of consumers that have begun.
    begun: u64,
    /// The messages that consumers hold, by tag.
    pub(crate) held: BTreeMap<u64, Held>,
    pub(crate) consumers: BTreeMap<u64, Consumer>,
    /// Queues that may have ready messages.
    pub(crate) full: BTreeSet<i64>,
    /// Whether messages of expired leases were requeued, of which some may have expired since.
    has_requeued: bool,
    /// When the next delayed message of a queue is due.
    pub(crate) due: BTreeMap<i64, i64>,
    pub(crate) outcomes: Outcomes,
    pub(crate) bus: ThreadBus,
    changes: Changes,
}

/// A message that a consumer holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    id: i64,
    consumer: u64,
}

pub(crate) struct Consumer {
    pub(crate) queue: i64,
    prefetch: usize,
    /// Whether no other consumer of the queue gets messages meanwhile; and when this one began.
    single: Option<u64>,
    held: usize,
    pub(crate) inbox: Arc<Inbox>,
}

impl Consumer {
    pub(crate) fn room(&self) -> usize {
        match self.inbox.state() {
            InboxState::Open => self.prefetch - self.held,
            _ => 0,
        }
    }
}

/// Changes that take effect once the transaction has been committed.
#[derive(Default)]
struct Changes {
    /// Tags that are no longer held.
    done: Vec<u64>,
    taken: Vec<(u64, Taken)>,
    /// Consumers that have ended.
    ended: Vec<u64>,
}

impl Database {
    pub(crate) fn open(
        path: PathBuf,
        lease: Duration,
        watches: Arc<Watches>,
    ) -> Result<Self, BrokerError> {
        let db = schema::open(&path)?;
        let file = file_id(&path)?;
        Ok(Self {
            db,
            path,
            file,
            lease: Lease::new(lease),
            gap_until: Instant::now(),
            is_disk_full: false,
            tags: 0,
            begun: 0,
            held: BTreeMap::new(),
            consumers: BTreeMap::new(),
            full: BTreeSet::new(),
            has_requeued: false,
            due: BTreeMap::new(),
            outcomes: Outcomes::new(watches),
            bus: ThreadBus::default(),
            changes: Changes::default(),
        })
    }

    pub(crate) fn add_consumer(
        &mut self,
        id: u64,
        queue: i64,
        prefetch: u16,
        is_single: bool,
        inbox: Arc<Inbox>,
    ) {
        self.begun += 1;
        let single = is_single.then_some(self.begun);
        let consumer = Consumer { queue, prefetch: prefetch.into(), single, held: 0, inbox };
        self.consumers.insert(id, consumer);
        self.full.insert(queue);
    }

    /// Fails if the path leads to the file no longer: SQLite would go on with one that no other
    /// process finds, and that is gone at the end.
    pub(crate) fn check_file(&self) -> Result<()> {
        match file_id(&self.path).is_ok_and(|file| file == self.file) {
            true => Ok(()),
            false => Err(rusqlite::Error::InvalidPath(self.path.clone())),
        }
    }

    /// The row of a receipt and its lease, while it is held.
    fn row_of(&self, receipt: Receipt) -> Option<(i64, i64)> {
        let held = self.held.get(&receipt.tag).filter(|held| held.consumer == receipt.session)?;
        let consumer = self.consumers.get(&held.consumer)?;
        (consumer.inbox.state() != InboxState::Left).then_some((held.id, self.lease.id()?))
    }

    /// The queue of a receipt, while it is held.
    pub(crate) fn queue_of(&self, receipt: Receipt) -> Option<i64> {
        self.row_of(receipt)?;
        self.consumers.get(&receipt.session).map(|consumer| consumer.queue)
    }

    /// Removes the message of a receipt; `false` if it was no longer held.
    pub(crate) fn remove(&mut self, receipt: Receipt) -> Result<bool> {
        let Some((id, lease)) = self.row_of(receipt) else { return Ok(false) };
        let was_there = sql::remove(&self.db, id, lease)?;
        self.changes.done.push(receipt.tag);
        Ok(was_there)
    }

    /// Requeues the message of a receipt; `false` if it was no longer held.
    pub(crate) fn put_back(&mut self, receipt: Receipt) -> Result<bool> {
        let Some((id, lease)) = self.row_of(receipt) else { return Ok(false) };
        let was_ours = sql::put_back(&self.db, id, lease, true)?;
        self.changes.done.push(receipt.tag);
        if let Some(consumer) = self.consumers.get(&receipt.session) {
            self.full.insert(consumer.queue);
        }
        Ok(was_ours)
    }

    /// Whether [`fill`](Self::fill) has something to do.
    pub(crate) fn needs_fill(&self) -> bool {
        self.has_requeued
            || self.consumers.values().any(|consumer| {
                consumer.inbox.state() == InboxState::Left
                    || (consumer.room() > 0 && self.full.contains(&consumer.queue))
            })
    }

    /// Takes messages for all consumers with room, and requeues those of dropped consumers.
    pub(crate) fn fill(&mut self, now: i64) -> Result<()> {
        self.requeue_of_dropped_consumers()?;
        let mut wanting: BTreeMap<i64, Vec<(u64, usize)>> = BTreeMap::new();
        for (id, consumer) in &self.consumers {
            if consumer.room() > 0 && self.full.contains(&consumer.queue) {
                wanting.entry(consumer.queue).or_default().push((*id, consumer.room()));
            }
        }
        if self.has_requeued || !wanting.is_empty() {
            self.expire(now)?;
            self.has_requeued = false;
        }
        for (queue, mut room) in wanting {
            if let Some(first) = self.first_single(queue) {
                if sql::is_held_by_others(&self.db, queue, self.lease.id())? {
                    self.full.remove(&queue);
                    continue;
                }
                room.retain(|(id, _)| *id == first);
                if room.is_empty() {
                    self.full.remove(&queue);
                    continue;
                }
            }
            sql::promote(&self.db, queue, now)?;
            let (is_ready, due) = sql::ready_and_due(&self.db, queue)?;
            let wanted = room.iter().map(|(_, room)| room).sum();
            // Without a message, no lease is begun: an idle process writes nothing.
            let taken = match is_ready {
                true => sql::take(&self.db, queue, self.lease.ensure(&self.db)?, wanted)?,
                false => Vec::new(),
            };
            if taken.len() < wanted {
                self.full.remove(&queue);
            }
            self.set_due(queue, due);
            self.distribute(taken, room);
        }
        Ok(())
    }

    /// The first consumer of a queue that has a single one at a time.
    fn first_single(&self, queue: i64) -> Option<u64> {
        let of_queue = self.consumers.iter().filter(|(_, consumer)| consumer.queue == queue);
        let open = of_queue.filter(|(_, consumer)| consumer.inbox.state() == InboxState::Open);
        let began = open.filter_map(|(id, consumer)| Some((consumer.single?, *id)));
        began.min().map(|(_, id)| id)
    }

    fn set_due(&mut self, queue: i64, due: Option<i64>) {
        match due {
            Some(due) => self.due.insert(queue, due),
            None => self.due.remove(&queue),
        };
    }

    /// Removes expired messages, and stores the outcomes of their jobs.
    pub(crate) fn expire(&mut self, now: i64) -> Result<()> {
        for properties in sql::expire(&self.db, now)? {
            unlock(&self.db, &properties)?;
            if let Some(job) = job_of_row(&properties) {
                self.outcomes.store(&self.db, job, expired(), now)?;
            }
        }
        Ok(())
    }

    /// Removes the next messages after the id `after` that no consumer holds, and stores the
    /// outcomes of their jobs. Returns their number and the last id.
    pub(crate) fn purge(
        &mut self,
        queue: i64,
        after: i64,
        limit: usize,
        now: i64,
    ) -> Result<(usize, i64)> {
        let gone = sql::purge(&self.db, queue, after, limit)?;
        for (_, properties) in &gone {
            unlock(&self.db, properties)?;
        }
        let jobs = gone.iter().filter_map(|(_, properties)| job_of_row(properties));
        // In the order of the index, of which each page is written once then.
        for job in jobs.collect::<BTreeSet<_>>() {
            self.outcomes.store(&self.db, job, purged(), now)?;
        }
        let last = gone.iter().map(|(id, _)| *id).max();
        Ok((gone.len(), last.unwrap_or(after)))
    }

    /// Gives the messages to the consumers in turn.
    fn distribute(&mut self, taken: Vec<Taken>, mut room: Vec<(u64, usize)>) {
        // Begins with another consumer each time: else one would get all messages that come one by
        // one.
        let count = room.len();
        room.rotate_left(self.tags as usize % count);
        let mut next = 0;
        for message in taken {
            while room[next % count].1 == 0 {
                next += 1;
            }
            let (consumer, left) = &mut room[next % count];
            *left -= 1;
            self.changes.taken.push((*consumer, message));
            next += 1;
        }
    }

    fn requeue_of_dropped_consumers(&mut self) -> Result<()> {
        let left = self.consumers.iter();
        let left: Vec<u64> = left
            .filter(|(_, consumer)| consumer.inbox.state() == InboxState::Left)
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            self.requeue_of(id)?;
            self.changes.ended.push(id);
        }
        // Without a consumer there are no heartbeats.
        let ended = self.changes.ended.len();
        match ended > 0 && ended == self.consumers.len() {
            true => self.lease.end(&self.db),
            false => Ok(()),
        }
    }

    /// Requeues the messages that a consumer holds.
    fn requeue_of(&mut self, id: u64) -> Result<()> {
        let Some((consumer, lease)) = self.consumers.get(&id).zip(self.lease.id()) else {
            return Ok(());
        };
        self.full.insert(consumer.queue);
        let unseen: BTreeSet<u64> = consumer.inbox.unseen();
        for (tag, held) in self.held.iter().filter(|(_, held)| held.consumer == id) {
            sql::put_back(&self.db, held.id, lease, !unseen.contains(tag))?;
            self.changes.done.push(*tag);
        }
        Ok(())
    }

    /// The transaction has been committed.
    pub(crate) fn settle(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        if self.lease.settle() {
            self.held.clear();
            for consumer in self.consumers.values_mut() {
                consumer.held = 0;
                consumer.inbox.clear();
            }
        }
        for tag in changes.done {
            let Some(held) = self.held.remove(&tag) else { continue };
            if let Some(consumer) = self.consumers.get_mut(&held.consumer) {
                consumer.held -= 1;
            }
        }
        for id in changes.ended {
            self.consumers.remove(&id);
        }
        let mut arrived: BTreeMap<u64, Vec<Arrived>> = BTreeMap::new();
        for (id, Taken { id: row, deliveries, expires, properties, body, .. }) in changes.taken {
            self.tags += 1;
            self.held.insert(self.tags, Held { id: row, consumer: id });
            if let Some(consumer) = self.consumers.get_mut(&id) {
                consumer.held += 1;
            }
            let message = message(&properties, expires, body);
            let attempt = deliveries.saturating_sub(1);
            arrived.entry(id).or_default().push(Arrived { tag: self.tags, attempt, message });
        }
        for (id, arrived) in arrived {
            self.consumers[&id].inbox.put(arrived);
        }
        self.outcomes.settle();
    }

    /// The transaction was rolled back.
    pub(crate) fn unsettle(&mut self) {
        self.changes = Changes::default();
        self.lease.unsettle();
        self.outcomes.unsettle();
        // Also if the transaction was not the one that has requeued: `fill` then finds nothing.
        self.has_requeued |= !self.consumers.is_empty();
        self.full.extend(self.consumers.values().map(|consumer| consumer.queue));
    }

    /// Requeues everything that is held, and ends the lease.
    pub(crate) fn leave(&mut self) -> Result<()> {
        for id in self.consumers.keys().copied().collect::<Vec<_>>() {
            self.consumers[&id].inbox.set_state(InboxState::Closed);
            self.requeue_of(id)?;
        }
        self.lease.end(&self.db)
    }

    /// Renews the lease, and requeues the messages of leases that have expired.
    pub(crate) fn heartbeat(&mut self) -> Result<()> {
        if self.lease.heartbeat(&self.db, !self.held.is_empty())? {
            self.has_requeued = true;
            self.full.extend(self.consumers.values().map(|consumer| consumer.queue));
        }
        Ok(())
    }

    /// Whether a consumer waits for messages.
    pub(crate) fn has_room(&self) -> bool {
        self.consumers.values().any(|consumer| consumer.room() > 0)
    }

    /// When the next delayed message is due in a queue of a consumer with room, unless the queue
    /// may have ready ones already.
    pub(crate) fn next_due(&self) -> Option<i64> {
        let waiting = self
            .consumers
            .values()
            .filter(|consumer| consumer.room() > 0 && !self.full.contains(&consumer.queue));
        waiting.filter_map(|consumer| self.due.get(&consumer.queue).copied()).min()
    }

    /// Finds the queues with messages for a consumer here; `true` if there are any.
    pub(crate) fn look_for_messages(&mut self, now: i64) -> Result<bool> {
        let mut is_any_found = false;
        let with_room = self.consumers.values().filter(|consumer| consumer.room() > 0);
        let queues: BTreeSet<i64> = with_room.map(|consumer| consumer.queue).collect();
        for queue in queues.difference(&self.full.clone()) {
            let (is_ready, due) = sql::ready_and_due(&self.db, *queue)?;
            if is_ready || due.is_some_and(|due| due <= now) {
                self.full.insert(*queue);
                is_any_found = true;
            } else {
                self.set_due(*queue, due);
            }
        }
        Ok(is_any_found)
    }

    /// Fails the waits of all consumers.
    pub(crate) fn fail(&self, error: impl Fn() -> BrokerError) {
        for consumer in self.consumers.values() {
            consumer.inbox.fail(error());
        }
    }
}

/// However the thread ends, all waits end with it.
impl Drop for Database {
    fn drop(&mut self) {
        for consumer in self.consumers.values() {
            consumer.inbox.set_state(InboxState::Closed);
        }
        self.outcomes.watches.close();
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    fs::metadata(path).map(|data| (data.dev(), data.ino()))
}

/// Releases the lock of a message that is removed unread.
fn unlock(db: &Connection, properties: &str) -> Result<()> {
    // Without reading the properties of each message.
    if properties.contains(UNIQUE) {
        if let Some(lock) = UniqueLock::of(&message(properties, None, Vec::new())) {
            sql::unlock(db, &lock.key, &lock.job.0)?;
        }
    }
    Ok(())
}

/// The job of a message that is removed unread, if its outcome is to be stored.
fn job_of_row(properties: &str) -> Option<JobId> {
    job_with_outcome(&message(properties, None, Vec::new()))
}

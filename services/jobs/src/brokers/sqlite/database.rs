//! What the thread of a database knows: the consumers of this process and what they have taken.
//!
//! All of this happens inside of a transaction, and what it changes here counts when that has been committed. The
//! thread's loop (`thread.rs`) decides when a transaction begins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use rusqlite::{Connection, Result};

use crate::broker::outcomes::{expired, job_to_tell_of, purged};
use crate::broker::{BrokerError, Receipt};
use crate::brokers::sqlite::inbox::{Arrived, Inbox, InboxState};
use crate::brokers::sqlite::outcomes::{Outcomes, Watches};
use crate::brokers::sqlite::owner::{FileId, Owner};
use crate::brokers::sqlite::row::message;
use crate::brokers::sqlite::schema;
use crate::brokers::sqlite::statements::{self as sql, Taken};
use crate::message::JobId;

pub(crate) struct Database {
    pub(crate) db: Connection,
    /// The path as it was given.
    pub(crate) path: PathBuf,
    /// What the path led to when it was opened.
    file: FileId,
    pub(crate) owner: Owner,
    tags: u64,
    /// What the consumers have and have not acknowledged.
    pub(crate) held: BTreeMap<u64, Held>,
    pub(crate) consumers: BTreeMap<u64, Consumer>,
    /// Queues that may have messages which nobody has taken.
    pub(crate) full: BTreeSet<i64>,
    /// When the next delayed message of a queue is due.
    pub(crate) due: BTreeMap<i64, i64>,
    pub(crate) outcomes: Outcomes,
    changes: Changes,
}

/// A message that a consumer has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    id: i64,
    consumer: u64,
}

pub(crate) struct Consumer {
    pub(crate) queue: i64,
    prefetch: usize,
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

/// What counts once the transaction has been committed.
#[derive(Default)]
struct Changes {
    /// Tags that are held no more.
    done: Vec<u64>,
    taken: Vec<(u64, Taken)>,
    /// Consumers whose messages are all back.
    ended: Vec<u64>,
}

impl Database {
    pub(crate) fn open(
        path: PathBuf,
        number: u64,
        watches: Arc<Watches>,
    ) -> Result<Self, BrokerError> {
        let db = schema::open(&path)?;
        let file = FileId::of(&path)?;
        let owner = Owner::new(fs::canonicalize(&path)?, number);
        Ok(Self {
            db,
            path,
            file,
            owner,
            tags: 0,
            held: BTreeMap::new(),
            consumers: BTreeMap::new(),
            full: BTreeSet::new(),
            due: BTreeMap::new(),
            outcomes: Outcomes::new(watches),
            changes: Changes::default(),
        })
    }

    pub(crate) fn add_consumer(
        &mut self,
        id: u64,
        queue: i64,
        prefetch: u16,
        inbox: Arc<Inbox>,
    ) -> io::Result<()> {
        self.owner.hold().map_err(|error| {
            let path = self.path.display();
            let what = format!("{path}: no lock file can be made beside it: {error}");
            io::Error::new(error.kind(), what)
        })?;
        let consumer = Consumer { queue, prefetch: prefetch.into(), held: 0, inbox };
        self.consumers.insert(id, consumer);
        self.full.insert(queue);
        Ok(())
    }

    /// The file is where it was. Else SQLite goes on with one that nobody else finds, and that is gone at the end.
    pub(crate) fn check_file(&self) -> Result<()> {
        match FileId::of(&self.path).is_ok_and(|file| file == self.file) {
            true => Ok(()),
            false => Err(rusqlite::Error::InvalidPath(self.path.clone())),
        }
    }

    /// The row of a receipt, and who has it, unless that is over.
    fn row_of(&self, receipt: Receipt) -> Option<(i64, i64)> {
        let held = self.held.get(&receipt.tag).filter(|held| held.consumer == receipt.session)?;
        let consumer = self.consumers.get(&held.consumer)?;
        (consumer.inbox.state() != InboxState::Left).then_some((held.id, self.owner.id()?))
    }

    /// The queue that a receipt is of, unless that is over.
    pub(crate) fn queue_of(&self, receipt: Receipt) -> Option<i64> {
        self.row_of(receipt)?;
        self.consumers.get(&receipt.session).map(|consumer| consumer.queue)
    }

    /// Removes the message of a receipt; tells whether it was still there.
    pub(crate) fn remove(&mut self, receipt: Receipt) -> Result<bool> {
        let Some((id, owner)) = self.row_of(receipt) else { return Ok(false) };
        let was_there = sql::remove(&self.db, id, owner)?;
        self.changes.done.push(receipt.tag);
        Ok(was_there)
    }

    /// Puts the message of a receipt back where it was; tells whether it was still ours.
    pub(crate) fn put_back(&mut self, receipt: Receipt) -> Result<bool> {
        let Some((id, owner)) = self.row_of(receipt) else { return Ok(false) };
        let was_ours = sql::put_back(&self.db, id, owner, true)?;
        self.changes.done.push(receipt.tag);
        if let Some(consumer) = self.consumers.get(&receipt.session) {
            self.full.insert(consumer.queue);
        }
        Ok(was_ours)
    }

    /// Whether there is a consumer that could be given something.
    pub(crate) fn could_give(&self) -> bool {
        self.consumers.values().any(|consumer| {
            consumer.inbox.state() == InboxState::Left
                || (consumer.room() > 0 && self.full.contains(&consumer.queue))
        })
    }

    /// Takes messages for all consumers that have room, and puts back what was with those that left.
    pub(crate) fn fill(&mut self, now: i64) -> Result<()> {
        self.put_back_of_those_who_left()?;
        let full: Vec<i64> = self.full.iter().copied().collect();
        for queue in full {
            let mut room: Vec<(u64, usize)> = Vec::new();
            for (id, consumer) in &self.consumers {
                if consumer.queue == queue && consumer.room() > 0 {
                    room.push((*id, consumer.room()));
                }
            }
            let wanted = room.iter().map(|(_, room)| room).sum();
            if wanted == 0 {
                continue;
            }
            let owner = self.owner.ensure(&self.db)?;
            self.expire(now)?;
            sql::promote(&self.db, queue, now)?;
            let taken = sql::take(&self.db, queue, owner, wanted)?;
            if taken.len() < wanted {
                self.full.remove(&queue);
            }
            match sql::next_due(&self.db, queue)? {
                Some(due) => self.due.insert(queue, due),
                None => self.due.remove(&queue),
            };
            self.deal(taken, room);
        }
        Ok(())
    }

    /// Drops what has expired, and tells whoever waits for it.
    pub(crate) fn expire(&mut self, now: i64) -> Result<()> {
        for properties in sql::expire(&self.db, now)? {
            if let Some(job) = job_of_row(&properties) {
                self.outcomes.store(&self.db, job, expired(), now)?;
            }
        }
        Ok(())
    }

    /// Drops the next messages after that one which nobody has taken, and tells whoever waits for them. How many they were,
    /// and the last of them.
    pub(crate) fn purge(
        &mut self,
        queue: i64,
        after: i64,
        limit: usize,
        now: i64,
    ) -> Result<(usize, i64)> {
        let gone = sql::purge(&self.db, queue, after, limit)?;
        let jobs = gone.iter().filter_map(|(_, properties)| job_of_row(properties));
        // In the order of the index, of which each page is written once then.
        for job in jobs.collect::<BTreeSet<_>>() {
            self.outcomes.store(&self.db, job, purged(), now)?;
        }
        let last = gone.iter().map(|(id, _)| *id).max();
        Ok((gone.len(), last.unwrap_or(after)))
    }

    /// Gives each consumer one after the other.
    fn deal(&mut self, taken: Vec<Taken>, mut room: Vec<(u64, usize)>) {
        // Who comes first changes, lest one gets all that come one by one.
        let first = self.tags as usize % room.len();
        room.rotate_left(first);
        let mut turn = 0;
        for message in taken {
            while room[turn % room.len()].1 == 0 {
                turn += 1;
            }
            let seat = turn % room.len();
            room[seat].1 -= 1;
            self.changes.taken.push((room[seat].0, message));
            turn += 1;
        }
    }

    fn put_back_of_those_who_left(&mut self) -> Result<()> {
        let left = self.consumers.iter();
        let left: Vec<u64> = left
            .filter(|(_, consumer)| consumer.inbox.state() == InboxState::Left)
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            let consumer = &self.consumers[&id];
            self.full.insert(consumer.queue);
            let unseen: BTreeSet<u64> = consumer.inbox.unseen();
            for (tag, held) in self.held.iter().filter(|(_, held)| held.consumer == id) {
                if let Some(owner) = self.owner.id() {
                    sql::put_back(&self.db, held.id, owner, !unseen.contains(tag))?;
                }
                self.changes.done.push(*tag);
            }
            self.changes.ended.push(id);
        }
        Ok(())
    }

    /// The transaction has been committed.
    pub(crate) fn settle(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        if self.owner.settle() {
            self.held.clear();
            for consumer in self.consumers.values_mut() {
                consumer.held = 0;
                consumer.inbox.clear();
            }
        }
        for tag in changes.done {
            if let Some(held) = self.held.remove(&tag)
                && let Some(consumer) = self.consumers.get_mut(&held.consumer)
            {
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

    /// The transaction came to nothing.
    pub(crate) fn unsettle(&mut self) {
        self.changes = Changes::default();
        self.owner.unsettle();
        self.outcomes.unsettle();
        self.full.extend(self.consumers.values().map(|consumer| consumer.queue));
    }

    /// Everything that is held goes back, and this is no owner any more.
    pub(crate) fn leave(&mut self) -> Result<()> {
        for consumer in self.consumers.values() {
            consumer.inbox.set_state(InboxState::Closed);
        }
        let Some(owner) = self.owner.id() else { return Ok(()) };
        for (tag, held) in &self.held {
            let consumer = self.consumers.get(&held.consumer);
            let was_seen = consumer.is_none_or(|consumer| !consumer.inbox.unseen().contains(tag));
            sql::put_back(&self.db, held.id, owner, was_seen)?;
        }
        sql::release(&self.db, owner, None).map(drop)
    }

    /// Releases the owners of which it is known that they are gone; not those that may hang.
    pub(crate) fn release_the_gone(&mut self) -> Result<()> {
        for (owner, lock, _) in sql::others(&self.db, self.owner.id())? {
            if self.owner.finds_gone(&lock) {
                self.release(owner, None)?;
            }
        }
        Ok(())
    }

    /// Another owner is gone, unless it has other beats: what it had is there to be taken again.
    pub(crate) fn release(&mut self, owner: i64, beats: Option<i64>) -> Result<()> {
        if sql::release(&self.db, owner, beats)? {
            self.full.extend(self.consumers.values().map(|consumer| consumer.queue));
        }
        Ok(())
    }

    /// Whether a consumer waits for messages.
    pub(crate) fn has_room(&self) -> bool {
        self.consumers.values().any(|consumer| consumer.room() > 0)
    }

    /// When the next delayed message is due that somebody here waits for.
    pub(crate) fn next_due(&self) -> Option<i64> {
        let with_room = self.consumers.values().filter(|consumer| consumer.room() > 0);
        with_room.filter_map(|consumer| self.due.get(&consumer.queue).copied()).min()
    }

    /// Finds out which of the queues that are consumed here have got messages.
    pub(crate) fn look_for_messages(&mut self, now: i64) -> Result<()> {
        let with_room = self.consumers.values().filter(|consumer| consumer.room() > 0);
        let queues: BTreeSet<i64> = with_room.map(|consumer| consumer.queue).collect();
        for queue in queues.difference(&self.full.clone()) {
            if sql::is_ready(&self.db, *queue, now)? {
                self.full.insert(*queue);
            } else if let Some(due) = sql::next_due(&self.db, *queue)? {
                self.due.insert(*queue, due);
            }
        }
        Ok(())
    }

    /// Tells those who wait for messages why there are none.
    pub(crate) fn fail(&self, error: impl Fn() -> BrokerError) {
        for consumer in self.consumers.values() {
            consumer.inbox.fail(error());
        }
    }
}

/// However the thread ends, nobody waits for it for ever.
impl Drop for Database {
    fn drop(&mut self) {
        for consumer in self.consumers.values() {
            consumer.inbox.set_state(InboxState::Closed);
        }
        self.outcomes.watches.close();
    }
}

/// The job of a message that is dropped unread, if an outcome of it is to be stored.
fn job_of_row(properties: &str) -> Option<JobId> {
    job_to_tell_of(&message(properties, None, Vec::new()))
}

//! The broker in a SQLite database: durable on one machine, shared by its processes.
//!
//! A thread owns the database (`thread.rs`); this file has the calls that tasks make to it.

mod bus;
mod database;
mod inbox;
mod lease;
mod maintenance;
mod outcomes;
mod row;
mod schema;
mod statements;
mod thread;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pikake_traps::{random, wall_time};

use crate::broker::bus::Bus;
use crate::broker::outcomes::{LONGEST_LIFE, job_of, wait_until};
use crate::broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, Delivery, LocalFuture, PublishError,
    PublishFailure, QueueOptions, Receipt,
};
use crate::brokers::sqlite::inbox::Inbox;
use crate::brokers::sqlite::row::{Row, message, micros, micros_of, time, wall_now};
use crate::brokers::sqlite::statements as sql;
use crate::brokers::sqlite::thread::{Failure, Link};
use crate::message::{AllMembers, ChordMember, JobId, Message, Outcome};
use crate::unique::{UniqueLock, UniqueSent};

/// How often a waiter for an outcome asks for it, should no notification come.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The leases that a database may be opened with.
const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);

/// The most messages that one transaction purges: less than a second's work, for other calls wait
/// for it.
const PURGED_AT_ONCE: usize = 50_000;

/// A broker in a SQLite database: durable on one machine, shared by its processes.
///
/// A confirmed message is on the disk: neither `kill -9` nor a power failure loses it
/// (`synchronous = FULL`). Calls of many tasks share a write to the disk, so one at a time is slow
/// and many at once are fast. When the disk is full, nothing is lost: workers wait until there is
/// room, and publishing fails.
///
/// A process holds the messages that it has taken under a lease, [`LEASE`](Self::LEASE) unless it
/// is opened with another one, and renews it every third of it. The messages of a process that was
/// killed, or hangs, are delivered again when its lease has expired, after about a lease and a
/// third of it. They count as delivered even if no consumer has seen them. Setting the clock ends
/// no lease.
///
/// A consumer or waiter notices the messages and outcomes of other processes within 20 ms. An
/// outcome is kept for a day ([`App::result_age`](crate::App::result_age) sets another length), or
/// until the handle is dropped that waited for it; the outcome of a job that has ended twice, as
/// one whose id was sent twice, a day longer. Waiting for an outcome that is gone is
/// [`BrokerError::NoOutcome`].
///
/// # Examples
///
/// ```no_run
/// use pikake::jobs::{Broker, Message, QueueOptions, SqliteBroker};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = SqliteBroker::open("jobs.db").await?;
/// broker.declare("mail", &QueueOptions::default()).await?;
/// broker.publish("mail", Message::default(), None).await?;
/// broker.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteBroker(Rc<Opened>);

#[derive(Debug)]
struct Opened {
    link: Link,
    path: PathBuf,
    /// The queues that were declared with a single consumer.
    single: RefCell<BTreeSet<String>>,
}

impl SqliteBroker {
    /// How long a lease lasts unless [`open_with_lease`](Self::open_with_lease) says otherwise.
    pub const LEASE: Duration = Duration::from_secs(10);

    /// Opens the database at a path, and makes it if there is none; its directory has to exist.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The database is closed again.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Io`] if it cannot be opened, [`BrokerError::Refused`] if it belongs to
    /// another program or another version, [`BrokerError::Lost`] if another process has been
    /// writing for seconds.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, BrokerError> {
        Self::open_with_lease(path, Self::LEASE).await
    }

    /// Opens the database as [`open`](Self::open) does, with another lease: from a second to a day.
    ///
    /// With a shorter lease, the messages of a killed process are delivered again sooner; a process
    /// that does not run for that long, on a loaded machine say, loses its messages to others. The
    /// processes of a database should agree on it.
    ///
    /// # Cancellation
    ///
    /// As for [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open); [`BrokerError::Refused`] for a lease out of bounds.
    pub async fn open_with_lease(
        path: impl AsRef<Path>,
        lease: Duration,
    ) -> Result<Self, BrokerError> {
        if !LEASES.contains(&lease) {
            let why = format!("a lease of {lease:?} is not between {:?} and a day", LEASES.start());
            return Err(BrokerError::Refused(why));
        }
        // A relative path goes on to mean this file when the program changes its directory.
        let path = std::path::absolute(path)?;
        let link = Link::open(path.clone(), lease).await?;
        Ok(Self(Rc::new(Opened { link, path, single: RefCell::default() })))
    }
}

/// The path and the lease of a URL, of which `rest` follows `sqlite://`.
pub(crate) fn path_and_lease(rest: &str) -> Result<(&str, Duration), String> {
    let Some((path, query)) = rest.split_once('?') else { return Ok((rest, SqliteBroker::LEASE)) };
    let seconds = query.strip_prefix("lease=").and_then(|seconds| seconds.parse().ok());
    match seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(lease)) => Ok((path, lease)),
        _ => Err(format!("`sqlite://{rest}`: only `?lease=SECONDS` may follow the path")),
    }
}

/// The id and the highest priority of a queue.
fn queue(db: &rusqlite::Connection, name: &str) -> Result<(i64, u8), Failure> {
    sql::queue(db, name)?.ok_or_else(|| {
        BrokerError::Refused(format!("there is no queue `{name}`: declare it first")).into()
    })
}

impl Broker for SqliteBroker {
    fn declare<'a>(
        &'a self,
        name: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        if options.single_consumer {
            self.0.single.borrow_mut().insert(name.to_owned());
        }
        let (name, wanted, as_found) = (name.to_owned(), options.max_priority, options.as_found);
        Box::pin(self.0.link.call(move |database| {
            match sql::queue(&database.db, &name)? {
                None => Ok(sql::make_queue(&database.db, &name, wanted)?),
                Some((_, is)) if as_found || is == wanted => Ok(()),
                Some((_, is)) => Err(BrokerError::Refused(format!(
                    "queue `{name}` has priorities up to {is}, not {wanted}"
                ))
                .into()),
            }
        }))
    }

    fn max_priority<'a>(
        &'a self,
        name: &'a str,
    ) -> LocalFuture<'a, Result<Option<u8>, BrokerError>> {
        let name = name.to_owned();
        Box::pin(self.0.link.call(move |database| Ok(Some(queue(&database.db, &name)?.1))))
    }

    fn publish<'a>(
        &'a self,
        name: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>> {
        Box::pin(async move {
            let (name, row) = (name.to_owned(), Row::of(&message));
            let not_before = not_before.map(micros);
            let published = self.0.link.call(move |database| {
                let queue = queue(&database.db, &name)?;
                let not_before = not_before.filter(|moment| *moment > wall_now());
                sql::publish(&database.db, queue, &row, not_before)?;
                database.full.insert(queue.0);
                Ok(())
            });
            published.await.map_err(|error| {
                let is_uncertain = matches!(error, BrokerError::Interrupted(_));
                PublishError::new(message, is_uncertain, PublishFailure::Broker(error))
            })
        })
    }

    fn publish_unique<'a>(
        &'a self,
        name: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: &'a UniqueLock,
    ) -> LocalFuture<'a, Result<UniqueSent, PublishError>> {
        Box::pin(async move {
            let (name, row, lock) = (name.to_owned(), Row::of(&message), lock.clone());
            let not_before = not_before.map(micros);
            let published = self.0.link.call(move |database| {
                let queue = queue(&database.db, &name)?;
                let now = wall_now();
                if let Some(job) = sql::lock_holder(&database.db, &lock.key, now)? {
                    return Ok(UniqueSent::Held(Some(JobId(job))));
                }
                // First, so that a message that is too big leaves no lock.
                let not_before = not_before.filter(|moment| *moment > now);
                sql::publish(&database.db, queue, &row, not_before)?;
                sql::lock(&database.db, &lock.key, &lock.job.0, micros(lock.ends))?;
                database.full.insert(queue.0);
                Ok(UniqueSent::Sent)
            });
            published.await.map_err(|error| {
                let is_uncertain = matches!(error, BrokerError::Interrupted(_));
                PublishError::new(message, is_uncertain, PublishFailure::Broker(error))
            })
        })
    }

    fn unlock<'a>(&'a self, lock: &'a UniqueLock) -> LocalFuture<'a, Result<(), BrokerError>> {
        let lock = lock.clone();
        Box::pin(
            self.0
                .link
                .call(move |database| Ok(sql::unlock(&database.db, &lock.key, &lock.job.0)?)),
        )
    }

    fn consume<'a>(
        &'a self,
        name: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>> {
        Box::pin(async move {
            if prefetch == 0 {
                let why = "a prefetch of 0 admits no message".to_owned();
                return Err(BrokerError::Refused(why));
            }
            let (id, inbox, opened) = (random::u64(), Arc::new(Inbox::default()), self.0.clone());
            // Made first: if this call is interrupted, dropping it ends the consumer.
            let deliveries = SqliteDeliveries { id, queue: name.to_owned(), inbox, opened };
            let is_single = self.0.single.borrow().contains(name);
            let (name, inbox) = (name.to_owned(), deliveries.inbox.clone());
            let begun = self.0.link.call(move |database| {
                let (queue, _) = queue(&database.db, &name)?;
                database.add_consumer(id, queue, prefetch, is_single, inbox);
                Ok(())
            });
            begun.await?;
            Ok(Box::new(deliveries) as Box<dyn Deliveries>)
        })
    }

    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.0.link.call(move |database| match database.remove(receipt)? {
            true => Ok(()),
            false => Err(BrokerError::Stale.into()),
        }))
    }

    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.0.link.call(move |database| match database.put_back(receipt)? {
            true => Ok(()),
            false => Err(BrokerError::Stale.into()),
        }))
    }

    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>> {
        let row = Row::of(&message);
        Box::pin(self.0.link.call(move |database| {
            let Some(queue) = database.queue_of(receipt) else {
                return Err(BrokerError::Stale.into());
            };
            // First, so that a message that is too big to be buried stays.
            let dead = sql::bury(&database.db, queue, &row, &reason, wall_now())?;
            match database.remove(receipt)? {
                true => Ok(()),
                false => {
                    sql::unbury(&database.db, dead)?;
                    Err(BrokerError::Stale.into())
                }
            }
        }))
    }

    fn queues(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(self.0.link.call(|database| Ok(Some(sql::queues(&database.db)?))))
    }

    fn counts<'a>(&'a self, name: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>> {
        let name = name.to_owned();
        Box::pin(self.0.link.call(move |database| {
            let (queue, _) = queue(&database.db, &name)?;
            let [ready, taken, delayed, dead] = sql::counts(&database.db, queue, wall_now())?;
            Ok(Counts { ready, taken: Some(taken), delayed, dead, ..Counts::default() })
        }))
    }

    fn purge<'a>(&'a self, name: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move {
            let (mut count, mut after) = (0, 0);
            loop {
                let name = name.to_owned();
                let purged = self.0.link.call(move |database| {
                    let (queue, _) = queue(&database.db, &name)?;
                    Ok(database.purge(queue, after, PURGED_AT_ONCE, wall_now())?)
                });
                let (some, last) = purged.await?;
                (count, after) = (count + some as u64, last);
                if some < PURGED_AT_ONCE {
                    return Ok(count);
                }
            }
        })
    }

    fn dead<'a>(
        &'a self,
        name: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let dead = self.0.link.call(move |database| {
                let (queue, _) = queue(&database.db, &name)?;
                Ok(sql::dead(&database.db, queue, limit)?)
            });
            let job = |dead: sql::Dead| {
                let message = message(&dead.properties, None, dead.body);
                DeadJob::new(dead.reason, Some(time(dead.since)), message)
            };
            Ok(dead.await?.into_iter().map(job).collect())
        })
    }

    fn replay<'a>(
        &'a self,
        name: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>> {
        let (name, job) = (name.to_owned(), job.map(|job| job.0.clone()));
        Box::pin(self.0.link.call(move |database| {
            let queue = queue(&database.db, &name)?;
            let count = sql::replay(&database.db, queue, job.as_deref())?;
            database.full.insert(queue.0);
            Ok(count)
        }))
    }

    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let now = micros(wall_time());
            self.0.link.watches.expect(job_of(message)?, message.expires, now);
            Ok(())
        })
    }

    fn store<'a>(
        &'a self,
        message: &'a Message,
        outcome: Outcome,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let job = job_of(message)?;
            let stored = self.0.link.call(move |database| {
                Ok(database.outcomes.store(&database.db, job, outcome, wall_now())?)
            });
            stored.await
        })
    }

    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>> {
        let job = job.clone();
        Box::pin(
            self.0
                .link
                .call(move |database| Ok(sql::outcome_of(&database.db, &job.0, wall_now())?)),
        )
    }

    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>> {
        Box::pin(async move {
            let Opened { link, .. } = &*self.0;
            let watch = link.watches.get(job);
            if let Some(outcome) = watch.as_ref().and_then(|watch| watch.outcome()) {
                return Ok(outcome);
            }
            let _waiting = link.watches.wait();
            loop {
                let expires = watch.as_ref().and_then(|watch| watch.expires);
                let now = wall_time();
                let (asked, is_over) = (job.clone(), expires.is_some_and(|it| it <= now));
                let may_be_gone = watch.as_ref().is_some_and(|it| it.may_be_gone(micros(now)));
                let known = link.call(move |database| {
                    if is_over {
                        // There may be no consumer that does so.
                        database.expire(wall_now())?;
                    }
                    let known = database.outcomes.ask(&database.db, &asked)?;
                    if may_be_gone && known.is_none() && !sql::has_message(&database.db, &asked.0)?
                    {
                        return Err(BrokerError::NoOutcome.into());
                    }
                    Ok(known)
                });
                if let Some(outcome) = known.await?.filter(|outcome| outcome.state.is_final()) {
                    return Ok(outcome);
                }
                let watch = watch.as_ref().ok_or(BrokerError::NoOutcome)?;
                watch.mark_missing(micros(now));
                let again = wall_time() + ASK_AGAIN;
                let until =
                    expires.filter(|_| !is_over).map_or(again, |expires| again.min(expires));
                wait_until(&watch.arrived, Some(until)).await?;
                match watch.outcome() {
                    Some(outcome) => return Ok(outcome),
                    None if !watch.arrived.is_set() => {}
                    None if link.is_open() => return Err(BrokerError::NoOutcome),
                    None => return Err(BrokerError::Closed),
                }
            }
        })
    }

    fn join_chord<'a>(
        &'a self,
        member: &'a ChordMember,
    ) -> LocalFuture<'a, Result<Option<AllMembers>, BrokerError>> {
        let member = member.clone();
        let meta = member.to_meta(wall_time());
        Box::pin(async move {
            let joined = self.0.link.call({
                let member = member.clone();
                move |database| Ok(sql::join_chord(&database.db, &member, &meta, wall_now())?)
            });
            let members = joined.await?.into_iter();
            let members: Vec<_> =
                members.filter_map(|(index, meta)| member.other(index, &meta).ok()).collect();
            Ok((members.len() >= member.size as usize).then(|| AllMembers::new(members)))
        })
    }

    fn end_chord<'a>(&'a self, chord: &'a str) -> LocalFuture<'a, Result<(), BrokerError>> {
        let chord = chord.to_owned();
        Box::pin(self.0.link.call(move |database| Ok(sql::end_chord(&database.db, &chord)?)))
    }

    fn forget(&self, job: &JobId) {
        if self.0.link.watches.forget(job) {
            let job = job.clone();
            self.0.link.post(move |database| {
                let dated = wall_now() + database.outcomes.ahead;
                Ok(sql::forget(&database.db, &job.0, dated)?)
            });
        }
    }

    fn keep_outcomes(&self, length: Duration) {
        let length = length.min(LONGEST_LIFE);
        self.0.link.post(move |database| {
            database.outcomes.ahead = micros_of(length) - micros_of(sql::OUTCOME_LIFE);
            Ok(())
        });
    }

    fn bus(&self) -> Option<&dyn Bus> {
        Some(self)
    }

    fn state(&self) -> String {
        if self.0.link.is_open() { "open" } else { "closed" }.to_owned()
    }

    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.0.link.close())
    }
}

impl fmt::Debug for SqliteBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteBroker").field(&self.0.path).finish()
    }
}

/// A consumer of a queue. The thread of the database fills its inbox.
struct SqliteDeliveries {
    id: u64,
    queue: String,
    inbox: Arc<Inbox>,
    opened: Rc<Opened>,
}

impl Deliveries for SqliteDeliveries {
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>> {
        Box::pin(async move {
            loop {
                if let Some(looked) = self.inbox.look() {
                    let Some(arrived) = looked? else { return Ok(None) };
                    let receipt = Receipt { session: self.id, tag: arrived.tag };
                    let (queue, attempt) = (self.queue.clone(), arrived.attempt);
                    return Ok(Some(Delivery::new(receipt, queue, attempt, arrived.message)));
                }
                self.inbox.event().wait().await?;
            }
        })
    }

    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.opened.link.cancel(self.inbox.clone()))
    }
}

impl Drop for SqliteDeliveries {
    fn drop(&mut self) {
        self.opened.link.leave(self.inbox.clone());
    }
}

impl fmt::Debug for SqliteDeliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteDeliveries").field("queue", &self.queue).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! Outcomes in Redis, where Celery's backend has them: one key for each job, announced on the
//! channel of that name.

mod address;
mod chords;
mod link;
mod protocol;
mod stream;
mod subscriptions;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pikake_traps::wall_time;

use crate::broker::BrokerError;
use crate::broker::outcomes::{LONGEST_LIFE, job_of, replaces};
use crate::message::{JobId, Message, Outcome};
use crate::results::redis::link::{Link, is_transient};
use crate::results::redis::protocol::{MAX_VALUE, Reply};
use crate::results::redis::subscriptions::{Channel, Channels};

pub(crate) use address::Address;

/// How long an outcome is kept that its waiter has got and forgotten: another waiter may be about
/// to look for it.
const FORGOTTEN_LIFETIME: Duration = Duration::from_secs(60);

/// The outcomes in one Redis, over one connection for commands and one for announcements.
pub(crate) struct RedisResults {
    address: Address,
    commands: Link,
    /// Opened by the first waiter.
    announcements: OnceCell<Link>,
    channels: Rc<Channels>,
    expected: RefCell<BTreeMap<JobId, Expected>>,
    is_closed: Cell<bool>,
    /// How long outcomes are kept; zero: until somebody deletes them.
    outcome_life: Cell<Duration>,
}

/// A job whose outcome is expected here.
#[derive(Debug, Default)]
struct Expected {
    /// How many expect it.
    count: u32,
    /// Whether a waiter has got the final outcome.
    has_come: bool,
}

/// The key of a job's outcome, and the channel on which the outcome is announced.
fn key_of(job: &JobId) -> String {
    format!("celery-task-meta-{}", job.0)
}

impl RedisResults {
    pub(crate) async fn open(address: Address) -> Result<Self, BrokerError> {
        Ok(Self {
            commands: Link::open(&address).await?,
            outcome_life: Cell::new(address.expires),
            address,
            announcements: OnceCell::new(),
            channels: Rc::default(),
            expected: RefCell::default(),
            is_closed: Cell::new(false),
        })
    }

    /// Sends commands, and returns their replies; an error that is one of them, or of a
    /// transaction's, fails the call.
    async fn ask(&self, commands: &[&[&[u8]]]) -> Result<Vec<Reply>, BrokerError> {
        let replies = self.commands.ask(commands).await?;
        match replies.iter().find_map(Reply::error) {
            None => Ok(replies),
            Some(why) if is_transient(why) => Err(BrokerError::ResultsLost(format!(
                "Redis at {}: {why}",
                self.address.host_and_port()
            ))),
            Some(why) => Err(BrokerError::ResultsRefused(format!(
                "Redis at {}: {why}",
                self.address.host_and_port()
            ))),
        }
    }

    /// How many seconds keys of chords are kept; `0`: for good.
    fn lifetime(&self) -> String {
        self.address.expires.as_secs().to_string()
    }

    pub(crate) async fn outcome(&self, job: &JobId) -> Result<Option<Outcome>, BrokerError> {
        let key = key_of(job);
        let replies = self.ask(&[&[b"GET", key.as_bytes()]]).await?;
        let Some(Reply::Bytes(meta)) = replies.first() else { return Ok(None) };
        match Outcome::from_meta(meta) {
            Ok((_, outcome)) => Ok(Some(outcome)),
            Err(error) => Err(BrokerError::ResultsRefused(format!(
                "`{key}` in Redis cannot be read: {error} (results are read as JSON, without compression)"
            ))),
        }
    }

    /// Sets how long outcomes are kept: a second at least.
    pub(crate) fn keep_outcomes(&self, length: Duration) {
        self.outcome_life.set(length.clamp(Duration::from_secs(1), LONGEST_LIFE));
    }

    /// Stores an outcome, and announces it. As at Celery, a success stays.
    pub(crate) async fn store(
        &self,
        message: &Message,
        outcome: &Outcome,
    ) -> Result<(), BrokerError> {
        let job = job_of(message)?;
        // What nobody can read is replaced.
        let before = match self.outcome(&job).await {
            Err(BrokerError::ResultsRefused(_)) => None,
            before => before?,
        };
        if before.is_some_and(|before| !replaces(outcome.state, before.state)) {
            return Ok(());
        }
        let (key, meta) = (key_of(&job), outcome.to_meta_of(&job.0, message, wall_time()));
        if meta.len() > MAX_VALUE {
            let why = format!("its outcome of {} bytes is too large for Redis", meta.len());
            return Err(BrokerError::ResultsRefused(why));
        }
        let (key, lifetime) = (key.as_bytes(), self.outcome_life.get().as_secs().to_string());
        let set: &[&[u8]] = match lifetime.as_str() {
            "0" => &[b"SET", key, &meta],
            seconds => &[b"SETEX", key, seconds.as_bytes(), &meta],
        };
        // Both or none: an outcome that is stored and not announced would leave its waiters
        // waiting.
        let publish: &[&[u8]] = &[b"PUBLISH", key, &meta];
        self.ask(&[&[b"MULTI"], set, publish, &[b"EXEC"]]).await.map(drop)
    }

    pub(crate) fn expect(&self, message: &Message) -> Result<(), BrokerError> {
        let job = job_of(message)?;
        self.expected.borrow_mut().entry(job).or_default().count += 1;
        Ok(())
    }

    pub(crate) fn forget(&self, job: &JobId) {
        let key = key_of(job);
        let mut all = self.expected.borrow_mut();
        let Some(expected) = all.get_mut(job) else { return };
        expected.count -= 1;
        if expected.count > 0 {
            return;
        }
        if expected.has_come {
            let lifetime = FORGOTTEN_LIFETIME.as_secs().to_string();
            self.commands.post(&[b"EXPIRE", key.as_bytes(), lifetime.as_bytes()]);
        }
        all.remove(job);
        drop(all);
        self.channels.notify(key.as_bytes());
    }

    pub(crate) async fn wait(&self, job: &JobId) -> Result<Outcome, BrokerError> {
        let subscription = Subscription::to(self, &key_of(job));
        let channel = &subscription.channel;
        let mut seen = None;
        loop {
            if self.is_closed.get() {
                return Err(BrokerError::Closed);
            }
            if !self.expected.borrow().contains_key(job) {
                return Err(BrokerError::NoOutcome);
            }
            let news = channel.news();
            // Before the first confirmation there is nothing to look for.
            if seen == Some(news) || news == 0 {
                channel.changed().await?;
                continue;
            }
            seen = Some(news);
            let outcome = self.outcome(job).await?;
            if let Some(outcome) = outcome.filter(|outcome| outcome.state.is_final()) {
                if let Some(expected) = self.expected.borrow_mut().get_mut(job) {
                    expected.has_come = true;
                }
                return Ok(outcome);
            }
            if let Some(why) = channel.refusal() {
                return Err(BrokerError::ResultsRefused(format!(
                    "Redis at {}, as this program subscribes to the channel `{}`: {why}",
                    self.address.host_and_port(),
                    key_of(job)
                )));
            }
        }
    }

    fn announcements(&self) -> &Link {
        self.announcements.get_or_init(|| Link::start_beside(&self.commands, self.channels.clone()))
    }

    /// Whether the connection is lost, and being made again.
    pub(crate) fn is_lost(&self) -> bool {
        !self.commands.is_open() && !self.is_closed.get()
    }

    /// A round trip.
    pub(crate) async fn probe(&self) -> Result<(), BrokerError> {
        self.ask(&[&[b"PING"]]).await.map(drop)
    }

    /// Closes the connections, once all commands have replies.
    pub(crate) async fn close(&self) -> Result<(), BrokerError> {
        self.is_closed.set(true);
        self.channels.notify_all();
        let closed = self.commands.close().await;
        if let Some(link) = self.announcements.get() {
            link.close().await?;
        }
        closed
    }
}

impl fmt::Debug for RedisResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisResults").field("commands", &self.commands).finish_non_exhaustive()
    }
}

/// A waiter's share in the subscription to a channel.
struct Subscription<'a> {
    results: &'a RedisResults,
    name: Vec<u8>,
    channel: Rc<Channel>,
}

impl<'a> Subscription<'a> {
    fn to(results: &'a RedisResults, name: &str) -> Self {
        let link = results.announcements();
        let (channel, is_new) = results.channels.join(name.as_bytes());
        if is_new {
            link.push(&[b"SUBSCRIBE", name.as_bytes()]);
        }
        Self { results, name: name.into(), channel }
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        let Self { results, name, channel } = self;
        let channel = std::mem::take(channel);
        if results.channels.leave(name, channel) {
            results.announcements().push(&[b"UNSUBSCRIBE", name]);
        }
    }
}

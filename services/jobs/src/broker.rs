//! The contract of brokers, which memory, SQLite and RabbitMQ keep.
//!
//! A broker belongs to one kernel (`!Send`). The trait is object-safe, since a URL chooses the
//! broker at run time.
//!
//! # At least once
//!
//! A message that `publish` confirmed is delivered until a consumer acknowledges it or moves it to
//! the dead: to one consumer at a time, and again (with [`Delivery::attempt`] one higher) if that
//! consumer is lost. Besides, a message ends by its `expires` (a worker may still get it, and
//! revokes the job), by `purge`, and with a `memory://` process.
//!
//! # Interruption
//!
//! Every wait is an interruption point. Interrupted, `publish` is uncertain, and the error has the
//! message. Interrupted, `next` loses nothing: the next call returns a message that has arrived.
//! `ack`, `give_back` and `bury` are not interruption points where the broker can do them without
//! waiting.

pub(crate) mod bus;
mod error;
#[cfg(feature = "redis")]
pub(crate) mod handed_on;
pub(crate) mod outcomes;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use pikake_traps::Interrupted;

use crate::message::{AllMembers, ChordMember, JobId, Message, Outcome};
use crate::unique::{UniqueLock, UniqueSent, unknown};

pub use bus::{Bus, Notice, Notices, SharedFact, SharedFacts, Topic};

/// A future of one kernel, boxed since the broker is chosen at run time.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A broker; see the module for the rules that hold for all methods.
pub trait Broker: fmt::Debug {
    /// Declares a queue, if there is none of this name. A queue with other options is an error,
    /// unless [`QueueOptions::as_found`].
    fn declare<'a>(
        &'a self,
        queue: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>>;

    /// The highest priority of a declared queue's messages; 0 without priorities, `None` if the
    /// broker cannot say.
    fn max_priority<'a>(
        &'a self,
        queue: &'a str,
    ) -> LocalFuture<'a, Result<Option<u8>, BrokerError>> {
        let _ = queue;
        Box::pin(async { Ok(None) })
    }

    /// Publishes a message to a queue; resolves once the broker has confirmed it. Many calls may be
    /// under way at once.
    ///
    /// With `not_before` in the future, the message stays at the broker until then.
    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>>;

    /// Publishes the message of a unique job, unless another job has the lock. Both happen, or
    /// neither.
    ///
    /// RabbitMQ takes the lock first; if the publishing then fails, the lock may stay until its
    /// end.
    fn publish_unique<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: &'a UniqueLock,
    ) -> LocalFuture<'a, Result<UniqueSent, PublishError>> {
        let _ = (queue, not_before, lock);
        unknown(message)
    }

    /// Releases the lock of a unique job, if that job has it.
    fn unlock<'a>(&'a self, lock: &'a UniqueLock) -> LocalFuture<'a, Result<(), BrokerError>> {
        let _ = lock;
        Box::pin(async { Ok(()) })
    }

    /// Starts a consumer of a queue, with `prefetch` unacknowledged messages at most.
    fn consume<'a>(
        &'a self,
        queue: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>>;

    /// Acknowledges a message, which removes it.
    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// Whether this consumer still has a message, as far as is known here. RabbitMQ requeues the
    /// messages of a lost connection, so a worker begins none of them that waits.
    fn holds(&self, receipt: Receipt) -> bool {
        let _ = receipt;
        true
    }

    /// Requeues a message, at its old position where the broker supports that.
    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// Moves a message to the dead of its queue, with the reason. If the broker refuses, the
    /// message is still delivered to this consumer, which must requeue it.
    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// The names of all queues; `None` if the broker cannot list them.
    fn queues(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(async { Ok(None) })
    }

    /// How many messages a queue has.
    fn counts<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>>;

    /// How many messages each of these queues has, in their order; the inner error is that of a
    /// queue which is not there. A broker whose delayed messages wait together counts them once for
    /// all.
    fn counts_of<'a>(
        &'a self,
        queues: &'a [String],
    ) -> LocalFuture<'a, Result<Vec<Result<Counts, BrokerError>>, BrokerError>> {
        Box::pin(async move {
            let mut all = Vec::new();
            for queue in queues {
                match self.counts(queue).await {
                    Err(error) if !matches!(error, BrokerError::Refused(_)) => return Err(error),
                    counts => all.push(counts),
                }
            }
            Ok(all)
        })
    }

    /// Removes the ready and delayed messages of a queue, and returns how many. Waiters of their
    /// jobs are notified that these were revoked, unless the broker cannot say which they were
    /// (RabbitMQ). The jobs that follow them in a workflow are not run, and their waiters and
    /// chords are not notified. Interrupted, some may remain.
    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>>;

    /// Lists the dead of a queue, oldest first, `limit` at most.
    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>>;

    /// Puts dead messages back into their queue, all or the one of `job`, and returns how many.
    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>>;

    /// Prepares for the outcome of a job that is about to be published, so that an early outcome is
    /// not lost.
    ///
    /// Sets [`Message::reply_to`] if the broker needs it.
    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>>;

    /// Prepares for the outcome of a job that another job sends. Returns the `reply_to` that the
    /// job's message has to have, if the broker needs it.
    fn expect_later<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<String>, BrokerError>> {
        Box::pin(async move {
            let mut message = Message { correlation_id: Some(job.0.clone()), ..Message::default() };
            self.expect(&mut message).await?;
            Ok(message.reply_to)
        })
    }

    /// Tells the broker how many members a chord has, before their messages are published.
    fn begin_chord<'a>(
        &'a self,
        chord: &'a str,
        size: u32,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        let _ = (chord, size);
        Box::pin(async { Ok(()) })
    }

    /// Adds a member of a chord. Once all members are there, returns them in their order: the
    /// caller then sends the job that follows them, calls [`end_chord`](Self::end_chord), and drops
    /// the value. A caller that has to give up drops it earlier.
    ///
    /// A member that is added again counts once. Two calls may both return all members, if a caller
    /// was lost in between.
    fn join_chord<'a>(
        &'a self,
        member: &'a ChordMember,
    ) -> LocalFuture<'a, Result<Option<AllMembers>, BrokerError>> {
        let why = format!("this broker has no chords, so `{}` cannot be joined", member.chord);
        Box::pin(async { Err(BrokerError::Refused(why)) })
    }

    /// Forgets a chord, whose following job was sent. A chord that is not there is no error.
    fn end_chord<'a>(&'a self, _chord: &'a str) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether chords are counted where Celery counts them, so that its workers may run members. By
    /// default they are not.
    fn shares_chords(&self) -> bool {
        false
    }

    /// Stores the outcome of a message's job, or sends it to the waiter. A broker that keeps no
    /// outcomes may take it for sent while it waits in this process (see [`flush`](Self::flush)).
    fn store<'a>(
        &'a self,
        message: &'a Message,
        outcome: Outcome,
    ) -> LocalFuture<'a, Result<(), BrokerError>>;

    /// The latest outcome of a job; `None` if none is known.
    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>>;

    /// Waits for the final outcome of a job (success, failure or revoked). May be called again
    /// after an interruption.
    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>>;

    /// Cancels one `expect`. Call exactly once per `expect`.
    fn forget(&self, job: &JobId);

    /// Sets how long outcomes that this broker stores from now on are kept. Without this call, the
    /// broker has a length of its own.
    fn keep_outcomes(&self, length: Duration) {
        let _ = length;
    }

    /// Whether [`outcome`](Self::outcome) knows the outcomes of jobs that were not expected here,
    /// such as those of other processes. By default it does.
    fn keeps_outcomes(&self) -> bool {
        true
    }

    /// The state of the connection, for people (`open`, `blocked: memory`, `connecting (3)`).
    fn state(&self) -> String;

    /// Updates [`state`](Self::state) with a round trip. RabbitMQ reports that it is short of
    /// memory or disk only to connections that have published.
    fn probe(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }

    /// Waits until outcomes that the broker did not take yet, and that wait in this process, have
    /// been sent.
    fn flush(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }

    /// Closes the connection, once all acknowledgements and published messages have reached the
    /// broker. Messages published after this call may fail with [`BrokerError::Closed`], also if
    /// the call was interrupted.
    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// The way of control messages and events; `None` if the broker has none, and its workers
    /// cannot be controlled.
    fn bus(&self) -> Option<&dyn Bus> {
        None
    }

    /// The broker's own type, for a downcast, if it offers more than this trait.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// A consumer of one queue. Dropped, it requeues its unacknowledged messages.
pub trait Deliveries: fmt::Debug {
    /// The next message; `None` once the consumer has been cancelled.
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>>;

    /// Takes no more messages, even if this call fails: `next` returns those that have arrived,
    /// then `None`.
    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>>;
}

/// A message that one consumer holds, until the consumer acknowledges, requeues or buries it, or is
/// lost.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The argument for `ack`, `give_back` or `bury`.
    pub receipt: Receipt,
    /// The queue of the message.
    pub queue: String,
    /// How often the message was delivered before, as far as the broker knows.
    pub attempt: u32,
    /// Whether the broker remembers `attempt`. If not, the worker publishes the message again with
    /// the count in a header, before the job runs (RabbitMQ's classic queues, for messages that
    /// were delivered before).
    pub is_counted: bool,
    /// The message, unchecked (see [`Request::read`](crate::Request::read)).
    pub message: Message,
}

impl Delivery {
    /// A counted delivery, for implementations of [`Broker`].
    pub fn new(receipt: Receipt, queue: String, attempt: u32, message: Message) -> Self {
        Self { receipt, queue, attempt, is_counted: true, message }
    }
}

/// Identifies a delivery to its broker, which refuses receipts of an earlier connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The connection or consumer of the delivery.
    pub session: u64,
    /// The delivery tag, or row.
    pub tag: u64,
}

/// The options of a queue.
///
/// # Examples
///
/// ```
/// use pikake::jobs::{App, QueueOptions};
///
/// let app = App::new("memory://")?
///     .queue("urgent", QueueOptions::new().max_priority(9));
/// # Ok::<_, pikake::jobs::AppError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Whether the queue is replicated. RabbitMQ: a quorum queue, else a durable classic one, as
    /// Celery declares its queues. Other brokers ignore this.
    pub replicated: bool,
    /// The highest priority of a message; 0: no priorities, and jobs with a priority cannot be sent
    /// to the queue. Not with RabbitMQ's quorum queues.
    pub max_priority: u8,
    /// Whether an existing queue is used as it is. The other options then apply to a new queue
    /// only.
    pub as_found: bool,
    /// Whether one consumer gets all messages, and the next one gets them when the first is gone.
    /// All who consume the queue declare it so. SQLite hands over once no other process holds
    /// messages of the queue.
    pub single_consumer: bool,
}

impl QueueOptions {
    /// The default options: not replicated, without priorities, and an existing queue must have the
    /// same.
    pub const fn new() -> Self {
        Self { replicated: false, max_priority: 0, as_found: false, single_consumer: false }
    }

    /// Sets [`replicated`](Self#structfield.replicated).
    pub const fn replicated(mut self, is_replicated: bool) -> Self {
        self.replicated = is_replicated;
        self
    }

    /// Sets [`max_priority`](Self#structfield.max_priority).
    pub const fn max_priority(mut self, highest: u8) -> Self {
        self.max_priority = highest;
        self
    }

    /// Sets [`as_found`](Self#structfield.as_found).
    pub const fn as_found(mut self, as_found: bool) -> Self {
        self.as_found = as_found;
        self
    }

    /// Sets [`single_consumer`](Self#structfield.single_consumer).
    pub const fn single_consumer(mut self, is_single: bool) -> Self {
        self.single_consumer = is_single;
        self
    }

    /// For a queue without options of its own: an existing one as it is, or a default one.
    pub(crate) fn unspecified() -> Self {
        Self::new().as_found(true)
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// How many messages a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that may be delivered.
    pub ready: u64,
    /// Messages that were delivered and not acknowledged, if the broker counts them.
    pub taken: Option<u64>,
    /// Messages whose time has not come.
    pub delayed: u64,
    /// Whether `delayed` counts the messages of all queues, which wait together (RabbitMQ).
    pub delayed_of_all: bool,
    /// Dead messages.
    pub dead: u64,
    /// Consumers, if the broker counts them.
    pub consumers: Option<u64>,
}

/// A dead message.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadJob {
    /// Why the message is dead.
    pub reason: String,
    /// When the message was moved, if the broker knows.
    pub since: Option<SystemTime>,
    /// The message.
    pub message: Message,
}

impl DeadJob {
    /// A dead message, for implementations of [`Broker`].
    pub fn new(reason: String, since: Option<SystemTime>, message: Message) -> Self {
        Self { reason, since, message }
    }
}

/// An error of a broker.
#[derive(Debug)]
#[non_exhaustive]
pub enum BrokerError {
    /// This wait was interrupted.
    Interrupted(Interrupted),
    /// The connection is lost and being recovered; the call may be retried.
    Lost(String),
    /// The broker refuses, and would do so again (no such queue, other options, no permission).
    Refused(String),
    /// The Redis of [`App::results`](crate::App::results) is lost or busy; the call may be retried.
    /// The broker need not be.
    ResultsLost(String),
    /// The Redis of [`App::results`](crate::App::results) refuses, and would do so again (wrong
    /// password, value too large).
    ResultsRefused(String),
    /// The receipt is of an earlier connection or was used: this consumer no longer has the
    /// message.
    Stale,
    /// The outcome cannot arrive here: it was not expected before the job was sent, it was
    /// forgotten, or its connection was lost.
    NoOutcome,
    /// The connection has been closed.
    Closed,
    /// The system or a file failed: disk full, no permission.
    Io(std::io::Error),
}

/// The options of opening a broker. Brokers other than RabbitMQ ignore them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Opening {
    /// Whether messages are published over a connection of their own.
    pub(crate) is_split: bool,
    /// How long a message waits while the broker accepts none; `None`: the default of the AMQP
    /// client.
    pub(crate) blocked_timeout: Option<Duration>,
}

/// A message that was not confirmed.
#[derive(Debug)]
#[non_exhaustive]
pub struct PublishError {
    /// The message.
    pub message: Box<Message>,
    /// Whether the message may have arrived nevertheless. With RabbitMQ also `true` for a refused
    /// message: the broker closes the channel, and does not say which messages arrived before.
    pub is_uncertain: bool,
    /// Why the message was not confirmed.
    pub cause: PublishFailure,
}

impl PublishError {
    /// An error, for implementations of [`Broker`].
    pub fn new(message: Message, is_uncertain: bool, cause: PublishFailure) -> Self {
        Self { message: Box::new(message), is_uncertain, cause }
    }
}

/// Why a message was not confirmed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishFailure {
    /// The broker is short of memory or disk, and has accepted no messages for this long.
    Blocked(Duration),
    /// Any other error.
    Broker(BrokerError),
}

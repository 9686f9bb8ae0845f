//! What a broker does for jobs: the contract that memory, SQLite and RabbitMQ keep.
//!
//! A broker belongs to one kernel (`!Send`); it is chosen by URL at run time, so the trait is object-safe.
//!
//! # At least once
//!
//! A message that `publish` confirmed is delivered until somebody acknowledges it or moves it to the dead: to one
//! consumer at a time, again (with [`Delivery::attempt`] one higher) if that consumer is lost. Nothing else ends it,
//! but its own `expires` (it may be delivered once more, and is then told to have expired), `purge`, and the end of the process for `memory://`.
//!
//! # Interruption
//!
//! Every wait is an interruption point. Interrupted `publish`: uncertain, the message is in the error. Interrupted
//! `next`: nothing is lost, what had come is returned by the next call. `ack`, `give_back` and `bury` are not
//! interruption points where the broker can do them without waiting.

mod error;
pub(crate) mod outcomes;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use pikake_traps::Interrupted;

use crate::message::{JobId, Message, Outcome};

/// A future of one kernel, boxed since the broker is chosen at run time.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The contract; see the module for what holds of all of it.
pub trait Broker: fmt::Debug {
    /// Makes sure that a queue exists; does nothing if it does. A queue with other options is an error, unless
    /// [`QueueOptions::as_found`].
    fn declare<'a>(
        &'a self,
        queue: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>>;

    /// Puts a message into a queue; resolves once the broker has it for good (pipelined: many may be under way).
    ///
    /// With `not_before` in the future, it is delivered from then on, and waits at the broker until then.
    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>>;

    /// Begins to take messages of a queue, `prefetch` unacknowledged ones at most.
    fn consume<'a>(
        &'a self,
        queue: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>>;

    /// The job is done: its message is removed.
    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// Not done: others may take it at once. It keeps its place in line if the broker can do that.
    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// Moves a message to the dead of its queue, with the reason why. Refused, the message is still the consumer's, to be
    /// given back.
    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// The names of all queues; `None` if the broker does not tell.
    fn queues(&self) -> LocalFuture<'_, Result<Option<Vec<String>>, BrokerError>> {
        Box::pin(async { Ok(None) })
    }

    /// How many messages a queue has.
    fn counts<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>>;

    /// Removes the messages that wait in a queue, delayed ones with them; says how many. Who waits for one of their jobs is
    /// told that it was revoked, unless the broker cannot say which they were (RabbitMQ). Interrupted, some may be there yet.
    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>>;

    /// The dead of a queue, oldest first, `limit` at most. They stay.
    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>>;

    /// Puts dead messages back into their queue, all or the one of `job`; says how many.
    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>>;

    /// Prepares for the outcome of a job that is about to be published, so that none can come too early.
    ///
    /// Sets [`Message::reply_to`] if the broker needs it.
    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>>;

    /// Stores the outcome of the job of a message, or sends it to who asked for it.
    fn store<'a>(
        &'a self,
        message: &'a Message,
        outcome: Outcome,
    ) -> LocalFuture<'a, Result<(), BrokerError>>;

    /// What is known of a job's outcome now; `None` if nothing.
    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>>;

    /// Waits for the final outcome of a job (success, failure or revoked). May be called again after an interruption.
    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>>;

    /// One who expected the outcome of this job will not ask for it any more; called once for each `expect`.
    fn forget(&self, job: &JobId);

    /// How the connection to the broker is, in a word or two for people (`open`, `blocked: memory`, `connecting (3)`).
    fn state(&self) -> String;

    /// Asks the broker how it is, for [`state`](Self::state) to tell. RabbitMQ says that it is short of memory or disk only
    /// to who has sent it something.
    fn probe(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async { Ok(()) })
    }

    /// Ends: waits until what was acknowledged and published has reached the broker, then closes.
    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>>;

    /// The broker itself, where it has more to offer than this contract; to be downcast.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Messages of one queue for one consumer. Dropped: consuming ends, what was not acknowledged is given back.
pub trait Deliveries: fmt::Debug {
    /// The next message; `None` once the consumer has been cancelled.
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>>;

    /// No more messages, also if this fails: those that had come already are still returned by `next`, then `None`.
    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>>;
}

/// A message that one consumer has, until it acknowledges it, gives it back, buries it, or is lost.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// What to hand to `ack`, `give_back` or `bury`.
    pub receipt: Receipt,
    /// The queue that it came from.
    pub queue: String,
    /// How often it was delivered before this time, as far as the broker knows.
    pub attempt: u32,
    /// The message as it came; it may be anything at all (see [`Message::request`](crate::message::Message)).
    pub message: Message,
}

impl Delivery {
    /// For brokers.
    pub fn new(receipt: Receipt, queue: String, attempt: u32, message: Message) -> Self {
        Self { receipt, queue, attempt, message }
    }
}

/// What identifies a delivery to its broker: one of an earlier connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Which connection, or consumer, it belongs to.
    pub session: u64,
    /// The delivery tag, or row.
    pub tag: u64,
}

/// What a queue is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Whether several machines keep it (RabbitMQ: a quorum queue, else a classic one). Others ignore it.
    pub replicated: bool,
    /// The highest priority that messages may have; 0: none. Not with RabbitMQ's quorum queues.
    pub max_priority: u8,
    /// Whether a queue that is there already is used as it is, and the rest counts only for one that has to be made.
    pub as_found: bool,
}

impl QueueOptions {
    /// For a queue of which nobody has said what it is to be: as it is found, or the default.
    pub(crate) fn unsaid() -> Self {
        Self { as_found: true, ..Self::default() }
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { replicated: true, max_priority: 0, as_found: false }
    }
}

/// How many messages a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Waiting to be taken.
    pub ready: u64,
    /// Taken and not acknowledged, if the broker tells.
    pub taken: Option<u64>,
    /// Waiting for their time.
    pub delayed: u64,
    /// Dead.
    pub dead: u64,
    /// Consumers, if the broker tells.
    pub consumers: Option<u64>,
}

/// A dead message.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeadJob {
    /// Why it died.
    pub reason: String,
    /// When, if the broker tells.
    pub since: Option<SystemTime>,
    /// The message as it was.
    pub message: Message,
}

impl DeadJob {
    /// For brokers.
    pub fn new(reason: String, since: Option<SystemTime>, message: Message) -> Self {
        Self { reason, since, message }
    }
}

/// What can go wrong at a broker.
#[derive(Debug)]
#[non_exhaustive]
pub enum BrokerError {
    /// This wait was interrupted.
    Interrupted(Interrupted),
    /// The broker was lost and is being looked for; the call may be made again.
    Lost(String),
    /// The broker refused, and would again (no such queue, other options, no permission).
    Refused(String),
    /// The receipt is of an earlier connection, or was used: the message is somebody else's by now.
    Stale,
    /// The outcome can't be known here: nobody asked for it before the job was sent, it was forgotten, or the
    /// connection was lost over which it was to come.
    NoOutcome,
    /// The connection has been closed.
    Closed,
    /// The system or a file: disk full, no permission.
    Io(std::io::Error),
}

/// How a broker is opened, where that makes a difference.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Opening {
    /// Messages go over a connection of their own.
    pub(crate) is_split: bool,
    /// How long a message is held back while the broker takes none; `None`: as the client does.
    pub(crate) blocked_timeout: Option<Duration>,
}

/// A message that may not have reached the broker, given back.
#[derive(Debug)]
#[non_exhaustive]
pub struct PublishError {
    /// The message.
    pub message: Box<Message>,
    /// Whether it may have arrived all the same.
    pub is_uncertain: bool,
    /// Why.
    pub cause: PublishFailure,
}

impl PublishError {
    /// For brokers.
    pub fn new(message: Message, is_uncertain: bool, cause: PublishFailure) -> Self {
        Self { message: Box::new(message), is_uncertain, cause }
    }
}

/// Why a message was not confirmed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PublishFailure {
    /// The broker's memory or disk is short, and it did not take messages for this long.
    Blocked(Duration),
    /// Anything else.
    Broker(BrokerError),
}

//! The broker that is RabbitMQ.
//!
//! The client (`pikake-amqp`) knows nothing of jobs. What they need is built on it here: how
//! messages go out (`publisher.rs`, `routes.rs`), delays (`delay.rs`), control (`bus.rs`), outcomes
//! (`replies.rs`, `held_outcomes.rs`), the dead (`dead.rs`).

mod bus;
mod chords;
mod dead;
mod delay;
mod deliveries;
mod error;
mod held_outcomes;
mod message;
mod publisher;
mod queues;
mod replies;
mod routes;
mod shared_channel;
mod unique;
mod value;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use pikake_amqp::{
    Address, Channel, Connection, ConsumeOptions, Message as Publishing, Options, State, short,
};
use pikake_traps::wall_time;

use crate::broker::bus::Bus;
use crate::broker::outcomes::job_of;
use crate::broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, LocalFuture, Opening, PublishError,
    PublishFailure, QueueOptions, Receipt,
};
use crate::brokers::rabbitmq::deliveries::{AmqpDeliveries, UnsettledDeliveries};
use crate::brokers::rabbitmq::held_outcomes::HeldOutcomes;
use crate::brokers::rabbitmq::publisher::Publisher;
use crate::brokers::rabbitmq::queues::to_queue;
use crate::brokers::rabbitmq::replies::REPLY_TO;
use crate::brokers::rabbitmq::routes::Routes;
use crate::brokers::rabbitmq::shared_channel::SharedChannel;
use crate::message::{AllMembers, ChordMember, JobId, Message, Outcome};
use crate::unique::{UniqueLock, UniqueSent};

/// AMQP's delivery mode of a message that need not outlive the broker.
const TRANSIENT: u8 = 1;

/// How long an outcome is kept in a queue for results, unless the application says otherwise:
/// Celery's length.
const OUTCOME_LIFE: Duration = Duration::from_secs(24 * 3_600);

/// The broker that is RabbitMQ, over one connection.
///
/// Queues are durable classic ones, as Celery declares its own, so that a Celery application may
/// use a queue first or second; those that are declared as replicated are quorum queues.
/// `name.dead` is the dead letters' queue of a queue. Delayed messages wait in queues that all
/// share, `celery_delayed_N` and `pikake_delayed_N00ms`, in steps of 100 ms, up to 8.5 years: those
/// of Celery's native delayed delivery. Publishing is confirmed, with many under way. A message
/// that was not confirmed when its channel or its connection was lost is sent again over the next
/// one, so it may come twice; a message that costs the channel each time fails with RabbitMQ's
/// error, and no other message does. Outcomes come back over direct reply-to: what was asked over a
/// channel or a connection that is lost is not answered any more.
///
/// A broker that is short of memory or disk takes no messages, and after the first one that it did
/// not take, no acknowledgements on the same connection either: with
/// [`open_with_two`](Self::open_with_two), messages go over a connection of their own, and outcomes
/// are kept in the process until the broker takes them.
///
/// # Examples
///
/// ```no_run
/// use pikake::jobs::{AmqpBroker, Broker, Message, QueueOptions};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let broker = AmqpBroker::open("amqp://guest:guest@localhost/").await?;
/// broker.declare("mail", &QueueOptions::default()).await?;
/// broker.publish("mail", Message::default(), None).await?;
/// broker.close().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AmqpBroker(Rc<Session>);

struct Session {
    /// For consumers and questions.
    connection: Connection,
    publisher: Rc<Publisher>,
    /// With two connections.
    held_outcomes: Option<Rc<HeldOutcomes>>,
    routes: Routes,
    unsettled: Rc<UnsettledDeliveries>,
    /// How long an outcome is kept in a queue for results.
    outcome_life: Cell<Duration>,
    /// The channel that control messages go over, once there was one.
    bus: RefCell<Option<Channel>>,
}

impl AmqpBroker {
    /// Connects: `amqp://user:password@host:port/vhost`; with the feature `tls`, `amqps://` and
    /// what an [`Address`] says of it.
    ///
    /// # Cancellation
    ///
    /// An interruption point. It leaves no connection.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] for a wrong URL or password, [`BrokerError::Lost`] if nobody
    /// answers.
    pub async fn open(url: &str) -> Result<Self, BrokerError> {
        Self::open_as(url, Opening::default()).await
    }

    /// The same with two connections: one for messages, and one for deliveries and their
    /// acknowledgements, which go on while the broker takes no messages.
    ///
    /// # Cancellation
    ///
    /// As for [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub async fn open_with_two(url: &str) -> Result<Self, BrokerError> {
        Self::open_as(url, Opening { is_split: true, ..Opening::default() }).await
    }

    pub(crate) async fn open_as(url: &str, opening: Opening) -> Result<Self, BrokerError> {
        let address: Address = url.parse()?;
        let mut options = Options::default();
        if let Some(length) = opening.blocked_timeout {
            options.blocked_deadline = length;
        }
        let wait_limit = options.blocked_deadline;
        let connection = Connection::open(&address, options.clone()).await?;
        let publishing = match opening.is_split {
            true => Connection::open(&address, options).await?.channel().await?,
            false => connection.channel().await?,
        };
        Ok(Self(Rc::new(Session {
            connection,
            publisher: Rc::new(Publisher::new(SharedChannel::new(publishing), wait_limit)),
            held_outcomes: opening.is_split.then(Rc::default),
            routes: Routes::default(),
            unsettled: Rc::default(),
            outcome_life: Cell::new(OUTCOME_LIFE),
            bus: RefCell::default(),
        })))
    }

    /// The connection, for what jobs have no word for: exchanges, bindings, limits.
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }
}

impl Session {
    /// A channel for questions that may close it.
    async fn channel(&self) -> Result<Channel, BrokerError> {
        Ok(self.connection.channel_unconfirmed().await?)
    }

    async fn bury(
        &self,
        receipt: Receipt,
        message: &Message,
        reason: &str,
    ) -> Result<(), BrokerError> {
        let owed = self.unsettled.take(receipt)?;
        let is_replicated = self.routes.is_replicated(&owed.queue).unwrap_or(true);
        let repair = async || {
            Ok(queues::declare_dead(&self.channel().await?, &owed.queue, is_replicated).await?)
        };
        match dead::bury(&self.publisher, &owed.queue, message, reason, repair).await {
            Ok(()) => owed.receipt.ack().map_err(|_| BrokerError::Stale),
            Err(error) => {
                self.unsettled.put_back(receipt, owed);
                Err(error)
            }
        }
    }
}

impl Broker for AmqpBroker {
    fn declare<'a>(
        &'a self,
        queue: &'a str,
        options: &'a QueueOptions,
    ) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let channel = async || self.0.channel().await;
            let version = self.0.connection.server_version();
            let drops_messages = queues::drops_messages(version.as_deref());
            let found = queues::declare(channel, queue, options, drops_messages).await?;
            // A queue that is declared again may have been deleted, and its binding with it.
            if !self.0.routes.add_declared(queue, found) && !found.is_replicated {
                return Ok(());
            }
            match self.0.routes.accept_delayed(&self.0.connection, queue).await {
                // Only messages that others delay need it.
                Err(BrokerError::Refused(why)) => {
                    tracing::warn!(queue, why, "messages that others delay do not come");
                    Ok(())
                }
                accepted => accepted,
            }
        })
    }

    fn max_priority<'a>(
        &'a self,
        queue: &'a str,
    ) -> LocalFuture<'a, Result<Option<u8>, BrokerError>> {
        Box::pin(async move { Ok(self.0.routes.max_priority(queue)) })
    }

    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>> {
        Box::pin(async move {
            let session = &self.0;
            let asked = match message.reply_to.as_deref() {
                Some(REPLY_TO) => job_of(&message).ok(),
                _ => None,
            };
            let make = || session.routes.of(&session.connection, queue, &message, not_before);
            let sent = session.publisher.publish(asked.as_ref(), make).await;
            sent.map_err(|unsent| PublishError::new(message, unsent.is_uncertain, unsent.cause))
        })
    }

    fn publish_unique<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
        lock: &'a UniqueLock,
    ) -> LocalFuture<'a, Result<UniqueSent, PublishError>> {
        Box::pin(async move {
            let channel = async || self.0.channel().await;
            match unique::lock(channel, &self.0.publisher, lock).await {
                Ok(true) => {}
                Ok(false) => return Ok(UniqueSent::Held(None)),
                Err(error) => {
                    let cause = PublishFailure::Broker(error);
                    return Err(PublishError::new(message, false, cause));
                }
            }
            let sent = self.publish(queue, message, not_before).await;
            if sent.as_ref().is_err_and(|error| !error.is_uncertain) {
                // Else the lock ends by its time.
                drop(self.unlock(lock).await);
            }
            sent.map(|()| UniqueSent::Sent)
        })
    }

    fn unlock<'a>(&'a self, lock: &'a UniqueLock) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move { unique::unlock(&self.0.channel().await?, lock, wall_time()).await })
    }

    fn consume<'a>(
        &'a self,
        queue: &'a str,
        prefetch: u16,
    ) -> LocalFuture<'a, Result<Box<dyn Deliveries>, BrokerError>> {
        Box::pin(async move {
            if prefetch == 0 {
                let why = "a prefetch of 0 would be no limit at all".to_owned();
                return Err(BrokerError::Refused(why));
            }
            let channel = self.0.channel().await?;
            let options = ConsumeOptions { prefetch, ..ConsumeOptions::default() };
            let consumer = channel.consume(queue, options).await?;
            let deliveries = AmqpDeliveries::new(self.0.unsettled.clone(), queue, consumer);
            Ok(Box::new(deliveries) as Box<dyn Deliveries>)
        })
    }

    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.unsettled.take(receipt)?.receipt.ack().map_err(|_| BrokerError::Stale)
        })
    }

    fn holds(&self, receipt: Receipt) -> bool {
        self.0.unsettled.holds(receipt)
    }

    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.unsettled.take(receipt)?.receipt.nack(true).map_err(|_| BrokerError::Stale)
        })
    }

    fn bury(
        &self,
        receipt: Receipt,
        message: Message,
        reason: String,
    ) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move { self.0.bury(receipt, &message, &reason).await })
    }

    fn counts<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<Counts, BrokerError>> {
        Box::pin(async move {
            let counts = queues::counts(&self.0.channel().await?, queue).await?;
            let delayed = delay::count(async || self.0.channel().await).await?;
            Ok(Counts { delayed, delayed_of_all: true, ..counts })
        })
    }

    fn counts_of<'a>(
        &'a self,
        queues: &'a [String],
    ) -> LocalFuture<'a, Result<Vec<Result<Counts, BrokerError>>, BrokerError>> {
        Box::pin(async move {
            let delayed = delay::count(async || self.0.channel().await).await?;
            let mut all = Vec::new();
            for queue in queues {
                match queues::counts(&self.0.channel().await?, queue).await {
                    Ok(counts) => all.push(Ok(Counts { delayed, delayed_of_all: true, ..counts })),
                    Err(error @ BrokerError::Refused(_)) => all.push(Err(error)),
                    Err(error) => return Err(error),
                }
            }
            Ok(all)
        })
    }

    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move {
            let delayed = delay::purge(async || self.0.channel().await, queue).await?;
            let ready = self.0.channel().await?.purge(queue).await?;
            Ok(delayed + u64::from(ready))
        })
    }

    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>> {
        Box::pin(async move { dead::dead(&self.0.channel().await?, queue, limit).await })
    }

    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move {
            dead::replay(&self.0.channel().await?, queue, job, &self.0.publisher).await
        })
    }

    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let job = job_of(message)?;
            self.0.publisher.read().await?;
            self.0.publisher.replies.expect(job);
            message.reply_to = Some(REPLY_TO.to_owned());
            Ok(())
        })
    }

    fn expect_later<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<String>, BrokerError>> {
        Box::pin(async move { self.0.publisher.expect_later(job).await.map(Some) })
    }

    fn join_chord<'a>(
        &'a self,
        member: &'a ChordMember,
    ) -> LocalFuture<'a, Result<Option<AllMembers>, BrokerError>> {
        Box::pin(chords::join(async || self.0.channel().await, &self.0.publisher, member))
    }

    fn end_chord<'a>(&'a self, chord: &'a str) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.channel().await?.delete_queue(&chords::chord_queue(chord)).await?;
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
            let Some(reply_to) = message.reply_to.as_deref().filter(|to| !to.is_empty()) else {
                return Ok(());
            };
            let reply = || {
                let properties = pikake_amqp::persistent()
                    .with_delivery_mode(TRANSIENT)
                    .with_content_type(short("application/json")?)
                    .with_content_encoding(short("utf-8")?)
                    .with_expiration(short(&message::expiration(self.0.outcome_life.get()))?)
                    .with_correlation_id(short(&job.0)?);
                let meta = outcome.to_meta(&job.0, wall_time());
                let reply = to_queue(reply_to, properties, meta)?;
                // One that has asked over direct reply-to may be gone. A queue that was never there
                // is worth a word.
                Ok(Publishing { mandatory: !reply_to.starts_with(REPLY_TO), ..reply })
            };
            let publisher = &self.0.publisher;
            match &self.0.held_outcomes {
                Some(held) => held.send(publisher, reply_to, outcome.state.is_final(), reply).await,
                None => publisher.answer(reply_to, reply).await,
            }
        })
    }

    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>> {
        Box::pin(async move { Ok(self.0.publisher.replies.outcome(job)) })
    }

    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>> {
        Box::pin(self.0.publisher.replies.wait(job))
    }

    fn forget(&self, job: &JobId) {
        self.0.publisher.replies.forget(job);
    }

    fn keep_outcomes(&self, length: Duration) {
        self.0.outcome_life.set(length);
    }

    /// An answer goes to the channel of the question, and nowhere else.
    fn keeps_outcomes(&self) -> bool {
        false
    }

    fn bus(&self) -> Option<&dyn Bus> {
        Some(self)
    }

    fn state(&self) -> String {
        let of = |connection: &Connection| match connection.state() {
            State::Connecting => "connecting".to_owned(),
            State::Open => "open".to_owned(),
            State::Blocked { reason } => format!("blocked: {reason}"),
            State::Recovering { attempt } => format!("connecting ({attempt})"),
            _ => "closed".to_owned(),
        };
        let (consuming, publishing) = (of(&self.0.connection), of(&self.0.publisher.connection()));
        match publishing == consuming {
            true => consuming,
            false => format!("{consuming}; publishing: {publishing}"),
        }
    }

    fn probe(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.0.publisher.probe())
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            match &self.0.held_outcomes {
                Some(held) => held.flush().await,
                None => Ok(()),
            }
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.publisher.finish().await?;
            self.0.held_outcomes.iter().for_each(|held| held.close());
            self.0.publisher.replies.close();
            self.0.publisher.connection().close().await?;
            self.0.connection.close().await?;
            self.0.unsettled.close();
            Ok(())
        })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl fmt::Debug for AmqpBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AmqpBroker").field(self.0.connection.address()).finish()
    }
}

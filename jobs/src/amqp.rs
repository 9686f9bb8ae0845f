//! The broker that is RabbitMQ.
//!
//! Apart from the client (`pikake-amqp`), which knows nothing of jobs, and from the schemes that are
//! built on it here: delays (`amqp_delay.rs`), outcomes (`amqp_replies.rs`), the dead
//! (`amqp_queues.rs`).

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::SystemTime;

use pikake_amqp::{
    Address, Channel, Connection, ConsumeOptions, Error, Message as Publishing, Options,
    PublishError as Unpublished, State, Value, short,
};
use pikake_sync::{Mutex, OnceCell, WaitGroup};
use pikake_traps::wall_time;

use crate::amqp_delay as delay;
use crate::amqp_deliveries::{AmqpDeliveries, Ledger};
use crate::amqp_error::{not_sent, unpublished};
use crate::amqp_message::{REASON, SINCE, headless, millis, properties, with_header};
use crate::amqp_queues::{self as queues, dead_queue, to_queue};
use crate::amqp_replies::{REPLY_TO, Reading, Replies};
use crate::broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, LocalFuture, PublishError, PublishFailure,
    QueueOptions, Receipt,
};
use crate::message::{JobId, Message, Outcome};
use crate::outcomes::job_of;

/// AMQP's delivery mode of a message that need not outlive the broker.
const TRANSIENT: u8 = 1;

/// The broker that is RabbitMQ, over one connection.
///
/// Queues are quorum queues, unless they are declared as not replicated; then they are as Celery's
/// are. `name.dead` is the dead letters' queue of a queue, `name.delay.N` are those in which messages
/// wait for their time, in steps of 100 ms, up to 77 days. Publishing is confirmed, with many under
/// way. A message that was not confirmed when the connection was lost is sent again over the next one,
/// so it may come twice. Outcomes come back over direct reply-to: what was asked over a connection that
/// is lost is not answered any more.
///
/// A broker that is short of memory or disk takes no messages, and after the first one that it did not
/// take, no acknowledgements on the same connection either: with
/// [`open_with_two`](Self::open_with_two), messages go over a connection of their own.
///
/// # Examples
///
/// ```no_run
/// use pikake_jobs::{AmqpBroker, Broker, Message, QueueOptions};
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
    /// Messages go over this, and the answers to them come here.
    publisher: RefCell<Rc<Publisher>>,
    /// Locked while the broker has closed it, and another is made.
    reopening: Mutex<()>,
    ledger: Rc<Ledger>,
    replies: Replies,
    /// Which queues are there, and whether they are replicated.
    declared: RefCell<BTreeMap<String, bool>>,
    /// The queues that can delay; locked while one is made so.
    delaying: Mutex<BTreeSet<String>>,
    /// Messages that are under way.
    under_way: WaitGroup,
    options: Options,
}

/// A channel for messages. A message that the broker cannot take (too large, or its exchange is gone)
/// costs the channel, and then there is another.
struct Publisher {
    channel: Channel,
    reading: OnceCell<Reading>,
}

impl AmqpBroker {
    /// Connects: `amqp://user:password@host:port/vhost`; with the feature `tls`, `amqps://` and what an
    /// [`Address`] says of it.
    ///
    /// # Cancellation
    ///
    /// An interruption point. It leaves no connection.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Refused`] for a wrong URL or password, [`BrokerError::Lost`] if nobody answers.
    pub async fn open(url: &str) -> Result<Self, BrokerError> {
        Self::connect(url, Options::default(), false).await
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
        Self::connect(url, Options::default(), true).await
    }

    async fn connect(url: &str, options: Options, is_split: bool) -> Result<Self, BrokerError> {
        let address: Address = url.parse()?;
        let connection = Connection::open(&address, options.clone()).await?;
        let publishing = match is_split {
            true => Connection::open(&address, options.clone()).await?.channel().await?,
            false => connection.channel().await?,
        };
        Ok(Self(Rc::new(Session {
            connection,
            publisher: RefCell::new(Rc::new(Publisher::on(publishing))),
            reopening: Mutex::default(),
            ledger: Rc::default(),
            replies: Replies::default(),
            declared: RefCell::default(),
            delaying: Mutex::default(),
            under_way: WaitGroup::new(),
            options,
        })))
    }

    /// The connection, for what jobs have no word for: exchanges, bindings, limits.
    pub fn connection(&self) -> &Connection {
        &self.0.connection
    }
}

impl Publisher {
    fn on(channel: Channel) -> Self {
        Self { channel, reading: OnceCell::new() }
    }

    fn is_closed(&self) -> bool {
        matches!(self.channel.closed(), Some(Error::ChannelClosed(_)))
    }

    /// Has the answers read that come to it.
    async fn read(&self, replies: &Replies) -> Result<(), Error> {
        let read = async || replies.read(&self.channel).await;
        self.reading.get_or_try_init(read).await.map(drop)
    }
}

/// The broker has closed the channel: because of this message, or of another one.
fn has_cost_its_channel(error: &Unpublished) -> bool {
    matches!(error, Unpublished::Closed { error: Error::ChannelClosed(_), .. })
}

impl Session {
    /// A channel for questions that may close it.
    async fn channel(&self) -> Result<Channel, BrokerError> {
        Ok(self.connection.channel_unconfirmed().await?)
    }

    async fn publish(&self, message: Publishing) -> Result<(), Unpublished> {
        let _under_way = self.under_way.enter();
        match self.publisher().await {
            Ok(publisher) => publisher.channel.post(message).await?.await,
            Err(error) => Err(Unpublished::Closed { error, message: Some(Box::new(message)) }),
        }
    }

    /// The same over a channel that no other message can cost.
    async fn publish_alone(&self, message: Publishing) -> Result<(), Unpublished> {
        let _under_way = self.under_way.enter();
        let connection = self.publisher.borrow().channel.connection().clone();
        match connection.channel().await {
            Ok(channel) => channel.post(message).await?.await,
            Err(error) => Err(Unpublished::Closed { error, message: Some(Box::new(message)) }),
        }
    }

    async fn publish_again(
        &self,
        queue: &str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> Result<(), PublishError> {
        let failed = match self.on_its_way(queue, &message, not_before).await {
            Ok(publishing) => match self.publish_alone(publishing).await {
                Ok(()) => return Ok(()),
                Err(error) => unpublished(error, self.options.blocked_deadline),
            },
            Err(error) => (true, PublishFailure::Broker(error)),
        };
        Err(PublishError::new(message, failed.0, failed.1))
    }

    fn current(&self) -> Rc<Publisher> {
        self.publisher.borrow().clone()
    }

    async fn publisher(&self) -> Result<Rc<Publisher>, Error> {
        if !self.current().is_closed() {
            return Ok(self.current());
        }
        let _one = self.reopening.lock().await?;
        let old = self.current();
        if old.is_closed() {
            let new = Publisher::on(old.channel.connection().channel().await?);
            if old.reading.get().is_some() {
                new.read(&self.replies).await?;
            }
            self.publisher.replace(Rc::new(new));
        }
        Ok(self.current())
    }

    /// Sends a message of the broker's own.
    async fn send(&self, message: Publishing) -> Result<(), BrokerError> {
        let sent = self.publish(message).await;
        sent.map_err(|error| not_sent(error, self.options.blocked_deadline))
    }

    /// A message on its way into its queue, at once or later.
    async fn on_its_way(
        &self,
        queue: &str,
        message: &Message,
        not_before: Option<SystemTime>,
    ) -> Result<Publishing, BrokerError> {
        let body = message.body.clone();
        if delay::until(not_before, wall_time()).is_some() {
            self.let_delay(queue).await?;
        }
        let now = wall_time();
        let Some(length) = delay::until(not_before, now) else {
            return Ok(to_queue(queue, properties(message, now)?, body)?);
        };
        let Some((exchange, key)) = delay::way(queue, length) else {
            return Err(BrokerError::Refused(format!(
                "a message can wait for {} days at most",
                delay::longest().as_secs() / (24 * 3_600)
            )));
        };
        let (exchange, routing_key) = (short(&exchange)?, short(&key)?);
        let properties = headless(message, now)?;
        Ok(Publishing { exchange, routing_key, properties, body, mandatory: true })
    }

    /// Sees to it that a queue has delay queues.
    async fn let_delay(&self, queue: &str) -> Result<(), BrokerError> {
        let mut delaying = self.delaying.lock().await?;
        if delaying.contains(queue) {
            return Ok(());
        }
        let is_replicated = self.declared.borrow().get(queue).copied();
        let is_replicated = is_replicated.ok_or_else(|| {
            BrokerError::Refused(format!(
                "declare queue `{queue}` here before messages wait for it"
            ))
        })?;
        let channel = self.channel().await?;
        if delaying.is_empty() {
            delay::make_exchanges(&channel).await?;
        }
        delay::make_queues(&channel, queue, is_replicated).await?;
        delaying.insert(queue.to_owned());
        Ok(())
    }

    async fn bury(
        &self,
        receipt: Receipt,
        message: &Message,
        reason: &str,
    ) -> Result<(), BrokerError> {
        let owed = self.ledger.take(receipt)?;
        let buried = async {
            let now = wall_time();
            let queue = dead_queue(&owed.queue);
            let (reason, since) =
                (Value::LongString(reason.into()), Value::LongLongInt(millis(now)));
            let bare = with_header(headless(message, now)?, SINCE, since)?;
            let properties = with_header(bare.clone(), REASON, reason)?;
            match self.send(to_queue(&queue, properties, message.body.clone())?).await {
                // Its own headers leave no room for a reason: it is dead all the same.
                Err(BrokerError::Refused(_)) => {
                    self.send(to_queue(&queue, bare, message.body.clone())?).await
                }
                sent => sent,
            }
        };
        match buried.await {
            Ok(()) => owed.receipt.ack().map_err(|_| BrokerError::Stale),
            Err(error) => {
                self.ledger.put_back(receipt, owed);
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
            let is_replicated = queues::declare(channel, queue, options).await?;
            self.0.declared.borrow_mut().insert(queue.to_owned(), is_replicated);
            Ok(())
        })
    }

    fn publish<'a>(
        &'a self,
        queue: &'a str,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> LocalFuture<'a, Result<(), PublishError>> {
        Box::pin(async move {
            let failed = match self.0.on_its_way(queue, &message, not_before).await {
                Ok(publishing) => match self.0.publish(publishing).await {
                    Ok(()) => {
                        if message.reply_to.as_deref() == Some(REPLY_TO)
                            && let Ok(job) = job_of(&message)
                        {
                            self.0.replies.is_asked(&job);
                        }
                        return Ok(());
                    }
                    // Answers would not come to another channel.
                    Err(error)
                        if has_cost_its_channel(&error)
                            && message.reply_to.as_deref() != Some(REPLY_TO) =>
                    {
                        return self.0.publish_again(queue, message, not_before).await;
                    }
                    Err(error) => unpublished(error, self.0.options.blocked_deadline),
                },
                Err(error) => (false, PublishFailure::Broker(error)),
            };
            Err(PublishError::new(message, failed.0, failed.1))
        })
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
            let deliveries = AmqpDeliveries::new(self.0.ledger.clone(), queue, consumer);
            Ok(Box::new(deliveries) as Box<dyn Deliveries>)
        })
    }

    fn ack(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.ledger.take(receipt)?.receipt.ack().map_err(|_| BrokerError::Stale)
        })
    }

    fn give_back(&self, receipt: Receipt) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.ledger.take(receipt)?.receipt.nack(true).map_err(|_| BrokerError::Stale)
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
            let delayed = queues::count_delayed(&self.0.channel().await?, queue).await?;
            Ok(Counts { delayed, ..counts })
        })
    }

    fn purge<'a>(&'a self, queue: &'a str) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move {
            let delayed = queues::purge_delayed(&self.0.channel().await?, queue).await?;
            let ready = self.0.channel().await?.purge(queue).await?;
            Ok(delayed + u64::from(ready))
        })
    }

    fn dead<'a>(
        &'a self,
        queue: &'a str,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DeadJob>, BrokerError>> {
        Box::pin(async move { queues::dead(&self.0.channel().await?, queue, limit).await })
    }

    fn replay<'a>(
        &'a self,
        queue: &'a str,
        job: Option<&'a JobId>,
    ) -> LocalFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move {
            let publish = async |message| self.0.send(message).await;
            queues::replay(&self.0.channel().await?, queue, job, publish).await
        })
    }

    fn expect<'a>(&'a self, message: &'a mut Message) -> LocalFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let job = job_of(message)?;
            self.0.publisher().await?.read(&self.0.replies).await?;
            self.0.replies.expect(job);
            message.reply_to = Some(REPLY_TO.to_owned());
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
                    .with_correlation_id(short(&job.0)?);
                let meta = outcome.to_meta(&job.0, wall_time());
                // Who asked may be gone: that nobody takes it is no error.
                let reply = to_queue(reply_to, properties, meta)?;
                Ok::<_, BrokerError>(Publishing { mandatory: false, ..reply })
            };
            let sent = match self.0.publish(reply()?).await {
                Err(error) if has_cost_its_channel(&error) => self.0.publish_alone(reply()?).await,
                sent => sent,
            };
            sent.map_err(|error| not_sent(error, self.0.options.blocked_deadline))
        })
    }

    fn outcome<'a>(
        &'a self,
        job: &'a JobId,
    ) -> LocalFuture<'a, Result<Option<Outcome>, BrokerError>> {
        Box::pin(async move { Ok(self.0.replies.outcome(job)) })
    }

    fn wait<'a>(&'a self, job: &'a JobId) -> LocalFuture<'a, Result<Outcome, BrokerError>> {
        Box::pin(self.0.replies.wait(job))
    }

    fn forget(&self, job: &JobId) {
        self.0.replies.forget(job);
    }

    fn state(&self) -> String {
        let of = |connection: &Connection| match connection.state() {
            State::Connecting => "connecting".to_owned(),
            State::Open => "open".to_owned(),
            State::Blocked { reason } => format!("blocked: {reason}"),
            State::Recovering { attempt } => format!("connecting ({attempt})"),
            _ => "closed".to_owned(),
        };
        let (consuming, publishing) =
            (of(&self.0.connection), of(self.0.current().channel.connection()));
        match publishing == consuming {
            true => consuming,
            false => format!("{consuming}; publishing: {publishing}"),
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.under_way.wait().await?;
            self.0.replies.close();
            self.0.current().channel.connection().close().await?;
            self.0.connection.close().await?;
            self.0.ledger.close();
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

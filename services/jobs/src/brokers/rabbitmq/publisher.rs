//! How messages are published, and sent again when they are lost.
//!
//! All messages go over one channel, many of them at a time. A message that RabbitMQ refuses (too
//! large, no such exchange) closes the channel, and one that RabbitMQ fails at closes the
//! connection. Both take the confirms of all messages under way with them, and RabbitMQ does not
//! say which message it was. The contract:
//!
//! * **A message that was under way is sent again, by itself**: retries go one after the other,
//!   with no other message of this publisher under way. If the channel or the connection is closed
//!   twice more, this message is to blame, and its caller gets the broker's error. (Once may be for
//!   a message whose caller was interrupted.) The error is uncertain: the first attempt may have
//!   arrived.
//! * **No message fails because of another one.** It may arrive twice. A message that waits behind
//!   retries comes to its limit only when none of them ends for that long. A retry waits for its
//!   confirm half as long at most.
//! * **A retry costs no answers.** It goes over a channel that no answer is to come to.
//! * **What no broker takes is not sent**: malformed names, and properties and bodies that are too
//!   large, are refused by the client. An answer is dropped if its name is malformed, or has ended
//!   a connection (RabbitMQ 3.10 fails at a name whose node is not running).
//!
//! When a connection is lost without an error of the broker's, the client sends its messages again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use pikake_amqp::{
    Connection, Error, Message as Publishing, PublishError as Unpublished,
    QueueOptions as AmqpQueue, Room, State, Value, is_malformed_reply_to, persistent, short,
};
use pikake_sync::{RwLock, WaitGroup};
use pikake_traps::{Interrupted, ignore_after};

use crate::broker::{BrokerError, LocalFuture};
use crate::brokers::rabbitmq::TRANSIENT;
use crate::brokers::rabbitmq::error::{Unsent, unpublished};
use crate::brokers::rabbitmq::queues::to_queue;
use crate::brokers::rabbitmq::replies::{REPLY_TO, Replies};
use crate::brokers::rabbitmq::shared_channel::{PublishChannel, SharedChannel, WaitLimit};
use crate::message::JobId;

/// A broker that takes messages has confirmed one by then.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// How many names that have ended a connection, or that no queue has, are remembered.
const MOST_REJECTED: usize = 100;

/// How long the queue for the message that brings our name to answer to lives without a use, in
/// milliseconds.
const ADDRESS_QUEUE_MILLIS: i32 = 60_000;

/// A message that is about to be sent.
#[expect(clippy::large_enum_variant, reason = "nearly all are messages, and none is kept")]
pub(crate) enum Prepared<'a> {
    Message(Publishing),
    /// The message is to be prepared again after this is done.
    After(LocalFuture<'a, Result<(), BrokerError>>),
}

pub(crate) struct Publisher {
    shared: SharedChannel,
    /// Held for reading while a message is under way, and for writing while a lost one is sent
    /// again.
    order: RwLock<()>,
    /// How many messages were sent and have an outcome.
    progress: Cell<u64>,
    pub(crate) replies: Replies,
    /// Names to answer to that have ended a connection, the latest first.
    rejected_reply_tos: RefCell<VecDeque<String>>,
    /// Names to answer to that no queue has, the latest first. The log has them.
    unroutable_reply_tos: RefCell<VecDeque<String>>,
    /// The calls of [`publish`](Self::publish) that have not returned.
    publishing: WaitGroup,
    is_closing: Cell<bool>,
    /// How long a message waits for a broker that takes none, and for those before it.
    wait_limit: Duration,
}

impl Publisher {
    pub(crate) fn new(shared: SharedChannel, wait_limit: Duration) -> Self {
        Self {
            shared,
            order: RwLock::default(),
            progress: Cell::new(0),
            replies: Replies::default(),
            rejected_reply_tos: RefCell::default(),
            unroutable_reply_tos: RefCell::default(),
            publishing: WaitGroup::new(),
            is_closing: Cell::new(false),
            wait_limit,
        }
    }

    pub(crate) fn connection(&self) -> Connection {
        self.shared.current().channel.connection().clone()
    }

    /// Reads the answers to what is published from now on.
    pub(crate) async fn read(&self) -> Result<(), BrokerError> {
        self.shared.read(&self.replies, &WaitLimit::new(self.wait_limit)).await
    }

    /// Expects the outcome of a job that others send. Returns the name to answer to, which RabbitMQ
    /// puts in the place of [`REPLY_TO`] when a message is published: a message to ourselves brings
    /// it.
    pub(crate) async fn expect_later(&self, job: &JobId) -> Result<String, BrokerError> {
        loop {
            self.read().await?;
            let shared = self.shared.current();
            let Some(reader) = shared.replies.get() else { continue };
            let epoch = shared.channel.connection().epoch();
            if let Some(address) = reader.address() {
                self.replies.expect(job.clone());
                self.replies.set_asked(job, reader, epoch);
                return Ok(address);
            }
            match self.ask_address(&shared).await {
                Ok(Some(address)) => reader.set_address(epoch, address),
                Ok(None) => {
                    let why = "the broker has no direct reply-to".to_owned();
                    return Err(BrokerError::Refused(why));
                }
                Err(error @ (BrokerError::Interrupted(_) | BrokerError::Closed)) => {
                    return Err(error);
                }
                // The queue was lost with the connection or the channel.
                Err(_) if shared.channel.connection().epoch() != epoch || shared.is_closed() => {
                    if self.is_closed() {
                        return Err(BrokerError::Closed);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a message to ourselves, and returns the name that RabbitMQ has put into it.
    async fn ask_address(&self, shared: &PublishChannel) -> Result<Option<String>, BrokerError> {
        let _beside_others = self.turn(|| self.order.read()).await?;
        let channel = shared.channel.connection().channel_unconfirmed().await?;
        // An interrupted call leaves the queue.
        let lifetime = Value::LongInt(ADDRESS_QUEUE_MILLIS);
        let options = AmqpQueue::private().argument("x-expires", lifetime);
        let queue = channel.declare_queue_once("", options).await?.name;
        let properties = persistent().with_delivery_mode(TRANSIENT).with_reply_to(short(REPLY_TO)?);
        let sent = match shared.channel.room().await {
            Ok(room) => room.post(to_queue(&queue, properties, Vec::new())?),
            Err(error) => Err(error),
        };
        let sent = match sent {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        sent.map_err(|error| BrokerError::from(self.unpublished(error)))?;
        let got = channel.get(&queue, true).await?;
        channel.delete_queue(&queue).await?;
        Ok(got.and_then(|got| got.properties.reply_to().as_ref().map(ToString::to_string)))
    }

    /// Publishes a message, which `asks` for the outcome of that job. It is prepared each time that
    /// it is sent, when nothing is left to wait for.
    pub(crate) async fn publish<'a>(
        &self,
        asks: Option<&JobId>,
        prepare: impl Fn() -> Result<Prepared<'a>, BrokerError>,
    ) -> Result<(), Unsent> {
        if self.is_closing.get() {
            return Err(Unsent::of(BrokerError::Closed));
        }
        let _publishing = self.publishing.enter();
        let sent = self.send_once(asks, &prepare, false).await;
        if !matches!(sent, Err(Unsent { lost: Some(_), .. })) || self.is_closed() {
            return sent;
        }
        let _by_itself = self.turn(|| self.order.write()).await.map_err(Unsent::uncertain)?;
        let mut sent = self.send_once(asks, &prepare, true).await;
        if matches!(sent, Err(Unsent { lost: Some(_), .. })) && !self.is_closed() {
            // A publisher that was interrupted may have left a message under way. That one is lost
            // now, too.
            sent = self.send_once(asks, &prepare, true).await;
        }
        // The message may have arrived the first time, before another one closed the channel.
        sent.map_err(|error| Unsent { is_uncertain: true, ..error })
    }

    /// Sends a message beside others, or a retry, whose caller holds `order` alone.
    async fn send_once<'a>(
        &self,
        asks: Option<&JobId>,
        prepare: &impl Fn() -> Result<Prepared<'a>, BrokerError>,
        is_retry: bool,
    ) -> Result<(), Unsent> {
        let mut limit = WaitLimit::new(self.wait_limit);
        loop {
            let shared = self.shared.open(&self.replies, &limit, is_retry).await;
            let shared = shared.map_err(Unsent::of)?;
            let room = match shared.channel.room().await {
                Ok(room) => room,
                // Another message has cost the channel.
                Err(Unpublished::Closed { .. }) if shared.is_closed() && !self.is_closed() => {
                    continue;
                }
                Err(error) => {
                    return Err(Unsent { is_uncertain: false, ..self.unpublished(error) });
                }
            };
            let beside_others = self.order.try_read();
            if beside_others.is_err() && !is_retry {
                drop(room);
                drop(self.turn(|| self.order.read()).await.map_err(Unsent::of)?);
                limit = WaitLimit::new(self.wait_limit);
                continue;
            }
            let message = match prepare().map_err(Unsent::of)? {
                Prepared::Message(message) => message,
                Prepared::After(first) => {
                    drop((room, beside_others));
                    limit.within(first).await.map_err(Unsent::of)?;
                    continue;
                }
            };
            let sending = self.send_over(&shared, room, message, asks);
            let sent = match is_retry {
                true => ignore_after(self.wait_limit / 2, sending).await,
                false => Some(sending.await),
            };
            self.progress.set(self.progress.get() + 1);
            let Some(sent) = sent else {
                let why = format!("no confirm came within {:?}", self.wait_limit / 2);
                return Err(Unsent::uncertain(BrokerError::Lost(why)));
            };
            return sent.map_err(|error| {
                let lost = match &error {
                    Unpublished::Closed { error, message: None }
                        if matches!(error, Error::ConnectionClosed(_)) || shared.is_closed() =>
                    {
                        Some(error.clone())
                    }
                    _ => None,
                };
                Unsent { lost, ..self.unpublished(error) }
            });
        }
    }

    async fn send_over(
        &self,
        shared: &PublishChannel,
        room: Room,
        message: Publishing,
        asks: Option<&JobId>,
    ) -> Result<(), Unpublished> {
        let mut confirm = room.post(message)?;
        (&mut confirm).await?;
        let asked = asks.zip(shared.replies.get()).zip(confirm.epoch());
        if let Some(((job, reader), epoch)) = asked {
            self.replies.set_asked(job, reader, epoch);
        }
        Ok(())
    }

    /// Waits for `order`, as long as messages before this one end.
    async fn turn<G, F: Future<Output = Result<G, Interrupted>>>(
        &self,
        lock: impl Fn() -> F,
    ) -> Result<G, BrokerError> {
        loop {
            let progress = self.progress.get();
            match WaitLimit::new(self.wait_limit).within(lock()).await {
                Err(BrokerError::Lost(_)) if self.progress.get() != progress => {}
                turn => return turn,
            }
        }
    }

    fn unpublished(&self, error: Unpublished) -> Unsent {
        unpublished(error, &self.connection(), self.wait_limit)
    }

    fn is_closed(&self) -> bool {
        matches!(self.connection().state(), State::Closed(_))
    }

    /// Sends a message of the broker's own.
    pub(crate) async fn send(
        &self,
        prepare: impl Fn() -> Result<Publishing, Error>,
    ) -> Result<(), BrokerError> {
        self.publish(None, || Ok(Prepared::Message(prepare()?))).await.map_err(Into::into)
    }

    /// Sends an answer. An answer that nobody takes is no error: the sender has ended, or looks for
    /// it elsewhere, which the log says once for each name. One to a name that ends the connection
    /// is dropped: its job would be delivered again, and end the next connection.
    pub(crate) async fn answer(
        &self,
        to: &str,
        prepare: impl Fn() -> Result<Publishing, Error>,
    ) -> Result<(), BrokerError> {
        let is_rejected = || {
            is_malformed_reply_to(to) || self.rejected_reply_tos.borrow().iter().any(|r| r == to)
        };
        let sent = self.publish(None, || match is_rejected() {
            true => Err(BrokerError::Refused(format!("nothing can be sent to `{to}`"))),
            false => Ok(Prepared::Message(prepare()?)),
        });
        let sent = sent.await;
        let has_ended_connection =
            matches!(sent, Err(Unsent { lost: Some(Error::ConnectionClosed(_)), .. }));
        if has_ended_connection && !self.is_closed() {
            let mut rejected = self.rejected_reply_tos.borrow_mut();
            rejected.truncate(MOST_REJECTED - 1);
            rejected.push_front(to.to_owned());
        }
        if matches!(sent, Err(Unsent { is_unroutable: true, .. })) {
            let mut unroutable = self.unroutable_reply_tos.borrow_mut();
            if !unroutable.iter().any(|known| known == to) {
                unroutable.truncate(MOST_REJECTED - 1);
                unroutable.push_front(to.to_owned());
                tracing::warn!(
                    to,
                    "drops outcomes, for the queue that they are to go to is not there: their sender has ended, or \
                     reads results from another place than this broker, such as Redis"
                );
            }
            return Ok(());
        }
        match sent.map_err(BrokerError::from) {
            Err(error @ (BrokerError::Refused(_) | BrokerError::Lost(_))) if is_rejected() => {
                tracing::warn!(to, %error, "drops an outcome that ends connections");
                Ok(())
            }
            sent => sent,
        }
    }

    /// Sends a message that goes nowhere: the broker says to publishers only that it takes none.
    pub(crate) async fn probe(&self) -> Result<(), BrokerError> {
        let nowhere = || Ok(Publishing { mandatory: false, ..to_queue("", persistent(), vec![])? });
        match ignore_after(PROBE_LIMIT, self.send(nowhere)).await {
            // A user without the permission to publish has asked all the same.
            None | Some(Err(BrokerError::Refused(_))) => Ok(()),
            Some(sent) => sent,
        }
    }

    /// Publishes no new messages, and waits until none is under way.
    pub(crate) async fn finish(&self) -> Result<(), Interrupted> {
        self.is_closing.set(true);
        self.publishing.wait().await
    }
}

//! The handle of a channel, with its requests.
//!
//! Queues and exchanges are in `declare`, publishing in `publish`, deliveries in `consumer`.

pub(crate) mod declare;
pub(crate) mod publish;

use std::fmt;
use std::future::Future;
use std::rc::Rc;

use amq_protocol::protocol::{AMQPClass, basic};
use pikake_sync::oneshot;

use crate::client::consumer::Consumer;
use crate::client::hub::{
    Answer, ChannelInner, Connection, Delivery, Requester, unexpected_answer,
};
use crate::error::Error;
use crate::message::{ConsumeOptions, REPLY_TO, short};

/// A channel of a connection: an independent sequence of requests and messages.
///
/// Clones are the same channel. The channel sends one request at a time. The channel closes when
/// the last clone, consumer and unsettled delivery are dropped. A lost connection does not close
/// the channel, which recovers with the next connection. The broker reports most errors by closing
/// the channel: then it stays closed, and a new one can be opened. The connection and other
/// channels are not affected.
///
/// Every request is an interruption point. The broker may execute a request that was interrupted or
/// dropped while it waited for the reply; the channel remains usable.
#[derive(Clone)]
pub struct Channel(pub(crate) Rc<ChannelInner>);

impl Channel {
    pub(crate) async fn open(connection: Connection, confirms: bool) -> Result<Self, Error> {
        let hub = connection.hub().clone();
        hub.until_channel_free().await?;
        let (sender, receiver) = oneshot::channel();
        let requester = Requester { sender: Some(sender), channel: None };
        let opened = hub.with(|session| session.open_channel(requester));
        let number = match opened {
            Some(Ok(number)) => number,
            Some(Err((error, _))) => return Err(error),
            None => return Err(Error::ConnectionLost("just now".to_owned())),
        };
        let channel = Self(ChannelInner::open(connection, number, confirms));
        if confirms {
            hub.with(|session| session.enable_confirms(number));
        }
        hub.answer(receiver).await?;
        for setting in channel.0.settings() {
            channel.0.ask(setting).await?;
        }
        Ok(channel)
    }

    /// The channel's connection.
    pub fn connection(&self) -> &Connection {
        self.0.connection()
    }

    /// The error that closed the channel or its connection; `None` while the channel is usable.
    pub fn closed(&self) -> Option<Error> {
        self.0.closed()
    }

    pub(crate) async fn ask(self, method: Result<AMQPClass, Error>) -> Result<Answer, Error> {
        self.0.ask(method?).await
    }

    /// Limits unacknowledged deliveries: of each later consumer (as [`ConsumeOptions::prefetch`]
    /// does), or, if `global`, of the whole channel. A global limit replaces the limits of the
    /// channel's consumers. RabbitMQ 4.3 takes a global limit for that of each consumer, unless its
    /// configuration permits the deprecated feature `global_qos`.
    ///
    /// # Errors
    ///
    /// [`Error::NoGlobalQos`] if the broker refuses a limit for a channel (RabbitMQ refuses to
    /// consume a quorum queue with one, before 4.3); others as for any request.
    pub fn qos(
        &self,
        prefetch: u16,
        global: bool,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let channel = self.clone();
        async move {
            channel.0.ask(ChannelInner::qos(prefetch, global)).await?;
            if global {
                channel.0.set_global_limit(prefetch);
            }
            Ok(())
        }
    }

    /// Starts a consumer of a queue. If the start of an exclusive one fails, or its future is
    /// dropped, the channel is closed: the broker then requeues in one step what it has sent
    /// already.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if the queue does not exist, 403 if another consumer is
    /// exclusive; [`Error::NoGlobalQos`]; others as for any request.
    pub fn consume(
        &self,
        queue: &str,
        options: ConsumeOptions,
    ) -> impl Future<Output = Result<Consumer, Error>> + use<> {
        let (channel, queue) = (self.0.clone(), short(queue));
        async move {
            let queue = queue?;
            channel.hub().until_ready().await?;
            let is_exclusive = options.exclusive;
            // Registered before the first delivery can arrive, and dropped if this future is
            // dropped.
            let consumer = Consumer::new(&channel, channel.new_tag()?, queue, options);
            // Dropped before the consumer, which would cancel itself, and return its deliveries one
            // by one.
            let mut unstarted = CloseOnDrop(is_exclusive.then(|| Channel(channel.clone())));
            if let Some(limit) = channel.prefetch_request(&consumer.inner) {
                channel.request(limit, Requester::NONE)?;
            }
            channel.ask(consumer.inner.request()).await?;
            unstarted.0 = None;
            Ok(consumer)
        }
    }

    /// Starts the consumer of replies to messages that this channel publishes with
    /// `reply_to: amq.rabbitmq.reply-to`, without a queue and without acknowledgements. A channel
    /// can have one. Repliers must not publish as mandatory: RabbitMQ finds no queue then. Replies
    /// during a lost connection are lost.
    ///
    /// # Errors
    ///
    /// As for [`consume`](Self::consume).
    pub fn direct_reply_to(&self) -> impl Future<Output = Result<Consumer, Error>> + use<> {
        self.consume(REPLY_TO, ConsumeOptions { no_ack: true, ..ConsumeOptions::default() })
    }

    /// Takes one message from a queue, if there is one. Unreadable messages are rejected, and the
    /// next one is taken.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if the queue does not exist; others as for any request.
    /// An interrupted get requeues its message. With `no_ack` the message is lost.
    pub fn get(
        &self,
        queue: &str,
        no_ack: bool,
    ) -> impl Future<Output = Result<Option<Delivery>, Error>> + use<> {
        let get = short(queue)
            .map(|queue| AMQPClass::Basic(basic::AMQPMethod::Get(basic::Get { queue, no_ack })));
        let channel = self.clone();
        async move {
            loop {
                match channel.clone().ask(get.clone()).await? {
                    Answer::Got(delivery) => return Ok(delivery.map(|delivery| *delivery)),
                    Answer::Rejected => {}
                    _ => return Err(unexpected_answer()),
                }
            }
        }
    }

    /// Requeues all unsettled deliveries of the channel, which the broker redelivers. Settling the
    /// old deliveries afterwards is [`Stale`](crate::Stale).
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn recover(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        let recover = basic::Recover { requeue: true };
        let asked = self.clone().ask(Ok(AMQPClass::Basic(basic::AMQPMethod::Recover(recover))));
        async move { asked.await.map(drop) }
    }

    /// Closes the channel and all its clones at once; the future waits for the broker's reply. The
    /// broker removes the channel's consumers and requeues its unsettled deliveries, which RabbitMQ
    /// does in one step for each queue. Without a connection the channel does not recover with the
    /// next one. Unconfirmed messages become uncertain: await their confirms first.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The channel is closed even if the wait is interrupted, dropped or
    /// never polled.
    ///
    /// # Errors
    ///
    /// The error of an earlier close, a missing reply, the interruption. The channel is closed
    /// then, too.
    pub fn close(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        let channel = self.0.clone();
        let (sender, receiver) = oneshot::channel();
        let closed = channel.closed();
        let asked = (!channel.has_ended()).then(|| {
            let requester = Requester { sender: Some(sender), channel: None };
            let number = channel.number.get();
            let asked = channel.hub().with(|session| session.close_channel(number, requester));
            channel.hub().channels.borrow_mut().remove(&number);
            channel.end(&Error::Closed);
            asked
        });
        async move {
            match (closed, asked.flatten()) {
                (Some(error), _) => Err(error),
                (None, Some(Ok(()))) => channel.hub().answer(receiver).await.map(drop),
                // The broker has no such channel, or the connection is lost or closing.
                (None, Some(Err(_)) | None) => Ok(()),
            }
        }
    }
}

/// Closes a channel, unless it was taken out.
struct CloseOnDrop(Option<Channel>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        drop(self.0.as_ref().map(Channel::close));
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("number", &self.0.number.get())
            .field("closed", &self.0.closed())
            .finish_non_exhaustive()
    }
}

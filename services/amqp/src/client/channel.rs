//! A channel, as tasks hold it: what is asked of the broker.
//!
//! Queues and exchanges are in `declare`, publishing in `publish`, what comes in in `consumer`.

pub(crate) mod declare;
pub(crate) mod publish;

use std::fmt;
use std::future::Future;
use std::rc::Rc;

use amq_protocol::protocol::{AMQPClass, basic};
use pikake_sync::oneshot;

use crate::client::consumer::Consumer;
use crate::client::hub::{Answer, Asker, ChannelInner, Connection, Delivery, wrong_answer};
use crate::error::Error;
use crate::message::{ConsumeOptions, REPLY_TO, short};

/// A channel of a connection: a line of requests and messages of its own.
///
/// Clones are the same channel. Requests are sent one after the other, and each gets its own answer. It
/// is closed when the last clone is gone, with the last consumer and unsettled delivery. When the
/// connection is lost, it goes on with the next one. When the broker closes it (which is how AMQP
/// reports most errors), it stays closed, and another can be opened; its connection and other channels
/// know nothing of it.
///
/// Of all requests: an interruption point. If one is interrupted or dropped while it waits for its
/// answer, it may have been done; the channel remains usable.
#[derive(Clone)]
pub struct Channel(pub(crate) Rc<ChannelInner>);

impl Channel {
    pub(crate) async fn open(connection: Connection, confirms: bool) -> Result<Self, Error> {
        let hub = connection.hub().clone();
        hub.room_for_channel().await?;
        let (sender, receiver) = oneshot::channel();
        let asker = Asker { sender: Some(sender), channel: None };
        let opened = hub.with(|session| session.open_channel(asker));
        let number = match opened {
            Some(Ok(number)) => number,
            Some(Err((error, _))) => return Err(error),
            None => return Err(Error::ConnectionLost("just now".to_owned())),
        };
        let channel = Self(ChannelInner::open(connection, number, confirms));
        if confirms {
            hub.with(|session| session.expect_confirms(number));
        }
        hub.answer(receiver).await?;
        for setting in channel.0.settings() {
            channel.0.ask(setting).await?;
        }
        Ok(channel)
    }

    /// The connection it belongs to.
    pub fn connection(&self) -> &Connection {
        self.0.connection()
    }

    /// Why it is closed, or its connection is for good; `None` while it can be used.
    pub fn closed(&self) -> Option<Error> {
        self.0.closed()
    }

    pub(crate) async fn ask(self, method: Result<AMQPClass, Error>) -> Result<Answer, Error> {
        self.0.ask(method?).await
    }

    /// Limits how many unacknowledged deliveries there may be: of each consumer that comes after
    /// (which [`ConsumeOptions::prefetch`] does as well), or, if `global`, of the channel, whose
    /// consumers then have none of their own.
    ///
    /// # Errors
    ///
    /// [`Error::NoGlobalQos`] where the broker knows no limit for a channel (RabbitMQ 4.3 and later;
    /// with quorum queues, consuming fails). Others as for any request.
    pub fn qos(
        &self,
        prefetch: u16,
        global: bool,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let channel = self.clone();
        async move {
            channel.0.ask(ChannelInner::qos(prefetch, global)).await?;
            if global {
                channel.0.limit_all(prefetch);
            }
            Ok(())
        }
    }

    /// Takes deliveries from a queue.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if the queue is not there, 403 if another consumer has it for
    /// itself; [`Error::NoGlobalQos`]; others as for any request.
    pub fn consume(
        &self,
        queue: &str,
        options: ConsumeOptions,
    ) -> impl Future<Output = Result<Consumer, Error>> + use<> {
        let (channel, queue) = (self.0.clone(), short(queue));
        async move {
            let queue = queue?;
            channel.hub().ready().await?;
            // It is known here before a delivery can come, and ends if this is given up.
            let consumer = Consumer::new(&channel, channel.new_tag()?, queue, options);
            if let Some(limit) = channel.limit(&consumer.inner) {
                channel.request(limit, Asker::NOBODY)?;
            }
            channel.ask(consumer.inner.request()).await?;
            Ok(consumer)
        }
    }

    /// Takes the answers to what this channel publishes with
    /// `reply_to: amq.rabbitmq.reply-to`, without a queue and without acknowledgements. Once a
    /// channel. Who answers must not publish as mandatory: RabbitMQ finds no queue then. Answers that
    /// come while the connection is lost are lost.
    ///
    /// # Errors
    ///
    /// As for [`consume`](Self::consume).
    pub fn direct_reply_to(&self) -> impl Future<Output = Result<Consumer, Error>> + use<> {
        self.consume(REPLY_TO, ConsumeOptions { no_ack: true, ..ConsumeOptions::default() })
    }

    /// Takes one message from a queue, if there is one. Messages that cannot be read are rejected, and
    /// the one behind them is taken.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`] with 404 if the queue is not there; others as for any request.
    /// Interrupted, it gives the message back, unless it needs no acknowledgement: then it is lost.
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
                    _ => return Err(wrong_answer()),
                }
            }
        }
    }

    /// Gives all unsettled deliveries of the channel back to their queues, which deliver them again;
    /// to settle those then is [`Stale`](crate::Stale).
    ///
    /// # Errors
    ///
    /// As for any request.
    pub fn recover(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        let recover = basic::Recover { requeue: true };
        let asked = self.clone().ask(Ok(AMQPClass::Basic(basic::AMQPMethod::Recover(recover))));
        async move { asked.await.map(drop) }
    }

    /// Closes it, for all its clones, and waits until the broker knows. Without a connection there is
    /// nothing to wait for: it does not come back with the next one. Messages that are not confirmed yet
    /// are uncertain: await them before.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The channel is closed also if this is interrupted or dropped in its wait.
    ///
    /// # Errors
    ///
    /// That it was closed before, or that no answer came; the interruption. It is closed then, too.
    pub fn close(&self) -> impl Future<Output = Result<(), Error>> + use<> {
        let channel = self.0.clone();
        async move {
            if let Some(error) = channel.closed() {
                return Err(error);
            }
            let (sender, receiver) = oneshot::channel();
            let asker = Asker { sender: Some(sender), channel: None };
            let number = channel.number.get();
            let asked = channel.hub().with(|session| session.close_channel(number, asker));
            channel.hub().channels.borrow_mut().remove(&number);
            channel.end(&Error::Closed);
            match asked {
                Some(Ok(())) => channel.hub().answer(receiver).await.map(drop),
                // The broker does not know it, or knows no more of this connection.
                Some(Err(_)) | None => Ok(()),
            }
        }
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

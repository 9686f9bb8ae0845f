//! A channel, as tasks hold it: what is asked of the broker.
//!
//! Queues and exchanges are in `declare`, publishing in `publish`, what comes in in `consumer`.

pub(crate) mod declare;
pub(crate) mod publish;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::rc::{Rc, Weak};

use amq_protocol::protocol::{AMQPClass, basic, confirm};
use pikake_sync::oneshot;
use pikake_traps::WaitQueue;

use crate::client::channel::declare::wrong_answer;
use crate::client::connection::Connection;
use crate::client::consumer::{Consumer, ConsumerInner};
use crate::client::delivery::Delivery;
use crate::client::hub::{Answer, Asker, Hub};
use crate::error::Error;
use crate::message::{ConsumeOptions, short};

/// The queue that stands for the answers to what a channel publishes.
pub(crate) const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// What the handles of a channel share with its connection.
pub(crate) struct ChannelInner {
    connection: Connection,
    /// In the session that is; 0 while there is none.
    pub(crate) number: Cell<u16>,
    pub(crate) confirms: bool,
    /// The limit for the whole channel.
    global_limit: Cell<Option<u16>>,
    pub(crate) consumers: RefCell<Vec<Weak<ConsumerInner>>>,
    next_consumer: Cell<u64>,
    ended: RefCell<Option<Error>>,
    /// Who waits for a confirm of another message.
    pub(crate) window: WaitQueue,
}

impl ChannelInner {
    pub(crate) fn hub(&self) -> &Rc<Hub> {
        self.connection.hub()
    }

    /// Why it is closed, if it is.
    pub(crate) fn closed(&self) -> Option<Error> {
        self.ended.borrow().clone().or_else(|| self.hub().end())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    pub(crate) fn end(&self, error: &Error) {
        // Another channel may get the number, and deliveries of this one must not be taken for its.
        self.number.set(0);
        self.ended.borrow_mut().get_or_insert_with(|| error.clone());
        for consumer in self.live_consumers() {
            consumer.end(error.clone());
            // The broker has taken them back with the channel.
            consumer.forget_deliveries();
        }
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.window.wake(usize::MAX);
    }

    fn live_consumers(&self) -> Vec<Rc<ConsumerInner>> {
        self.consumers.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn consumer(&self, tag: &str) -> Option<Rc<ConsumerInner>> {
        let consumers = self.consumers.borrow();
        let mut live = consumers.iter().filter_map(Weak::upgrade);
        live.find(|consumer| consumer.tag.as_str() == tag)
    }

    pub(crate) fn forget_consumer(&self, gone: &Rc<ConsumerInner>) {
        self.consumers.borrow_mut().retain(|known| !Weak::ptr_eq(known, &Rc::downgrade(gone)));
    }

    /// Its connection has gone.
    pub(crate) fn forget_deliveries(&self) {
        self.number.set(0);
        self.forget_waiting();
    }

    /// What was delivered and not taken is the broker's again.
    pub(crate) fn forget_waiting(&self) {
        for consumer in self.live_consumers() {
            consumer.forget_deliveries();
        }
    }

    /// What a new channel has to be told to be this one.
    pub(crate) fn settings(&self) -> Vec<AMQPClass> {
        let select = confirm::Select { nowait: false };
        let select = AMQPClass::Confirm(confirm::AMQPMethod::Select(select));
        let limit = self.global_limit.get().map(|limit| qos(limit, true));
        self.confirms.then_some(select).into_iter().chain(limit).collect()
    }

    /// The limit to be set before a consumer; RabbitMQ applies it to those that come after. It would
    /// take a limit of the whole channel away, so it is one or the other.
    pub(crate) fn limit(&self, consumer: &ConsumerInner) -> Option<AMQPClass> {
        let is_limited = consumer.options.no_ack || self.global_limit.get().is_some();
        (!is_limited).then(|| qos(consumer.options.prefetch, false))
    }

    /// Asks the broker, and waits for its answer.
    pub(crate) async fn ask(self: &Rc<Self>, method: AMQPClass) -> Result<Answer, Error> {
        self.hub().ready().await?;
        let (sender, receiver) = oneshot::channel();
        // What is got and not taken is given back.
        let channel = Some(self.clone());
        self.request(method, Asker { sender: Some(sender), channel })?;
        self.hub().answer(receiver).await
    }

    fn request(&self, method: AMQPClass, asker: Asker) -> Result<(), Error> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        let asked = self.hub().with(|session| session.request(self.number.get(), method, asker));
        match asked {
            Some(Ok(())) => Ok(()),
            Some(Err((error, _))) => Err(error),
            None => Err(Error::ConnectionLost("just now".to_owned())),
        }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        let number = self.number.get();
        let hub = self.connection.hub();
        let was_open = self.ended.borrow().is_none();
        if number != 0 && was_open {
            hub.channels.borrow_mut().remove(&number);
            drop(hub.with(|session| session.close_channel(number, Asker::NOBODY)));
        }
    }
}

fn qos(prefetch_count: u16, global: bool) -> AMQPClass {
    AMQPClass::Basic(basic::AMQPMethod::Qos(basic::Qos { prefetch_count, global }))
}

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
        let channel = Self(Rc::new(ChannelInner {
            connection,
            number: Cell::new(number),
            confirms,
            global_limit: Cell::new(None),
            consumers: RefCell::default(),
            next_consumer: Cell::new(1),
            ended: RefCell::default(),
            window: WaitQueue::new(),
        }));
        hub.add_channel(number, &channel.0);
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
        &self.0.connection
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
            channel.0.ask(qos(prefetch, global)).await?;
            if global {
                channel.0.global_limit.set(Some(prefetch));
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
            let number = channel.next_consumer.get();
            channel.next_consumer.set(number + 1);
            // It is known here before a delivery can come, and ends if this is given up.
            let tag = short(&format!("pikake-{number}"))?;
            let consumer = Consumer::new(&channel, tag, queue, options);
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

    /// Takes one message from a queue, if there is one.
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
        let asked = self.clone().ask(get);
        async move {
            match asked.await? {
                Answer::Got(delivery) => Ok(delivery.map(|delivery| *delivery)),
                _ => Err(wrong_answer()),
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

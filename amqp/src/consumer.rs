//! What comes in: consumers, deliveries, and what a delivery is settled with.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;
use pikake_traps::{WaitQueue, park};

use crate::channel::ChannelInner;
use crate::error::{Error, Stale};
use crate::event::Content;
use crate::hub::{Asker, HubSession};
use crate::message::{ConsumeOptions, Properties};

/// A message that was delivered.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The content.
    pub body: Vec<u8>,
    /// Headers and the rest.
    pub properties: Properties,
    /// The exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// It was delivered before, and not settled.
    pub redelivered: bool,
    /// What it is settled with. It can be taken out, to outlive the content.
    pub receipt: Receipt,
}

impl Delivery {
    pub(crate) fn new(channel: Rc<ChannelInner>, content: Content, epoch: u64) -> Self {
        let is_settled = Cell::new(!content.is_owed);
        Self {
            body: content.body,
            properties: content.properties,
            exchange: content.exchange.into(),
            routing_key: content.routing_key.into(),
            redelivered: content.redelivered,
            receipt: Receipt { channel, tag: content.tag, epoch, is_settled },
        }
    }

    /// The broker's number for it, on this channel and connection.
    pub fn tag(&self) -> u64 {
        self.receipt.tag
    }

    /// Acknowledges it: the broker may forget it.
    ///
    /// # Errors
    ///
    /// [`Stale`], as for [`Receipt::ack`].
    pub fn ack(&self) -> Result<(), Stale> {
        self.receipt.ack()
    }

    /// Refuses it: the broker puts it back into its queue, or dead-letters or drops it.
    ///
    /// # Errors
    ///
    /// [`Stale`], as for [`Receipt::ack`].
    pub fn nack(&self, requeue: bool) -> Result<(), Stale> {
        self.receipt.nack(requeue)
    }

    /// The same as [`nack`](Self::nack), under AMQP's older name for one delivery.
    ///
    /// # Errors
    ///
    /// [`Stale`], as for [`Receipt::ack`].
    pub fn reject(&self, requeue: bool) -> Result<(), Stale> {
        self.receipt.nack(requeue)
    }
}

/// What a delivery is settled with.
///
/// Settling never waits: it queues bytes, which leave when the tasks that are ready have run, many
/// acknowledgements as one. Dropped without having been settled, it gives the message back to its
/// queue. It keeps its channel open.
#[must_use = "dropped, it gives the message back to its queue"]
pub struct Receipt {
    channel: Rc<ChannelInner>,
    tag: u64,
    epoch: u64,
    is_settled: Cell<bool>,
}

impl Receipt {
    /// The broker's number for the delivery, on this channel and connection.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether the delivery still has to be settled, and can be.
    pub fn is_owed(&self) -> bool {
        !self.is_settled.get() && self.channel.hub().epoch.get() == self.epoch
    }

    /// Acknowledges the delivery: the broker may forget it. Of a consumer without acknowledgements
    /// nothing is owed, and nothing happens.
    ///
    /// # Errors
    ///
    /// [`Stale`], if the connection it came over, or its channel, has ended. The broker delivers it
    /// again. Also when it was settled before.
    pub fn ack(&self) -> Result<(), Stale> {
        self.settle(|session, number| session.ack(number, self.tag))
    }

    /// Refuses the delivery: the broker puts it back into its queue, or dead-letters or drops it.
    ///
    /// # Errors
    ///
    /// As for [`ack`](Self::ack).
    pub fn nack(&self, requeue: bool) -> Result<(), Stale> {
        self.settle(|session, number| session.nack(number, self.tag, requeue))
    }

    /// The same as [`nack`](Self::nack), under AMQP's older name for one delivery.
    ///
    /// # Errors
    ///
    /// As for [`ack`](Self::ack).
    pub fn reject(&self, requeue: bool) -> Result<(), Stale> {
        self.nack(requeue)
    }

    fn settle(&self, settle: impl FnOnce(&mut HubSession, u16) -> bool) -> Result<(), Stale> {
        let hub = self.channel.hub();
        if hub.epoch.get() != self.epoch || self.is_settled.replace(true) {
            return Err(Stale);
        }
        match hub.with(|session| settle(session, self.channel.number.get())) {
            Some(true) => Ok(()),
            _ => Err(Stale),
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.is_settled.get() {
            // Stale: the broker has it already.
            let _back = self.nack(true);
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt")
            .field("tag", &self.tag)
            .field("is_owed", &self.is_owed())
            .finish_non_exhaustive()
    }
}

/// What channel and consumer share.
pub(crate) struct ConsumerInner {
    pub(crate) tag: ShortString,
    pub(crate) queue: ShortString,
    pub(crate) options: ConsumeOptions,
    buffer: RefCell<VecDeque<Delivery>>,
    waiters: WaitQueue,
    ended: RefCell<Option<Error>>,
}

impl ConsumerInner {
    pub(crate) fn put(&self, delivery: Delivery) {
        self.buffer.borrow_mut().push_back(delivery);
        self.waiters.wake(1);
    }

    /// The first reason counts.
    pub(crate) fn end(&self, why: Error) {
        self.ended.borrow_mut().get_or_insert(why);
        self.waiters.wake(usize::MAX);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// What is here and unsettled is the broker's again. What needs no acknowledgement stays.
    pub(crate) fn forget_deliveries(&self) {
        let before = self.buffer.take();
        let (stay, go): (VecDeque<_>, VecDeque<_>) =
            before.into_iter().partition(|delivery| delivery.receipt.is_settled.get());
        self.buffer.replace(stay);
        drop(go);
    }

    pub(crate) fn request(&self) -> AMQPClass {
        AMQPClass::Basic(basic::AMQPMethod::Consume(basic::Consume {
            queue: self.queue.clone(),
            consumer_tag: self.tag.clone(),
            no_local: false,
            no_ack: self.options.no_ack,
            exclusive: self.options.exclusive,
            nowait: false,
            arguments: self.options.arguments.clone(),
        }))
    }
}

/// Takes deliveries from a queue.
///
/// It goes on over lost connections. Dropped, it ends at the broker, and what was delivered and not
/// taken goes back to the queue; deliveries that were taken stay with who took them.
#[must_use = "dropped, it ends"]
pub struct Consumer {
    pub(crate) inner: Rc<ConsumerInner>,
    pub(crate) channel: Rc<ChannelInner>,
}

impl Consumer {
    pub(crate) fn new(
        channel: &Rc<ChannelInner>,
        tag: ShortString,
        queue: ShortString,
        options: ConsumeOptions,
    ) -> Self {
        let inner = Rc::new(ConsumerInner {
            tag,
            queue,
            options,
            buffer: RefCell::default(),
            waiters: WaitQueue::new(),
            ended: RefCell::new(None),
        });
        channel.consumers.borrow_mut().push(Rc::downgrade(&inner));
        Self { inner, channel: channel.clone() }
    }

    /// The next delivery, as soon as there is one.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is none. Dropped or interrupted, it has taken none.
    ///
    /// # Errors
    ///
    /// When no more will come: [`Error::ConsumerCancelled`] by the broker, [`Error::ChannelClosed`],
    /// [`Error::ConnectionClosed`], [`Error::Closed`]. The interruption.
    pub fn next(&mut self) -> impl Future<Output = Result<Delivery, Error>> {
        async move {
            loop {
                if let Some(delivery) = self.try_next() {
                    return Ok(delivery);
                }
                if let Some(error) = &*self.inner.ended.borrow() {
                    return Err(error.clone());
                }
                park(&self.inner.waiters).await?;
            }
        }
    }

    /// A delivery that is here already.
    pub fn try_next(&mut self) -> Option<Delivery> {
        self.inner.buffer.borrow_mut().pop_front()
    }

    /// The consumer's name at the broker.
    pub fn tag(&self) -> &str {
        self.inner.tag.as_str()
    }

    /// Ends it, and waits until the broker knows. What was delivered and not taken goes back.
    ///
    /// # Cancellation
    ///
    /// An interruption point. It ends also if this is interrupted or dropped.
    ///
    /// # Errors
    ///
    /// That its channel or connection has ended, or no answer came; the interruption.
    pub fn cancel(self) -> impl Future<Output = Result<(), Error>> {
        async move {
            // What is here goes back after the broker was told: it would send it here again.
            self.channel.ask(self.stop()).await.map(drop)
        }
    }

    /// Ends it on this side, and gives what is to be asked of the broker.
    fn stop(&self) -> AMQPClass {
        self.inner.end(Error::Closed);
        AMQPClass::Basic(basic::AMQPMethod::Cancel(basic::Cancel {
            consumer_tag: self.inner.tag.clone(),
            nowait: false,
        }))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.channel.forget_consumer(&self.inner);
        if !self.inner.has_ended() {
            let (number, cancel) = (self.channel.number.get(), self.stop());
            let asked = self.channel.hub().with(|s| s.request(number, cancel, Asker::NOBODY));
            // A channel that has ended has ended its consumers.
            drop(asked);
        }
        // After the broker was told: it would send them here again.
        drop(self.inner.buffer.take());
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("tag", &self.tag())
            .field("queue", &self.inner.queue)
            .field("waiting", &self.inner.buffer.borrow().len())
            .finish_non_exhaustive()
    }
}

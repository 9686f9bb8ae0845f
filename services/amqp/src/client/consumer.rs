//! The handle of a consumer.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;
use pikake_traps::park_at;

use crate::client::hub::{ChannelInner, ConsumerInner, Delivery, Requester};
use crate::error::Error;
use crate::message::ConsumeOptions;

/// Takes deliveries from a queue.
///
/// A consumer survives lost connections. Dropping the consumer cancels it at the broker and
/// requeues the deliveries that were not taken. Taken deliveries are not affected.
#[must_use = "dropping a consumer cancels it"]
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
        let inner = Rc::new(ConsumerInner::new(tag, queue, options));
        channel.add_consumer(&inner);
        Self { inner, channel: channel.clone() }
    }

    /// Waits for the next delivery.
    ///
    /// # Cancellation
    ///
    /// An interruption point while there is no delivery. A dropped or interrupted wait takes none.
    ///
    /// # Errors
    ///
    /// After the last delivery: [`Error::ConsumerCancelled`] by the broker,
    /// [`Error::ChannelClosed`], [`Error::ConnectionClosed`], [`Error::Closed`]. The interruption.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not wait")]
    #[track_caller]
    pub fn next(&mut self) -> impl Future<Output = Result<Delivery, Error>> {
        let place = Location::caller();
        async move {
            loop {
                if let Some(delivery) = self.try_next() {
                    return Ok(delivery);
                }
                if let Some(error) = &*self.inner.ended.borrow() {
                    return Err(error.clone());
                }
                park_at(&self.inner.waiters, place).await?;
            }
        }
    }

    /// The next delivery, if it has arrived.
    pub fn try_next(&mut self) -> Option<Delivery> {
        self.inner.buffer.borrow_mut().pop_front()
    }

    /// The consumer tag.
    pub fn tag(&self) -> &str {
        self.inner.tag.as_str()
    }

    /// Cancels the consumer, waits for the broker's reply, and requeues deliveries that were not
    /// taken.
    ///
    /// # Cancellation
    ///
    /// An interruption point. The consumer ends even if the wait is interrupted or dropped.
    ///
    /// # Errors
    ///
    /// The end of the channel or connection, a missing reply, the interruption.
    pub fn cancel(self) -> impl Future<Output = Result<(), Error>> {
        let channel = self.channel.clone();
        async move {
            let asked = channel.ask(self.stop()).await;
            self.inner.has_ended_at_broker.set(asked.is_ok());
            // Requeues the buffer only now: before the cancel, the broker would redeliver it here.
            drop(self);
            asked.map(drop)
        }
    }

    /// Ends the consumer on this side, and returns basic.cancel.
    fn stop(&self) -> AMQPClass {
        self.inner.ended.borrow_mut().get_or_insert(Error::Closed);
        AMQPClass::Basic(basic::AMQPMethod::Cancel(basic::Cancel {
            consumer_tag: self.inner.tag.clone(),
            nowait: false,
        }))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.channel.forget_consumer(&self.inner);
        if !self.inner.has_ended_at_broker.get() {
            let (number, cancel) = (self.channel.number.get(), self.stop());
            let asked = self.channel.hub().with(|s| s.request(number, cancel, Requester::NONE));
            // On an error the channel has ended, and its consumers with it.
            drop(asked);
        }
        // Only after the cancel: before, the broker would redeliver them here.
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

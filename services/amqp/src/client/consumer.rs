//! Who takes deliveries from a queue.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;
use pikake_traps::park_at;

use crate::client::hub::{Asker, ChannelInner, ConsumerInner, Delivery};
use crate::error::Error;
use crate::message::ConsumeOptions;

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
        let inner = Rc::new(ConsumerInner::new(tag, queue, options));
        channel.add_consumer(&inner);
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
        let channel = self.channel.clone();
        async move {
            let asked = channel.ask(self.stop()).await;
            self.inner.is_gone.set(asked.is_ok());
            // What is here goes back now that the broker knows: it would send it here again.
            drop(self);
            asked.map(drop)
        }
    }

    /// Ends it on this side, and gives what is to be asked of the broker.
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
        if !self.inner.is_gone.get() {
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

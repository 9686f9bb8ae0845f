//! Who takes deliveries from a queue.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;
use pikake_traps::{WaitQueue, park_at};

use crate::client::channel::ChannelInner;
use crate::client::delivery::Delivery;
use crate::client::hub::Asker;
use crate::error::Error;
use crate::message::ConsumeOptions;

/// What channel and consumer share.
pub(crate) struct ConsumerInner {
    pub(crate) tag: ShortString,
    pub(crate) queue: ShortString,
    pub(crate) options: ConsumeOptions,
    buffer: RefCell<VecDeque<Delivery>>,
    waiters: WaitQueue,
    ended: RefCell<Option<Error>>,
    /// The broker knows that it has ended.
    is_gone: Cell<bool>,
}

/// A broker that keeps to the prefetch has no more under way. (RabbitMQ delivers a stream in chunks of
/// some thousands, beyond the prefetch.)
const MOST_BEYOND: usize = 10_000;

impl ConsumerInner {
    /// Whether the broker may deliver another one. Without a limit, as was asked for, it may.
    pub(crate) fn has_room(&self) -> bool {
        let prefetch = usize::from(self.options.prefetch);
        let has_limit = prefetch > 0 && !self.options.no_ack;
        !has_limit || self.buffer.borrow().len() < prefetch + MOST_BEYOND
    }

    pub(crate) fn put(&self, delivery: Delivery) {
        self.buffer.borrow_mut().push_back(delivery);
        self.waiters.wake(1);
    }

    /// It has ended, and not by this side. The first reason counts.
    pub(crate) fn end(&self, why: Error) {
        self.is_gone.set(true);
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
            before.into_iter().partition(|delivery| !delivery.receipt.is_owed_at_all());
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
            is_gone: Cell::new(false),
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

//! The shared state of a consumer: buffered deliveries and the end.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;
use pikake_traps::WaitQueue;

use super::{ConsumerInner, Delivery};
use crate::error::Error;
use crate::message::ConsumeOptions;

/// Buffered deliveries beyond the prefetch that the client tolerates: RabbitMQ delivers streams in
/// chunks of some thousands.
const MAX_BEYOND_PREFETCH: usize = 10_000;

impl ConsumerInner {
    pub(crate) fn new(tag: ShortString, queue: ShortString, options: ConsumeOptions) -> Self {
        Self {
            tag,
            queue,
            options,
            buffer: RefCell::default(),
            waiters: WaitQueue::new(),
            ended: RefCell::new(None),
            has_ended_at_broker: Cell::new(false),
        }
    }

    /// Whether the buffer takes another delivery. Always `true` without prefetch or acks.
    pub(crate) fn has_room(&self) -> bool {
        let prefetch = usize::from(self.options.prefetch);
        let has_limit = prefetch > 0 && !self.options.no_ack;
        !has_limit || self.buffer.borrow().len() < prefetch + MAX_BEYOND_PREFETCH
    }

    pub(crate) fn put(&self, delivery: Delivery) {
        self.buffer.borrow_mut().push_back(delivery);
        self.waiters.wake(1);
    }

    /// Ends the consumer after the broker or the connection ended it. The first error is kept.
    pub(crate) fn end(&self, why: Error) {
        self.has_ended_at_broker.set(true);
        self.ended.borrow_mut().get_or_insert(why);
        self.waiters.wake(usize::MAX);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Drops unsettled deliveries, which the broker requeues. Deliveries without ack stay.
    pub(crate) fn drop_unsettled(&self) {
        let before = self.buffer.take();
        let (kept, dropped): (VecDeque<_>, VecDeque<_>) =
            before.into_iter().partition(|delivery| !delivery.receipt.is_unsettled());
        self.buffer.replace(kept);
        drop(dropped);
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

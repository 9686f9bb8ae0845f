//! A consumer, as its channel knows it: the deliveries that nobody has taken yet, and its end.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use amq_protocol::protocol::{AMQPClass, basic};
use amq_protocol::types::ShortString;
use pikake_traps::WaitQueue;

use super::{ConsumerInner, Delivery};
use crate::error::Error;
use crate::message::ConsumeOptions;

/// A broker that keeps to the prefetch has no more under way. (RabbitMQ delivers a stream in chunks of
/// some thousands, beyond the prefetch.)
const MOST_BEYOND: usize = 10_000;

impl ConsumerInner {
    pub(crate) fn new(tag: ShortString, queue: ShortString, options: ConsumeOptions) -> Self {
        Self {
            tag,
            queue,
            options,
            buffer: RefCell::default(),
            waiters: WaitQueue::new(),
            ended: RefCell::new(None),
            is_gone: Cell::new(false),
        }
    }

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

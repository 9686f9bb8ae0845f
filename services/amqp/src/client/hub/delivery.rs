//! Deliveries, and the receipts that settle them.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::{ChannelInner, Delivery, HubSession, Receipt};
use crate::client::error::Stale;
use crate::session::event::Content;

impl Delivery {
    pub(crate) fn new(channel: Rc<ChannelInner>, content: Content, epoch: u64) -> Self {
        let is_settled = Cell::new(!content.needs_ack);
        Self {
            body: content.body,
            properties: content.properties,
            exchange: content.exchange.into(),
            routing_key: content.routing_key.into(),
            redelivered: content.redelivered,
            receipt: Receipt { channel, tag: content.tag, epoch, is_settled },
        }
    }

    /// The delivery tag, unique to this channel and connection.
    pub fn tag(&self) -> u64 {
        self.receipt.tag
    }

    /// Acknowledges the delivery: the broker removes the message.
    ///
    /// # Errors
    ///
    /// [`Stale`], as for [`Receipt::ack`].
    pub fn ack(&self) -> Result<(), Stale> {
        self.receipt.ack()
    }

    /// Rejects the delivery: the broker requeues the message, or dead-letters or drops it.
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

impl Receipt {
    /// The delivery tag, unique to this channel and connection.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether the delivery is unsettled, and can still be settled.
    pub fn can_settle(&self) -> bool {
        let hub = self.channel.hub();
        let is_here = || {
            let (session, number) = (hub.session.borrow(), self.channel.number.get());
            session.as_ref().is_some_and(|session| session.can_settle(number, self.tag))
        };
        !self.is_settled.get() && hub.epoch.get() == self.epoch && is_here()
    }

    /// Acknowledges the delivery: the broker removes the message.
    ///
    /// # Errors
    ///
    /// [`Stale`], if the channel or connection of the delivery has ended, and the broker redelivers
    /// the message, or if nothing is to settle: after an earlier call, or with `no_ack`.
    pub fn ack(&self) -> Result<(), Stale> {
        self.settle(|session, number| session.ack(number, self.tag))
    }

    /// Rejects the delivery: the broker requeues the message, or dead-letters or drops it.
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

    /// Whether no call has settled the delivery.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.is_settled.get()
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
        if self.is_unsettled() {
            // If stale, the broker has requeued the message already.
            let _stale = self.nack(true);
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt")
            .field("tag", &self.tag)
            .field("can_settle", &self.can_settle())
            .finish_non_exhaustive()
    }
}

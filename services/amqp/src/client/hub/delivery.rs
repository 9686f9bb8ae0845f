//! What came in, and what it is settled with.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::{ChannelInner, Delivery, HubSession, Receipt};
use crate::client::error::Stale;
use crate::session::event::Content;

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

impl Receipt {
    /// The broker's number for the delivery, on this channel and connection.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether the delivery still has to be settled, and can be.
    pub fn is_owed(&self) -> bool {
        let hub = self.channel.hub();
        let is_here = || {
            let (session, number) = (hub.session.borrow(), self.channel.number.get());
            session.as_ref().is_some_and(|session| session.owes(number, self.tag))
        };
        !self.is_settled.get() && hub.epoch.get() == self.epoch && is_here()
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

    /// Whether something is to be done before it is dropped.
    pub(crate) fn is_owed_at_all(&self) -> bool {
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
        if self.is_owed_at_all() {
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

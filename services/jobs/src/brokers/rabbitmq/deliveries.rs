//! A consumer of a queue of RabbitMQ's.
//!
//! It has a channel of its own, so that its prefetch and its end concern nobody
//! else. Receipts are numbered here, for AMQP's numbers begin anew with each connection.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{Consumer, Delivery as Incoming, Error};
use pikake_traps::{ignore_after, wall_time};

use crate::broker::{BrokerError, Deliveries, Delivery, LocalFuture, Receipt};
use crate::brokers::rabbitmq::message::{attempt, message};

/// A broker answers by then, unless it is short of memory and does not listen.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// A delivery that has to be settled.
#[derive(Debug)]
pub(crate) struct Owed {
    pub(crate) queue: Rc<str>,
    pub(crate) receipt: pikake_amqp::Receipt,
}

/// What was delivered and has to be settled, of all consumers of a broker.
#[derive(Debug, Default)]
pub(crate) struct UnsettledDeliveries {
    owed: RefCell<BTreeMap<(u64, u64), Owed>>,
    numbers: Cell<u64>,
}

impl UnsettledDeliveries {
    pub(crate) fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    fn add(&self, session: u64, owed: Owed) -> Receipt {
        let receipt = Receipt { session, tag: self.number() };
        self.owed.borrow_mut().insert((receipt.session, receipt.tag), owed);
        receipt
    }

    /// What the receipt stands for, for who settles it.
    pub(crate) fn take(&self, receipt: Receipt) -> Result<Owed, BrokerError> {
        let owed = self.owed.borrow_mut().remove(&(receipt.session, receipt.tag));
        owed.filter(|owed| owed.receipt.can_settle()).ok_or(BrokerError::Stale)
    }

    /// Whether it can be settled.
    pub(crate) fn holds(&self, receipt: Receipt) -> bool {
        let owed = self.owed.borrow();
        owed.get(&(receipt.session, receipt.tag)).is_some_and(|owed| owed.receipt.can_settle())
    }

    /// It could not be settled yet.
    pub(crate) fn put_back(&self, receipt: Receipt, owed: Owed) {
        self.owed.borrow_mut().insert((receipt.session, receipt.tag), owed);
    }

    /// Everything of one consumer goes back to its queue.
    fn leave(&self, session: u64) {
        let mut owed = self.owed.borrow_mut();
        let mut rest = owed.split_off(&(session, 0));
        let mut others = rest.split_off(&(session + 1, 0));
        owed.append(&mut others);
        drop(owed);
        for owed in rest.into_values() {
            // Stale: it is there already.
            let _ = owed.receipt.nack(true);
        }
    }

    /// Nothing can be settled any more.
    pub(crate) fn close(&self) {
        let owed = self.owed.take();
        drop(owed);
    }
}

pub(crate) struct AmqpDeliveries {
    unsettled: Rc<UnsettledDeliveries>,
    session: u64,
    queue: Rc<str>,
    /// None once it has been cancelled.
    consumer: Option<Consumer>,
    /// What had come when it was cancelled.
    left: VecDeque<Incoming>,
}

impl AmqpDeliveries {
    pub(crate) fn new(unsettled: Rc<UnsettledDeliveries>, queue: &str, consumer: Consumer) -> Self {
        let session = unsettled.number();
        let left = VecDeque::new();
        Self { unsettled, session, queue: queue.into(), consumer: Some(consumer), left }
    }

    /// What is handed out. What has expired on its way is, too: its worker tells who waits for it.
    fn accept(&self, incoming: Incoming) -> Delivery {
        let message = message(&incoming.properties, incoming.body, wall_time());
        let (attempt, is_counted) = attempt(&incoming.properties, incoming.redelivered);
        let receipt = self
            .unsettled
            .add(self.session, Owed { queue: self.queue.clone(), receipt: incoming.receipt });
        let queue = (*self.queue).to_owned();
        Delivery { is_counted, ..Delivery::new(receipt, queue, attempt, message) }
    }
}

impl Deliveries for AmqpDeliveries {
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>> {
        Box::pin(async move {
            let incoming = match (self.left.pop_front(), &mut self.consumer) {
                (Some(incoming), _) => incoming,
                (None, None) => return Ok(None),
                (None, Some(consumer)) => match consumer.next().await {
                    Ok(incoming) => incoming,
                    // As when its queue moves, or a job has held a message for longer than the
                    // broker allows. Another consumer may be made; if that is refused, it is told
                    // then.
                    Err(error @ (Error::ConsumerCancelled | Error::ChannelClosed(_))) => {
                        tracing::warn!(queue = %self.queue, %error, "a consumer has ended");
                        return Ok(None);
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            Ok(Some(self.accept(incoming)))
        })
    }

    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let Some(mut consumer) = self.consumer.take() else { return Ok(()) };
            while let Some(incoming) = consumer.try_next() {
                self.left.push_back(incoming);
            }
            // It ends also if that is not answered: what comes then goes back.
            match ignore_after(CANCEL_LIMIT, consumer.cancel()).await {
                Some(cancelled) => Ok(cancelled?),
                None => Ok(()),
            }
        })
    }
}

impl Drop for AmqpDeliveries {
    fn drop(&mut self) {
        if let Some(mut consumer) = self.consumer.take() {
            while let Some(incoming) = consumer.try_next() {
                self.left.push_back(incoming);
            }
            // The broker is told first; else it would send them here again.
            drop(consumer);
        }
        // In the order in which they came, for they are delivered again in the order of their
        // return.
        self.unsettled.leave(self.session);
        self.left.clear();
    }
}

impl fmt::Debug for AmqpDeliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpDeliveries").field("queue", &self.queue).finish_non_exhaustive()
    }
}

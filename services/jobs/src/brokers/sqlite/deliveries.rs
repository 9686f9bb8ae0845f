//! A consumer of a queue in a database.
//!
//! Apart from the broker: what it waits for is in its inbox, and the thread of the database puts it there.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::broker::{BrokerError, Deliveries, Delivery, LocalFuture, Receipt};
use crate::brokers::sqlite::Session;
use crate::brokers::sqlite::inbox::Inbox;

pub(crate) struct SqliteDeliveries {
    pub(crate) id: u64,
    pub(crate) queue: String,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) session: Rc<Session>,
}

impl Deliveries for SqliteDeliveries {
    fn next(&mut self) -> LocalFuture<'_, Result<Option<Delivery>, BrokerError>> {
        Box::pin(async move {
            loop {
                if let Some(looked) = self.inbox.look() {
                    let Some(arrived) = looked? else { return Ok(None) };
                    let receipt = Receipt { session: self.id, tag: arrived.tag };
                    let (queue, attempt) = (self.queue.clone(), arrived.attempt);
                    return Ok(Some(Delivery::new(receipt, queue, attempt, arrived.message)));
                }
                self.inbox.event().wait().await?;
            }
        })
    }

    fn cancel(&mut self) -> LocalFuture<'_, Result<(), BrokerError>> {
        Box::pin(self.session.link.cancel(self.inbox.clone()))
    }
}

impl Drop for SqliteDeliveries {
    fn drop(&mut self) {
        self.session.link.leave(self.inbox.clone());
    }
}

impl fmt::Debug for SqliteDeliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteDeliveries").field("queue", &self.queue).finish_non_exhaustive()
    }
}

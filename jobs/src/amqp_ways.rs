//! The way of a message into its queue, at once or later.
//!
//! Apart from the broker, and from the scheme of delay queues (`amqp_delay.rs`): this knows which
//! queues there are, and which of them can delay.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use pikake_amqp::{Connection, Message as Publishing, short};
use pikake_sync::Mutex;
use pikake_traps::wall_time;

use crate::amqp_delay as delay;
use crate::amqp_message::{headless, properties};
use crate::amqp_queues::to_queue;
use crate::broker::BrokerError;
use crate::message::Message;

/// What a broker has declared.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Which queues are there, and whether they are replicated.
    declared: RefCell<BTreeMap<String, bool>>,
    /// The queues that can delay; locked while one is made so.
    delaying: Mutex<BTreeSet<String>>,
}

impl Ways {
    pub(crate) fn is_declared(&self, queue: &str, is_replicated: bool) {
        self.declared.borrow_mut().insert(queue.to_owned(), is_replicated);
    }

    /// Whether a queue is replicated, if it was declared here.
    pub(crate) fn is_replicated(&self, queue: &str) -> Option<bool> {
        self.declared.borrow().get(queue).copied()
    }

    /// A message on its way into its queue. What is to be declared for that is, over channels
    /// of their own.
    pub(crate) async fn of(
        &self,
        connection: &Connection,
        queue: &str,
        message: &Message,
        not_before: Option<SystemTime>,
    ) -> Result<Publishing, BrokerError> {
        let body = message.body.clone();
        if delay::until(not_before, wall_time()).is_some() {
            self.let_delay(connection, queue).await?;
        }
        let now = wall_time();
        let Some(length) = delay::until(not_before, now) else {
            return Ok(to_queue(queue, properties(message, now)?, body)?);
        };
        let Some((exchange, key)) = delay::way(queue, length) else {
            return Err(BrokerError::Refused(format!(
                "a message can wait for {} days at most",
                delay::longest().as_secs() / (24 * 3_600)
            )));
        };
        let (exchange, routing_key) = (short(&exchange)?, short(&key)?);
        let properties = headless(message, now)?;
        Ok(Publishing { exchange, routing_key, properties, body, mandatory: true })
    }

    /// Sees to it that a queue has delay queues.
    async fn let_delay(&self, connection: &Connection, queue: &str) -> Result<(), BrokerError> {
        let mut delaying = self.delaying.lock().await?;
        if delaying.contains(queue) {
            return Ok(());
        }
        let is_replicated = self.is_replicated(queue).ok_or_else(|| {
            BrokerError::Refused(format!(
                "declare queue `{queue}` here before messages wait for it"
            ))
        })?;
        delay::make(connection, queue, is_replicated).await?;
        delaying.insert(queue.to_owned());
        Ok(())
    }
}

//! The route of a message into its queue, at once or later.
//!
//! [`Routes`] has the queues that were declared here, and those among them that have delay queues. `delay.rs` has the
//! scheme of these.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::SystemTime;

use pikake_amqp::{Connection, Message as Publishing, short};
use pikake_sync::OnceCell;
use pikake_traps::wall_time;

use crate::broker::BrokerError;
use crate::brokers::rabbitmq::delay;
use crate::brokers::rabbitmq::message::{headless, properties};
use crate::brokers::rabbitmq::publisher::Prepared;
use crate::brokers::rabbitmq::queues::to_queue;
use crate::message::Message;

/// The queues that this broker has declared.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// By name. A queue that is declared again may be another one, without delay queues.
    declared: RefCell<BTreeMap<String, Rc<Declared>>>,
}

#[derive(Debug)]
struct Declared {
    is_replicated: bool,
    /// Set once it has delay queues.
    delays: OnceCell<()>,
}

impl Routes {
    pub(crate) fn add_declared(&self, queue: &str, is_replicated: bool) {
        let declared = Declared { is_replicated, delays: OnceCell::new() };
        self.declared.borrow_mut().insert(queue.to_owned(), Rc::new(declared));
    }

    /// Whether a queue is replicated, if it was declared here.
    pub(crate) fn is_replicated(&self, queue: &str) -> Option<bool> {
        self.declared.borrow().get(queue).map(|queue| queue.is_replicated)
    }

    /// Prepares a message for its queue, after its delay queues are declared if it is to wait.
    pub(crate) fn of<'a>(
        &self,
        connection: &'a Connection,
        queue: &'a str,
        message: &Message,
        not_before: Option<SystemTime>,
    ) -> Result<Prepared<'a>, BrokerError> {
        let now = wall_time();
        let Some(length) = delay::until(not_before, now) else {
            let properties = properties(message, now)?;
            return Ok(Prepared::Message(to_queue(queue, properties, message.body.clone())?));
        };
        let Some((exchange, key)) = delay::route(queue, length) else {
            return Err(BrokerError::Refused(format!(
                "a message can wait for {} days at most",
                delay::longest().as_secs() / (24 * 3_600)
            )));
        };
        let declared = self.declared.borrow().get(queue).cloned();
        let declared = declared.ok_or_else(|| {
            BrokerError::Refused(format!(
                "declare queue `{queue}` here before messages wait for it"
            ))
        })?;
        if declared.delays.get().is_none() {
            return Ok(Prepared::After(Box::pin(declared.declare_delays(connection, queue))));
        }
        let (exchange, routing_key) = (short(&exchange)?, short(&key)?);
        let (properties, body) = (headless(message, now)?, message.body.clone());
        Ok(Prepared::Message(Publishing {
            exchange,
            routing_key,
            properties,
            body,
            mandatory: true,
        }))
    }
}

impl Declared {
    /// Declares the delay queues, once.
    async fn declare_delays(
        self: Rc<Self>,
        connection: &Connection,
        queue: &str,
    ) -> Result<(), BrokerError> {
        let make = async || Ok(delay::make(connection, queue, self.is_replicated).await?);
        self.delays.get_or_try_init(make).await.copied()
    }
}

//! The way of a message into its queue, at once or later.
//!
//! [`Routes`] knows which queues there are, and which of them can delay. The scheme of delay queues is in `delay.rs`.

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
use crate::brokers::rabbitmq::publisher::Made;
use crate::brokers::rabbitmq::queues::to_queue;
use crate::message::Message;

/// What a broker has declared.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The queues that are there. One that is declared again may be another one.
    declared: RefCell<BTreeMap<String, Rc<Declared>>>,
}

#[derive(Debug)]
struct Declared {
    is_replicated: bool,
    /// It has delay queues.
    delays: OnceCell<()>,
}

impl Routes {
    pub(crate) fn is_declared(&self, queue: &str, is_replicated: bool) {
        let declared = Declared { is_replicated, delays: OnceCell::new() };
        self.declared.borrow_mut().insert(queue.to_owned(), Rc::new(declared));
    }

    /// Whether a queue is replicated, if it was declared here.
    pub(crate) fn is_replicated(&self, queue: &str) -> Option<bool> {
        self.declared.borrow().get(queue).map(|queue| queue.is_replicated)
    }

    /// A message on its way into its queue, after what is to be declared for that.
    pub(crate) fn of<'a>(
        &self,
        connection: &'a Connection,
        queue: &'a str,
        message: &Message,
        not_before: Option<SystemTime>,
    ) -> Result<Made<'a>, BrokerError> {
        let now = wall_time();
        let Some(length) = delay::until(not_before, now) else {
            let properties = properties(message, now)?;
            return Ok(Made::Message(to_queue(queue, properties, message.body.clone())?));
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
            return Ok(Made::After(Box::pin(declared.let_delay(connection, queue))));
        }
        let (exchange, routing_key) = (short(&exchange)?, short(&key)?);
        let (properties, body) = (headless(message, now)?, message.body.clone());
        Ok(Made::Message(Publishing { exchange, routing_key, properties, body, mandatory: true }))
    }
}

impl Declared {
    /// Sees to it that the queue has delay queues.
    async fn let_delay(
        self: Rc<Self>,
        connection: &Connection,
        queue: &str,
    ) -> Result<(), BrokerError> {
        let make = async || Ok(delay::make(connection, queue, self.is_replicated).await?);
        self.delays.get_or_try_init(make).await.copied()
    }
}

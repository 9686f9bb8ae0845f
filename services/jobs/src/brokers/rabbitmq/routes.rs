//! The route of a message into its queue, at once or later.
//!
//! [`Routes`] has the queues that were declared here, and those among them to which delayed
//! messages come. `delay.rs` has the scheme of delays.

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
use crate::brokers::rabbitmq::queues::{Found, to_queue};
use crate::message::Message;

/// The queues that this broker has declared.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// By name. A queue that is declared again may be another one, without bindings.
    declared: RefCell<BTreeMap<String, Rc<Declared>>>,
    /// Set once the delay queues are declared.
    delays: Rc<OnceCell<()>>,
}

#[derive(Debug)]
struct Declared {
    is_replicated: bool,
    /// `None` if it has other options besides, which the broker does not tell.
    max_priority: Option<u8>,
    /// Set once delayed messages come to it.
    is_bound: OnceCell<()>,
}

impl Routes {
    /// Notes a queue that was declared; `true` if it had been declared before.
    pub(crate) fn add_declared(&self, queue: &str, found: Found) -> bool {
        let Found { is_replicated, max_priority } = found;
        let declared = Declared { is_replicated, max_priority, is_bound: OnceCell::new() };
        self.declared.borrow_mut().insert(queue.to_owned(), Rc::new(declared)).is_some()
    }

    /// The highest priority of a queue that was declared here, as far as the broker tells.
    pub(crate) fn max_priority(&self, queue: &str) -> Option<u8> {
        self.declared.borrow().get(queue)?.max_priority
    }

    /// Lets the messages come to a declared queue that others delay: a Celery with quorum queues
    /// publishes such messages to exchanges that workers are to declare. A classic queue only if
    /// there are such exchanges.
    pub(crate) async fn accept_delayed(
        &self,
        connection: &Connection,
        queue: &str,
    ) -> Result<(), BrokerError> {
        let declared = self.declared.borrow().get(queue).cloned();
        let Some(declared) = declared else { return Ok(()) };
        if !delay::is_made(&connection.channel_unconfirmed().await?).await? {
            if !declared.is_replicated {
                return Ok(());
            }
            self.delays.get_or_try_init(async || delay::make(connection).await).await?;
        }
        declared.bind(connection, queue).await
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
        if declared.is_bound.get().is_none() || self.delays.get().is_none() {
            let delays = self.delays.clone();
            return Ok(Prepared::After(Box::pin(async move {
                delays.get_or_try_init(async || delay::make(connection).await).await?;
                declared.bind(connection, queue).await
            })));
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
    /// Lets delayed messages come to the queue, once.
    async fn bind(&self, connection: &Connection, queue: &str) -> Result<(), BrokerError> {
        let bind = async || delay::bind(&connection.channel_unconfirmed().await?, queue).await;
        Ok(self.is_bound.get_or_try_init(bind).await.copied()?)
    }
}

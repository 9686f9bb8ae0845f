//! What is published, and how queues and exchanges are described.
//!
//! Types of AMQP itself (properties, tables, values) are `amq-protocol`'s, under shorter names.

use amq_protocol::protocol::{AMQPClass, exchange, queue};
use amq_protocol::types::ShortString;

use crate::error::Error;

pub use amq_protocol::protocol::BasicProperties as Properties;
pub use amq_protocol::types::{AMQPValue as Value, FieldArray as Array, FieldTable as Table};

/// The queue that stands for the answers to what a channel publishes, in RabbitMQ's words.
pub const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// AMQP's short string (at most 255 bytes). Too long a text is an error here; `ShortString::from`
/// would panic.
///
/// # Errors
///
/// [`Error::Invalid`], if it is too long.
pub fn short(text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| {
        let begin: String = text.chars().take(40).collect();
        Error::Invalid(format!("a name of {} bytes ({begin}…): 255 are allowed", text.len()))
    })
}

/// A message on its way out.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    /// The exchange; empty for the default one, which routes to the queue named by the key.
    pub exchange: ShortString,
    /// The routing key.
    pub routing_key: ShortString,
    /// Headers and the rest; [`persistent`] has the usual ones.
    pub properties: Properties,
    /// The content.
    pub body: Vec<u8>,
    /// Whether the broker is to return it when no queue takes it.
    pub mandatory: bool,
}

/// Properties of a message that is to survive a restart of the broker (delivery mode 2).
pub fn persistent() -> Properties {
    Properties::default().with_delivery_mode(2)
}

/// How a queue is declared. The default is a durable classic queue.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueOptions {
    /// Only look whether it is there (404 if not).
    pub passive: bool,
    /// It survives a restart of the broker.
    pub durable: bool,
    /// It belongs to this connection, and ends with it.
    pub exclusive: bool,
    /// It is deleted when its last consumer goes.
    pub auto_delete: bool,
    /// `x-…` arguments.
    pub arguments: Table,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: Table::default(),
        }
    }
}

impl QueueOptions {
    /// A quorum queue: replicated, and the fastest for confirmed messages.
    pub fn quorum() -> Self {
        Self::default().argument("x-queue-type", Value::LongString("quorum".into()))
    }

    /// Only looks whether the queue is there.
    pub fn passive() -> Self {
        Self { passive: true, ..Self::default() }
    }

    /// A queue of this connection alone, gone when it ends, declared again when it recovers.
    pub fn private() -> Self {
        Self { durable: false, exclusive: true, auto_delete: true, ..Self::default() }
    }

    /// Adds an argument.
    ///
    /// # Panics
    ///
    /// If the name has more than 255 bytes.
    pub fn argument(mut self, name: &str, value: Value) -> Self {
        self.arguments.insert(name.into(), value);
        self
    }

    /// The request that declares a queue so.
    pub(crate) fn declare(self, name: ShortString) -> AMQPClass {
        AMQPClass::Queue(queue::AMQPMethod::Declare(queue::Declare {
            queue: name,
            passive: self.passive,
            durable: self.durable,
            exclusive: self.exclusive,
            auto_delete: self.auto_delete,
            nowait: false,
            arguments: self.arguments,
        }))
    }
}

/// What the broker tells about a queue that was declared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its name; made up by this side where none was given.
    pub name: String,
    /// Messages that are ready to be delivered.
    pub messages: u32,
    /// Consumers.
    pub consumers: u32,
}

/// How an exchange is declared. The default is a durable direct exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct ExchangeOptions {
    /// `direct`, `fanout`, `topic`, `headers`.
    pub kind: String,
    /// Only look whether it is there (404 if not).
    pub passive: bool,
    /// It survives a restart of the broker.
    pub durable: bool,
    /// It is deleted when nothing is bound to it any more.
    pub auto_delete: bool,
    /// Only other exchanges publish into it.
    pub internal: bool,
    /// `x-…` arguments.
    pub arguments: Table,
}

impl Default for ExchangeOptions {
    fn default() -> Self {
        Self {
            kind: "direct".to_owned(),
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: Table::default(),
        }
    }
}

impl ExchangeOptions {
    /// A durable exchange of a kind: `direct`, `fanout`, `topic`, `headers`.
    pub fn of_kind(kind: &str) -> Self {
        Self { kind: kind.to_owned(), ..Self::default() }
    }

    /// The request that declares an exchange so, whose kind is `self.kind` as a short string.
    pub(crate) fn declare(self, name: ShortString, kind: ShortString) -> AMQPClass {
        AMQPClass::Exchange(exchange::AMQPMethod::Declare(exchange::Declare {
            exchange: name,
            kind,
            passive: self.passive,
            durable: self.durable,
            auto_delete: self.auto_delete,
            internal: self.internal,
            nowait: false,
            arguments: self.arguments,
        }))
    }
}

/// How a queue is consumed.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumeOptions {
    /// How many unacknowledged deliveries this consumer may have; 0 is no limit. What has come and was
    /// not taken waits in memory, so without a limit that may be as much as is in the queue.
    pub prefetch: u16,
    /// Deliveries count as acknowledged when they are sent, without a limit.
    pub no_ack: bool,
    /// Refused if there is another consumer, and refuses others.
    pub exclusive: bool,
    /// `x-…` arguments, as `x-priority`.
    pub arguments: Table,
}

impl Default for ConsumeOptions {
    fn default() -> Self {
        Self { prefetch: 100, no_ack: false, exclusive: false, arguments: Table::default() }
    }
}

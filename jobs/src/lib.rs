//! Jobs: typed work that runs later, in another process or on another machine.
//!
//! The message is Celery's protocol 2, so real Celery sends to these workers and receives from them.
//! A broker is chosen by URL; all of them keep one contract ([`Broker`]).

#![forbid(unsafe_code)]

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "amqp")]
mod amqp_delay;
#[cfg(feature = "amqp")]
mod amqp_deliveries;
#[cfg(feature = "amqp")]
mod amqp_error;
#[cfg(feature = "amqp")]
mod amqp_message;
#[cfg(feature = "amqp")]
mod amqp_queues;
#[cfg(feature = "amqp")]
mod amqp_replies;
mod arguments;
pub mod broker;
mod error;
mod instant;
mod job;
mod memory;
mod memory_outcomes;
mod memory_queue;
mod memory_state;
pub mod message;
mod open;
mod options;
mod outcome;
mod outcomes;
mod request;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_desk;
#[cfg(feature = "sqlite")]
mod sqlite_inbox;
#[cfg(feature = "sqlite")]
mod sqlite_owner;
#[cfg(feature = "sqlite")]
mod sqlite_row;
#[cfg(feature = "sqlite")]
mod sqlite_schema;
#[cfg(feature = "sqlite")]
mod sqlite_statements;
#[cfg(feature = "sqlite")]
mod sqlite_thread;
#[cfg(feature = "sqlite")]
mod sqlite_work;

#[cfg(feature = "amqp")]
pub use amqp::AmqpBroker;
pub use broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, Delivery, PublishError, QueueOptions, Receipt,
};
pub use memory::{MemoryBroker, MemoryStore};
pub use message::{JobId, Message, Outcome, OutcomeState};
pub use open::open;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteBroker;

//! Jobs: typed work that runs later, in another process or on another machine.
//!
//! The message is Celery's protocol 2, so real Celery sends to these workers and receives from them.
//! A broker is chosen by URL; all of them keep one contract ([`Broker`]).

#![forbid(unsafe_code)]

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(feature = "amqp")]
mod amqp_dead;
#[cfg(feature = "amqp")]
mod amqp_delay;
#[cfg(feature = "amqp")]
mod amqp_deliveries;
#[cfg(feature = "amqp")]
mod amqp_error;
#[cfg(feature = "amqp")]
mod amqp_line;
#[cfg(feature = "amqp")]
mod amqp_message;
#[cfg(feature = "amqp")]
mod amqp_publisher;
#[cfg(feature = "amqp")]
mod amqp_queues;
#[cfg(feature = "amqp")]
mod amqp_replies;
#[cfg(feature = "amqp")]
mod amqp_value;
#[cfg(feature = "amqp")]
mod amqp_ways;
mod app;
mod app_error;
mod app_options;
mod arguments;
mod body;
pub mod broker;
mod call;
mod call_message;
mod carry_out;
mod current;
mod ended;
mod error;
mod handle;
mod instant;
mod job;
mod limits;
mod memory;
mod memory_outcomes;
mod memory_queue;
mod memory_state;
pub mod message;
mod open;
mod options;
mod orphans;
mod outcome;
mod outcomes;
mod process_child;
mod process_frame;
mod processes;
mod ready;
mod report;
mod request;
mod run;
mod running;
mod schedule;
mod shutdown;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_deliveries;
#[cfg(feature = "sqlite")]
mod sqlite_desk;
#[cfg(feature = "sqlite")]
mod sqlite_inbox;
#[cfg(feature = "sqlite")]
mod sqlite_outcomes;
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
mod worker;

#[cfg(feature = "amqp")]
pub use amqp::AmqpBroker;

pub use app::App;
pub use app_error::{AppError, JobError, SendError};
pub use broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, Delivery, PublishError, PublishFailure,
    QueueOptions, Receipt,
};
pub use call::Call;
pub use current::{CurrentJob, current_job, try_current_job};
pub use handle::{Cancelled, Handle};
pub use job::{
    Definition, Failure, Job, Jobs, Returned, RunBlocking, RunTask, Runner, WrongArguments,
};
pub use memory::{MemoryBroker, MemoryStore};
pub use message::{JobId, Message, Outcome, OutcomeState};
pub use open::open;
pub use options::{Acks, Backoff, JobOptions};
pub use report::{JobStats, Left, Report, Stats};
pub use request::{Poison, Request};
pub use shutdown::ShutdownHandle;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteBroker;
pub use worker::Worker;

/// What `#[pikake::job]` expands to uses of.
#[doc(hidden)]
pub mod __macros {
    pub use crate::arguments::read_arguments;
    pub use crate::broker::LocalFuture;
    pub use crate::job::{Runner, returned, returned_result};
    pub use serde::Serialize;
    pub use serde::de::DeserializeOwned;
}

//! Jobs: typed work that runs later, in another process or on another machine.
//!
//! The message is Celery's protocol 2, so real Celery sends to these workers and receives from them.
//! A broker is chosen by URL; all of them keep one contract ([`Broker`]).

#![forbid(unsafe_code)]

mod arguments;
pub mod broker;
mod error;
mod instant;
mod job;
pub mod message;
mod options;
mod outcome;
mod request;

pub use broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, Delivery, PublishError, QueueOptions, Receipt,
};
pub use message::{JobId, Message, Outcome, OutcomeState};

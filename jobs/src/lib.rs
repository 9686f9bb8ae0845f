//! Jobs: typed work that runs later, in another process or on another machine.
//!
//! The message is Celery's protocol 2, so real Celery sends to these workers and receives from them.
//! A broker is chosen by URL; all of them keep one contract ([`Broker`]).

#![forbid(unsafe_code)]

pub mod broker;
mod error;
mod instant;
pub mod message;
mod outcome;

pub use broker::{
    Broker, BrokerError, Counts, DeadJob, Deliveries, Delivery, PublishError, QueueOptions, Receipt,
};
pub use message::{JobId, Message, Outcome, OutcomeState};

//! Jobs: typed work that runs later, in another process or on another machine.
//!
//! Messages follow Celery's protocol 2, so Celery sends jobs to these workers, and its workers run
//! jobs sent from here. A URL chooses the broker; all brokers keep one contract ([`Broker`]).

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
pub mod broker;
mod brokers;
mod canvas;
mod client;
mod completion;
mod control;
mod current;
mod error;
mod job;
pub mod message;
mod options;
mod rate;
mod report;
mod results;
mod running;
mod schedule;
mod unique;
mod wire;
mod worker;

pub use batch::{ReadCall, RunBatch, RunCalls};
pub use broker::{
    Broker, BrokerError, Bus, Counts, DeadJob, Deliveries, Delivery, Notice, Notices, PublishError,
    PublishFailure, QueueOptions, Receipt, SharedFact, SharedFacts, Topic,
};
#[cfg(feature = "amqp")]
pub use brokers::AmqpBroker;
#[cfg(feature = "sqlite")]
pub use brokers::SqliteBroker;
pub use brokers::{MemoryBroker, MemoryStore, open};
pub use client::{
    App, Call, Cancelled, Follower, Group, Handle, IntoWorkflow, Members, Next, Returns, Workflow,
    group, map,
};
pub use completion::{Completion, Returned};
pub use control::{
    Answer, Control, ControlEvent, ControlEvents, EndedRuns, JobInfo, JobState, WorkerInfo,
};
pub use current::{CurrentJob, current_batch, current_job, try_current_job};
pub use error::{AppError, JobError, SendError};
pub use job::{Definition, Jobs, RunBlocking, RunTask, Runner};
pub use message::{AllMembers, ChordMember, JobId, Message, Outcome, OutcomeState};
pub use options::{Acks, Backoff, JobOptions};
pub use rate::{Rate, WrongRate};
pub use report::{JobStats, Left, Report, Stats};
pub use schedule::{Missed, Schedule, ScheduleError, ScheduleInfo, Schedules, WrongSchedule};
pub use unique::{Unique, UniqueLock, UniqueSent, UntilWhen};
pub use wire::{Failure, Parameter, Poison, Request, WrongArguments};
pub use worker::{ShutdownHandle, Worker};

/// Used by the expansion of `#[pikake::job]`.
#[doc(hidden)]
pub mod __macros {
    pub use crate::batch::{RunBatch, all_done, each, elements, failed};
    pub use crate::broker::LocalFuture;
    pub use crate::client::returns::completed;
    pub use crate::completion::{returned, returned_result};
    pub use crate::job::Runner;
    pub use crate::wire::arguments::read_arguments;
    pub use serde::Serialize;
    pub use serde::de::DeserializeOwned;
}

//! The errors of setting up an application, sending a job, and waiting for its outcome.

use std::error::Error;
use std::fmt;

use pikake_traps::Interrupted;

use crate::broker::{BrokerError, PublishError};
use crate::message::JobId;
use crate::wire::failure::Failure;

/// Why an application could not be created, connected or run.
#[derive(Debug)]
#[non_exhaustive]
pub enum AppError {
    /// The URL names no known broker.
    Url(String),
    /// The broker failed.
    Broker(BrokerError),
    /// The hook of [`App::setup`](crate::App::setup) failed.
    Setup(Box<dyn Error>),
    /// This application's worker is already running.
    AlreadyRunning,
    /// Worker processes could not be started.
    Processes(std::io::Error),
}

impl fmt::Display for AppError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(what) => f.write_str(what),
            Self::Broker(error) => error.fmt(f),
            Self::Setup(error) => write!(f, "the setup of the application failed: {error}"),
            Self::AlreadyRunning => f.write_str(
                "this application's worker is already running: raise its concurrency, or create \
                 another application",
            ),
            Self::Processes(error) => write!(f, "worker processes cannot be started: {error}"),
        }
    }
}

impl Error for AppError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Broker(error) => Some(error),
            Self::Setup(error) => Some(&**error),
            Self::Processes(error) => Some(error),
            Self::Url(_) | Self::AlreadyRunning => None,
        }
    }
}

impl From<BrokerError> for AppError {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

impl From<Interrupted> for AppError {
    fn from(why: Interrupted) -> Self {
        Self::Broker(why.into())
    }
}

/// Why a job was not sent, or may not have been sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// No application is connected in this kernel.
    NoApp,
    /// The arguments cannot be written as JSON.
    Arguments(String),
    /// The broker failed before the job was published.
    Broker(BrokerError),
    /// The broker did not confirm the job.
    Publish(PublishError),
    /// The job is unique, and another one has the lock of its key.
    Duplicate {
        /// The key: the job's name, `:` and the call's key.
        key: String,
        /// The id of the other job, if the broker knows it: `Handle::from_id` waits for that one.
        /// RabbitMQ does not.
        first: Option<JobId>,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoApp => f.write_str(
                "no application is connected in this kernel: call `App::connect` or run its worker \
                 first and keep the `App`, or name one with `Call::on`",
            ),
            Self::Arguments(why) => {
                write!(f, "the job's arguments cannot be written as JSON: {why}")
            }
            Self::Broker(error) => error.fmt(f),
            Self::Publish(error) => error.fmt(f),
            Self::Duplicate { key, first: Some(first) } => {
                write!(
                    f,
                    "job {first} is the only one of `{key}` meanwhile, so this one was not sent"
                )
            }
            Self::Duplicate { key, first: None } => {
                write!(
                    f,
                    "another job is the only one of `{key}` meanwhile, so this one was not sent"
                )
            }
        }
    }
}

impl Error for SendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Broker(error) => Some(error),
            Self::Publish(error) => Some(error),
            Self::NoApp | Self::Arguments(_) | Self::Duplicate { .. } => None,
        }
    }
}

impl From<BrokerError> for SendError {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

impl From<PublishError> for SendError {
    fn from(error: PublishError) -> Self {
        Self::Publish(error)
    }
}

/// Why a job gave no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The job failed for good.
    Failed(Failure),
    /// The job was cancelled, purged, or expired; with the reason.
    Revoked(String),
    /// The job's value has another type than the handle.
    Value(serde_json::Error),
    /// The job was sent with `ignore_result`, so no outcome is stored.
    Ignored,
    /// This wait was interrupted, not the job. The wait may be repeated.
    Interrupted(Interrupted),
    /// The broker failed.
    Broker(BrokerError),
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "the job failed: {failure}"),
            Self::Revoked(why) => write!(f, "the job was revoked: {why}"),
            Self::Value(error) => write!(f, "the job's value is of another type: {error}"),
            Self::Ignored => f.write_str("the job was sent with `ignore_result`"),
            Self::Interrupted(why) => write!(f, "the wait for the job was interrupted: {why}"),
            Self::Broker(error) => error.fmt(f),
        }
    }
}

impl Error for JobError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Value(error) => Some(error),
            Self::Interrupted(why) => Some(why),
            Self::Broker(error) => Some(error),
            Self::Failed(_) | Self::Revoked(_) | Self::Ignored => None,
        }
    }
}

impl From<BrokerError> for JobError {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::Interrupted(why) => Self::Interrupted(why),
            error => Self::Broker(error),
        }
    }
}

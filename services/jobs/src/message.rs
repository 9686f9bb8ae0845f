//! The message of a job: Celery's protocol 2, as properties, headers and a body.
//!
//! Brokers, workers, senders and the command line all read and write it.

use std::time::SystemTime;

use serde_json::Value;

/// The name of one job: a UUID when it was made here, any text when it came from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub String);

/// A message as brokers carry it. Nothing of it is checked until it is read as a request.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Message {
    /// `content_type`: `application/json` of all messages made here.
    pub content_type: Option<String>,
    /// `content_encoding`: `utf-8`.
    pub content_encoding: Option<String>,
    /// `priority`.
    pub priority: u8,
    /// `correlation_id`: the job's id.
    pub correlation_id: Option<String>,
    /// `reply_to`: where the outcome is to go.
    pub reply_to: Option<String>,
    /// After when it is worth nothing (`expiration`).
    pub expires: Option<SystemTime>,
    /// The headers, as JSON (AMQP's integers, texts and tables of all widths are read into it).
    pub headers: serde_json::Map<String, Value>,
    /// The body: bytes of `[args, kwargs, embed]`.
    pub body: Vec<u8>,
}

impl Message {
    /// The job that it is about: its `id` header, or else its `correlation_id`.
    pub fn job(&self) -> Option<&str> {
        let id = self.headers.get("id").and_then(Value::as_str);
        id.or(self.correlation_id.as_deref())
    }
}

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

/// How a job ended, or how far it is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// How far it is.
    pub state: OutcomeState,
    /// The value of a success; of a failure `{exc_type, exc_message, exc_module}`; else null.
    pub result: Value,
    /// Where a failure came from, as text.
    pub traceback: Option<String>,
}

/// How far a job is, in Celery's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutcomeState {
    /// A worker has it.
    Started,
    /// It failed and will be tried again.
    Retry,
    /// It returned a value.
    Success,
    /// It failed for good.
    Failure,
    /// It was cancelled, or expired.
    Revoked,
}

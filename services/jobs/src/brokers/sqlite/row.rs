//! Messages and outcomes as columns.
//!
//! For a message that is published, this runs in the kernel's thread; the database is not needed.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::{Message, Outcome, OutcomeState};

/// A message as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) job: Option<String>,
    pub(crate) priority: u8,
    pub(crate) expires: Option<i64>,
    /// JSON of what is neither the body nor in a column.
    pub(crate) properties: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Serialize)]
struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_encoding: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<&'a str>,
    priority: u8,
    headers: &'a Map<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Read {
    content_type: Option<String>,
    content_encoding: Option<String>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    priority: u8,
    headers: Map<String, Value>,
}

impl Row {
    pub(crate) fn of(message: &Message) -> Self {
        let written = Written {
            content_type: message.content_type.as_deref(),
            content_encoding: message.content_encoding.as_deref(),
            correlation_id: message.correlation_id.as_deref(),
            reply_to: message.reply_to.as_deref(),
            priority: message.priority,
            headers: &message.headers,
        };
        Self {
            job: message.job().map(str::to_owned),
            priority: message.priority,
            expires: message.expires.map(micros),
            properties: serde_json::to_string(&written).expect("texts and JSON become JSON"),
            body: message.body.clone(),
        }
    }
}

/// The message of a row. Properties that are not JSON any more are left out, and the worker buries
/// the message for that.
pub(crate) fn message(properties: &str, expires: Option<i64>, body: Vec<u8>) -> Message {
    let read: Read = serde_json::from_str(properties).unwrap_or_default();
    Message {
        content_type: read.content_type,
        content_encoding: read.content_encoding,
        priority: read.priority,
        correlation_id: read.correlation_id,
        reply_to: read.reply_to,
        expires: expires.map(time),
        headers: read.headers,
        body,
    }
}

/// Microseconds since 1970; 0 for an earlier moment.
pub(crate) fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn time(micros: i64) -> SystemTime {
    let since = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A length of time in the unit of moments.
pub(crate) fn micros_of(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// Wall time, as it is stored.
pub(crate) fn wall_now() -> i64 {
    micros(SystemTime::now())
}

/// The number under which a state is stored.
pub(crate) fn number(state: OutcomeState) -> i64 {
    match state {
        OutcomeState::Started => 0,
        OutcomeState::Retry => 1,
        OutcomeState::Success => 2,
        OutcomeState::Failure => 3,
        OutcomeState::Revoked => 4,
        OutcomeState::Progress => 5,
    }
}

pub(crate) fn outcome(number: i64, result: &str, traceback: Option<String>) -> Outcome {
    let state = match number {
        0 => OutcomeState::Started,
        1 => OutcomeState::Retry,
        2 => OutcomeState::Success,
        3 => OutcomeState::Failure,
        5 => OutcomeState::Progress,
        _ => OutcomeState::Revoked,
    };
    Outcome { state, result: serde_json::from_str(result).unwrap_or_default(), traceback }
}

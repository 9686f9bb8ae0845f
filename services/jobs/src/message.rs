//! The message of a job: Celery's protocol 2, as properties, headers and a body.
//!
//! Brokers, workers, senders and the command line all read and write such messages.

use std::any::Any;
use std::time::SystemTime;

use serde_json::Value;

/// The id of one job: a UUID by default, any text if the sender chose it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub String);

/// A message as brokers carry it. Brokers check nothing: [`Request::read`](crate::Request::read)
/// does.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Message {
    /// `content_type`: `application/json` in every message of this library.
    pub content_type: Option<String>,
    /// `content_encoding`: `utf-8`.
    pub content_encoding: Option<String>,
    /// `priority`.
    pub priority: u8,
    /// `correlation_id`: the job's id.
    pub correlation_id: Option<String>,
    /// `reply_to`: where to send the outcome.
    pub reply_to: Option<String>,
    /// When the message expires (`expiration`).
    pub expires: Option<SystemTime>,
    /// The headers, as JSON (AMQP's integers, texts and tables of all widths are read into it).
    pub headers: serde_json::Map<String, Value>,
    /// The body: bytes of `[args, kwargs, embed]`.
    pub body: Vec<u8>,
}

impl Message {
    /// The job's id: the header `id`, or else `correlation_id`.
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

/// The state of a job, with its value or error.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// The job's state.
    pub state: OutcomeState,
    /// The value of a success; of progress what the job said; of a failure
    /// `{exc_type, exc_message, exc_module}`; else null.
    pub result: Value,
    /// The traceback of a failure, as text.
    pub traceback: Option<String>,
}

/// The states of a job, as Celery names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutcomeState {
    /// A worker runs the job.
    Started,
    /// A worker runs the job, which has told of its [progress](crate::CurrentJob::progress): the
    /// result is what it said.
    Progress,
    /// The job failed and will be retried.
    Retry,
    /// The job returned a value.
    Success,
    /// The job failed for good.
    Failure,
    /// The job was cancelled, purged, or expired.
    Revoked,
}

/// The end of a member of a chord: of a group of jobs that another job follows.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChordMember {
    /// The id of the chord's group.
    pub chord: String,
    /// How many members the chord has; 0 if the broker has been told (see
    /// [`shares_chords`](crate::Broker::shares_chords)).
    pub size: u32,
    /// The member's place among them.
    pub index: u64,
    /// The id of the member's job.
    pub id: String,
    /// The final outcome of that job.
    pub outcome: Outcome,
    /// Whether its value is a list of values, each of which counts as that of a member.
    pub is_list: bool,
    /// How often the member may have run before: if it may, so may the job after the members.
    pub resent: u32,
}

impl ChordMember {
    /// A member with one value.
    pub fn new(chord: String, size: u32, index: u64, id: String, outcome: Outcome) -> Self {
        Self { chord, size, index, id, outcome, is_list: false, resent: 0 }
    }

    /// The values of the member: one, unless it is a list.
    pub fn values(&self) -> &[Value] {
        match &self.outcome.result {
            Value::Array(values) if self.is_list => values,
            value => std::slice::from_ref(value),
        }
    }
}

/// All members of a chord. Until this is dropped, the broker may keep them from other callers.
#[derive(Debug)]
#[non_exhaustive]
pub struct AllMembers {
    /// The members, in their order.
    pub members: Vec<ChordMember>,
    /// What keeps them from others.
    pub hold: Option<Box<dyn Any>>,
}

impl AllMembers {
    /// Members that are kept from nobody.
    pub fn new(members: Vec<ChordMember>) -> Self {
        Self { members, hold: None }
    }

    /// Members that others get only after the value has been dropped, if the chord has not been
    /// ended.
    pub fn held(members: Vec<ChordMember>, hold: impl Any) -> Self {
        Self { members, hold: Some(Box::new(hold)) }
    }
}

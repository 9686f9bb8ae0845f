//! Outcomes in the form of Celery's result backends: one JSON object, written and read.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{ChordMember, JobId, Message, Outcome, OutcomeState};
use crate::wire::instant;

impl OutcomeState {
    /// Celery's name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "STARTED",
            Self::Progress => "PROGRESS",
            Self::Retry => "RETRY",
            Self::Success => "SUCCESS",
            Self::Failure => "FAILURE",
            Self::Revoked => "REVOKED",
        }
    }

    /// The state of this name. An unknown name, such as a custom state of Celery's, is
    /// [`Started`](Self::Started).
    pub fn of(name: &str) -> Self {
        match name {
            "PROGRESS" => Self::Progress,
            "RETRY" => Self::Retry,
            "SUCCESS" => Self::Success,
            "FAILURE" => Self::Failure,
            "REVOKED" => Self::Revoked,
            _ => Self::Started,
        }
    }

    /// Whether the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Success | Self::Failure | Self::Revoked)
    }
}

impl fmt::Display for OutcomeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Serialize)]
struct Written<'a> {
    status: &'static str,
    result: &'a Value,
    traceback: Option<&'a str>,
    children: [(); 0],
    date_done: Option<String>,
    task_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<&'a str>,
    #[serde(skip_serializing_if = "is_default")]
    pikake_is_list: bool,
    #[serde(skip_serializing_if = "is_default")]
    pikake_resent: u32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Deserialize)]
struct Read {
    status: String,
    task_id: String,
    #[serde(default)]
    result: Value,
    #[serde(default)]
    traceback: Option<String>,
    #[serde(default)]
    pikake_is_list: bool,
    #[serde(default)]
    pikake_resent: u32,
}

impl Outcome {
    /// An outcome with a value and no traceback.
    pub fn new(state: OutcomeState, result: Value) -> Self {
        Self { state, result, traceback: None }
    }

    /// A success.
    pub fn success(value: Value) -> Self {
        Self::new(OutcomeState::Success, value)
    }

    /// An outcome with an error of this type, module and message, in Celery's form.
    pub fn error(state: OutcomeState, kind: &str, module: &str, message: &str) -> Self {
        let result = serde_json::json!({
            "exc_type": kind, "exc_message": [message], "exc_module": module,
        });
        Self::new(state, result)
    }

    /// The outcome with a traceback.
    pub fn with_traceback(mut self, traceback: Option<String>) -> Self {
        self.traceback = traceback;
        self
    }

    /// The outcome as Celery's JSON: `{"status", "result", "traceback", …}`.
    pub fn to_meta(&self, job: &str, now: SystemTime) -> Vec<u8> {
        self.to_meta_of(job, &Message::default(), now)
    }

    /// The same, with the group and the parent of the job of a message.
    pub(crate) fn to_meta_of(&self, job: &str, message: &Message, now: SystemTime) -> Vec<u8> {
        let text = |name: &str| message.headers.get(name).and_then(Value::as_str);
        let written = self.written(job, now);
        Written { group_id: text("group"), parent_id: text("parent_id"), ..written }.to_json()
    }

    fn written<'a>(&'a self, job: &'a str, now: SystemTime) -> Written<'a> {
        Written {
            status: self.state.as_str(),
            result: &self.result,
            traceback: self.traceback.as_deref(),
            children: [],
            date_done: self.state.is_final().then(|| instant::write(now)).flatten(),
            task_id: job,
            group_id: None,
            parent_id: None,
            pikake_is_list: false,
            pikake_resent: 0,
        }
    }

    /// Reads the JSON of [`to_meta`](Self::to_meta) or of Celery.
    ///
    /// # Errors
    ///
    /// The text is not JSON, or has no `status` or `task_id`.
    pub fn from_meta(meta: &[u8]) -> Result<(JobId, Self), serde_json::Error> {
        let read: Read = serde_json::from_slice(meta)?;
        Ok(read.into_outcome())
    }
}

impl Written<'_> {
    fn to_json(&self) -> Vec<u8> {
        // Texts and JSON values always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Read {
    fn into_outcome(self) -> (JobId, Outcome) {
        let Self { status, task_id, result, traceback, .. } = self;
        (JobId(task_id), Outcome { state: OutcomeState::of(&status), result, traceback })
    }
}

impl ChordMember {
    /// The member's outcome as JSON, with what the chord needs of the member besides.
    pub(crate) fn to_meta(&self, now: SystemTime) -> Vec<u8> {
        let written = self.outcome.written(&self.id, now);
        Written { pikake_is_list: self.is_list, pikake_resent: self.resent, ..written }.to_json()
    }

    /// Another member of the same chord, read from the JSON of [`to_meta`](Self::to_meta).
    pub(crate) fn other(&self, index: u64, meta: &[u8]) -> Result<Self, serde_json::Error> {
        let read: Read = serde_json::from_slice(meta)?;
        let (is_list, resent) = (read.pikake_is_list, read.pikake_resent);
        let (JobId(id), outcome) = read.into_outcome();
        let member = Self::new(self.chord.clone(), self.size, index, id, outcome);
        Ok(Self { is_list, resent, ..member })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn outcome_is_written_in_celerys_form() {
        let outcome = Outcome::error(OutcomeState::Failure, "ValueError", "builtins", "bad")
            .with_traceback(Some("Traceback…".into()));
        let meta = outcome.to_meta("17", UNIX_EPOCH);
        assert_eq!(
            std::str::from_utf8(&meta).unwrap(),
            r#"{"status":"FAILURE","result":{"exc_message":["bad"],"exc_module":"builtins","exc_type":"ValueError"},"traceback":"Traceback…","children":[],"date_done":"1970-01-01T00:00:00.000000+00:00","task_id":"17"}"#
        );
        assert_eq!(Outcome::from_meta(&meta).unwrap(), (JobId("17".into()), outcome));
    }

    #[test]
    fn celerys_outcome_is_read() {
        let meta = br#"{"status": "SUCCESS", "result": 3, "traceback": null, "children": [[["c1", null], null]], "date_done": "2026-11-21T00:12:17.037221+00:00", "task_id": "cf8e101d"}"#;
        let (id, outcome) = Outcome::from_meta(meta).unwrap();
        assert_eq!((id.0.as_str(), outcome), ("cf8e101d", Outcome::success(3.into())));
        assert!(Outcome::from_meta(b"{}").is_err());
    }
}

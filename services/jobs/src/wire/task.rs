//! The message of a job in Celery's protocol 2, made of its parts.
//!
//! Headers that would be `null` are omitted, as Celery's workers allow.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use crate::message::Message;
use crate::wire::instant;
use crate::wire::reason::cut;
use crate::wire::request::{IGNORE_RESULT, LANGUAGE, MAX_RETRIES};

/// How many bytes of the arguments logs and listings show.
const MAX_REPR: usize = 1024;

/// The `embed` of a message without a workflow.
pub(crate) const EMBED: &str = r#"{"callbacks":null,"errbacks":null,"chain":null,"chord":null}"#;

/// The parts of a job's message.
#[derive(Debug, Default)]
pub(crate) struct TaskParts<'a> {
    pub(crate) job: &'a str,
    pub(crate) id: String,
    /// `None`: the id.
    pub(crate) root_id: Option<String>,
    pub(crate) parent_id: Option<String>,
    /// A JSON array.
    pub(crate) args: &'a str,
    /// A JSON object.
    pub(crate) kwargs: &'a str,
    /// A JSON object.
    pub(crate) embed: &'a str,
    pub(crate) origin: &'a str,
    pub(crate) not_before: Option<SystemTime>,
    pub(crate) expires: Option<SystemTime>,
    /// The hard limit and the soft limit.
    pub(crate) limits: [Option<Duration>; 2],
    pub(crate) max_retries: Option<u32>,
    pub(crate) priority: u8,
    pub(crate) ignore_result: bool,
    pub(crate) reply_to: Option<String>,
    /// Headers of the sender.
    pub(crate) headers: Map<String, Value>,
}

impl TaskParts<'_> {
    /// The message, and when it may be delivered: at its expiry at the latest, so that a worker can
    /// revoke the job.
    pub(crate) fn into_message(self) -> (Message, Option<SystemTime>) {
        let Self { not_before, expires, args, kwargs, embed, .. } = self;
        let mut headers = self.headers;
        let mut set = |name: &str, value: Value| drop(headers.insert(name.to_owned(), value));
        set("lang", LANGUAGE.into());
        set("task", self.job.into());
        set("id", self.id.as_str().into());
        set("root_id", self.root_id.unwrap_or_else(|| self.id.clone()).into());
        if let Some(parent) = self.parent_id {
            set("parent_id", parent.into());
        }
        set("retries", 0.into());
        set("origin", self.origin.into());
        if self.ignore_result {
            set(IGNORE_RESULT, true.into());
        }
        for (name, moment) in [("eta", not_before), ("expires", expires)] {
            if let Some(text) = moment.and_then(instant::write) {
                set(name, text.into());
            }
        }
        if self.limits != [None, None] {
            let seconds =
                |limit: Option<Duration>| Value::from(limit.map(|limit| limit.as_secs_f64()));
            set("timelimit", Value::Array(self.limits.map(seconds).to_vec()));
        }
        if let Some(retries) = self.max_retries {
            set(MAX_RETRIES, retries.into());
        }
        let mut message = Message::json(headers, Vec::new());
        message.set_arguments(args, kwargs, embed);
        message.correlation_id = Some(self.id);
        message.priority = self.priority;
        message.reply_to = self.reply_to;
        // A broker that drops a message follows no workflow: the worker revokes such a job.
        message.expires = expires.filter(|_| embed == EMBED);
        (message, not_before.map(|moment| expires.map_or(moment, |end| moment.min(end))))
    }
}

impl Message {
    /// Sets the body: arguments and the rest of the workflow, as JSON.
    pub(crate) fn set_arguments(&mut self, args: &str, kwargs: &str, embed: &str) {
        let mut set =
            |name: &str, repr: String| drop(self.headers.insert(name.into(), repr.into()));
        set("argsrepr", repr_of(args, ['(', ')']));
        set("kwargsrepr", repr_of(kwargs, ['{', '}']));
        self.body = format!("[{args},{kwargs},{embed}]").into_bytes();
    }

    /// A message with a JSON body.
    pub(crate) fn json(headers: Map<String, Value>, body: Vec<u8>) -> Self {
        Self {
            content_type: Some("application/json".to_owned()),
            content_encoding: Some("utf-8".to_owned()),
            headers,
            body,
            ..Self::default()
        }
    }
}

/// JSON with its outer brackets replaced, truncated to [`MAX_REPR`] bytes.
fn repr_of(json: &str, [open, close]: [char; 2]) -> String {
    let inner = &json[1..json.len() - 1];
    let mut repr = String::with_capacity(inner.len().min(MAX_REPR) + 2);
    repr.push(open);
    match inner.len() <= MAX_REPR {
        true => repr.push_str(inner),
        false => {
            repr.push_str(cut(inner, MAX_REPR));
            repr.push('…');
        }
    }
    repr.push(close);
    repr
}

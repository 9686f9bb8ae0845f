//! The content of a call: a job's name, arguments and options (Celery's word is *signature*), and their message in
//! Celery's protocol 2.
//!
//! Headers that would be `null` are omitted, as Celery's workers allow.

use std::time::{Duration, SystemTime};

use pikake_traps::random;
use serde_json::{Map, Value};

use crate::current::try_current_job;
use crate::error::SendError;
use crate::message::Message;
use crate::wire::instant;
use crate::wire::reason::cut;
use crate::wire::request::{IGNORE_RESULT, LANGUAGE, MAX_RETRIES};

/// How many bytes of the arguments logs and listings show.
const MAX_REPR: usize = 1024;

/// A job that may be sent, through any application and any number of times.
#[derive(Debug, Clone)]
pub(crate) struct Signature {
    pub(crate) name: String,
    /// A JSON array, or the error of writing it.
    pub(crate) args: Result<String, String>,
    /// A JSON object, or the error of writing it.
    pub(crate) kwargs: Result<String, String>,
    /// `None`: the application's default.
    pub(crate) queue: Option<String>,
    pub(crate) when: When,
    pub(crate) expires: Option<Duration>,
    /// The hard limit and the soft limit.
    pub(crate) limits: [Option<Duration>; 2],
    pub(crate) max_retries: Option<u32>,
    pub(crate) priority: u8,
    pub(crate) ignore_result: bool,
    pub(crate) id: Option<String>,
}

/// When a job may run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
    Now,
    After(Duration),
    At(SystemTime),
}

impl Signature {
    pub(crate) fn new(name: String, args: Result<String, String>) -> Self {
        Self {
            name,
            args,
            kwargs: Ok("{}".to_owned()),
            queue: None,
            when: When::Now,
            expires: None,
            limits: [None, None],
            max_retries: None,
            priority: 0,
            ignore_result: false,
            id: None,
        }
    }

    /// The message, and when it may be delivered: at its expiry at the latest, so that a worker can revoke the job.
    pub(crate) fn message(&self, origin: &str) -> Result<(Message, Option<SystemTime>), SendError> {
        let (args, kwargs) = match (&self.args, &self.kwargs) {
            (Ok(args), Ok(kwargs)) if args.starts_with('[') && kwargs.starts_with('{') => {
                (args, kwargs)
            }
            (Err(why), _) | (_, Err(why)) => return Err(SendError::Arguments(why.clone())),
            _ => {
                let why = "args must be a tuple or a list, kwargs a struct or a map";
                return Err(SendError::Arguments(why.to_owned()));
            }
        };
        let not_before = match self.when {
            When::Now => None,
            When::After(length) => Some(instant::after(length)),
            When::At(moment) => Some(moment.min(instant::last())),
        };
        let expires = self.expires.map(instant::after);
        let id = self.id.clone().unwrap_or_else(new_id);
        let mut headers = Map::new();
        let mut set = |name: &str, value: Value| drop(headers.insert(name.to_owned(), value));
        set("lang", LANGUAGE.into());
        set("task", self.name.as_str().into());
        set("id", id.as_str().into());
        match try_current_job() {
            None => set("root_id", id.as_str().into()),
            Some(job) => {
                set("root_id", job.facts.root_id.as_str().into());
                set("parent_id", job.id().into());
            }
        }
        set("retries", 0.into());
        set("argsrepr", repr_of(args, ['(', ')']).into());
        set("kwargsrepr", repr_of(kwargs, ['{', '}']).into());
        set("origin", origin.into());
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
        let body = format!("[{args},{kwargs},{EMBED}]").into_bytes();
        let mut message = Message::json(headers, body);
        message.correlation_id = Some(id);
        message.priority = self.priority;
        message.expires = expires;
        Ok((message, not_before.map(|moment| expires.map_or(moment, |end| moment.min(end)))))
    }
}

/// The `embed` of a message without a workflow.
const EMBED: &str = r#"{"callbacks":null,"errbacks":null,"chain":null,"chord":null}"#;

impl Message {
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

fn new_id() -> String {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
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

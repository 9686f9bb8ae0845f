//! A message read as a request to run a job, or the reason why it cannot be.
//!
//! Brokers carry messages unread. Nothing is copied: a request points into its
//! message, and the arguments stay text until the job's own types read them.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::message::Message;
use crate::wire::instant;

/// Says that nobody wants the job's outcome.
pub(crate) const IGNORE_RESULT: &str = "ignore_result";
/// How often the job has ended a worker process so far. A header of our own; Celery passes it on.
pub(crate) const KILLS: &str = "pikake_kills";
/// How many retries the sender allows, where that is not the worker's to say. A header of our own.
pub(crate) const MAX_RETRIES: &str = "pikake_max_retries";
/// The headers that a message which is taken from the dead has no more.
pub(crate) const ENDED_WITH_DEATH: [&str; 2] = ["expires", KILLS];
/// Names this library to workers that care, which Celery's do not.
pub(crate) const LANGUAGE: &str = "rs";

/// A message that asks for a job to be run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request<'m> {
    /// The name of the job's definition (`task`).
    pub job: &'m str,
    /// The job's id.
    pub id: &'m str,
    /// The first job of the workflow that this one belongs to; itself if there is none.
    pub root_id: &'m str,
    /// The job that sent this one; of a retry, itself.
    pub parent_id: Option<&'m str>,
    /// The group that it belongs to.
    pub group: Option<&'m str>,
    /// Not to be run before this.
    pub eta: Option<SystemTime>,
    /// Not to be run after this.
    pub expires: Option<SystemTime>,
    /// How often it was tried again already.
    pub retries: u32,
    /// How many retries the sender allows; `None`: as the job's definition says.
    pub max_retries: Option<u32>,
    /// How often it ended its worker process.
    pub kills: u32,
    /// Dropped after so long.
    pub hard_limit: Option<Duration>,
    /// Interrupted after so long.
    pub soft_limit: Option<Duration>,
    /// Nobody wants its outcome.
    pub ignore_result: bool,
    /// The positional arguments, a JSON array.
    pub args: &'m str,
    /// The arguments by name, a JSON object.
    pub kwargs: &'m str,
    /// What is to be done with the outcome (`callbacks`, `errbacks`, `chain`, `chord`), an object or null.
    pub embed: &'m str,
}

impl<'m> Request<'m> {
    /// Reads a message, tolerating what Celery tolerates: absent headers, parts of `embed` that are absent or null,
    /// moments with `Z` or without a zone.
    ///
    /// # Errors
    ///
    /// [`Poison`], with all that is wrong; such a message can never be run.
    pub fn read(message: &'m Message) -> Result<Self, Poison> {
        let headers = &message.headers;
        let text = |name: &str| headers.get(name).and_then(Value::as_str);
        let job = text("task").ok_or(Poison::NoJob)?;
        let id = text("id").ok_or(Poison::NoId)?;
        check_coding(message)?;
        let (args, kwargs, embed) = body(&message.body)?;
        let expires = moment(headers, "expires")?;
        let (hard_limit, soft_limit) = limits(headers)?;
        Ok(Self {
            job,
            id,
            root_id: text("root_id").unwrap_or(id),
            parent_id: text("parent_id"),
            group: text("group"),
            eta: moment(headers, "eta")?,
            expires: expires.or(message.expires),
            retries: count(headers, "retries")?.unwrap_or(0),
            max_retries: count(headers, MAX_RETRIES)?,
            kills: count(headers, KILLS)?.unwrap_or(0),
            hard_limit,
            soft_limit,
            ignore_result: headers.get(IGNORE_RESULT).and_then(Value::as_bool).unwrap_or(false),
            args,
            kwargs,
            embed,
        })
    }
}

impl Message {
    /// As a new one: it does not expire, and has ended no process. For one that was dead.
    pub(crate) fn revived(mut self) -> Self {
        self.expires = None;
        for header in ENDED_WITH_DEATH {
            self.headers.remove(header);
        }
        self
    }
}

fn check_coding(message: &Message) -> Result<(), Poison> {
    match message.content_type.as_deref() {
        Some("application/json") => {}
        None | Some("") => return Err(Poison::NoContentType),
        Some(other) => return Err(Poison::ContentType(other.to_owned())),
    }
    if let Some(coding) = message.content_encoding.as_deref() {
        let is_known = ["utf-8", "utf8", "us-ascii", "ascii", "binary", ""]
            .iter()
            .any(|known| coding.eq_ignore_ascii_case(known));
        if !is_known {
            return Err(Poison::ContentEncoding(coding.to_owned()));
        }
    }
    match message.headers.get("compression").and_then(Value::as_str) {
        None | Some("") => Ok(()),
        Some(compression) => Err(Poison::ContentEncoding(compression.to_owned())),
    }
}

fn body(body: &[u8]) -> Result<(&str, &str, &str), Poison> {
    let parts: [&RawValue; 3] = serde_json::from_slice(body).map_err(|error| {
        // An array of another length is an error of the data, all others are of the text.
        match error.classify() {
            serde_json::error::Category::Data if std::str::from_utf8(body).is_ok() => Poison::Body,
            _ if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok() => Poison::Body,
            _ => Poison::NotJson(error.to_string()),
        }
    })?;
    let [args, kwargs, embed] = parts.map(RawValue::get);
    if !args.starts_with('[') || !kwargs.starts_with('{') {
        return Err(Poison::Body);
    }
    if !embed.starts_with('{') && embed != "null" {
        return Err(Poison::Body);
    }
    Ok((args, kwargs, embed))
}

fn moment(headers: &Map<String, Value>, name: &'static str) -> Result<Option<SystemTime>, Poison> {
    match headers.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => match instant::read(text) {
            Some(moment) => Ok(Some(moment)),
            None => Err(Poison::Header(name)),
        },
        Some(_) => Err(Poison::Header(name)),
    }
}

fn count(headers: &Map<String, Value>, name: &'static str) -> Result<Option<u32>, Poison> {
    match headers.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
            count.map(Some).ok_or(Poison::Header(name))
        }
    }
}

/// Hard, soft.
type Limits = (Option<Duration>, Option<Duration>);

fn limits(headers: &Map<String, Value>) -> Result<Limits, Poison> {
    const NAME: &str = "timelimit";
    let pair = match headers.get(NAME) {
        None | Some(Value::Null) => return Ok((None, None)),
        Some(Value::Array(pair)) if pair.len() == 2 => pair,
        Some(_) => return Err(Poison::Header(NAME)),
    };
    let limit = |value: &Value| match value {
        Value::Null => Ok(None),
        value => {
            let seconds = value.as_f64().ok_or(Poison::Header(NAME))?;
            match Duration::try_from_secs_f64(seconds) {
                Ok(limit) => Ok(Some(limit)),
                // Longer than can be said is none.
                Err(_) if seconds > 0.0 => Ok(None),
                Err(_) => Err(Poison::Header(NAME)),
            }
        }
    };
    Ok((limit(&pair[0])?, limit(&pair[1])?))
}

/// Why a message can never be run, whoever gets it. It goes to the dead of its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Poison {
    /// There is no `task` header: it is of protocol 1, or no job at all.
    NoJob,
    /// There is no `id` header.
    NoId,
    /// There is no `content_type`.
    NoContentType,
    /// A `content_type` that is not JSON's.
    ContentType(String),
    /// A `content_encoding` or compression that is not read here.
    ContentEncoding(String),
    /// The body is not JSON.
    NotJson(String),
    /// The body is not `[args, kwargs, embed]`: a list, an object, and an object or null.
    Body,
    /// A header that is not what it should be.
    Header(&'static str),
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJob => f.write_str(
                "no header `task`: not a job, or of Celery's protocol 1, which is not read here \
                 (set task_protocol = 2)",
            ),
            Self::NoId => f.write_str("no header `id`"),
            Self::NoContentType => f.write_str("no content_type"),
            Self::ContentType(kind) => write!(
                f,
                "content_type `{kind}` is not read here; send application/json (task_serializer)"
            ),
            Self::ContentEncoding(coding) => {
                write!(f, "content_encoding `{coding}` is not read here; send utf-8, uncompressed")
            }
            Self::NotJson(why) => write!(f, "the body is not JSON: {why}"),
            Self::Body => f.write_str("the body is not [args, kwargs, embed]"),
            Self::Header(name) => write!(f, "the header `{name}` is not what it should be"),
        }
    }
}

impl std::error::Error for Poison {}

//! Reading a message as a request to run a job, or as poison.
//!
//! Nothing is copied: a request borrows from its message, and the arguments stay text until the
//! job's own types read them.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::message::Message;
use crate::wire::instant;

/// The header of a job without an outcome.
pub(crate) const IGNORE_RESULT: &str = "ignore_result";
/// The header that counts the worker processes which the job has ended. Our own; Celery passes it
/// on.
pub(crate) const KILLS: &str = "pikake_kills";
/// The header that counts deliveries where the broker does not
/// ([`Delivery::is_counted`](crate::Delivery)). Our own.
pub(crate) const DELIVERIES: &str = "pikake_deliveries";
/// The header with the sender's number of retries, in place of the definition's. Our own.
pub(crate) const MAX_RETRIES: &str = "pikake_max_retries";
/// The header that counts how often the job that has sent this one was delivered before, so that
/// this one may have been sent before. Our own.
pub(crate) const RESENT: &str = "pikake_resent";
/// The header that counts the jobs in whose place this one runs, one after the other.
pub(crate) const REPLACEMENTS: &str = "replaced_task_nesting";
/// The header with the lock of a unique job. Our own.
pub(crate) const UNIQUE: &str = "pikake_unique";
/// The headers that a replayed message loses.
pub(crate) const DROPPED_ON_REPLAY: [&str; 4] = ["expires", KILLS, DELIVERIES, UNIQUE];
/// The header `lang` of our messages. Celery's workers ignore it.
pub(crate) const LANGUAGE: &str = "rs";

/// The headers of the W3C's recommendations for traces, which travel on to the jobs that a job
/// sends, and that follow it.
const TRACES: [&str; 3] = ["traceparent", "tracestate", "baggage"];
/// The longest value of such a header that travels on: what the recommendation for `baggage` asks
/// for.
const TRACE_LIMIT: usize = 8192;

/// The headers of a trace, as they came.
pub(crate) fn traces(headers: &Map<String, Value>) -> Map<String, Value> {
    let is_valid = |text: &str| {
        text.len() <= TRACE_LIMIT && text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
    };
    let found = TRACES.into_iter().filter_map(|name| {
        let text = headers.get(name)?.as_str().filter(|text| is_valid(text))?;
        Some((name.to_owned(), text.into()))
    });
    found.collect()
}

/// The headers that are not Celery's, nor this library's.
pub(crate) fn own_headers(headers: &Map<String, Value>) -> Map<String, Value> {
    let is_own = |name: &str| !is_known(name) && !name.starts_with("pikake_");
    let own = headers.iter().filter(|(name, _)| is_own(name));
    own.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether a header belongs to Celery's protocol.
fn is_known(name: &str) -> bool {
    matches!(
        name,
        "lang"
            | "task"
            | "id"
            | "root_id"
            | "parent_id"
            | "group"
            | "group_index"
            | "eta"
            | "expires"
            | "retries"
            | "timelimit"
            | "argsrepr"
            | "kwargsrepr"
            | "origin"
            | "shadow"
            | "ignore_result"
            | REPLACEMENTS
            | "stamped_headers"
            | "stamps"
            | "compression"
            | "meth"
    )
}

/// A message that asks for a job to be run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request<'m> {
    /// The name of the job's definition (`task`).
    pub job: &'m str,
    /// The job's id.
    pub id: &'m str,
    /// The id of the workflow's first job; without a workflow, the job's own.
    pub root_id: &'m str,
    /// The id of the job that sent this one; of a retry, the job's own.
    pub parent_id: Option<&'m str>,
    /// The job's group in a workflow.
    pub group: Option<&'m str>,
    /// The time before which the job does not run.
    pub eta: Option<SystemTime>,
    /// The time from which the job does not run any more.
    pub expires: Option<SystemTime>,
    /// How many retries were made.
    pub retries: u32,
    /// How many retries the sender allows; `None`: the definition's number.
    pub max_retries: Option<u32>,
    /// How many worker processes the job has ended.
    pub kills: u32,
    /// How often the job may have been sent before, by a job that was delivered again.
    pub resent: u32,
    /// In the place of how many jobs this one runs, one after the other.
    pub replacements: u32,
    /// How long the job may run before it is dropped.
    pub hard_limit: Option<Duration>,
    /// How long the job may run before it is interrupted.
    pub soft_limit: Option<Duration>,
    /// Whether no outcome is stored.
    pub ignore_result: bool,
    /// The positional arguments, a JSON array.
    pub args: &'m str,
    /// The arguments by name, a JSON object.
    pub kwargs: &'m str,
    /// The workflow to follow (`callbacks`, `errbacks`, `chain`, `chord`), an object or null.
    pub embed: &'m str,
}

impl<'m> Request<'m> {
    /// Reads a message, as tolerant as Celery: headers and parts of `embed` may be absent or null,
    /// and times may have `Z` or no zone.
    ///
    /// # Errors
    ///
    /// [`Poison`]: the job of such a message can never run.
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
            resent: count(headers, RESENT)?.unwrap_or(0),
            replacements: count(headers, REPLACEMENTS)?.unwrap_or(0),
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
    /// Counts how often the job may have been sent before.
    pub(crate) fn count_resent(&mut self, by: u32) {
        if by > 0 {
            let before = self.headers.get(RESENT).and_then(Value::as_u64).unwrap_or_default();
            self.headers.insert(RESENT.to_owned(), before.saturating_add(by.into()).into());
        }
    }

    /// A dead message as a new one: it does not expire, and has ended no process.
    pub(crate) fn for_replay(mut self) -> Self {
        self.expires = None;
        for header in DROPPED_ON_REPLAY {
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

/// The three members of a body. A body may have a hundred megabytes, so one pass finds them and
/// tells a list of another length from text that is not JSON.
struct Members<'a>([&'a RawValue; 3]);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfList;
        impl<'de> Visitor<'de> for OfList {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[args, kwargs, embed]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let (first, second, third) =
                    (list.next_element()?, list.next_element()?, list.next_element()?);
                let mut more = 0;
                while list.next_element::<&RawValue>()?.is_some() {
                    more += 1;
                }
                match (first, second, third) {
                    (Some(args), Some(kwargs), Some(embed)) if more == 0 => {
                        Ok(Members([args, kwargs, embed]))
                    }
                    _ => Err(A::Error::invalid_length(more, &self)),
                }
            }
        }
        deserializer.deserialize_seq(OfList)
    }
}

fn body(body: &[u8]) -> Result<(&str, &str, &str), Poison> {
    let Members(members) = serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => Poison::Body,
        false => Poison::NotJson(error.to_string()),
    })?;
    let [args, kwargs, embed] = members.map(RawValue::get);
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

/// The hard limit and the soft limit.
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
                // A limit too long for a `Duration` is no limit.
                Err(_) if seconds > 0.0 => Ok(None),
                Err(_) => Err(Poison::Header(NAME)),
            }
        }
    };
    Ok((limit(&pair[0])?, limit(&pair[1])?))
}

/// Why the job of a message can never run on any worker. Such a message goes to the dead of its
/// queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Poison {
    /// The header `task` is missing: the message is not a job.
    NoJob,
    /// The header `id` is missing.
    NoId,
    /// The `content_type` is missing.
    NoContentType,
    /// The `content_type` is not that of JSON.
    ContentType(String),
    /// The `content_encoding` or compression is not supported.
    ContentEncoding(String),
    /// The body is not JSON.
    NotJson(String),
    /// The body is not `[args, kwargs, embed]`: a list, an object, and an object or null.
    Body,
    /// The header of this name has an invalid value.
    Header(&'static str),
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJob => f.write_str("no header `task`: not a job"),
            Self::NoId => f.write_str("no header `id`"),
            Self::NoContentType => f.write_str("no content_type"),
            Self::ContentType(kind) => write!(
                f,
                "content_type `{kind}` is not supported; send application/json (task_serializer)"
            ),
            Self::ContentEncoding(coding) => {
                write!(f, "content_encoding `{coding}` is not supported; send utf-8, uncompressed")
            }
            Self::NotJson(why) => write!(f, "the body is not JSON: {why}"),
            Self::Body => f.write_str("the body is not [args, kwargs, embed]"),
            Self::Header(name) => write!(f, "the header `{name}` has an invalid value"),
        }
    }
}

impl std::error::Error for Poison {}

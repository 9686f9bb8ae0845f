//! Signatures of Celery's canvas: a job's name, arguments and options as JSON, in `embed` and in
//! one another.
//!
//! Arguments and options stay text until somebody asks for them, so that they go on as they came.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::wire::instant;
use crate::wire::reason::shortened;

/// A JSON value that nobody has read.
pub(crate) type Raw = Box<RawValue>;

/// A workflow that cannot be followed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(String);

impl Refused {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(shortened(why.into()))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A signature in Celery's form.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CanvasSignature {
    pub(crate) task: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) args: Vec<Raw>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) kwargs: BTreeMap<String, Raw>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) options: BTreeMap<String, Raw>,
    #[serde(default)]
    pub(crate) subtask_type: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) immutable: bool,
}

/// What a signature stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One job.
    Job,
    Chain,
    Group,
    Chord,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A value as JSON. Only texts, numbers, signatures and lists of them are written.
pub(crate) fn raw(value: &impl Serialize) -> Raw {
    serde_json::value::to_raw_value(value).expect("texts, numbers and JSON are written as JSON")
}

impl CanvasSignature {
    pub(crate) fn new(task: impl Into<String>) -> Self {
        Self {
            task: task.into(),
            args: Vec::new(),
            kwargs: BTreeMap::new(),
            options: BTreeMap::new(),
            subtask_type: None,
            immutable: false,
        }
    }

    /// A chain, group or chord, with its parts in `kwargs`.
    pub(crate) fn of_kind(
        kind: Kind,
        parts: impl IntoIterator<Item = (&'static str, Raw)>,
    ) -> Self {
        let name = match kind {
            Kind::Job => unreachable!("a job has a name of its own"),
            Kind::Chain => "chain",
            Kind::Group => "group",
            Kind::Chord => "chord",
        };
        let parts = parts.into_iter().map(|(name, part)| (name.to_owned(), part));
        let mut signature = Self::new(format!("celery.{name}"));
        signature.subtask_type = Some(name.to_owned());
        signature.kwargs = parts.collect();
        signature
    }

    pub(crate) fn read(text: &RawValue) -> Result<Self, Refused> {
        serde_json::from_str(text.get())
            .map_err(|error| Refused::new(format!("a signature in it is malformed: {error}")))
    }

    pub(crate) fn kind(&self) -> Result<Kind, Refused> {
        match self.subtask_type.as_deref() {
            None => Ok(Kind::Job),
            Some("chain") => Ok(Kind::Chain),
            Some("group") => Ok(Kind::Group),
            Some("chord") => Ok(Kind::Chord),
            Some(other) => {
                Err(Refused::new(format!("a signature in it is of the unknown type `{other}`")))
            }
        }
    }

    fn malformed(&self, what: &str) -> Refused {
        Refused::new(format!("`{what}` of the signature of `{}` is malformed", self.task))
    }

    /// An option; `None` if the option is missing or null.
    pub(crate) fn option<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Refused> {
        match self.options.get(name) {
            None => Ok(None),
            Some(text) => {
                serde_json::from_str::<Option<T>>(text.get()).map_err(|_| self.malformed(name))
            }
        }
    }

    /// An option that is kept as it came.
    pub(crate) fn raw_option(&self, name: &str) -> Option<Raw> {
        self.options.get(name).filter(|text| text.get() != "null").cloned()
    }

    pub(crate) fn set(&mut self, name: &str, value: &impl Serialize) {
        self.options.insert(name.to_owned(), raw(value));
    }

    /// An option that is a signature or a list of them.
    pub(crate) fn signatures(&self, name: &str) -> Result<Vec<Raw>, Refused> {
        self.raw_option(name)
            .map_or(Ok(Vec::new()), |text| list(&text).ok_or_else(|| self.malformed(name)))
    }

    /// Adds signatures to an option that is a list of them.
    pub(crate) fn link(&mut self, name: &str, more: Vec<Raw>) -> Result<(), Refused> {
        if !more.is_empty() {
            let mut all = self.signatures(name)?;
            all.extend(more);
            self.set(name, &all);
        }
        Ok(())
    }

    /// The signatures in an argument by name: those of a chain, a group, or a chord's header.
    pub(crate) fn members(&self, name: &str) -> Result<Vec<Self>, Refused> {
        let text = self.kwargs.get(name).ok_or_else(|| self.malformed(name))?;
        let texts = list(text).ok_or_else(|| self.malformed(name))?;
        texts.iter().map(|text| Self::read(text)).collect()
    }

    /// Sets the queue of each job in it that names none.
    pub(crate) fn set_queues(&mut self, queue: &dyn Fn(&str) -> String) -> Result<(), Refused> {
        let is_job = self.kind()? == Kind::Job;
        if is_job && self.raw_option("queue").is_none() {
            self.set("queue", &queue(&self.task));
        }
        let is_part = |name: &str| !is_job && matches!(name, "tasks" | "header" | "body");
        let parts = self.kwargs.iter_mut().filter(|(name, _)| is_part(name));
        let options = self.options.iter_mut();
        let links = options.filter(|(name, _)| matches!(&***name, "link" | "link_error"));
        for (_, text) in parts.chain(links) {
            let mut all = Vec::new();
            for text in list(text).unwrap_or_default() {
                let mut part = Self::read(&text)?;
                part.set_queues(queue)?;
                all.push(part);
            }
            *text = match all.as_slice() {
                [one] if !text.get().starts_with('[') => raw(one),
                all => raw(&all),
            };
        }
        Ok(())
    }

    pub(crate) fn task_id(&self) -> Result<Option<String>, Refused> {
        self.option("task_id")
    }

    /// A length in seconds.
    pub(crate) fn length(&self, name: &str) -> Result<Option<Duration>, Refused> {
        let Some(seconds) = self.option::<f64>(name)? else { return Ok(None) };
        // What is over already is over now, and a length too long for a `Duration` is the longest.
        let length = Duration::try_from_secs_f64(seconds.max(0.0));
        Ok(Some(length.unwrap_or(Duration::MAX)))
    }

    /// A point in time: seconds from now, a text, or kombu's
    /// `{"__type__": "datetime", "__value__": text}`.
    pub(crate) fn moment(&self, name: &str) -> Result<Option<SystemTime>, Refused> {
        let text = match self.option::<Value>(name)? {
            None => return Ok(None),
            Some(Value::Number(_)) => return Ok(self.length(name)?.map(instant::after)),
            Some(Value::String(text)) => text,
            Some(Value::Object(mut typed)) => match typed.remove("__value__") {
                Some(Value::String(text)) => text,
                _ => return Err(self.malformed(name)),
            },
            Some(_) => return Err(self.malformed(name)),
        };
        instant::read(&text).map(Some).ok_or_else(|| self.malformed(name))
    }
}

/// The signatures of a list, or the one that stands for such a list.
fn list(text: &RawValue) -> Option<Vec<Raw>> {
    match text.get().starts_with('[') {
        true => serde_json::from_str(text.get()).ok(),
        false => Some(vec![text.to_owned()]),
    }
}

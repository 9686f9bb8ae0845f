//! The content of a call: a job's name, arguments and options (Celery's word is *signature*), and
//! their message in Celery's protocol 2.

use std::time::{Duration, SystemTime};

use pikake_traps::wall_time;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::current::try_current_job;
use crate::error::SendError;
use crate::message::{JobId, Message};
use crate::unique::{Unique, UniqueLock, UntilWhen};
use crate::wire::request::{MAX_RETRIES, UNIQUE, traces};
use crate::wire::signature::CanvasSignature;
use crate::wire::task::{EMBED, TaskParts};
use crate::wire::{ids, instant};

/// The longest key of a unique job that its message has; a longer one is hashed.
const LONGEST_KEY: usize = 200;

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
    /// Headers of the sender.
    pub(crate) headers: Map<String, Value>,
    /// Where others answer to.
    pub(crate) reply_to: Option<String>,
    /// Whether it takes no value of a job before it.
    pub(crate) is_immutable: bool,
    /// For how long the job is the only one of its key; and the call's own key.
    pub(crate) unique: Option<(Unique, Option<String>)>,
}

/// When a job may run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum When {
    #[default]
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
            headers: Map::new(),
            reply_to: None,
            is_immutable: false,
            unique: None,
        }
    }

    /// The arguments as texts.
    pub(crate) fn arguments(&self) -> Result<(&str, &str), String> {
        match (&self.args, &self.kwargs) {
            (Ok(args), Ok(kwargs)) if args.starts_with('[') && kwargs.starts_with('{') => {
                Ok((args, kwargs))
            }
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
            _ => Err("args must be a tuple or a list, kwargs a struct or a map".to_owned()),
        }
    }

    /// How a job is unique, and its key. `None` if it is not, or its arguments cannot be written.
    pub(crate) fn unique_key(&self) -> Option<(Unique, String)> {
        let (unique, key) = self.unique.as_ref()?;
        let key = match (key, self.arguments()) {
            (Some(key), _) => key.clone(),
            (None, Ok((args, kwargs))) => unique.key(args, kwargs),
            (None, Err(_)) => return None,
        };
        Some((*unique, key))
    }

    /// The lock that the job of a message is to have, which the message notes.
    pub(crate) fn lock(&self, message: &mut Message) -> Option<UniqueLock> {
        let (unique, key) = self.unique_key()?;
        // All arguments would be in the message twice, and RabbitMQ's frames limit what headers
        // have.
        let key = if key.len() > LONGEST_KEY { ids::derived(&key, 0) } else { key };
        let job = JobId(message.job()?.to_owned());
        let lock = UniqueLock::new(format!("{}:{key}", self.name), job, unique, wall_time());
        if unique.until != UntilWhen::Elapsed {
            message.headers.insert(UNIQUE.to_owned(), lock.header());
        }
        Some(lock)
    }

    /// The signature in Celery's form. `queue`: that of a call which names none, if it is known.
    pub(crate) fn to_canvas(
        &self,
        queue: impl Fn(&str) -> Option<String>,
    ) -> Result<CanvasSignature, String> {
        let (args, kwargs) = self.arguments()?;
        let mut canvas = CanvasSignature::new(&self.name);
        canvas.args = serde_json::from_str(args).map_err(|error| error.to_string())?;
        canvas.kwargs = serde_json::from_str(kwargs).map_err(|error| error.to_string())?;
        canvas.immutable = self.is_immutable;
        if let Some(queue) = self.queue.clone().or_else(|| queue(&self.name)) {
            canvas.set("queue", &queue);
        }
        match self.when {
            When::Now => {}
            When::After(length) => canvas.set("countdown", &length.as_secs_f64()),
            When::At(moment) => canvas.set("eta", &instant::write(moment.min(instant::last()))),
        }
        for (name, length) in [
            ("expires", self.expires),
            ("time_limit", self.limits[0]),
            ("soft_time_limit", self.limits[1]),
        ] {
            if let Some(length) = length {
                canvas.set(name, &length.as_secs_f64());
            }
        }
        if self.priority > 0 {
            canvas.set("priority", &self.priority);
        }
        if self.ignore_result {
            canvas.set("ignore_result", &true);
        }
        if let Some(id) = &self.id {
            canvas.set("task_id", id);
        }
        if let Some(address) = &self.reply_to {
            canvas.set("reply_to", address);
        }
        let mut headers = self.headers.clone();
        if let Some(retries) = self.max_retries {
            headers.insert(MAX_RETRIES.to_owned(), retries.into());
        }
        if !headers.is_empty() {
            canvas.set("headers", &headers);
        }
        Ok(canvas)
    }

    /// The message, and when it may be delivered: at its expiry at the latest, so that a worker can
    /// revoke the job.
    pub(crate) fn message(&self, origin: &str) -> Result<(Message, Option<SystemTime>), SendError> {
        let (args, kwargs) = self.arguments().map_err(SendError::Arguments)?;
        let not_before = match self.when {
            When::Now => None,
            When::After(length) => Some(instant::after(length)),
            When::At(moment) => Some(moment.min(instant::last())),
        };
        let id = self.id.clone().unwrap_or_else(ids::random);
        let job = try_current_job();
        let mut headers = job.as_ref().map(|job| traces(&job.facts.headers)).unwrap_or_default();
        headers.extend(self.headers.clone());
        let parts = TaskParts {
            job: &self.name,
            id,
            root_id: job.as_ref().map(|job| job.facts.root_id.clone()),
            parent_id: job.as_ref().map(|job| job.id().to_owned()),
            args,
            kwargs,
            embed: EMBED,
            origin,
            not_before,
            expires: self.expires.map(instant::after),
            limits: self.limits,
            max_retries: self.max_retries,
            priority: self.priority,
            ignore_result: self.ignore_result,
            headers,
            ..TaskParts::default()
        };
        Ok(parts.into_message())
    }
}

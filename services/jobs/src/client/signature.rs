//! The content of a call: a job's name, arguments and options (Celery's word is *signature*), and their message in
//! Celery's protocol 2.

use std::time::{Duration, SystemTime};

use crate::current::try_current_job;
use crate::error::SendError;
use crate::message::Message;
use crate::wire::task::{EMBED, TaskParts};
use crate::wire::{ids, instant};

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
        let id = self.id.clone().unwrap_or_else(ids::random);
        let job = try_current_job();
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
            ..TaskParts::default()
        };
        Ok(parts.into_message())
    }
}

//! A job that is about to be sent: its arguments, where it goes, and when.

use std::future::Future;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use pikake_traps::{random, wall_time};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::app::App;
use crate::app_error::SendError;
use crate::current::{self, try_current_job};
use crate::handle::Handle;
use crate::instant;
use crate::job::Job;
use crate::message::{JobId, Message};
use crate::request::{LANGUAGE, MAX_RETRIES};

/// What logs and listings show of arguments, in bytes.
const SHOWN: usize = 1024;

/// A job that is about to be sent, for a value of type `T`. Made by the `with` of a job; cloned, it is sent again.
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `send`"]
pub struct Call<T> {
    app: Option<App>,
    name: String,
    args: Result<String, String>,
    kwargs: Result<String, String>,
    queue: Option<String>,
    when: When,
    expires: Option<Duration>,
    limits: [Option<Duration>; 2],
    max_retries: Option<u32>,
    priority: u8,
    ignore_result: bool,
    id: Option<String>,
    value: PhantomData<fn() -> T>,
}

#[derive(Debug, Clone, Copy)]
enum When {
    Now,
    After(Duration),
    At(SystemTime),
}

impl<T> Call<T> {
    /// A job known by its name only, as one of Celery's. `args` is a tuple or a list of its arguments.
    ///
    /// # Examples
    ///
    /// ```
    /// let call = pikake_jobs::Call::<i64>::named("tasks.add", (2, 3)).queue("celery");
    /// ```
    pub fn named(name: impl Into<String>, args: impl Serialize) -> Self {
        let args = serde_json::to_string(&args).map_err(|error| error.to_string());
        // `()` is null to serde, and no arguments here.
        let args = args.map(|args| if args == "null" { "[]".to_owned() } else { args });
        Self {
            app: None,
            name: name.into(),
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
            value: PhantomData,
        }
    }

    /// A call of a job. For what `#[pikake::job]` makes.
    #[doc(hidden)]
    pub fn of<J: Job<Output = T>>(_: J, args: &J::Arguments) -> Self {
        let options = J::OPTIONS;
        let mut call = Self::named(J::NAME, args);
        call.queue = options.queue.map(Into::into);
        call.expires = options.expires;
        call.priority = options.priority;
        call.ignore_result = options.ignore_result;
        call
    }

    /// Arguments by name, an object of them.
    pub fn kwargs(mut self, kwargs: impl Serialize) -> Self {
        self.kwargs = serde_json::to_string(&kwargs).map_err(|error| error.to_string());
        self
    }

    /// To this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Not to be run before so long. It waits at the broker.
    pub fn countdown(mut self, length: Duration) -> Self {
        self.when = When::After(length);
        self
    }

    /// Not to be run before this moment.
    pub fn eta(mut self, moment: SystemTime) -> Self {
        self.when = When::At(moment);
        self
    }

    /// Worth nothing if it was not begun so long after it was sent: it is revoked then.
    pub fn expires(mut self, length: Duration) -> Self {
        self.expires = Some(length);
        self
    }

    /// How often it may be tried again, instead of what its definition says.
    pub fn retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// The higher, the sooner, in queues that have priorities.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Interrupted after so long, instead of what its definition says.
    pub fn soft_limit(mut self, length: Duration) -> Self {
        self.limits[1] = Some(length);
        self
    }

    /// Dropped after so long, instead of what its definition says.
    pub fn hard_limit(mut self, length: Duration) -> Self {
        self.limits[0] = Some(length);
        self
    }

    /// Nobody wants its outcome: none is stored.
    pub fn ignore_result(mut self) -> Self {
        self.ignore_result = true;
        self
    }

    /// Its id; without, a random UUID. To send with an id twice is to have it run twice.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Through this application, instead of the one that is connected in this kernel.
    pub fn on(mut self, app: &App) -> Self {
        self.app = Some(app.clone());
        self
    }

    /// The same, for a value of any kind.
    pub fn untyped(self) -> Call<Value> {
        self.into_parts()
    }

    /// Through whichever application is current, so that an application may keep it.
    pub(crate) fn on_no_app(mut self) -> Self {
        self.app = None;
        self
    }

    fn into_parts<U>(self) -> Call<U> {
        let Self { app, name, args, kwargs, queue, when, expires, limits, .. } = self;
        let (max_retries, priority) = (self.max_retries, self.priority);
        let (ignore_result, id, value) = (self.ignore_result, self.id, PhantomData);
        Call {
            app,
            name,
            args,
            kwargs,
            queue,
            when,
            expires,
            limits,
            max_retries,
            priority,
            ignore_result,
            id,
            value,
        }
    }

    /// Sends it; resolves once the broker has it for good.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted while the broker has not confirmed, it is uncertain whether the job was sent:
    /// the error has the message. Dropped, the same.
    ///
    /// # Errors
    ///
    /// [`SendError`].
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub fn send(self) -> impl Future<Output = Result<Handle<T>, SendError>> {
        async move {
            let app = self.app.clone().or_else(current::app).ok_or(SendError::NoApp)?;
            let queue = match &self.queue {
                Some(queue) => queue.clone(),
                None => app.default_queue_name(),
            };
            let broker = app.broker()?;
            let (mut message, not_before) = self.message(&app)?;
            app.ensure_queue(&queue).await?;
            let id = JobId(message.correlation_id.clone().unwrap_or_default());
            if self.ignore_result {
                broker.publish(&queue, message, not_before).await?;
                return Ok(Handle::new(app, id, true));
            }
            broker.expect(&mut message).await?;
            // From here on somebody expects the outcome, until the handle is dropped.
            let handle = Handle::new(app, id, false);
            broker.publish(&queue, message, not_before).await?;
            Ok(handle)
        }
    }

    /// The message, and when it may be delivered.
    fn message(&self, app: &App) -> Result<(Message, Option<SystemTime>), SendError> {
        let (args, kwargs) = match (&self.args, &self.kwargs) {
            (Ok(args), Ok(kwargs)) if args.starts_with('[') && kwargs.starts_with('{') => {
                (args, kwargs)
            }
            (Err(why), _) | (_, Err(why)) => return Err(SendError::Arguments(why.clone())),
            _ => {
                let why = "args are a tuple or a list, kwargs a struct or a map";
                return Err(SendError::Arguments(why.to_owned()));
            }
        };
        let not_before = match self.when {
            When::Now => None,
            When::After(length) => Some(wall_time() + length),
            When::At(moment) => Some(moment),
        };
        let expires = self.expires.map(|length| wall_time() + length);
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
        set("argsrepr", shown(args, ['(', ')']).into());
        set("kwargsrepr", shown(kwargs, ['{', '}']).into());
        set("origin", app.origin().into());
        set("ignore_result", self.ignore_result.into());
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
        Ok((message, not_before))
    }
}

/// No workflow follows.
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

/// JSON between other brackets, and not too much of it.
fn shown(json: &str, [open, close]: [char; 2]) -> String {
    let inner = &json[1..json.len() - 1];
    let mut shown = String::with_capacity(inner.len().min(SHOWN) + 2);
    shown.push(open);
    match inner.len() <= SHOWN {
        true => shown.push_str(inner),
        false => {
            shown.push_str(&inner[..inner.floor_char_boundary(SHOWN)]);
            shown.push('…');
        }
    }
    shown.push(close);
    shown
}

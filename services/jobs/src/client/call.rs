//! A job that is about to be sent: its arguments, where it goes, and when.

use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

use crate::client::app::App;
use crate::client::handle::Handle;
use crate::current;
use crate::error::SendError;
use crate::job::Job;
use crate::message::JobId;

/// A job that is about to be sent, for a value of type `T`. Made by the `with` of a job; cloned, it is sent again.
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `send`"]
pub struct Call<T> {
    pub(crate) app: Option<App>,
    pub(crate) name: String,
    pub(crate) args: Result<String, String>,
    pub(crate) kwargs: Result<String, String>,
    pub(crate) queue: Option<String>,
    pub(crate) when: When,
    pub(crate) expires: Option<Duration>,
    pub(crate) limits: [Option<Duration>; 2],
    pub(crate) max_retries: Option<u32>,
    pub(crate) priority: u8,
    pub(crate) ignore_result: bool,
    pub(crate) id: Option<String>,
    pub(crate) value: PhantomData<fn() -> T>,
}

/// When it may be run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum When {
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
    pub async fn send(self) -> Result<Handle<T>, SendError> {
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

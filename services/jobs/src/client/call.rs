//! A job that is about to be sent: its arguments, where it goes, and when.

use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

use crate::client::app::App;
use crate::client::handle::Handle;
use crate::client::signature::{Signature, When};
use crate::error::SendError;
use crate::job::Job;
use crate::message::JobId;

/// A job that is about to be sent, for a value of type `T`. Made by the `with` of a job; cloned, it is sent again.
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `send`"]
pub struct Call<T> {
    /// `None`: the application that is connected in this kernel.
    app: Option<App>,
    signature: Signature,
    value: PhantomData<fn() -> T>,
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
        Self::from_signature(Signature::new(name.into(), args))
    }

    pub(crate) fn from_signature(signature: Signature) -> Self {
        Self { app: None, signature, value: PhantomData }
    }

    /// A call of a job. For what `#[pikake::job]` makes.
    #[doc(hidden)]
    pub fn of<J: Job<Output = T>>(_: J, args: &J::Arguments) -> Self {
        let options = J::OPTIONS;
        let mut call = Self::named(J::NAME, args);
        call.signature.queue = options.queue.map(Into::into);
        call.signature.expires = options.expires;
        call.signature.priority = options.priority;
        call.signature.ignore_result = options.ignore_result;
        call
    }

    /// Arguments by name, an object of them.
    pub fn kwargs(mut self, kwargs: impl Serialize) -> Self {
        self.signature.kwargs = serde_json::to_string(&kwargs).map_err(|error| error.to_string());
        self
    }

    /// To this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.signature.queue = Some(queue.into());
        self
    }

    /// Not to be run before so long. It waits at the broker.
    pub fn countdown(mut self, length: Duration) -> Self {
        self.signature.when = When::After(length);
        self
    }

    /// Not to be run before this moment.
    pub fn eta(mut self, moment: SystemTime) -> Self {
        self.signature.when = When::At(moment);
        self
    }

    /// Worth nothing if it was not begun so long after it was sent: it is revoked then.
    pub fn expires(mut self, length: Duration) -> Self {
        self.signature.expires = Some(length);
        self
    }

    /// How often it may be tried again, instead of what its definition says.
    pub fn retries(mut self, retries: u32) -> Self {
        self.signature.max_retries = Some(retries);
        self
    }

    /// The higher, the sooner, in queues that have priorities.
    pub fn priority(mut self, priority: u8) -> Self {
        self.signature.priority = priority;
        self
    }

    /// Interrupted after so long, instead of what its definition says.
    pub fn soft_limit(mut self, length: Duration) -> Self {
        self.signature.limits[1] = Some(length);
        self
    }

    /// Dropped after so long, instead of what its definition says.
    pub fn hard_limit(mut self, length: Duration) -> Self {
        self.signature.limits[0] = Some(length);
        self
    }

    /// Nobody wants its outcome: none is stored.
    pub fn ignore_result(mut self) -> Self {
        self.signature.ignore_result = true;
        self
    }

    /// Its id; without, a random UUID. To send with an id twice is to have it run twice.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.signature.id = Some(id.into());
        self
    }

    /// Through this application, instead of the one that is connected in this kernel.
    pub fn on(mut self, app: &App) -> Self {
        self.app = Some(app.clone());
        self
    }

    /// The same, for a value of any kind.
    pub fn untyped(self) -> Call<Value> {
        Call { app: self.app, signature: self.signature, value: PhantomData }
    }

    /// What is sent, without the application that sends it.
    pub(crate) fn into_signature(self) -> Signature {
        self.signature
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
        let app = self.app.or_else(App::current).ok_or(SendError::NoApp)?;
        let queue = match &self.signature.queue {
            Some(queue) => queue.clone(),
            None => app.default_queue_name(),
        };
        let broker = app.broker()?;
        let (mut message, not_before) = self.signature.message(app.origin())?;
        app.ensure_queue(&queue).await?;
        let id = JobId(message.correlation_id.clone().unwrap_or_default());
        if self.signature.ignore_result {
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

//! A job that is about to be sent: its arguments, its queue, and its options.

use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

use crate::broker::Broker;
use crate::client::app::App;
use crate::client::handle::{Handle, Origin};
use crate::client::signature::{Signature, When};
use crate::current::CurrentJob;
use crate::error::SendError;
use crate::job::Definition;
use crate::message::{JobId, Message};
use crate::unique::{Unique, UniqueLock, UniqueSent};

/// A job that is about to be sent, for a value of type `T`. Made by the `with` of a job; each clone
/// may be sent.
#[derive(Debug, Clone)]
#[must_use = "nothing is sent before `send`"]
pub struct Call<T> {
    /// `None`: the connected application of this kernel.
    app: Option<App>,
    signature: Signature,
    value: PhantomData<fn() -> T>,
}

impl<T> Call<T> {
    /// A call of a job by its name, for example one of Celery's. `args` is a tuple or a list of the
    /// arguments.
    ///
    /// # Examples
    ///
    /// ```
    /// let call = pikake::jobs::Call::<i64>::named("tasks.add", (2, 3)).queue("celery");
    /// ```
    pub fn named(name: impl Into<String>, args: impl Serialize) -> Self {
        let args = serde_json::to_string(&args).map_err(|error| error.to_string());
        // serde writes `()` as null.
        let args = args.map(|args| if args == "null" { "[]".to_owned() } else { args });
        Self::from_signature(Signature::new(name.into(), args))
    }

    pub(crate) fn from_signature(signature: Signature) -> Self {
        Self { app: None, signature, value: PhantomData }
    }

    /// A call of a job. For the expansion of `#[pikake::job]`.
    #[doc(hidden)]
    pub fn of(job: &Definition, args: &impl Serialize) -> Self {
        let options = job.options;
        let mut call = Self::named(job.name, args);
        call.signature.queue = options.queue.map(Into::into);
        call.signature.expires = options.expires;
        call.signature.priority = options.priority;
        call.signature.ignore_result = options.ignore_result;
        call.signature.unique = options.unique.map(|unique| (unique, None));
        call
    }

    /// Sets arguments by name: a struct or a map.
    pub fn kwargs(mut self, kwargs: impl Serialize) -> Self {
        self.signature.kwargs = serde_json::to_string(&kwargs).map_err(|error| error.to_string());
        self
    }

    /// Sets the queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.signature.queue = Some(queue.into());
        self
    }

    /// Sets how long the job waits at the broker before it may run.
    pub fn countdown(mut self, length: Duration) -> Self {
        self.signature.when = When::After(length);
        self
    }

    /// Sets the time before which the job does not run.
    pub fn eta(mut self, moment: SystemTime) -> Self {
        self.signature.when = When::At(moment);
        self
    }

    /// Sets how long after sending the job is revoked unless it has begun.
    pub fn expires(mut self, length: Duration) -> Self {
        self.signature.expires = Some(length);
        self
    }

    /// Sets the number of retries, in place of the definition's.
    pub fn retries(mut self, retries: u32) -> Self {
        self.signature.max_retries = Some(retries);
        self
    }

    /// Sets the priority: higher ones run first. The queue must have priorities
    /// ([`QueueOptions::max_priority`](crate::QueueOptions)); else sending is an error.
    pub fn priority(mut self, priority: u8) -> Self {
        self.signature.priority = priority;
        self
    }

    /// Sets how long the job may run before it is interrupted, in place of the definition's limit.
    pub fn soft_limit(mut self, length: Duration) -> Self {
        self.signature.limits[1] = Some(length);
        self
    }

    /// Sets how long the job may run before it is dropped, in place of the definition's limit.
    pub fn hard_limit(mut self, length: Duration) -> Self {
        self.signature.limits[0] = Some(length);
        self
    }

    /// Has no outcome stored.
    pub fn ignore_result(mut self) -> Self {
        self.signature.ignore_result = true;
        self
    }

    /// Sets the id, by default a random UUID. Two jobs with the same id both run.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.signature.id = Some(id.into());
        self
    }

    /// Makes the job the only one with this name and key, as `unique` says: another one is not sent
    /// meanwhile, and its [`send`](Self::send) fails with [`SendError::Duplicate`].
    ///
    /// SQLite and memory take the lock together with the message. RabbitMQ keeps the lock in a
    /// queue, for 30 days at most, and refuses locks of one key with different lengths. Jobs of
    /// workflows cannot be unique. A [schedule](crate::Schedule) sends none while an earlier one
    /// has the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{App, SendError, Unique};
    /// use std::time::Duration;
    ///
    /// #[pikake::job]
    /// async fn refresh(user: u64) {}
    ///
    /// # pikake::sim::example(async {
    /// let app = App::new("memory://")?.jobs([refresh::JOB]).connect().await?;
    /// let unique = Unique::new(Duration::from_secs(600));
    /// let first = refresh::with(7).unique("7", unique).send().await?;
    /// let second = refresh::with(7).unique("7", unique).send().await;
    /// let Err(SendError::Duplicate { first: Some(id), .. }) = second else { panic!() };
    /// assert_eq!(id, *first.id());
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn unique(mut self, key: impl Into<String>, unique: Unique) -> Self {
        self.signature.unique = Some((unique, Some(key.into())));
        self
    }

    /// Sets a header of the message, which the job reads with
    /// [`CurrentJob::header`](crate::CurrentJob::header). Headers of Celery's protocol, such as
    /// `task`, keep their values.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[pikake::job] async fn render() {}
    /// let traced = render::with()
    ///     .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    ///     .header("tenant", "blue");
    /// ```
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.signature.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the application that sends the job, in place of the connected one of this kernel.
    pub fn on(mut self, app: &App) -> Self {
        self.app = Some(app.clone());
        self
    }

    /// The same call, with a value of any type.
    pub fn untyped(self) -> Call<Value> {
        Call { app: self.app, signature: self.signature, value: PhantomData }
    }

    pub(crate) fn app(&self) -> Option<&App> {
        self.app.as_ref()
    }

    /// The call without its application.
    pub(crate) fn into_signature(self) -> Signature {
        self.signature
    }

    /// Sends the job; resolves once the broker has confirmed it.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped before the broker has confirmed, the job may
    /// or may not have been sent. The error of an interruption has the message.
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
            None => app.queue_of(&self.signature.name),
        };
        let broker = app.broker()?;
        let (mut message, not_before) = self.signature.message(app.origin())?;
        app.ensure_queue(&queue).await?;
        app.check_priority(&queue, message.priority).await?;
        let id = JobId(message.correlation_id.clone().unwrap_or_default());
        let lock = self.signature.lock(&mut message);
        if self.signature.ignore_result {
            publish(&app, &*broker, &queue, message, not_before, lock).await?;
            return Ok(Handle::new(app, id, Origin::Ignored));
        }
        broker.expect(&mut message).await?;
        // From here on the outcome is expected, until the handle is dropped.
        let handle = Handle::new(app.clone(), id, Origin::Sent);
        publish(&app, &*broker, &queue, message, not_before, lock).await?;
        Ok(handle)
    }
}

/// Publishes a message, under its lock if it has one.
async fn publish(
    app: &App,
    broker: &dyn Broker,
    queue: &str,
    message: Message,
    not_before: Option<SystemTime>,
    lock: Option<UniqueLock>,
) -> Result<(), SendError> {
    match (app.publish(broker, queue, message, not_before, lock.as_ref()).await?, lock) {
        (UniqueSent::Held(first), Some(lock)) => Err(SendError::Duplicate { key: lock.key, first }),
        _ => Ok(()),
    }
}

impl CurrentJob {
    /// Sets the arguments of the next retry if this run fails: those of a call of the same job. The
    /// rest of the call is not used. Celery has `self.retry(args=…, kwargs=…)`.
    ///
    /// # Examples
    ///
    /// A job that goes on where it has failed:
    ///
    /// ```
    /// use pikake::jobs::current_job;
    ///
    /// # fn send(line: &str) -> Result<(), String> { Ok(()) }
    /// #[pikake::job(retries = 5)]
    /// async fn send_all(lines: Vec<String>) -> Result<(), String> {
    ///     for (number, line) in lines.iter().enumerate() {
    ///         current_job().retry_as(&send_all::with(lines[number..].to_vec()));
    ///         send(line)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Panics
    ///
    /// If the call is one of another job, or its arguments cannot be written as JSON.
    #[track_caller]
    pub fn retry_as<T>(&self, call: &Call<T>) {
        let Call { signature, .. } = call;
        assert_eq!(signature.name, self.name(), "a retry is one of the same job");
        match signature.arguments() {
            Ok((args, kwargs)) => {
                self.facts.next_retry().arguments = Some([args.to_owned(), kwargs.to_owned()]);
            }
            Err(why) => panic!("the arguments of a retry cannot be written as JSON: {why}"),
        }
    }
}

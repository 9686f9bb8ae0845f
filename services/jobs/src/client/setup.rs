//! The settings of an application, made before it connects.

use std::error::Error;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use crate::broker::QueueOptions;
use crate::brokers::check_url;
use crate::client::app::{App, Registered, SetupHook};
use crate::error::AppError;
use crate::job::Jobs;
use crate::results;

impl App {
    /// Registers jobs for the worker: `[add::JOB, send_mail::JOB]`. A second call adds more jobs.
    ///
    /// # Examples
    ///
    /// See [`Definition`](crate::Definition).
    ///
    /// # Panics
    ///
    /// If another job has one of these names.
    #[track_caller]
    pub fn jobs(self, jobs: impl Jobs) -> Self {
        for definition in jobs {
            let name = definition.name;
            if let Some(queue) = definition.options.queue {
                let mut queues = self.0.queues.borrow_mut();
                queues.entry(queue.to_owned()).or_insert_with(QueueOptions::unspecified);
            }
            let job = Rc::new(Registered::new(definition));
            let before = self.0.jobs.borrow_mut().insert(name, job);
            assert!(before.is_none(), "two jobs have the name `{name}`: give one of them another");
        }
        self
    }

    /// Replaces the broker's URL from the next [`connect`](Self::connect) on, for example by one
    /// from the command line.
    ///
    /// # Errors
    ///
    /// [`AppError::Url`] if the URL is not that of a broker.
    pub fn at(self, url: impl Into<String>) -> Result<Self, AppError> {
        *self.0.url.borrow_mut() = check_url(url.into()).map_err(AppError::Url)?;
        self.0.given.take();
        Ok(self)
    }

    /// Stores outcomes in Redis, and waits for them there, in the form of Celery's
    /// `result_backend = "redis://…"`.
    ///
    /// The URL is `redis://user:password@host:port/db`; `redis://:password@host` is without a user.
    /// With the feature `tls`, `rediss://` is TLS, and takes `ssl_ca_certs`, `ssl_certfile`,
    /// `ssl_keyfile` and `ssl_cert_reqs` (`required` or `none`). `?expires=SECONDS` sets how long
    /// an outcome is kept: a day by default, and with 0 for good. An outcome is kept for one more
    /// minute once a [`Handle`](crate::Handle) that waited for it is dropped.
    ///
    /// A worker stores the outcomes of all jobs but those with `ignore_result`. While Redis cannot
    /// be reached, a worker keeps each outcome and its message until it is stored, and a waiter
    /// waits on. All clients and workers that are to exchange outcomes name the same Redis.
    ///
    /// With the feature `jobs-redis` of `pikake`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use pikake::jobs::{App, Call, Handle};
    ///
    /// let app = App::new("amqp://localhost")?.results("redis://localhost/1")?.connect().await?;
    /// // Another program, or Celery's `AsyncResult(id)`, may ask for the value later.
    /// let id = Call::<i64>::named("tasks.add", (2, 3)).queue("celery").send().await?.id().clone();
    /// assert_eq!(Handle::<i64>::from_id(&app, id).wait().await?, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AppError::Url`] if the URL is not that of a Redis.
    pub fn results(self, url: impl Into<String>) -> Result<Self, AppError> {
        let url = results::check_url(url.into()).map_err(AppError::Url)?;
        *self.0.results.borrow_mut() = Some(url);
        Ok(self)
    }

    /// Adds a queue that the application declares with these options, and that its worker consumes.
    /// Other queues are used as they are, or created with the default options.
    pub fn queue(self, name: impl Into<String>, options: QueueOptions) -> Self {
        self.0.queues.borrow_mut().insert(name.into(), options);
        self
    }

    /// Sets the queue of jobs that name none, by default `pikake`. The worker consumes this queue,
    /// too.
    pub fn default_queue(self, name: impl Into<String>) -> Self {
        *self.0.default_queue.borrow_mut() = name.into();
        self
    }

    /// Adds a route: jobs whose names fit the pattern go to that queue, unless their definition or
    /// call names one. Each `*` in the pattern stands for any text. The first pattern that fits
    /// counts.
    ///
    /// # Examples
    ///
    /// Jobs of a Celery application, sent from here or following jobs of this worker, go to its
    /// queue:
    ///
    /// ```
    /// let app = pikake::jobs::App::new("memory://")?.route("tasks.*", "celery");
    /// # Ok::<_, pikake::jobs::AppError>(())
    /// ```
    pub fn route(self, pattern: impl Into<String>, queue: impl Into<String>) -> Self {
        self.0.routes.borrow_mut().push((pattern.into(), queue.into()));
        self
    }

    /// Sets how many jobs of all queues run at a time, by default 64.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    #[track_caller]
    pub fn concurrency(self, limit: usize) -> Self {
        assert!(limit > 0, "the concurrency of a worker is at least 1");
        self.0.concurrency.set(limit);
        self
    }

    /// Sets how many unacknowledged messages of each queue the worker may hold, by default twice
    /// the concurrency, and up to eight times if the concurrency changes while the worker runs. A
    /// queue of a job with [batches](crate::RunBatch) has room for two more of them by default.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    #[track_caller]
    pub fn prefetch(self, limit: u16) -> Self {
        assert!(limit > 0, "the prefetch of a worker is at least 1");
        self.0.prefetch.set(Some(limit));
        self
    }

    /// Sets the number of connections to RabbitMQ: 1, the default, or 2. With two, messages and
    /// outcomes are published over one, deliveries and acknowledgements go over the other. A
    /// RabbitMQ that is short of memory or disk stops reading from publishing connections, and the
    /// worker still drains the queues: it keeps outcomes until RabbitMQ takes them, 10,000 at most.
    /// They are lost with the process. Other brokers ignore this.
    ///
    /// # Panics
    ///
    /// If `count` is neither 1 nor 2.
    #[track_caller]
    pub fn connections(self, count: usize) -> Self {
        assert!(matches!(count, 1 | 2), "an application has one or two connections");
        self.0.opening.borrow_mut().is_split = count == 2;
        self
    }

    /// Sets how long a message waits while RabbitMQ accepts none or cannot be reached, by default
    /// 30 s.
    pub fn blocked_timeout(self, length: Duration) -> Self {
        self.0.opening.borrow_mut().blocked_timeout = Some(length);
        self
    }

    /// Sets how many worker processes run jobs marked `process`, by default one per processor.
    ///
    /// # Panics
    ///
    /// If `count` is zero.
    #[track_caller]
    pub fn processes(self, count: usize) -> Self {
        assert!(count > 0, "a worker has at least 1 process");
        self.0.processes.set(Some(count));
        self
    }

    /// Sets how many worker processes a message may end before it is moved to the dead, by
    /// default 3.
    pub fn max_kills(self, kills: u32) -> Self {
        self.0.max_kills.set(kills);
        self
    }

    /// Sets how often a message may be delivered before it is moved to the dead, by default 20.
    ///
    /// A delivery counts if its worker was lost or requeued the message, even before the job had
    /// begun.
    pub fn max_deliveries(self, deliveries: u32) -> Self {
        self.0.max_deliveries.set(deliveries);
        self
    }

    /// Moves jobs that have failed for good to the dead of their queue, for a later replay.
    pub fn bury_failed(self) -> Self {
        self.0.buries_failed.set(true);
        self
    }

    /// Sets how long the outcomes that this application's worker stores are kept: Celery's
    /// `result_expires`.
    ///
    /// | broker | without this call |
    /// | --- | --- |
    /// | `memory://` | an hour, ten thousand outcomes at most; an outcome with a handle is kept as long as the handle |
    /// | `sqlite://` | a day |
    /// | `App::results` | a day, or `expires` of the URL |
    /// | RabbitMQ | a day, in a queue of Celery's `rpc://`; senders of this library get outcomes at once |
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let app = pikake::jobs::App::new("memory://")?.result_age(Duration::from_secs(600));
    /// # Ok::<_, pikake::jobs::AppError>(())
    /// ```
    pub fn result_age(self, length: Duration) -> Self {
        self.0.result_age.set(Some(length));
        self
    }

    /// Sets the hook that runs after connecting, before the worker consumes. A later call replaces
    /// an earlier one.
    ///
    /// The hook may declare queues, send jobs, and spawn tasks ([`App::spawn`]). The hook runs
    /// again only when the application connects again, after [`close`](Self::close) or after the
    /// hook failed.
    pub fn setup<F, R, E>(self, hook: F) -> Self
    where
        F: Fn(Self) -> R + 'static,
        R: Future<Output = Result<(), E>> + 'static,
        E: Into<Box<dyn Error>>,
    {
        let hook: SetupHook = Rc::new(move |app| {
            let done = hook(app);
            Box::pin(async { done.await.map_err(Into::into) })
        });
        *self.0.setup_hook.borrow_mut() = Some(hook);
        self
    }
}

//! The application: its jobs, its queues, and its connection to a broker.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_sync::Mutex;
use pikake_traps::figures::Times;
use pikake_traps::{
    CancelOnDrop, Interrupted, KernelId, ignore_after, shield, sleep, spawn, try_current,
};

use crate::broker::{Broker, BrokerError, LocalFuture, Opening, QueueOptions};
use crate::brokers::{check_url, open_as};
use crate::control::revoked::Revoked;
use crate::control::settings::ControlSettings;
use crate::error::{AppError, SendError};
use crate::job::Definition;
use crate::rate::Limiter;
use crate::report::{Counters, Stats};
use crate::results::with_results;
use crate::running::RunningJobs;
use crate::schedule::Schedule;

/// The default queue of jobs that name none.
const DEFAULT_QUEUE: &str = "pikake";
/// How many jobs run at a time by default.
const DEFAULT_CONCURRENCY: usize = 64;
/// How often a message is delivered at most by default. Generous, since a broker also counts a
/// delivery when it loses a worker that had not begun the job.
const DEFAULT_MAX_DELIVERIES: u32 = 20;
/// How many worker processes a job may end by default.
const DEFAULT_MAX_KILLS: u32 = 3;
/// The pause before a call to a lost broker is retried.
const LOST_PAUSE: Duration = Duration::from_millis(50);
/// How long the end of an application waits until workers are told of cancelled jobs.
const TELL_LIMIT: Duration = Duration::from_secs(1);

thread_local! {
    /// The connected applications, with their kernels: a simulation has many kernels in one thread.
    static APPS: RefCell<Vec<(KernelId, Weak<Inner>)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) type SetupHook = Rc<dyn Fn(App) -> LocalFuture<'static, Result<(), Box<dyn Error>>>>;

/// An application: its jobs, its queues, and one connection to a broker.
///
/// An application may be created outside a kernel, and belongs to a kernel once connected. Clones
/// share it.
///
/// # Examples
///
/// ```
/// use pikake::jobs::{App, Call};
///
/// # pikake::sim::example(async {
/// let app = App::new("memory://")?.connect().await?;
/// let job = Call::<i64>::named("tasks.add", (2, 3)).send().await?;
/// assert_eq!(job.status().await?, None);
/// # drop(app);
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct App(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub(crate) url: RefCell<String>,
    pub(crate) opening: RefCell<Opening>,
    /// The URL of [`App::results`].
    pub(crate) results: RefCell<Option<String>>,
    /// The open broker of [`App::on`], used instead of the URL.
    pub(crate) given: RefCell<Option<Rc<dyn Broker>>>,
    pub(crate) jobs: RefCell<BTreeMap<&'static str, Rc<Registered>>>,
    /// The counts of messages without a known job.
    pub(crate) unknown: Counters,
    pub(crate) queues: RefCell<BTreeMap<String, QueueOptions>>,
    pub(crate) default_queue: RefCell<String>,
    /// Patterns of jobs' names, and their queues.
    pub(crate) routes: RefCell<Vec<(String, String)>>,
    pub(crate) concurrency: Cell<usize>,
    pub(crate) prefetch: Cell<Option<u16>>,
    pub(crate) max_deliveries: Cell<u32>,
    pub(crate) max_kills: Cell<u32>,
    pub(crate) buries_failed: Cell<bool>,
    pub(crate) result_age: Cell<Option<Duration>>,
    pub(crate) processes: Cell<Option<usize>>,
    pub(crate) setup_hook: RefCell<Option<SetupHook>>,
    pub(crate) schedules: RefCell<Vec<Schedule>>,
    /// Whether the worker leads schedules, or waits to do so.
    pub(crate) has_schedules: Cell<bool>,
    tasks: RefCell<Vec<CancelOnDrop<()>>>,
    /// The ids of cancelled jobs that the workers are yet to be told of, and the right to tell
    /// them.
    cancelled: RefCell<Vec<String>>,
    telling: Mutex<()>,
    connecting: Mutex<()>,
    broker: RefCell<Option<Rc<dyn Broker>>>,
    /// The broker without the results of [`App::results`].
    bare_broker: RefCell<Option<Rc<dyn Broker>>>,
    declared: RefCell<BTreeSet<String>>,
    pub(crate) revoked: RefCell<Revoked>,
    /// The jobs that the worker runs; `None` without a worker.
    pub(crate) running: RefCell<Option<Rc<RunningJobs>>>,
    pub(crate) control: ControlSettings,
    origin: OnceCell<String>,
}

/// A job that this application runs.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) definition: Definition,
    pub(crate) counters: Counters,
    pub(crate) limiter: Limiter,
    /// How long the runs took.
    pub(crate) run_times: Times,
    /// The definition's time limits, or those that an operator has set.
    pub(crate) limits: Cell<TimeLimits>,
}

impl Registered {
    pub(crate) fn new(definition: Definition) -> Self {
        let (soft, hard) = (definition.options.soft_limit, definition.options.hard_limit);
        let limits = Cell::new(TimeLimits { soft, hard });
        let limiter = Limiter::new(definition.options.rate);
        Self {
            definition,
            counters: Counters::default(),
            limiter,
            run_times: Times::default(),
            limits,
        }
    }
}

/// The time limits of a job whose message has none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimits {
    pub(crate) soft: Option<Duration>,
    pub(crate) hard: Option<Duration>,
}

impl App {
    /// An application, not yet connected, on the broker at a URL; see [`open`](crate::open()).
    ///
    /// # Errors
    ///
    /// [`AppError::Url`] if the URL is not that of a broker.
    pub fn new(url: impl Into<String>) -> Result<Self, AppError> {
        Ok(Self::with_defaults(check_url(url.into()).map_err(AppError::Url)?, None))
    }

    /// An application on a broker that is already open.
    pub fn on(broker: Rc<dyn Broker>) -> Self {
        Self::with_defaults("(an open broker)".to_owned(), Some(broker))
    }

    fn with_defaults(url: String, given: Option<Rc<dyn Broker>>) -> Self {
        Self(Rc::new(Inner {
            url: RefCell::new(url),
            opening: RefCell::default(),
            results: RefCell::default(),
            given: RefCell::new(given),
            jobs: RefCell::default(),
            unknown: Counters::default(),
            queues: RefCell::default(),
            default_queue: RefCell::new(DEFAULT_QUEUE.to_owned()),
            routes: RefCell::default(),
            concurrency: Cell::new(DEFAULT_CONCURRENCY),
            prefetch: Cell::new(None),
            max_deliveries: Cell::new(DEFAULT_MAX_DELIVERIES),
            max_kills: Cell::new(DEFAULT_MAX_KILLS),
            buries_failed: Cell::new(false),
            result_age: Cell::new(None),
            processes: Cell::new(None),
            setup_hook: RefCell::default(),
            schedules: RefCell::default(),
            has_schedules: Cell::new(false),
            tasks: RefCell::default(),
            cancelled: RefCell::default(),
            telling: Mutex::new(()),
            connecting: Mutex::new(()),
            broker: RefCell::default(),
            bare_broker: RefCell::default(),
            declared: RefCell::default(),
            revoked: RefCell::default(),
            running: RefCell::default(),
            control: ControlSettings::default(),
            origin: OnceCell::new(),
        }))
    }

    /// Connects, unless the application is connected: declares the queues, then calls the hook of
    /// [`setup`](Self::setup). From then on this kernel's jobs are sent through this application,
    /// until it is dropped.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted, the application is not connected, and may connect again.
    ///
    /// # Errors
    ///
    /// [`AppError`].
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub async fn connect(self) -> Result<Self, AppError> {
        self.connect_as(true).await
    }

    /// Connects as [`connect`](Self::connect), but declares no queue and calls no hook: for
    /// programs that look at a broker and control its workers.
    ///
    /// # Examples
    ///
    /// ```
    /// # pikake::sim::example(async {
    /// let app = pikake::jobs::App::new("memory://example")?.attach().await?;
    /// assert!(app.broker()?.counts("pikake").await.is_err(), "there is no such queue");
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Cancellation
    ///
    /// As for [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// [`AppError`].
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub async fn attach(self) -> Result<Self, AppError> {
        self.connect_as(false).await
    }

    async fn connect_as(self, prepares: bool) -> Result<Self, AppError> {
        let guard = self.0.connecting.lock().await?;
        if self.0.broker.borrow().is_none() {
            let (given, url) = (self.0.given.borrow().clone(), self.url());
            let opening = *self.0.opening.borrow();
            let broker = match given {
                Some(broker) => broker,
                None => open_as(&url, opening).await?,
            };
            let bare = broker.clone();
            let results = self.0.results.borrow().clone();
            let broker = match results {
                Some(url) => with_results(broker, &url).await?,
                None => broker,
            };
            if let Some(length) = self.0.result_age.get() {
                broker.keep_outcomes(length);
            }
            *self.0.broker.borrow_mut() = Some(broker);
            *self.0.bare_broker.borrow_mut() = Some(bare);
            let disconnect = DisconnectOnDrop(&self);
            if prepares {
                self.prepare().await?;
            }
            // The setup hook may have closed the application.
            self.broker()?;
            std::mem::forget(disconnect);
        }
        self.make_current();
        drop(guard);
        Ok(self)
    }

    async fn prepare(&self) -> Result<(), AppError> {
        for (name, options) in self.queues() {
            self.declare(&name, &options).await?;
        }
        self.make_current();
        let hook = self.0.setup_hook.borrow().clone();
        match hook {
            Some(hook) => hook(self.clone()).await.map_err(AppError::Setup),
            None => Ok(()),
        }
    }

    fn disconnect(&self) {
        self.0.tasks.take();
        self.0.cancelled.take();
        self.0.control.known.stop();
        self.0.declared.take();
        self.0.broker.take();
        self.0.bare_broker.take();
    }

    /// Declares a queue.
    ///
    /// # Errors
    ///
    /// The broker's: not connected, or a queue of this name has other options.
    pub async fn declare(&self, queue: &str, options: &QueueOptions) -> Result<(), BrokerError> {
        let broker = self.broker()?;
        broker.declare(queue, options).await?;
        // The application may have connected to another broker meanwhile.
        if self.broker().is_ok_and(|now| Rc::ptr_eq(&now, &broker)) {
            self.0.declared.borrow_mut().insert(queue.to_owned());
        }
        Ok(())
    }

    /// Adds a declared queue to those that the worker consumes. For use in [`setup`](Self::setup).
    pub fn consume(&self, queue: impl Into<String>) {
        self.0.queues.borrow_mut().entry(queue.into()).or_insert_with(QueueOptions::unspecified);
    }

    /// Spawns a task that is cancelled when the application is closed.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let mut tasks = self.0.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(spawn(future).cancel_on_drop());
    }

    /// Tells the workers of a cancelled job, in a task. Jobs that are cancelled in one step are one
    /// message.
    #[track_caller]
    pub(crate) fn post_cancel(&self, id: String) {
        let mut cancelled = self.0.cancelled.borrow_mut();
        cancelled.push(id);
        if cancelled.len() > 1 {
            return;
        }
        drop(cancelled);
        let app = Rc::downgrade(&self.0);
        self.spawn(async move {
            if let Some(app) = app.upgrade().map(Self) {
                app.post_cancels().await;
            }
        });
    }

    async fn post_cancels(&self) {
        let Ok(_telling) = self.0.telling.lock().await else { return };
        let ids = self.0.cancelled.take();
        if ids.is_empty() {
            return;
        }
        if let Err(error) = self.control().post_revokes(&ids).await {
            tracing::debug!(%error, "the workers could not be told of cancelled jobs");
        }
    }

    /// The connected broker.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Closed`] if the application is not connected.
    pub fn broker(&self) -> Result<Rc<dyn Broker>, BrokerError> {
        self.0.broker.borrow().clone().ok_or(BrokerError::Closed)
    }

    /// The connected broker without the results of [`App::results`]: other processes of the broker
    /// may have none.
    pub(crate) fn bare_broker(&self) -> Result<Rc<dyn Broker>, BrokerError> {
        self.0.bare_broker.borrow().clone().ok_or(BrokerError::Closed)
    }

    /// The broker, if it is RabbitMQ: for exchanges, bindings and other features that [`Broker`]
    /// lacks.
    ///
    /// With the feature `jobs-amqp` of `pikake`.
    #[cfg(feature = "amqp")]
    pub fn amqp(&self) -> Option<crate::brokers::AmqpBroker> {
        self.broker().ok()?.as_any()?.downcast_ref::<crate::brokers::AmqpBroker>().cloned()
    }

    /// Closes the connection, once all messages and acknowledgements have reached the broker. The
    /// tasks of [`spawn`](Self::spawn) are cancelled.
    ///
    /// # Errors
    ///
    /// The broker's; the connection is closed even then.
    pub async fn close(&self) -> Result<(), BrokerError> {
        let broker = self.broker();
        if broker.is_ok() {
            let _ = shield(ignore_after(TELL_LIMIT, self.post_cancels())).await;
        }
        self.disconnect();
        match broker {
            Ok(broker) => broker.close().await,
            Err(_) => Ok(()),
        }
    }

    /// The counts of the jobs that the worker has received so far.
    pub fn stats(&self) -> Stats {
        let jobs = self.0.jobs.borrow();
        let by_job = jobs.iter().map(|(name, job)| (*name, job.counters.get()));
        Stats::collect(by_job, self.0.unknown.get())
    }

    /// The broker's URL, including the password.
    pub fn url(&self) -> String {
        self.0.url.borrow().clone()
    }

    /// The broker's URL without user and password, for display.
    pub fn redacted_url(&self) -> String {
        without_password(&self.0.url.borrow())
    }

    /// The URL of the results, including the password; `None` without [`results`](Self::results).
    pub fn results_url(&self) -> Option<String> {
        self.0.results.borrow().clone()
    }

    /// The queue of jobs that name none.
    pub fn default_queue_name(&self) -> String {
        self.0.default_queue.borrow().clone()
    }

    /// The application's queues: the default one, those that were added, and those that its jobs
    /// name.
    pub fn queues(&self) -> BTreeMap<String, QueueOptions> {
        let mut queues = self.0.queues.borrow().clone();
        queues.entry(self.default_queue_name()).or_insert_with(QueueOptions::unspecified);
        queues
    }

    /// The definition of the registered job of this name.
    pub fn definition(&self, name: &str) -> Option<Definition> {
        self.0.jobs.borrow().get(name).map(|job| job.definition)
    }

    /// How many arguments a registered job takes.
    pub(crate) fn arity(&self, job: &str) -> Option<usize> {
        Some(self.definition(job)?.parameters.len())
    }

    /// The names of the registered jobs, in order.
    pub fn job_names(&self) -> Vec<String> {
        self.0.jobs.borrow().keys().map(|name| (*name).to_owned()).collect()
    }

    /// The queue of a job whose call names none: that of its definition, that of a route, or the
    /// default one.
    pub(crate) fn queue_of(&self, job: &str) -> String {
        if let Some(queue) = self.definition(job).and_then(|definition| definition.options.queue) {
            return queue.to_owned();
        }
        let routes = self.0.routes.borrow();
        let route = routes.iter().find(|(pattern, _)| matches(pattern, job));
        route.map_or_else(|| self.default_queue_name(), |(_, queue)| queue.clone())
    }

    /// The queues that the worker consumes.
    pub(crate) fn consumed(&self) -> BTreeSet<String> {
        self.queues().into_keys().collect()
    }

    /// Declares a queue before the first message to it.
    pub(crate) async fn ensure_queue(&self, queue: &str) -> Result<(), BrokerError> {
        self.ensure_queue_as(queue, &QueueOptions::unspecified()).await
    }

    /// Declares a queue with options before the first message to it.
    pub(crate) async fn ensure_queue_as(
        &self,
        queue: &str,
        options: &QueueOptions,
    ) -> Result<(), BrokerError> {
        if self.0.declared.borrow().contains(queue) {
            return Ok(());
        }
        self.declare(queue, options).await
    }

    /// Refuses a priority that a queue would not keep.
    pub(crate) async fn check_priority(&self, queue: &str, priority: u8) -> Result<(), SendError> {
        if priority == 0 || self.broker()?.max_priority(queue).await? != Some(0) {
            return Ok(());
        }
        Err(SendError::Broker(BrokerError::Refused(format!(
            "queue `{queue}` has no priorities: declare it with `QueueOptions::max_priority`, or send without one"
        ))))
    }

    /// Has [`ensure_queue`](Self::ensure_queue) declare a queue again: it may have been deleted.
    pub(crate) fn forget_queue(&self, queue: &str) {
        self.0.declared.borrow_mut().remove(queue);
    }

    pub(crate) async fn pause(&self) -> Result<(), Interrupted> {
        sleep(LOST_PAUSE).await
    }

    /// Makes this the application through which this kernel's jobs are sent.
    fn make_current(&self) {
        let Some(task) = try_current() else { return };
        let app = Rc::downgrade(&self.0);
        APPS.with_borrow_mut(|apps| {
            apps.retain(|(_, known)| known.strong_count() > 0 && !known.ptr_eq(&app));
            apps.push((task.kernel(), app));
        });
    }

    /// The application of this kernel that connected last, of those that still exist.
    pub(crate) fn current() -> Option<Self> {
        let kernel = try_current()?.kernel();
        APPS.with_borrow(|apps| {
            let mut of_kernel = apps.iter().rev().filter(|(of, _)| *of == kernel);
            of_kernel.find_map(|(_, app)| app.upgrade()).map(Self)
        })
    }

    /// The sender's name in messages, for people.
    pub(crate) fn origin(&self) -> &str {
        self.0.origin.get_or_init(|| format!("pikake{}", std::process::id()))
    }
}

/// Disconnects on drop an application whose setup has not completed.
struct DisconnectOnDrop<'a>(&'a App);

impl Drop for DisconnectOnDrop<'_> {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broker = self.0.broker.borrow();
        let state = broker.as_ref().map_or_else(|| "not connected".to_owned(), |b| b.state());
        f.debug_struct("App")
            .field("url", &self.redacted_url())
            .field("broker", &state)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Whether a name fits a pattern, in which each `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(begin) else { return false };
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.rev().any(|at| matches(rest, &name[at..]))
}

/// The URL with `…` in place of user and password.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        // Other schemes have a path, in which `@` is an ordinary character.
        (Some((scheme @ ("amqp" | "amqps"), _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

//! The application: which jobs there are, which broker they go through, and what is done when it is reached.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;

use pikake_sync::Mutex;
use pikake_traps::{CancelOnDrop, Interrupted, KernelId, sleep, spawn, try_current};

use crate::broker::{Broker, BrokerError, LocalFuture, Opening, QueueOptions};
use crate::brokers::{checked, open_as};
use crate::client::signature::Signature;
use crate::error::AppError;
use crate::job::Definition;
use crate::report::{Counters, Stats};
use crate::running::{Revoked, RunningJobs};

/// The queue that jobs go to unless something else is said.
const DEFAULT_QUEUE: &str = "pikake";
/// How many jobs run at a time unless something else is said.
const DEFAULT_CONCURRENCY: usize = 64;
/// How often a message is delivered at most. A broker counts it whenever a worker is lost that has the message,
/// begun or not, so it is generous.
const DEFAULT_MAX_DELIVERIES: u32 = 20;
/// How many worker processes a job may end.
const DEFAULT_MAX_KILLS: u32 = 3;
/// How long to wait before a broker that was lost is asked again.
const LOST_PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// The applications that are connected, by kernel: a simulation has many kernels in one thread.
    static APPS: RefCell<Vec<(KernelId, Weak<Inner>)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) type SetUp = Rc<dyn Fn(App) -> LocalFuture<'static, Result<(), Box<dyn Error>>>>;

/// An application: its jobs, its queues, and one connection to a broker.
///
/// It is made outside or inside a kernel, belongs to one when it is connected, and is a reference: clones are the
/// same application.
///
/// # Examples
///
/// ```
/// use pikake_jobs::{App, Call};
///
/// # pikake_sim::example(async {
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
    /// A broker that was brought along, instead of the URL's.
    pub(crate) given: RefCell<Option<Rc<dyn Broker>>>,
    pub(crate) jobs: RefCell<BTreeMap<&'static str, Rc<Registered>>>,
    /// Counts messages that are of no job known here.
    pub(crate) nameless: Counters,
    pub(crate) queues: RefCell<BTreeMap<String, QueueOptions>>,
    pub(crate) default_queue: RefCell<String>,
    pub(crate) concurrency: Cell<usize>,
    pub(crate) prefetch: Cell<Option<u16>>,
    pub(crate) max_deliveries: Cell<u32>,
    pub(crate) max_kills: Cell<u32>,
    pub(crate) buries_failed: Cell<bool>,
    pub(crate) processes: Cell<Option<usize>>,
    pub(crate) set_up: RefCell<Option<SetUp>>,
    pub(crate) schedules: RefCell<Vec<(Duration, Signature)>>,
    tasks: RefCell<Vec<CancelOnDrop<()>>>,
    connecting: Mutex<()>,
    broker: RefCell<Option<Rc<dyn Broker>>>,
    declared: RefCell<BTreeSet<String>>,
    pub(crate) revoked: RefCell<Revoked>,
    /// The jobs that its worker runs; `None` without a worker.
    pub(crate) running: RefCell<Option<Rc<RunningJobs>>>,
    origin: OnceCell<String>,
}

/// A job that this application runs.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) definition: Definition,
    pub(crate) counters: Counters,
}

impl App {
    /// An application on the broker that a URL means; see [`open`](crate::open()). Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// [`AppError::Url`], if it is not the URL of a broker.
    pub fn new(url: impl Into<String>) -> Result<Self, AppError> {
        Ok(Self::made(checked(url.into()).map_err(AppError::Url)?, None))
    }

    /// An application on a broker that is open already.
    pub fn on(broker: Rc<dyn Broker>) -> Self {
        Self::made("(a broker that was brought along)".to_owned(), Some(broker))
    }

    fn made(url: String, given: Option<Rc<dyn Broker>>) -> Self {
        Self(Rc::new(Inner {
            url: RefCell::new(url),
            opening: RefCell::default(),
            given: RefCell::new(given),
            jobs: RefCell::default(),
            nameless: Counters::default(),
            queues: RefCell::default(),
            default_queue: RefCell::new(DEFAULT_QUEUE.to_owned()),
            concurrency: Cell::new(DEFAULT_CONCURRENCY),
            prefetch: Cell::new(None),
            max_deliveries: Cell::new(DEFAULT_MAX_DELIVERIES),
            max_kills: Cell::new(DEFAULT_MAX_KILLS),
            buries_failed: Cell::new(false),
            processes: Cell::new(None),
            set_up: RefCell::default(),
            schedules: RefCell::default(),
            tasks: RefCell::default(),
            connecting: Mutex::new(()),
            broker: RefCell::default(),
            declared: RefCell::default(),
            revoked: RefCell::default(),
            running: RefCell::default(),
            origin: OnceCell::new(),
        }))
    }

    /// Connects, unless it is connected: declares its queues, then calls the hook of [`setup`](Self::setup). From here on
    /// the jobs of this kernel are sent through this application, for as long as it is kept.
    ///
    /// # Cancellation
    ///
    /// An interruption point. It is not connected then, and may be connected again.
    ///
    /// # Errors
    ///
    /// [`AppError`].
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub async fn connect(self) -> Result<Self, AppError> {
        let guard = self.0.connecting.lock().await?;
        if self.0.broker.borrow().is_none() {
            let (given, url) = (self.0.given.borrow().clone(), self.url());
            let opening = *self.0.opening.borrow();
            let broker = match given {
                Some(broker) => broker,
                None => open_as(&url, opening).await?,
            };
            *self.0.broker.borrow_mut() = Some(broker);
            let unprepared = Unprepared(&self);
            self.prepare().await?;
            // It may have been closed meanwhile.
            self.broker()?;
            std::mem::forget(unprepared);
        }
        self.enter();
        drop(guard);
        Ok(self)
    }

    async fn prepare(&self) -> Result<(), AppError> {
        for (name, options) in self.queues() {
            self.declare(&name, &options).await?;
        }
        self.enter();
        let hook = self.0.set_up.borrow().clone();
        match hook {
            Some(hook) => hook(self.clone()).await.map_err(AppError::Setup),
            None => Ok(()),
        }
    }

    fn disconnect(&self) {
        self.0.tasks.take();
        self.0.declared.take();
        self.0.broker.take();
    }

    /// Makes sure that a queue exists.
    ///
    /// # Errors
    ///
    /// The broker's: not connected, or there is such a queue with other options.
    pub async fn declare(&self, queue: &str, options: &QueueOptions) -> Result<(), BrokerError> {
        let broker = self.broker()?;
        broker.declare(queue, options).await?;
        // By now it may be connected to another one.
        if self.broker().is_ok_and(|now| Rc::ptr_eq(&now, &broker)) {
            self.0.declared.borrow_mut().insert(queue.to_owned());
        }
        Ok(())
    }

    /// Has the worker run the jobs of a queue that was declared, beside those it knows of. For
    /// [`setup`](Self::setup).
    pub fn consume(&self, queue: impl Into<String>) {
        self.0.queues.borrow_mut().entry(queue.into()).or_insert_with(QueueOptions::unsaid);
    }

    /// Starts a task that is asked to end when the application is closed.
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

    /// The broker.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Closed`], if it is not connected.
    pub fn broker(&self) -> Result<Rc<dyn Broker>, BrokerError> {
        self.0.broker.borrow().clone().ok_or(BrokerError::Closed)
    }

    /// The broker, if it is RabbitMQ: for exchanges, bindings and whatever else jobs have no word for.
    #[cfg(feature = "amqp")]
    pub fn amqp(&self) -> Option<crate::brokers::AmqpBroker> {
        self.broker().ok()?.as_any()?.downcast_ref::<crate::brokers::AmqpBroker>().cloned()
    }

    /// Closes the connection, when all that was sent and acknowledged has reached the broker. Tasks that were started by
    /// [`spawn`](Self::spawn) are asked to end.
    ///
    /// # Errors
    ///
    /// The broker's; the connection is gone all the same.
    pub async fn close(&self) -> Result<(), BrokerError> {
        let broker = self.broker();
        self.disconnect();
        match broker {
            Ok(broker) => broker.close().await,
            Err(_) => Ok(()),
        }
    }

    /// What became of the jobs that its worker received so far.
    pub fn stats(&self) -> Stats {
        let jobs = self.0.jobs.borrow();
        let by_job = jobs.iter().map(|(name, job)| (*name, job.counters.get()));
        Stats::collect(by_job, self.0.nameless.get())
    }

    /// The URL of its broker, password and all.
    pub fn url(&self) -> String {
        self.0.url.borrow().clone()
    }

    /// The URL of its broker as it may be shown: without user and password.
    pub fn place(&self) -> String {
        without_password(&self.0.url.borrow())
    }

    /// The queue of jobs that name none.
    pub fn default_queue_name(&self) -> String {
        self.0.default_queue.borrow().clone()
    }

    /// The queues that it knows of: its default, those that were added, and those that its jobs name.
    pub fn queues(&self) -> BTreeMap<String, QueueOptions> {
        let mut queues = self.0.queues.borrow().clone();
        queues.entry(self.default_queue_name()).or_insert_with(QueueOptions::unsaid);
        queues
    }

    /// The definition of the job of that name, if it is one of its own.
    pub fn definition(&self, name: &str) -> Option<Definition> {
        self.0.jobs.borrow().get(name).map(|job| job.definition)
    }

    /// The queues that the worker consumes.
    pub(crate) fn consumed(&self) -> BTreeSet<String> {
        self.queues().into_keys().collect()
    }

    /// Declares a queue that is about to be sent to, once.
    pub(crate) async fn ensure_queue(&self, queue: &str) -> Result<(), BrokerError> {
        if self.0.declared.borrow().contains(queue) {
            return Ok(());
        }
        self.declare(queue, &QueueOptions::unsaid()).await
    }

    pub(crate) async fn pause(&self) -> Result<(), Interrupted> {
        sleep(LOST_PAUSE).await
    }

    /// Makes it the one that jobs of this kernel are sent through.
    fn enter(&self) {
        let Some(task) = try_current() else { return };
        let app = Rc::downgrade(&self.0);
        APPS.with_borrow_mut(|apps| {
            apps.retain(|(_, known)| known.strong_count() > 0 && !known.ptr_eq(&app));
            apps.push((task.kernel(), app));
        });
    }

    /// The application of this kernel that was connected last, of those that are still there.
    pub(crate) fn current() -> Option<Self> {
        let kernel = try_current()?.kernel();
        APPS.with_borrow(|apps| {
            let mut of_kernel = apps.iter().rev().filter(|(of, _)| *of == kernel);
            of_kernel.find_map(|(_, app)| app.upgrade()).map(Self)
        })
    }

    /// Who sends, for people.
    pub(crate) fn origin(&self) -> &str {
        self.0.origin.get_or_init(|| format!("pikake{}", std::process::id()))
    }
}

/// An application whose connection is not ready for use. Dropped, also half-way, it is not connected.
struct Unprepared<'a>(&'a App);

impl Drop for Unprepared<'_> {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broker = self.0.broker.borrow();
        let state = broker.as_ref().map_or_else(|| "not connected".to_owned(), |b| b.state());
        f.debug_struct("App")
            .field("url", &self.place())
            .field("broker", &state)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// The URL as it may be shown.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        // What is behind another scheme is a path.
        (Some((scheme @ ("amqp" | "amqps"), _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
}

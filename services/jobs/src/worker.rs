//! The worker: takes messages from all queues, runs each in a task of its own, and shuts down in
//! phases.
//!
//! ```text
//!   Open ───1───▶ Warm ───2───▶ Cold ───3───▶ (over)
//!     └──────────────1───────────┘
//! ```
//!
//! (1) [`ShutdownHandle`], an interruption of the worker's task, or a broker that refuses: the
//! worker takes no more messages, and requeues those whose jobs have not begun. (2) The grace is
//! over, or `cold`: running jobs are interrupted and requeued. (3) All jobs have ended; or a
//! second, shorter grace is over, and the remaining tasks are aborted.

mod batches;
pub(crate) mod body;
mod builtin;
pub(crate) mod consumers;
mod ended;
mod figures;
pub(crate) mod follow;
mod limits;
mod log;
mod processes;
mod progress;
mod ready;
mod run;
pub(crate) mod settle;
mod shutdown;
pub(crate) mod state;
mod unfinished;

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use pikake_traps::figures::of_kernel;
use pikake_traps::{
    Builder, CancelOnDrop, Interrupted, TimedOut, ignore_after, shield, spawn, timeout_after,
    yield_now,
};

use crate::client::app::App;
use crate::control;
use crate::error::AppError;
use crate::report::Report;
use crate::schedule::leader;
use crate::worker::figures::WorkerFigures;
use crate::worker::processes::Processes;
use crate::worker::state::{Phase, WorkerState};

pub use shutdown::ShutdownHandle;

/// How long jobs may run on after a warm shutdown, by default.
const DEFAULT_GRACE: Duration = Duration::from_secs(20);
/// How long interrupted jobs may clean up, and how long outcomes of aborted ones are then retried.
const CLEANUP_GRACE: Duration = Duration::from_secs(5);

/// The worker of an application. Made by [`App::worker`].
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    app: App,
    grace: Duration,
    /// `None`: the queues that the application knows when it has connected.
    queues: Option<BTreeSet<String>>,
    starting: Box<dyn FnOnce(ShutdownHandle)>,
}

impl Worker {
    pub(crate) fn new(app: App) -> Self {
        Self { app, grace: DEFAULT_GRACE, queues: None, starting: Box::new(drop) }
    }

    /// Sets how long jobs may run on after a warm shutdown before they are interrupted. Without it,
    /// 20 s.
    pub fn grace(mut self, length: Duration) -> Self {
        self.grace = length;
        self
    }

    /// Runs the jobs of these queues and of no others. Missing queues are declared.
    pub fn queues(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.queues = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Calls the hook with a handle that ends the worker, after it has connected and before it
    /// takes the first job.
    pub fn on_start(mut self, hook: impl FnOnce(ShutdownHandle) + 'static) -> Self {
        self.starting = Box::new(hook);
        self
    }

    /// Connects, and runs jobs until a shutdown. Then the application is closed.
    ///
    /// In a process that a worker has started for jobs marked `process`, this runs those and never
    /// returns; see [`App::run_if_child`].
    ///
    /// # Cancellation
    ///
    /// An interruption of its task is a warm shutdown, and is in the report. Dropping the future
    /// cancels the running jobs and requeues their messages.
    ///
    /// # Errors
    ///
    /// [`AppError`] if it could not connect, or the broker refused to let it consume.
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub async fn run(self) -> Result<Report, AppError> {
        self.app.run_if_child();
        let app = self.app.connect().await?;
        let queues = match self.queues {
            Some(queues) => {
                for queue in &queues {
                    app.ensure_queue(queue).await?;
                }
                queues
            }
            None => app.consumed(),
        };
        // Checked last: another worker may have begun while this one connected.
        if app.0.running.borrow().is_some() {
            return Err(AppError::AlreadyRunning);
        }
        of_kernel::<WorkerFigures>().add(&app);
        let processes = Processes::new(&app);
        let worker = Rc::new(WorkerState::new(app.clone(), app.broker()?, processes));
        *app.0.running.borrow_mut() = Some(worker.running.clone());
        // An earlier worker's moments may be of another kernel's clock.
        worker.restart_limiters();
        worker.check_batches();
        let open = Open { worker: worker.clone() };
        (self.starting)(ShutdownHandle(worker.clone()));
        let interrupted = serve(&worker, queues, self.grace).await;
        drop(open);
        let report = Report { stats: app.stats(), left: worker.take_left(), interrupted };
        let closed = shield(app.close()).await;
        match (worker.take_failure(), closed) {
            (Some(error), _) => Err(error.into()),
            (None, Err(error)) if !error.is_lost() => Err(error.into()),
            _ => Ok(report),
        }
    }
}

impl App {
    /// A worker for this application, to be configured further.
    pub fn worker(&self) -> Worker {
        Worker::new(self.clone())
    }

    /// Connects and runs a worker until a shutdown. See [`Worker::run`].
    ///
    /// # Errors
    ///
    /// As [`Worker::run`].
    pub fn run_worker(&self) -> impl Future<Output = Result<Report, AppError>> + use<> {
        self.worker().run()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("app", &self.app)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// A running worker. Dropping it cancels its jobs.
struct Open {
    worker: Rc<WorkerState>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.worker.advance(Phase::Cold);
        self.worker.running.interrupt_all("the worker is gone");
        self.worker.consumers.clear();
        self.worker.app.0.running.take();
    }
}

/// Runs jobs until a shutdown, and shuts down.
async fn serve(
    worker: &Rc<WorkerState>,
    queues: BTreeSet<String>,
    grace: Duration,
) -> Option<Interrupted> {
    let app = &worker.app;
    let leader = app.0.has_schedules.get().then(|| {
        let leads = Builder::new().name("schedules").spawn(leader::lead(app.clone(), true));
        leads.cancel_on_drop()
    });
    for queue in queues {
        worker.consumers.add(&queue);
    }
    let control = spawn(control::serve::serve(worker.clone())).cancel_on_drop();

    let _progress = spawn(progress::publish(worker.clone())).cancel_on_drop();

    let mut settling = pin!(shield(worker.settle_unfinished()));
    let mut serving = pin!(until_the_end(worker, leader, control, grace));
    poll_fn(|cx| {
        let Poll::Pending = settling.as_mut().poll(cx);
        serving.as_mut().poll(cx)
    })
    .await
}

/// Waits for a shutdown, and then for the end of all jobs.
async fn until_the_end(
    worker: &Rc<WorkerState>,
    leader: Option<CancelOnDrop<()>>,
    control: CancelOnDrop<()>,
    grace: Duration,
) -> Option<Interrupted> {
    let mut interrupted = None;
    while worker.phase() == Phase::Open {
        if let Err(why) = wait_for_change(worker).await {
            worker.advance(Phase::Warm);
            interrupted = Some(why);
        }
    }
    if let Some(leader) = leader {
        // A job that is being sent is noted before the worker ends; else the next leader sends it
        // again.
        leader.request_cancel("the worker ends");
        let _ = shield(ignore_after(CLEANUP_GRACE, leader)).await;
    }
    // In a shield: a second interruption must not lose deliveries.
    let deliveries = shield(worker.consumers.stop()).await;

    let ending = async {
        until_empty(worker, Phase::Warm).await;
        if worker.phase() == Phase::Warm {
            let flushed = worker.broker.flush().await;
            drop(flushed.inspect_err(|error| tracing::debug!(%error, "outcomes may be lost")));
        }
    };
    let ending = timeout_after(grace, ending).await;
    if ending == Err(TimedOut) || worker.phase() == Phase::Cold || !worker.is_empty() {
        worker.advance(Phase::Cold);
        worker.running.interrupt_all("the worker is being shut down");
        if timeout_after(CLEANUP_GRACE, until_empty(worker, Phase::Cold)).await.is_err() {
            worker.running.abort_all();
            drop(shield(yield_now()).await);
            // Waiters of aborted jobs get an outcome, if the broker answers.
            let _ = timeout_after(CLEANUP_GRACE, until_empty(worker, Phase::Cold)).await;
        }
    }
    shield(async {
        control.request_cancel("the worker has ended");
        let _ = ignore_after(CLEANUP_GRACE, control).await;
        drop(deliveries);
        worker.processes.close().await;
    })
    .await;
    interrupted
}

async fn wait_for_change(worker: &WorkerState) -> Result<(), Interrupted> {
    worker.changed.wait().await?;
    worker.changed.clear();
    Ok(())
}

/// Waits until the worker is empty, the phase is later than `phase`, or the deadline around this
/// has passed.
async fn until_empty(worker: &WorkerState, phase: Phase) {
    while !worker.is_empty() && worker.phase() <= phase {
        match wait_for_change(worker).await {
            Ok(()) => {}
            // A second cancel.
            Err(why) if why.is_cancel() => worker.advance(Phase::Cold),
            Err(_) => return,
        }
    }
}

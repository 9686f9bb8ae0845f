//! Jobs from end to end in virtual time, on the broker in memory, and on RabbitMQ's with a server
//! for tests.

mod acks;
#[cfg(feature = "amqp")]
mod amqp;
mod batches;
mod book;
mod control;
mod extremes;
mod followed;
#[path = "../../src/broker/handed_on.rs"]
mod handed_on;
mod held_up;
mod interrupted;
mod limits;
#[path = "../support/lines.rs"]
mod lines;
mod log;
mod lossy;
#[path = "../support/meddled.rs"]
mod meddled;
mod messages;
mod mixed;
mod mutated;
mod names;
mod poison;
mod priorities;
mod progress;
mod rates;
#[cfg(feature = "redis")]
mod redis;
mod refused;
mod resends;
mod retries;
mod returned_workflows;
mod schedules;
mod sending;
mod sent_again;
mod shutdown;
mod unique;
mod values;
#[cfg(feature = "amqp")]
mod workflows;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, AppError, MemoryStore, Report, ShutdownHandle};
use pikake_macros::job;
use pikake_sim::Sim;
use pikake_sync::Promise;
use pikake_time::Ticks;
use pikake_traps::{Interrupted, Task, elapsed_since, now, sleep, spawn};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The events of a test, with the second at which each happened.
pub(crate) type Events = Rc<RefCell<Vec<String>>>;

#[job(crate = pikake_jobs, name = "tests.add")]
pub(crate) async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[job(crate = pikake_jobs, name = "tests.nap")]
pub(crate) async fn nap(seconds: u64) -> Result<String, Interrupted> {
    sleep(SECOND * seconds as u32).await?;
    Ok("slept".into())
}

/// Runs a program in a simulated world, once for each of some seeds; with `PIKAKE_SEED` set, once
/// with that seed.
#[track_caller]
pub(crate) fn in_worlds<F: Future>(program: impl Fn() -> F) {
    let only: Option<u64> = std::env::var("PIKAKE_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..20, |seed| seed..seed + 1) {
        let ran = Sim::new(seed).run_here("test", program());
        let ran = ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        if let Err(error) = ran.outcome {
            panic!("seed {seed}: {error}");
        }
    }
}

/// An application on a broker in memory of its own, with a second broker beside it.
pub(crate) fn app() -> (App, MemoryStore) {
    let store = MemoryStore::new();
    (App::on(Rc::new(store.open())), store)
}

/// A worker that runs, and what ends it.
pub(crate) struct Running {
    pub(crate) task: Task<Result<Report, AppError>>,
    pub(crate) shutdown: ShutdownHandle,
}

impl Running {
    pub(crate) async fn start(app: &App, grace: Duration) -> Self {
        let started = Rc::new(Promise::new());
        let told = started.clone();
        let worker = app.worker().grace(grace).on_start(move |handle| drop(told.set(handle)));
        let task = spawn(worker.run());
        let shutdown = started.wait().await.unwrap().clone();
        Self { task, shutdown }
    }

    pub(crate) async fn end(self) -> Report {
        self.shutdown.warm();
        self.task.await.unwrap().unwrap()
    }
}

thread_local!(static NOTED: RefCell<Option<(Events, Ticks)>> = const { RefCell::new(None) });

/// Begins to note events.
pub(crate) fn noted() -> Events {
    let events = Events::default();
    NOTED.set(Some((events.clone(), now())));
    events
}

/// Notes an event, with the second since [`noted`].
pub(crate) fn note(what: &str) {
    NOTED.with_borrow(|noted| {
        let (events, begin) = noted.as_ref().expect("`noted` was called in this world");
        events.borrow_mut().push(format!("{} {what}", elapsed_since(*begin).as_secs()));
    });
}

/// A worker that runs on a broker in memory, and what its jobs note.
pub(crate) struct Stage {
    pub(crate) app: App,
    pub(crate) store: MemoryStore,
    pub(crate) worker: Running,
    pub(crate) events: Events,
}

pub(crate) async fn stage(set_up: impl FnOnce(App) -> App) -> Stage {
    let (app, store) = app();
    let app = set_up(app);
    let events = noted();
    let worker = Running::start(&app, SECOND).await;
    Stage { app, store, worker, events }
}

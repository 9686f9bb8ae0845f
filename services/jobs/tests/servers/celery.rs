//! Real Celery and real RabbitMQ, both ways: what Celery sends runs here, what is sent from here
//! runs there, and the results come back. What would end a Celery worker is buried here, and
//! nothing ends.

mod canvas;
mod control;
mod delays;
mod from_celery;
mod hostile;
mod meeting;
mod python;
#[cfg(feature = "redis")]
mod redis;
mod to_celery;

use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, QueueOptions, Report, ShutdownHandle};
use pikake_kernel::Kernel;
use pikake_sync::Promise;
use pikake_traps::{Task, spawn, timeout_after};

/// Celery's own queue.
pub(crate) const QUEUE: &str = "celery";
/// What has not happened by then never will.
const HANG: Duration = Duration::from_secs(120);

/// Runs a case on a real kernel, with a broker in which there is nothing.
pub(crate) fn with_celery<F: Future>(case: impl FnOnce(Rc<Path>, String) -> F) {
    let Some(python) = xtask::needs::CELERY.find_or_skip() else { return };
    let Some(url) = xtask::fresh_url() else { return };
    let kernel = Kernel::new().unwrap();
    kernel.run(async { timeout_after(HANG, case(python.into(), url)).await }).expect("it hangs");
}

/// An application with Celery's queue.
pub(crate) fn app(url: &str) -> App {
    App::new(url).unwrap().default_queue(QUEUE).queue(QUEUE, QueueOptions::default())
}

/// A worker of an application that is running.
pub(crate) struct Running {
    task: Task<Result<Report, pikake_jobs::AppError>>,
    shutdown: ShutdownHandle,
}

impl Running {
    pub(crate) async fn start(app: &App) -> Self {
        let started = Rc::new(Promise::new());
        let told = started.clone();
        let task = spawn(app.worker().on_start(move |handle| drop(told.set(handle))).run());
        let shutdown = started.wait().await.unwrap().clone();
        Self { task, shutdown }
    }

    pub(crate) async fn end(self) -> Report {
        self.shutdown.warm();
        self.task.await.unwrap().unwrap()
    }
}

//! `worker`: runs an application's jobs until a signal ends it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pikake::console::Console;
use pikake::console::for_main::start;
use pikake::jobs::{App, AppError, BrokerError, JobStats, Report, ShutdownHandle};
use pikake::signal::{SIGHUP, SIGINT, SIGTERM, Signals, signal_name};
use pikake::task::CancelOnDrop;
use pikake::traps::TaskRef;
use pikake::{sleep, spawn};
use serde_json::{Value, json};

use crate::arguments::WorkerOptions;
use crate::dashboard::{self, Bound};
use crate::output::{Output, jobs_text, note, table};
use crate::stop::{SIGNAL_BASE, Stop};

const HEAD: [&str; 7] = ["job", "done", "failed", "retried", "revoked", "dead", "given back"];

/// The pause after the first attempt to connect to a broker that is not there yet.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The worker's shutdown handle, and the signals so far.
#[derive(Debug, Default)]
struct SignalState {
    /// `None` while the worker connects.
    shutdown: RefCell<Option<ShutdownHandle>>,
    /// The last signal.
    signal: Cell<Option<i32>>,
    /// How many signals there were.
    signals: Cell<u32>,
}

/// The console and the recording that the variables `PIKAKE_CONSOLE` and `PIKAKE_RECORD` ask for.
pub(crate) fn console() -> Option<Console> {
    let (console, warnings) = start(false);
    warnings.iter().for_each(|warning| note(warning));
    console
}

pub(crate) async fn run(mut app: App, options: WorkerOptions, output: Output) -> Result<(), Stop> {
    if let Some(limit) = options.concurrency {
        app = app.concurrency(limit);
    }
    if let Some(count) = options.connections {
        app = app.connections(count);
    }
    if let Some(count) = options.processes {
        app = app.processes(count);
    }
    if let Some(name) = &options.name {
        app = app.named(name);
    }
    if options.events {
        app = app.send_events(true);
    }
    if let Some(path) = options.statedb {
        app = app.state_file(path);
    }
    let state = Rc::new(SignalState::default());
    let hangup = Some(SIGHUP).filter(|signal| !is_ignored(*signal));
    let signals = [SIGINT, SIGTERM].into_iter().chain(hangup);
    let signals = Signals::new(signals).map_err(Stop::other)?;
    let mut worker = app.worker().on_start({
        let (state, url) = (state.clone(), app.redacted_url());
        move |handle| {
            note(&format!("the worker is ready at {url}"));
            // The setup hook may have ignored the interruption by an earlier signal.
            match state.signals.get() {
                0 => {}
                1 => handle.warm(),
                _ => handle.cold(),
            }
            state.shutdown.replace(Some(handle));
        }
    });
    let _serving = match options.http {
        Some(address) => {
            let bound = Bound::new(address, options.token.chosen()?).await?;
            let state = state.clone();
            let readiness = move || match (state.signals.get(), &*state.shutdown.borrow()) {
                (0, Some(handle)) if !handle.has_begun() => Ok(()),
                (0, None) => Err("the worker is connecting".to_owned()),
                _ => Err("the worker is shutting down".to_owned()),
            };
            Some(dashboard::beside_worker(bound, app.clone(), Rc::new(readiness)))
        }
        None => None,
    };
    if let Some(grace) = options.grace {
        worker = worker.grace(grace);
    }
    if !options.queues.is_empty() {
        worker = worker.queues(options.queues);
    }
    let task = spawn({
        let app = app.clone();
        async move {
            if options.wait_for_broker {
                until_connected(&app, async || app.clone().connect().await).await?;
            }
            worker.run().await
        }
    });
    let _listening = listen(signals, state.clone(), task.task_ref().clone());
    let ended = task.await.map_err(Stop::other)?;
    let was_ready = state.shutdown.take().is_some();
    let signal = state.signal.take();
    match (ended, signal) {
        (Ok(report), signal) => {
            let printed = output.answer(|| json_of(&report), || text_of(&report));
            match signal {
                Some(signal) if !report.left.is_empty() => Err(Stop::signal(
                    signal,
                    Some(format!(
                        "interrupted and requeued: {}",
                        jobs_text(report.left.len() as u64)
                    )),
                )),
                _ => printed,
            }
        }
        // Any error of an interrupted setup counts as the signal's.
        (Err(_), Some(signal)) if !was_ready => Err(Stop::signal(signal, None)),
        (Err(error), _) => Err(Stop::app_at(&app, error)),
    }
}

/// Connects, however often that takes.
pub(crate) async fn until_connected(
    app: &App,
    connect: impl AsyncFn() -> Result<App, AppError>,
) -> Result<App, AppError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match connect().await {
            Err(AppError::Broker(error)) if error.is_lost() => {
                let (broker, retry_in) = (app.redacted_url(), pause.as_secs_f64());
                match error {
                    BrokerError::ResultsLost(error) => {
                        tracing::warn!(error, retry_in, "waits for the Redis of the results");
                    }
                    error => tracing::warn!(broker, %error, retry_in, "waits for the broker"),
                }
                sleep(pause).await?;
                pause = LONGEST_PAUSE.min(pause * 2);
            }
            connected => return connected,
        }
    }
}

/// Whether the process was started with this signal ignored, as `nohup` does. `false` where the
/// system does not say.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// The first signal starts a warm shutdown, the second a cold one, the third ends the process.
fn listen(mut signals: Signals, state: Rc<SignalState>, worker: TaskRef) -> CancelOnDrop<()> {
    let listener = async move {
        while let Ok(signal) = signals.next().await {
            let name = signal_name(signal).unwrap_or("signal");
            let signal = if signal == SIGHUP { SIGTERM } else { signal };
            state.signal.set(Some(signal));
            state.signals.update(|signals| signals + 1);
            let shutdown = state.shutdown.borrow().clone();
            match (state.signals.get(), shutdown) {
                (3.., _) => std::process::exit(SIGNAL_BASE + signal),
                // The worker is still connecting.
                (_, None) => worker.request_cancel(pikake::Interrupted::cancelled(name)),
                (1, Some(shutdown)) => {
                    note(&format!(
                        "{name}: waiting for running jobs; a second signal interrupts them"
                    ));
                    shutdown.warm();
                }
                (_, Some(shutdown)) => {
                    note(&format!(
                        "{name}: interrupting running jobs; a third signal does not wait"
                    ));
                    shutdown.cold();
                }
            }
        }
    };
    spawn(listener).cancel_on_drop()
}

fn json_of(report: &Report) -> Value {
    let jobs: serde_json::Map<String, Value> = report
        .stats
        .by_job
        .iter()
        .map(|(name, stats)| ((*name).to_owned(), json_of_stats(stats)))
        .collect();
    let left: Vec<Value> =
        report.left.iter().map(|left| json!({ "id": left.id, "job": left.name })).collect();
    json!({ "all": json_of_stats(&report.stats.all), "jobs": jobs, "left": left })
}

fn json_of_stats(stats: &JobStats) -> Value {
    let JobStats { done, failed, retried, revoked, dead, given_back, .. } = *stats;
    json!({
        "done": done, "failed": failed, "retried": retried, "revoked": revoked, "dead": dead,
        "given_back": given_back,
    })
}

fn text_of(report: &Report) -> String {
    let row = |name: &str, stats: &JobStats| {
        let JobStats { done, failed, retried, revoked, dead, given_back, .. } = *stats;
        let numbers = [done, failed, retried, revoked, dead, given_back];
        [name.to_owned()].into_iter().chain(numbers.map(|n| n.to_string())).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> =
        report.stats.by_job.iter().map(|(name, stats)| row(name, stats)).collect();
    rows.push(row("all", &report.stats.all));
    let mut is_number = [true; HEAD.len()];
    is_number[0] = false;
    table(&HEAD, &is_number, &rows)
}

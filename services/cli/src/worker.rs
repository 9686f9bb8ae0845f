//! `worker`: runs an application's jobs until a signal ends it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use pikake::console::Console;
use pikake::console::place::{Setting, VARIABLE};
use pikake::jobs::{App, JobStats, Report, ShutdownHandle};
use pikake::signal::{SIGINT, SIGTERM, Signals, signal_name};
use pikake::spawn;
use pikake::task::CancelOnDrop;
use pikake::traps::TaskRef;
use serde_json::{Value, json};

use crate::arguments::WorkerOptions;
use crate::output::{Output, jobs_text, note, table};
use crate::stop::{SIGNAL_BASE, Stop};

const HEAD: [&str; 7] = ["job", "done", "failed", "retried", "revoked", "dead", "given back"];

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

/// The console that the variable `PIKAKE_CONSOLE` asks for.
pub(crate) fn console() -> Option<Console> {
    let builder = match Setting::from_environment() {
        Setting::Unset | Setting::Off => return None,
        Setting::Folder => Console::builder(),
        Setting::Path(path) => Console::builder().path(path),
    };
    let warn = |error: &io::Error| {
        note(&format!(
            "the console has no socket, so nobody can look into this worker ({VARIABLE}=0 turns it off): {error}"
        ));
    };
    builder.start().inspect_err(warn).ok()
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
    let state = Rc::new(SignalState::default());
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(Stop::other)?;
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
    if let Some(grace) = options.grace {
        worker = worker.grace(grace);
    }
    if !options.queues.is_empty() {
        worker = worker.queues(options.queues);
    }
    let task = spawn(worker.run());
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

/// The first signal starts a warm shutdown, the second a cold one, the third ends the process.
fn listen(mut signals: Signals, state: Rc<SignalState>, worker: TaskRef) -> CancelOnDrop<()> {
    let listener = async move {
        while let Ok(signal) = signals.next().await {
            let name = signal_name(signal).unwrap_or("signal");
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

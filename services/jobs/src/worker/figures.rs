//! The figures of a kernel's workers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use pikake_traps::figures::{Figure, Figures, Times};

use crate::client::app::{App, Inner};
use crate::report::JobStats;

/// The label for messages without a known job.
const UNKNOWN: &str = "(no job)";

/// The applications of a kernel that have, or had, a worker.
#[derive(Default)]
pub(crate) struct WorkerFigures(RefCell<Vec<Weak<Inner>>>);

impl WorkerFigures {
    /// Shows the counts of an application until it is dropped.
    pub(crate) fn add(&self, app: &App) {
        let app = Rc::downgrade(&app.0);
        let mut apps = self.0.borrow_mut();
        apps.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&app));
        apps.push(app);
    }
}

impl Figures for WorkerFigures {
    fn show(&self, shown: &mut Vec<Figure>) {
        let mut waiting = 0_u64;
        let mut connected = 0;
        let mut jobs = BTreeMap::<_, (JobStats, Times)>::new();
        let apps: Vec<_> = self.0.borrow().iter().filter_map(Weak::upgrade).map(App).collect();
        for App(app) in &apps {
            let running = app.running.borrow();
            waiting += running.as_ref().map_or(0, |running| running.waiting.get() as u64);
            for (name, job) in &*app.jobs.borrow() {
                let (stats, run_times) = jobs.entry(*name).or_default();
                stats.add(&job.counters.get());
                run_times.add(&job.run_times);
            }
            if app.unknown.get() != JobStats::default() {
                jobs.entry(UNKNOWN).or_default().0.add(&app.unknown.get());
            }
        }
        for app in &apps {
            connected += u64::from(app.broker().is_ok_and(|broker| broker.state() == "open"));
        }
        let help = "Applications with a worker whose connection to the broker is open, and accepts messages.";
        shown.push(Figure::gauge("pikake_jobs_connected", help, connected));
        let help = "Jobs that a worker holds until another one ends.";
        shown.push(Figure::gauge("pikake_jobs_waiting", help, waiting));
        for (name, (stats, run_times)) in &jobs {
            show_job(name, *stats, shown);
            let help = "The time from the start of a job's function to its end.";
            shown.push(Figure::times("pikake_jobs_run_time", help, run_times).label("job", *name));
        }
    }
}

fn show_job(name: &str, stats: JobStats, shown: &mut Vec<Figure>) {
    let JobStats { running, done, failed, retried, revoked, dead, given_back } = stats;
    let running = Figure::gauge("pikake_jobs_running", "Jobs that run.", running);
    shown.push(running.label("job", name));
    let outcomes = [
        ("done", done),
        ("failed", failed),
        ("retried", retried),
        ("revoked", revoked),
        ("dead", dead),
        ("given_back", given_back),
    ];
    for (outcome, count) in outcomes {
        let ended = Figure::counter("pikake_jobs_ended", "Runs of jobs that have ended.", count);
        shown.push(ended.label("job", name).label("outcome", outcome));
    }
}

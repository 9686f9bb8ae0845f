//! The figures of a kernel's workers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use pikake_traps::figures::{Figure, Figures};

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
        let mut waiting = 0;
        let mut jobs = BTreeMap::<_, JobStats>::new();
        for app in self.0.borrow().iter().filter_map(Weak::upgrade) {
            waiting += app.waiting.get();
            for (name, job) in &*app.jobs.borrow() {
                jobs.entry(*name).or_default().add(&job.counters.get());
            }
            if app.unknown.get() != JobStats::default() {
                jobs.entry(UNKNOWN).or_default().add(&app.unknown.get());
            }
        }
        let help = "Jobs that wait for the end of another one.";
        shown.push(Figure::gauge("pikake_jobs_waiting", help, waiting));
        for (name, stats) in jobs {
            show_job(name, stats, shown);
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

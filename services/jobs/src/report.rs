//! A worker's counts while it runs, and its report at the end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use pikake_traps::Interrupted;

/// How many runs of one job ended in which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JobStats {
    /// Runs that have not ended.
    pub running: u64,
    /// Runs that returned a value.
    pub done: u64,
    /// Runs that failed for good.
    pub failed: u64,
    /// Runs that failed and are retried.
    pub retried: u64,
    /// Jobs that were cancelled or had expired.
    pub revoked: u64,
    /// Messages that were moved to the dead.
    pub dead: u64,
    /// Messages that were requeued, by a shutdown or because the broker was lost.
    pub given_back: u64,
}

impl JobStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.running += other.running;
        self.done += other.done;
        self.failed += other.failed;
        self.retried += other.retried;
        self.revoked += other.revoked;
        self.dead += other.dead;
        self.given_back += other.given_back;
    }
}

impl fmt::Display for JobStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { running, done, failed, retried, revoked, dead, given_back } = self;
        write!(
            f,
            "{done} done, {failed} failed, {retried} retried, {revoked} revoked, {dead} dead, \
             {given_back} given back, {running} running"
        )
    }
}

/// The counts of all messages that a worker has received.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// All messages, including those without a known job.
    pub all: JobStats,
    /// The counts of each job, by its name.
    pub by_job: BTreeMap<&'static str, JobStats>,
}

impl Stats {
    pub(crate) fn collect(
        jobs: impl Iterator<Item = (&'static str, JobStats)>,
        unknown: JobStats,
    ) -> Self {
        let mut all = unknown;
        let by_job: BTreeMap<_, _> = jobs.inspect(|(_, stats)| all.add(stats)).collect();
        Self { all, by_job }
    }
}

/// A worker's report at its end.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The counts.
    pub stats: Stats,
    /// The jobs that the shutdown did not wait for. Their messages were requeued, so the jobs run
    /// again.
    pub left: Vec<Left>,
    /// The interruption of the worker's task that ended it, for example by a signal.
    pub interrupted: Option<Interrupted>,
}

impl Report {
    /// The report of a worker with these counts, which has left no job and was not interrupted. For
    /// tests of programs.
    pub fn new(stats: Stats) -> Self {
        Self { stats, left: Vec::new(), interrupted: None }
    }
}

/// A job that a shutdown did not wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// The job's id.
    pub id: String,
    /// The job's name.
    pub name: String,
}

impl Left {
    /// A job with this id and name.
    pub fn new(id: impl Into<String>, name: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into() }
    }
}

/// The counts of one job.
#[derive(Debug, Default)]
pub(crate) struct Counters(Cell<JobStats>);

impl Counters {
    pub(crate) fn get(&self) -> JobStats {
        self.0.get()
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut JobStats)) {
        let mut stats = self.0.get();
        change(&mut stats);
        self.0.set(stats);
    }
}

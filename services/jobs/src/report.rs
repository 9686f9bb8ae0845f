//! What a worker has done: counts while it runs, and the report at its end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use pikake_traps::Interrupted;

/// What became of the runs of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JobStats {
    /// Running now.
    pub running: u64,
    /// Returned a value.
    pub done: u64,
    /// Failed for good.
    pub failed: u64,
    /// Failed, and were sent again.
    pub retried: u64,
    /// Were cancelled, or had expired.
    pub revoked: u64,
    /// Went to the dead.
    pub dead: u64,
    /// Were given back: by a shutdown, or because the broker was lost.
    pub given_back: u64,
}

impl JobStats {
    fn add(&mut self, other: &Self) {
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

/// What became of all jobs that a worker has received.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// All of them, with those that have no name or an unknown one.
    pub all: JobStats,
    /// By the name of their job.
    pub by_job: BTreeMap<&'static str, JobStats>,
}

impl Stats {
    pub(crate) fn collect(
        jobs: impl Iterator<Item = (&'static str, JobStats)>,
        nameless: JobStats,
    ) -> Self {
        let mut all = nameless;
        let by_job: BTreeMap<_, _> = jobs.inspect(|(_, stats)| all.add(stats)).collect();
        Self { all, by_job }
    }
}

/// What a worker did, told at its end.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The counts.
    pub stats: Stats,
    /// The jobs that the shutdown did not wait for. They were given back, and are run again.
    pub left: Vec<Left>,
    /// Set if the worker was ended by an interruption of its task, as by a signal.
    pub interrupted: Option<Interrupted>,
}

/// A job that a shutdown did not wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// Counts of a job that is known here.
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

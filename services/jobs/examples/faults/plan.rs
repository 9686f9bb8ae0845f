//! What a run does, and what it came to.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Rabbit,
}

/// What a run does. Lengths of ranges are drawn.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) jobs: usize,
    /// Jobs are acknowledged before they run, so that some have to be lost.
    pub(crate) is_early: bool,
    /// Without any progress for so long, there will be none.
    pub(crate) patience: Duration,
    /// Worker processes.
    pub(crate) workers: usize,
    /// How long each of the tasks that send waits after a job.
    pub(crate) pause: Duration,
    /// One worker is killed after so many milliseconds, and then again.
    pub(crate) kills: Range<u64>,
    /// A connection made in bad weather lives for so many milliseconds.
    pub(crate) lives: Range<u64>,
    /// The broker is killed after so long, and then again.
    pub(crate) restarts: Duration,
}

impl Plan {
    #[allow(dead_code, reason = "the test has another")]
    pub(crate) fn long(jobs: usize, workers: usize) -> Self {
        Self {
            jobs,
            is_early: false,
            patience: Duration::from_secs(60),
            workers,
            pause: Duration::from_millis(50),
            kills: 200..1_500,
            lives: 300..6_000,
            restarts: Duration::from_secs(12),
        }
    }

    #[allow(dead_code, reason = "the example has another")]
    pub(crate) fn short(kind: Kind) -> Self {
        Self {
            jobs: 2_000,
            is_early: false,
            patience: Duration::from_secs(60),
            workers: 2,
            // Long enough for a restart of the broker.
            pause: Duration::from_millis(if kind == Kind::Rabbit { 2_000 } else { 1_000 }),
            kills: 400..1_200,
            lives: 300..2_000,
            restarts: Duration::from_secs(7),
        }
    }
}

/// What it came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) jobs: usize,
    /// Sent, and sent again.
    pub(crate) sent: usize,
    pub(crate) confirmed: usize,
    /// Different jobs that were done.
    pub(crate) done: usize,
    /// Done once more.
    pub(crate) duplicates: usize,
    pub(crate) kills: usize,
    pub(crate) restarts: usize,
    /// Connections that the proxy has ended.
    pub(crate) cuts: usize,
    /// What was left at the broker: ready, taken and delayed, and the dead.
    pub(crate) left: u64,
    pub(crate) dead: u64,
    pub(crate) time: Duration,
}

impl Counts {
    pub(crate) fn lost(&self) -> usize {
        self.jobs - self.done
    }

    pub(crate) fn is_good(&self) -> bool {
        (self.lost(), self.left, self.dead) == (0, 0, 0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lost, seconds) = (self.lost(), self.time.as_secs_f64());
        let Self { jobs, sent, confirmed, done, duplicates, kills, restarts, cuts, .. } = self;
        let (left, dead) = (self.left, self.dead);
        writeln!(
            f,
            "jobs {jobs}, sent {sent}, confirmed {confirmed}, done {done}, lost {lost}, duplicates {duplicates}"
        )?;
        writeln!(f, "left in the queues {left}, dead {dead}")?;
        write!(f, "kills {kills}, restarts {restarts}, cuts {cuts}, seconds {seconds:.1}")
    }
}

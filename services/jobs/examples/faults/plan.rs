//! What a run does, and what it came to.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;

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
    /// The queue is paused after so long, and then again.
    pub(crate) pauses: Duration,
}

impl Plan {
    #[allow(dead_code, reason = "the test has another")]
    pub(crate) fn long(jobs: usize, workers: usize) -> Self {
        Self {
            jobs,
            is_early: false,
            patience: Duration::from_secs(60),
            workers,
            pause: Duration::from_millis(5),
            kills: 200..1_500,
            lives: 300..6_000,
            restarts: Duration::from_secs(12),
            pauses: Duration::from_secs(10),
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
            pauses: Duration::from_secs(4),
        }
    }
}

/// What a number of a run stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Plain,
    /// Revoked before it begins.
    Later,
    /// Revoked while it runs.
    Endless,
    Fails,
    Chain,
    /// With so many members.
    Chord(u64),
    /// A job that returns a chord. The chord has this number of members, and each adds another one.
    Returned(u64),
}

impl Work {
    pub(crate) fn of(number: u64) -> Self {
        match (number % 100, number % 500) {
            (13, _) => Self::Later,
            (26, _) => Self::Endless,
            (39, _) => Self::Chain,
            (_, 52) => Self::Chord(if number % 1_000 == 52 { 200 } else { 20 }),
            (_, 65) => Self::Fails,
            (_, 78) => Self::Returned(10),
            _ => Self::Plain,
        }
    }
}

/// What it came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Calls that were made and made again.
    pub(crate) calls: usize,
    pub(crate) kills: usize,
    pub(crate) restarts: usize,
    /// Connections that the proxy has ended.
    pub(crate) cuts: usize,
    /// How often the queue was paused.
    pub(crate) pauses: usize,
    pub(crate) time: Duration,
    /// What the files and the broker say.
    pub(crate) audit: Audit,
}

/// What `audit.py` prints.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Audit {
    pub(crate) sent: usize,
    /// Of which nothing came.
    pub(crate) open: usize,
    pub(crate) examples: Vec<String>,
    pub(crate) revoked: usize,
    /// Done once more.
    pub(crate) repeated: usize,
    pub(crate) kinds: BTreeMap<String, usize>,
    pub(crate) dead: usize,
    /// Messages that were left at the broker: ready, taken and delayed.
    pub(crate) left: u64,
    /// Members of chords that were left: those that ran again after their chord had ended, and
    /// those of chords that were not sent whole.
    pub(crate) members: u64,
    pub(crate) wrong: Vec<String>,
}

impl Counts {
    pub(crate) fn is_good(&self) -> bool {
        let Audit { open, left, wrong, .. } = &self.audit;
        (*open, *left) == (0, 0) && wrong.is_empty()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, kills, restarts, cuts, pauses, time, audit } = self;
        let Audit { sent, open, examples, revoked, repeated, kinds, dead, left, members, wrong } =
            audit;
        writeln!(f, "sent {sent} in {calls} calls: {kinds:?}")?;
        writeln!(f, "lost {open} {examples:?}, revoked {revoked}, repeated {repeated}")?;
        writeln!(
            f,
            "left in the queues {left}, of chords {members}, dead {dead}, wrong {wrong:?}"
        )?;
        let seconds = time.as_secs_f64();
        write!(
            f,
            "kills {kills}, restarts {restarts}, cuts {cuts}, pauses {pauses}, seconds {seconds:.1}"
        )
    }
}

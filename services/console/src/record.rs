//! A recording: what a program did, in files of bounded size, to be read after its end.
//!
//! The variable [`PIKAKE_RECORD`](VARIABLE) makes a program that is built with the feature
//! `console` record itself, if it has `#[pikake::main]` or is a worker of jobs:
//!
//! | variable | is | by default |
//! | --- | --- | --- |
//! | `PIKAKE_RECORD` | the folder of the files, which is made if there is none; empty or `0` for no recording | no recording |
//! | `PIKAKE_RECORD_MIB` | the most that the files of the program in that folder take, in MiB, from 1 to 1,048,576 | 64 |
//! | `PIKAKE_RECORD_HOURS` | the age in hours after which a file is removed, from 1 to 87,600 | 24 |
//! | `PIKAKE_RECORD_SLOW` | the seconds from which on a request or a job is slow, as `0.25` | 1 |
//!
//! A program without the attribute calls
//! [`Console::builder().record`](crate::Builder::record). If the folder cannot be made, or a value
//! is wrong, the program logs a warning, and runs.
//!
//! The command `pikake replay` reads the files, and [`Recording`] does so for programs.
//!
//! # Files
//!
//! A file has the name `PROGRAM-PID-NUMBER.pikake`, and only its user may read it. It takes up to
//! an eighth of the bound, and an eighth of the greatest age, until the next one begins. Before
//! that, the oldest files of the program in the folder are removed, also those of earlier
//! processes, so that all together stay within the bound. A file that a process is writing is never
//! removed by another one: if several processes of a program share a folder, each has one file at
//! the least.
//!
//! Each record is written to the system at once. After `kill -9` a file has all but the last
//! moment, and the reader leaves out a record that is not whole. After a crash of the machine, the
//! file may lack what the system had not yet written to the disk.
//!
//! If a record cannot be written, as on a full disk, the program logs one warning. The recording
//! then pauses, and tries again every five seconds. The events of that time are counted as lost.
//!
//! # Contents
//!
//! * **Snapshots** of all tasks with their waits, the graph of waits, and the figures of the
//!   kernels and of the process: one each second, or rarer. The pause after a snapshot is a
//!   hundred times as long as the snapshot took, so looks take about 1 % of a processor at most.
//!   Snapshots fill at most 1 % of the bound in 30 seconds. While no kernel does anything, there
//!   is a snapshot each minute, and a mark each second that the process lives.
//! * **Events** between the snapshots: spawns, ends, and steps that end in a wait. Every 250 ms
//!   the console reads the last 4,095 events of each kernel, and writes as many as fill 1 % of
//!   the bound in 30 seconds. Other events are counted as lost. While nothing happens, the
//!   console looks once a second.
//! * **Triggers**: moments at which something unusual happened. At a trigger, the console writes
//!   all events that the kernels have, and a snapshot. Further triggers within the next five
//!   seconds, or a quarter of the pause between snapshots, are only counted. These are triggers: a
//!   step that the watchdog of its kernel finds long, with the functions of its stack; a timer that
//!   was 131 ms late or more; a request of HTTP or a job that was slow; a failed check of a
//!   worker's `/readyz`; tasks that had not ended within the grace of a shutdown. A program fires
//!   its own by [`fire`](pikake_traps::trigger::fire).
//!
//! A program that is recorded and has no console does not note steps after which the task is ready
//! again, as after `yield_now`. So these steps are not among the events, and the numbers of steps
//! of the tasks do not count them. Until such a task waits again, a replay shows its state by the
//! last snapshot and the last wait. A program with a console notes all steps. A program that ends
//! within 10 ms may leave a file without a snapshot or events.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

mod build_id;
mod files;
mod format;
mod reader;
mod writer;

pub(crate) use format::{Body, EventRow, EventsRow, SnapshotRow, Texts, TriggerRow, WhatRow};
pub use reader::{Moment, ReadError, Recording, Summary, Trigger};
pub(crate) use writer::{Writer, Written, program};

/// The variable of the environment that has the folder of recordings.
pub const VARIABLE: &str = "PIKAKE_RECORD";

/// The variable with the bound of the size.
const MIB_VARIABLE: &str = "PIKAKE_RECORD_MIB";

/// The variable with the greatest age of a file.
const HOURS_VARIABLE: &str = "PIKAKE_RECORD_HOURS";

const MIB: u64 = 1 << 20;
const DEFAULT_MIB: u64 = 64;
const MOST_MIB: u64 = 1 << 20;

/// The variable with the time from which on requests and jobs are slow.
const SLOW_VARIABLE: &str = "PIKAKE_RECORD_SLOW";

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DEFAULT_HOURS: u32 = 24;
/// Ten years.
const MOST_HOURS: u32 = 87_600;

/// Where and how much a program records.
///
/// # Examples
///
/// ```
/// use pikake::console::Console;
/// use pikake::console::record::{Recording, Settings};
///
/// # let temporary = tempfile::tempdir()?;
/// # let folder = temporary.path();
/// # let path = folder.join("app.sock");
/// let console = Console::builder().path(path).record(Settings::new(folder).mib(8)).start()?;
/// pikake::run(async { /* the program */ });
/// drop(console);
/// let recording = Recording::open(folder)?;
/// assert_eq!(recording.summary().pid, std::process::id());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "settings do nothing until a builder has them"]
pub struct Settings {
    folder: PathBuf,
    bytes: u64,
    age: Duration,
    slow: Duration,
}

impl Settings {
    /// A recording in a folder, with up to 64 MiB, of up to a day.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let (bytes, age) = (DEFAULT_MIB * MIB, DEFAULT_HOURS * HOUR);
        Self { folder: folder.into(), bytes, age, slow: SECOND }
    }

    /// The most that the files of the program in the folder take, in MiB: 1 at least.
    pub fn mib(mut self, mib: u64) -> Self {
        self.bytes = mib.clamp(1, MOST_MIB) * MIB;
        self
    }

    /// The age after which a file is removed, in hours: 1 at least.
    pub fn hours(mut self, hours: u32) -> Self {
        self.age = hours.clamp(1, MOST_HOURS) * HOUR;
        self
    }

    /// The time from which on a request or a job is slow, and so a trigger: one second by default.
    pub fn slow(mut self, slow: Duration) -> Self {
        self.slow = slow;
        self
    }

    /// The settings by the variables, and the faults of these. A value that is wrong counts as not
    /// set.
    pub(crate) fn from_environment() -> (Option<Self>, Vec<String>) {
        Self::of_variables(|name| env::var_os(name))
    }

    fn of_variables(variable: impl Fn(&str) -> Option<OsString>) -> (Option<Self>, Vec<String>) {
        let Some(folder) = variable(VARIABLE).filter(|it| !it.is_empty() && it != "0") else {
            return (None, Vec::new());
        };
        let mut wrong = Vec::new();
        let mut number = |name: &str, default: u64, most: u64| {
            let Some(value) = variable(name).filter(|value| !value.is_empty()) else {
                return default;
            };
            let number = value.to_str().and_then(|text| text.parse().ok());
            number.filter(|number| (1..=most).contains(number)).unwrap_or_else(|| {
                let value = value.to_string_lossy();
                wrong.push(format!(
                    "{name}={value} is no whole number from 1 to {most}: {default} is used"
                ));
                default
            })
        };
        let mib = number(MIB_VARIABLE, DEFAULT_MIB, MOST_MIB);
        let hours = number(HOURS_VARIABLE, DEFAULT_HOURS.into(), MOST_HOURS.into());
        let mut settings = Self::new(folder).mib(mib).hours(hours as u32);
        if let Some(value) = variable(SLOW_VARIABLE).filter(|value| !value.is_empty()) {
            let seconds = value.to_str().and_then(|text| text.parse().ok());
            match seconds.map(Duration::try_from_secs_f64) {
                Some(Ok(slow)) => settings = settings.slow(slow),
                _ => wrong.push(format!(
                    "{SLOW_VARIABLE}={} is no number of seconds: 1 is used",
                    value.to_string_lossy()
                )),
            }
        }
        (Some(settings), wrong)
    }
}

#[cfg(test)]
mod tests;

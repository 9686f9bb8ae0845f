//! Schedules: jobs that are sent at intervals, or at times of a calendar, once among all workers.
//!
//! One worker leads (`leader.rs`): the one that holds the message with the state (`state.rs`), in a
//! queue that has one consumer at a time. Everything else asks the leader, by messages to that
//! queue (`control.rs`).

mod control;
pub(crate) mod cron;
pub(crate) mod leader;
mod state;

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::app::App;
use crate::client::call::Call;
use crate::schedule::cron::{Cron, zone};
use crate::schedule::state::{Task, When};

pub use control::{ScheduleError, Schedules};
pub use state::ScheduleInfo;

/// The longest name of a schedule, in bytes: ids of its jobs begin with the name, and have 255 at
/// most.
const LONGEST_NAME: usize = 200;

/// What becomes of moments that passed while no worker could send: all workers were down, or the
/// broker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missed {
    /// They are skipped. The last one is sent if it is a minute old at most, and no other has come
    /// since.
    Skip,
    /// One job is sent for all of them.
    #[default]
    RunOnce,
    /// A job is sent for each of them, for the last thousand at most.
    RunAll,
}

/// A job that is sent again and again, by one worker among all. See [`App::schedule`].
///
/// A job that is [unique](crate::Unique) is not sent while an earlier one has the lock: so a slow
/// job is not piled up. The moment passes, and the next one sends the job again. If a leader is
/// lost while it takes the lock at RabbitMQ, its job may not be sent, and none is until the lock's
/// length is over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Schedule {
    pub(crate) name: String,
    pub(crate) when: When,
    pub(crate) missed: Missed,
    pub(crate) task: Task,
}

impl Schedule {
    /// Sends a job at intervals, for the first time one interval after a worker has first seen the
    /// schedule.
    ///
    /// # Panics
    ///
    /// If the interval is zero.
    #[track_caller]
    pub fn every<T>(interval: Duration, call: Call<T>) -> Self {
        assert!(!interval.is_zero(), "the interval of a periodic job is longer than zero");
        Self::new(When::Every { interval }, call)
    }

    /// Sends a job at the times of a calendar: cron's minute, hour, day, month and day of the week,
    /// in a time zone such as `Europe/Berlin` or `UTC`.
    ///
    /// A field is `*`, or a list of numbers, names and ranges, each with a step: `*/15`, `MON-FRI`,
    /// `1-5,10-20/2`. If the day and the day of the week are both limited, either is enough. A time
    /// that the zone's clock skips is as much later. A time that it shows twice is the first of
    /// both, and each of them if the hour is `*`.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{App, Missed, Schedule};
    ///
    /// #[pikake::job]
    /// async fn digest(list: String) {}
    ///
    /// let call = digest::with("news".into());
    /// let morning = Schedule::cron("0 7 * * MON-FRI", "Europe/Berlin", call)?;
    /// let app = App::new("memory://")?.jobs([digest::JOB]).schedule(morning.missed(Missed::Skip));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WrongSchedule`] if a field is wrong, no such time comes, or the system knows no such zone.
    pub fn cron<T>(fields: &str, zone_name: &str, call: Call<T>) -> Result<Self, WrongSchedule> {
        Cron::check(fields).map_err(WrongSchedule)?;
        zone(zone_name).map_err(WrongSchedule)?;
        let when = When::Cron { cron: fields.to_owned(), zone: zone_name.to_owned() };
        Ok(Self::new(when, call))
    }

    fn new<T>(when: When, call: Call<T>) -> Self {
        let task = Task::of(call.into_signature());
        Self { name: task.job.clone(), when, missed: Missed::default(), task }
    }

    /// Sets the name, by default the job's. Names tell the schedules of an application apart.
    ///
    /// # Panics
    ///
    /// If the name has more than 200 bytes.
    #[track_caller]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        assert!(
            self.name.len() <= LONGEST_NAME,
            "a schedule's name has {LONGEST_NAME} bytes at most"
        );
        self
    }

    /// Sets what becomes of moments that passed while no worker could send, by default
    /// [`Missed::RunOnce`].
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Checks a schedule that another process has made.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.name.len() > LONGEST_NAME {
            return Err(format!("a schedule's name has {LONGEST_NAME} bytes at most"));
        }
        match &self.when {
            When::Every { interval } if interval.is_zero() => {
                Err(format!("the interval of schedule `{}` is zero", self.name))
            }
            When::Every { .. } => Ok(()),
            When::Cron { cron, zone: name } => {
                Cron::check(cron).and_then(|()| zone(name).map(drop))
            }
        }
    }
}

/// A text is not a schedule: a field of cron, or the name of a time zone, is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongSchedule(String);

impl fmt::Display for WrongSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for WrongSchedule {}

impl App {
    /// Adds a schedule, whose job one of all workers sends.
    ///
    /// # Panics
    ///
    /// If another schedule has its name.
    #[track_caller]
    pub fn schedule(self, schedule: Schedule) -> Self {
        {
            let mut schedules = self.0.schedules.borrow_mut();
            let name = &schedule.name;
            let is_new = schedules.iter().all(|other| other.name != *name);
            assert!(is_new, "two schedules have the name `{name}`: give one of them another");
            schedules.push(schedule);
        }
        self.with_schedules()
    }

    /// Sends a job periodically, by one of all workers: [`Schedule::every`] under the job's name.
    ///
    /// # Panics
    ///
    /// If the interval is zero, or another schedule has the job's name.
    #[track_caller]
    pub fn every<T>(self, interval: Duration, call: Call<T>) -> Self {
        self.schedule(Schedule::every(interval, call))
    }

    /// Has workers send the jobs of schedules that are [added at run time](Self::schedules),
    /// although the application has none of its own.
    pub fn with_schedules(self) -> Self {
        self.0.has_schedules.set(true);
        self
    }
}

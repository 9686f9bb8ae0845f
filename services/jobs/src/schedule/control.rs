//! The schedules of all workers, listed and changed at run time: questions to their leader.
//!
//! Questions and answers go over the broker, also if the outcomes of jobs are in Redis: not all
//! processes need to know it. If no worker leads, the process that asks leads for a moment, so that
//! it gets its answer from itself.

use std::error::Error;
use std::fmt;

use pikake_traps::spawn;
use serde::Deserialize;

use crate::broker::{Broker, BrokerError};
use crate::client::app::App;
use crate::message::{JobId, OutcomeState};
use crate::schedule::leader::{Note, cause, lead};
use crate::schedule::{Schedule, ScheduleInfo};
use crate::wire::failure::Failure;
use crate::wire::ids;

/// The schedules of all workers of a broker whose applications have the same default queue.
/// Returned by [`App::schedules`].
///
/// A change is kept in the broker, and outlives all workers. Each call resolves once it is.
#[derive(Debug, Clone)]
pub struct Schedules {
    app: App,
}

impl App {
    /// The schedules of all workers, to be listed and changed. The application is connected.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{App, Schedule};
    /// use std::time::Duration;
    ///
    /// #[pikake::job(name = "report")]
    /// async fn report(of: String) {}
    ///
    /// # pikake::sim::example(async {
    /// let app = App::new("memory://")?.jobs([report::JOB]).with_schedules().connect().await?;
    /// let hourly = Schedule::every(Duration::from_secs(3600), report::with("sales".into()));
    /// app.schedules().add(hourly.name("sales")).await?;
    /// let paused = app.schedules().pause("sales").await?;
    /// assert!(paused[0].is_paused);
    /// app.schedules().run_now("sales").await?;
    /// app.schedules().remove("sales").await?;
    /// assert!(app.schedules().list().await?.is_empty());
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn schedules(&self) -> Schedules {
        Schedules { app: self.clone() }
    }
}

impl Schedules {
    /// All schedules, by name. Those of a program are known once its worker has led.
    ///
    /// # Errors
    ///
    /// The broker's.
    pub async fn list(&self) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        self.ask(Note::List).await
    }

    /// Adds a schedule, or changes the one of its name that was added before. Returns all
    /// schedules.
    ///
    /// Workers send its jobs if their applications have schedules, or [`App::with_schedules`].
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Refused`] if a program has a schedule of this name; the broker's.
    pub async fn add(&self, schedule: Schedule) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        self.ask(Note::Put(Box::new(schedule))).await
    }

    /// Removes a schedule that was added at run time. Returns the others.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Refused`] for a name that no such schedule has; the broker's.
    pub async fn remove(&self, name: &str) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        self.ask(Note::Remove(name.to_owned())).await
    }

    /// Sends no more jobs of a schedule. Returns all schedules.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Refused`] for a name that no schedule has; the broker's.
    pub async fn pause(&self, name: &str) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        self.ask(Note::Pause(name.to_owned())).await
    }

    /// Sends jobs of a paused schedule again. The moments of the pause are not missed ones. Returns
    /// all schedules.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    pub async fn resume(&self, name: &str) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        self.ask(Note::Resume(name.to_owned())).await
    }

    /// Sends a job of a schedule now, also if the schedule is paused. Returns all schedules.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    pub async fn run_now(&self, name: &str) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        self.ask(Note::RunNow(name.to_owned())).await
    }

    async fn ask(&self, note: Note) -> Result<Vec<ScheduleInfo>, ScheduleError> {
        let broker = self.app.bare_broker()?;
        let queue = self.app.schedule_queue().await?;
        let id = ids::random();
        let mut message = note.message(id.clone());
        let id = JobId(id);
        broker.expect(&mut message).await?;
        let _expected = ForgetOnDrop(&*broker, &id);
        let sent = broker.publish(&queue, message, None).await.map_err(cause);
        sent.inspect_err(|_| self.app.forget_schedule_queue())?;
        let _leads = spawn(lead(self.app.clone(), false)).cancel_on_drop();
        let outcome = broker.wait(&id).await?;
        match outcome.state {
            OutcomeState::Success => Vec::deserialize(outcome.result)
                .map_err(|error| ScheduleError::Refused(error.to_string())),
            _ => Err(ScheduleError::Refused(Failure::from_outcome(outcome).message)),
        }
    }
}

struct ForgetOnDrop<'a>(&'a dyn Broker, &'a JobId);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

/// Why the schedules could not be listed or changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The leader refuses, for example since there is no such schedule.
    Refused(String),
    /// The broker failed.
    Broker(BrokerError),
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Broker(error) => error.fmt(f),
        }
    }
}

impl Error for ScheduleError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Broker(error) => Some(error),
        }
    }
}

impl From<BrokerError> for ScheduleError {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error)
    }
}

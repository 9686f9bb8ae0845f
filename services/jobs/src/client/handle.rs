//! A job that was sent: its id, and the wait for its outcome.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use pikake_traps::{sleep, wall_time};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::broker::BrokerError;
use crate::client::app::App;
use crate::error::JobError;
use crate::message::{JobId, Outcome, OutcomeState};
use crate::wire::failure::Failure;

/// The pause of a [`Handle::from_id`] before its second look for the outcome. The pause doubles
/// with each look.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// The longest pause between two looks.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// A job that was sent, for a value of type `T`.
///
/// Dropping the handle forgets the outcome; the job still runs. A handle [from an
/// id](Self::from_id) forgets nothing.
pub struct Handle<T> {
    app: App,
    id: JobId,
    origin: Origin,
    value: PhantomData<fn() -> T>,
}

/// How a handle came to its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The application has sent the job, and expects its outcome.
    Sent,
    /// The application has sent the job with `ignore_result`.
    Ignored,
    /// The caller knew the id.
    Id,
}

impl<T> Handle<T> {
    pub(crate) fn new(app: App, id: JobId, origin: Origin) -> Self {
        Self { app, id, origin, value: PhantomData }
    }

    /// A handle to a job by its id, for example one that another process has sent.
    ///
    /// | broker | what the handle knows |
    /// | --- | --- |
    /// | `memory://name` | the outcomes of this process, for an hour |
    /// | `sqlite://` | the outcomes of all processes, for a day |
    /// | RabbitMQ | nothing: an outcome goes to the application that sent the job. [`status`](Self::status) is `None`, and [`wait`](Self::wait) fails with [`BrokerError::NoOutcome`] |
    /// | any, with [`App::results`] | the outcomes in Redis, also those of Celery's workers, for a day |
    ///
    /// An outcome is gone once a handle that waited for it is dropped by the application that sent
    /// the job. An id that no job has is not noticed: `wait` goes on until it is interrupted, so
    /// give it a limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{App, Handle, JobId, OutcomeState};
    ///
    /// #[pikake::job]
    /// async fn add(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// # pikake::sim::example(async {
    /// let app = App::new("memory://")?.jobs([add::JOB]).connect().await?;
    /// let worker = pikake::spawn(app.run_worker());
    /// // The first process answers its client with the id,
    /// let id: String = add::delay(2, 3).await?.id().to_string();
    /// // and another one is asked about it later.
    /// let job = Handle::<i64>::from_id(&app, JobId(id));
    /// assert_eq!(job.wait().await?, 5);
    /// assert_eq!(job.status().await?, Some(OutcomeState::Success));
    /// # worker.request_cancel("the example is over");
    /// # worker.await??;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn from_id(app: &App, id: JobId) -> Self {
        Self::new(app.clone(), id, Origin::Id)
    }

    /// The handle of the same job, for a value of another type.
    pub(crate) fn typed<U>(mut self) -> Handle<U> {
        // The new handle forgets the outcome, and this one does not.
        let origin = std::mem::replace(&mut self.origin, Origin::Id);
        Handle { app: self.app.clone(), id: self.id.clone(), origin, value: PhantomData }
    }

    /// The job's id.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// The job's state; `None` while nothing is known.
    ///
    /// # Errors
    ///
    /// The broker's.
    pub async fn status(&self) -> Result<Option<OutcomeState>, JobError> {
        let outcome = self.app.broker()?.outcome(&self.id).await?;
        Ok(outcome.map(|outcome| outcome.state))
    }

    /// What the job has last told of its [progress](crate::CurrentJob::progress), if it runs and
    /// has told any.
    ///
    /// It is a second old at most. Over RabbitMQ, the handle has to be the one that sent the job.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::jobs::{App, current_job};
    /// use std::time::Duration;
    ///
    /// #[pikake::job]
    /// async fn import() -> u32 {
    ///     current_job().progress("half");
    ///     let _ = pikake::sleep(Duration::from_secs(2)).await;
    ///     7
    /// }
    ///
    /// # pikake::sim::example(async {
    /// let app = App::new("memory://")?.jobs([import::JOB]).connect().await?;
    /// let worker = pikake::spawn(app.run_worker());
    /// let job = import::delay().await?;
    /// pikake::sleep(Duration::from_secs(1)).await?;
    /// assert_eq!(job.progress().await?, Some("half".into()));
    /// assert_eq!(job.wait().await?, 7);
    /// # worker.request_cancel("the example is over");
    /// # worker.await??;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The broker's.
    pub async fn progress(&self) -> Result<Option<Value>, JobError> {
        let outcome = self.app.broker()?.outcome(&self.id).await?;
        let progress = outcome.filter(|outcome| outcome.state == OutcomeState::Progress);
        Ok(progress.map(|outcome| outcome.result))
    }

    /// Cancels the job, here and at all other workers of the broker. Never waits.
    ///
    /// A running job is interrupted, and revoked unless it still returns a value; there is no
    /// retry. A job that has not begun is revoked when a worker gets it. A task of this application
    /// tells the other workers; [`App::close`] waits for that task for a second at most.
    /// [`Control::revoke`](crate::Control::revoke) waits, and returns the workers' answers.
    ///
    /// # Panics
    ///
    /// Outside a kernel.
    #[track_caller]
    pub fn cancel(&self) -> Cancelled {
        let inner = &self.app.0;
        let running = inner.running.borrow().clone();
        if running.is_some() {
            // A running job is listed, too: its message may be about to be sent again.
            let now = wall_time();
            inner.revoked.borrow_mut().insert(self.id.0.clone(), now, now);
            inner.control.changed.set();
        }
        if running.as_ref().is_some_and(|running| running.revoke(&self.id.0)) {
            return Cancelled::Running;
        }
        self.app.post_cancel(self.id.0.clone());
        if running.is_some() { Cancelled::Waiting } else { Cancelled::Asked }
    }
}

impl<T: DeserializeOwned> Handle<T> {
    /// Waits for the job's value. May be called again, after an interruption and after a value.
    ///
    /// # Examples
    ///
    /// `timeout_after(Duration::from_secs(3), handle.wait()).await`, and later
    /// `handle.wait().await`.
    ///
    /// # Cancellation
    ///
    /// An interruption point. Interrupted or dropped, nothing is lost, and the job goes on.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    ///
    /// # Panics
    ///
    /// When polled outside a task of a kernel.
    pub async fn wait(&self) -> Result<T, JobError> {
        if self.origin == Origin::Ignored {
            return Err(JobError::Ignored);
        }
        let mut look_again = FIRST_LOOK;
        loop {
            let broker = self.app.broker()?;
            let outcome = match self.origin {
                Origin::Id if broker.keeps_outcomes() => match broker.outcome(&self.id).await {
                    Ok(Some(outcome)) if outcome.state.is_final() => Ok(outcome),
                    Ok(_) => {
                        sleep(look_again).await.map_err(BrokerError::from)?;
                        look_again = LONGEST_LOOK.min(look_again * 2);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                _ => broker.wait(&self.id).await,
            };
            match outcome {
                Ok(outcome) => return value_of(outcome),
                Err(error) if error.is_lost() => {
                    self.app.pause().await.map_err(BrokerError::from)?
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn value_of<T: DeserializeOwned>(outcome: Outcome) -> Result<T, JobError> {
    match outcome.state {
        OutcomeState::Success => T::deserialize(outcome.result).map_err(JobError::Value),
        OutcomeState::Revoked => Err(JobError::Revoked(Failure::from_outcome(outcome).message)),
        _ => Err(JobError::Failed(Failure::from_outcome(outcome))),
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.origin != Origin::Sent {
            return;
        }
        if let Ok(broker) = self.app.broker() {
            broker.forget(&self.id);
        }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id.0).finish_non_exhaustive()
    }
}

/// How far a [`Handle::cancel`] reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The job runs in this application, and is interrupted.
    Running,
    /// The job is revoked when this application's worker gets it.
    Waiting,
    /// This application has no worker. Those of the broker are asked to cancel the job.
    Asked,
}

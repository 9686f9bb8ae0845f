//! A job that was sent: its id, and the wait for its outcome.

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::broker::BrokerError;
use crate::client::app::App;
use crate::error::JobError;
use crate::message::{JobId, Outcome, OutcomeState};
use crate::wire::failure::Failure;

/// A job that was sent, for a value of type `T`.
///
/// Dropping the handle forgets the outcome; the job still runs.
pub struct Handle<T> {
    app: App,
    id: JobId,
    is_ignored: bool,
    value: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    pub(crate) fn new(app: App, id: JobId, is_ignored: bool) -> Self {
        Self { app, id, is_ignored, value: PhantomData }
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

    /// Cancels the job, as far as this application can. Never waits.
    ///
    /// A job that runs in this application is interrupted, and revoked unless it still returns a value; there is no
    /// retry. A job that has not arrived is revoked when this application's worker gets it; another process runs it.
    pub fn cancel(&self) -> Cancelled {
        let inner = &self.app.0;
        let Some(running) = inner.running.borrow().clone() else { return Cancelled::NotReached };
        // A running job is listed, too: its message may be about to be sent again.
        inner.revoked.borrow_mut().insert(self.id.0.clone());
        if running.revoke(&self.id.0) { Cancelled::Running } else { Cancelled::Waiting }
    }
}

impl<T: DeserializeOwned> Handle<T> {
    /// Waits for the job's value. May be called again, after an interruption and after a value.
    ///
    /// # Examples
    ///
    /// `timeout_after(Duration::from_secs(3), handle.wait()).await`, and later `handle.wait().await`.
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
        if self.is_ignored {
            return Err(JobError::Ignored);
        }
        loop {
            let broker = self.app.broker()?;
            match broker.wait(&self.id).await {
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
        if self.is_ignored {
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
    /// This application has no worker, so the job is not cancelled.
    NotReached,
}

//! What jobs tell of their progress, stored as their outcomes so far: in Celery's state `PROGRESS`.

use std::rc::Rc;
use std::time::Duration;

use pikake_traps::sleep;

use crate::broker::outcomes::job_with_outcome;
use crate::message::{Outcome, OutcomeState};
use crate::worker::state::WorkerState;

/// The least pause between two times that the progress of jobs is stored.
const STORE_EVERY: Duration = Duration::from_secs(1);

/// Stores the progress of jobs until it is interrupted.
pub(crate) async fn publish(worker: Rc<WorkerState>) {
    while worker.progressed.wait().await.is_ok() {
        worker.progressed.clear();
        for key in worker.running.keys() {
            // A job may have ended meanwhile: nothing is stored after its outcome.
            let Some((delivery, value)) = worker.running.take_progress(key) else { continue };
            if job_with_outcome(&delivery.message).is_none() {
                continue;
            }
            let outcome = Outcome::new(OutcomeState::Progress, value);
            if let Err(error) = worker.broker.store(&delivery.message, outcome).await {
                let id = delivery.message.job().unwrap_or_default();
                tracing::debug!(id, %error, "the progress of a job is not stored");
            }
        }
        if sleep(STORE_EVERY).await.is_err() {
            return;
        }
    }
}

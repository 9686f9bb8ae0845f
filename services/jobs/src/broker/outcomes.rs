//! The rules of all outcome stores: the job of a message, the outcome that replaces another, and
//! the outcomes of jobs that expire or are purged.

use std::time::{Duration, SystemTime};

use pikake_sync::shared::Event;
use pikake_traps::{Interrupted, TimedOut, timeout_after, wall_time};
use serde_json::Value;

use crate::broker::BrokerError;
use crate::message::{JobId, Message, Outcome, OutcomeState};
use crate::wire::request::IGNORE_RESULT;

/// The longest sleep until a time of the wall clock, which may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// How long the members of a chord are kept after the last one that was added.
pub(crate) const CHORD_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600);

/// How long outcomes are kept at most: ten years. Databases refuse much longer lengths.
#[cfg(any(feature = "redis", feature = "sqlite"))]
pub(crate) const LONGEST_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// The outcome of a job that expired before it began.
pub(crate) fn expired() -> Outcome {
    revoked("expired")
}

/// The outcome of a job whose message is purged.
pub(crate) fn purged() -> Outcome {
    revoked("purged")
}

pub(crate) fn revoked(why: &str) -> Outcome {
    Outcome::error(OutcomeState::Revoked, "TaskRevokedError", "celery.exceptions", why)
}

/// The job of a message, unless its sender ignores the outcome.
pub(crate) fn job_with_outcome(message: &Message) -> Option<JobId> {
    let is_ignored = message.headers.get(IGNORE_RESULT).and_then(Value::as_bool).unwrap_or(false);
    message.job().filter(|_| !is_ignored).map(|job| JobId(job.to_owned()))
}

/// The job of a message whose outcome is expected or stored.
pub(crate) fn job_of(message: &Message) -> Result<JobId, BrokerError> {
    let without = || "the message has no id, so its job can have no outcome".to_owned();
    let job = message.job().map(|job| JobId(job.to_owned()));
    job.ok_or_else(|| BrokerError::Refused(without()))
}

/// Whether a new outcome replaces an old one: a success stays, and only a final outcome replaces a
/// final one.
pub(crate) fn replaces(new: OutcomeState, old: OutcomeState) -> bool {
    old != OutcomeState::Success && (new.is_final() || !old.is_final())
}

/// Waits for an event, at most until a time of the wall clock. Returns spuriously, too.
pub(crate) async fn wait_until(
    event: &Event,
    moment: Option<SystemTime>,
) -> Result<(), Interrupted> {
    let Some(moment) = moment else { return event.wait().await };
    let length = moment.duration_since(wall_time()).unwrap_or_default().min(LONGEST_SLEEP);
    let waited: Result<Result<(), Interrupted>, TimedOut> =
        timeout_after(length, event.wait()).await;
    waited.unwrap_or(Ok(()))
}

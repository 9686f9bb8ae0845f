//! What all stores of outcomes agree on: which job a message is, and which outcome replaces which.
//!
//! Apart from the stores, which are one for each broker.

use crate::broker::BrokerError;
use crate::message::{JobId, Message, OutcomeState};

/// The job of a message whose outcome is asked for or stored.
pub(crate) fn job_of(message: &Message) -> Result<JobId, BrokerError> {
    let without = || "the message has no id, so its job can have no outcome".to_owned();
    let job = message.job().map(|job| JobId(job.to_owned()));
    job.ok_or_else(|| BrokerError::Refused(without()))
}

/// Whether an outcome is stored although there is that other one: a success stays, and a job that
/// has ended does not begin again.
pub(crate) fn replaces(new: OutcomeState, old: OutcomeState) -> bool {
    old != OutcomeState::Success && (new.is_final() || !old.is_final())
}

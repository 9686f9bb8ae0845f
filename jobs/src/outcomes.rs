//! What all stores of outcomes agree on: which job a message is, and which outcome replaces which.
//!
//! Apart from the stores, which are one for each broker.

use serde_json::Value;

use crate::broker::BrokerError;
use crate::message::{JobId, Message, OutcomeState};

/// The job of a message: its correlation id, else what its headers say.
pub(crate) fn job_of(message: &Message) -> Option<JobId> {
    let of_header = || message.headers.get("id").and_then(Value::as_str);
    let id = message.correlation_id.as_deref().filter(|id| !id.is_empty()).or_else(of_header);
    id.map(|id| JobId(id.to_owned()))
}

/// The job of a message whose outcome is asked for or stored.
pub(crate) fn known_job_of(message: &Message) -> Result<JobId, BrokerError> {
    let without = || "the message has no id, so its job can have no outcome".to_owned();
    job_of(message).ok_or_else(|| BrokerError::Refused(without()))
}

/// Whether the job has ended.
pub(crate) fn is_final(state: OutcomeState) -> bool {
    match state {
        OutcomeState::Success | OutcomeState::Failure | OutcomeState::Revoked => true,
        OutcomeState::Started | OutcomeState::Retry => false,
    }
}

/// Whether an outcome is stored although there is that other one: a success stays, and a job that
/// has ended does not begin again.
pub(crate) fn replaces(new: OutcomeState, old: OutcomeState) -> bool {
    old != OutcomeState::Success && (is_final(new) || !is_final(old))
}

//! What follows from the end of a job, by the `embed` of its message: the jobs after it are sent
//! before its outcome is stored, and outcomes of jobs that are not to run any more are stored after
//! it.
//!
//! The message is acknowledged last, so a crash in between publishes jobs twice, with the same ids,
//! and loses none.

use std::collections::VecDeque;

use serde_json::Value;

use crate::canvas::Action;
use crate::canvas::embed::{Embed, Ended};
use crate::client::app::App;
use crate::message::{Message, Outcome};
use crate::wire::signature::Refused;

/// What follows from a success, before its outcome is stored.
pub(crate) fn after_success(
    app: &App,
    message: &Message,
    value: &Value,
) -> Result<VecDeque<Action>, Refused> {
    match Embed::of(message) {
        Some(embed) => {
            with_ended(app, message, |ended| embed.success(ended, value)).map(Into::into)
        }
        None => Ok(VecDeque::new()),
    }
}

/// What follows from any end, after its outcome is stored.
pub(crate) fn after_outcome(app: &App, message: &Message, outcome: &Outcome) -> VecDeque<Action> {
    match Embed::of(message) {
        Some(embed) => with_ended(app, message, |ended| embed.stored(ended, outcome)).into(),
        None => VecDeque::new(),
    }
}

/// What follows from the end of a job some of whose followers were not sent: these have outcomes of
/// their own.
pub(crate) fn after_unsent(app: &App, message: &Message, outcome: &Outcome) -> VecDeque<Action> {
    match Embed::of(message) {
        Some(embed) => {
            let embed = embed.without_chain();
            with_ended(app, message, |ended| embed.stored(ended, outcome)).into()
        }
        None => VecDeque::new(),
    }
}

fn with_ended<T>(app: &App, message: &Message, plan: impl FnOnce(&Ended<'_>) -> T) -> T {
    let arity =
        |name: &str| app.0.jobs.borrow().get(name).map(|job| job.definition.parameters.len());
    plan(&Ended { message, origin: app.origin(), arity: &arity })
}

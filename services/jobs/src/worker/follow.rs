//! What follows from the end of a job, by the `embed` of its message: the jobs after it are sent before its outcome is
//! stored, and outcomes of jobs that are not to run any more are stored after it.
//!
//! The message is acknowledged last, so a crash in between publishes jobs twice, with the same ids, and loses none.

use std::collections::VecDeque;

use serde_json::Value;

use crate::broker::{Broker, BrokerError, PublishError, PublishFailure};
use crate::canvas::embed::{Embed, Ended};
use crate::canvas::{Action, Outgoing};
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

/// What follows from another end, after its outcome is stored.
pub(crate) fn after_failure(app: &App, message: &Message, outcome: &Outcome) -> VecDeque<Action> {
    match Embed::of(message) {
        Some(embed) => with_ended(app, message, |ended| embed.failure(ended, outcome)).into(),
        None => VecDeque::new(),
    }
}

fn with_ended<T>(app: &App, message: &Message, plan: impl FnOnce(&Ended<'_>) -> T) -> T {
    let arity =
        |name: &str| app.0.jobs.borrow().get(name).map(|job| job.definition.parameters.len());
    plan(&Ended { message, origin: app.origin(), arity: &arity })
}

/// Carries out actions, in their order. After an error, those that are left are still in the list; one that the broker
/// refuses is not.
pub(crate) async fn carry_out(
    app: &App,
    broker: &dyn Broker,
    actions: &mut VecDeque<Action>,
) -> Result<(), BrokerError> {
    while let Some(action) = actions.pop_front() {
        match action {
            Action::Publish(outgoing) => {
                if let Err((outgoing, error)) = publish(app, broker, outgoing).await {
                    if is_worth_a_retry(&error) {
                        actions.push_front(Action::Publish(outgoing));
                    }
                    return Err(error);
                }
            }
            Action::Store(message, outcome) => {
                if let Err(error) = broker.store(&message, outcome.clone()).await {
                    if is_worth_a_retry(&error) {
                        actions.push_front(Action::Store(message, outcome));
                    }
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Whether the broker may take later what it did not take now.
pub(crate) fn is_worth_a_retry(error: &BrokerError) -> bool {
    matches!(error, BrokerError::Lost(_) | BrokerError::Io(_) | BrokerError::Interrupted(_))
}

/// Sends a job. An error has the job.
async fn publish(
    app: &App,
    broker: &dyn Broker,
    mut outgoing: Box<Outgoing>,
) -> Result<(), (Box<Outgoing>, BrokerError)> {
    let queue = match &outgoing.queue {
        Some(queue) => queue.clone(),
        None => app.queue_of(outgoing.job()),
    };
    if let Err(error) = app.ensure_queue(&queue).await {
        return Err((outgoing, error));
    }
    let message = std::mem::take(&mut outgoing.message);
    match broker.publish(&queue, message, outgoing.not_before).await {
        Ok(()) => Ok(()),
        Err(PublishError { message, cause, .. }) => {
            outgoing.message = *message;
            let error = match cause {
                PublishFailure::Broker(error) => error,
                blocked @ PublishFailure::Blocked(_) => BrokerError::Lost(blocked.to_string()),
            };
            Err((outgoing, error))
        }
    }
}

//! What follows from the end of a job, or begins a workflow, done at a broker.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::broker::outcomes::job_with_outcome;
use crate::broker::{Broker, BrokerError, PublishError, PublishFailure};
use crate::canvas::embed::complete;
use crate::canvas::{Action, Joining, Outgoing};
use crate::client::app::App;
use crate::message::{Outcome, OutcomeState};
use crate::wire::failure::Failure;
use crate::worker::follow::Follow;

/// Carries out actions, in their order. After an error, those that are left are still in the list.
/// In the place of a job that the broker refuses are those of its failure.
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
                    } else if !matches!(error, BrokerError::Closed) {
                        for action in unsent(app, *outgoing, &error).into_iter().rev() {
                            actions.push_front(action);
                        }
                    }
                    return Err(error);
                }
            }
            Action::BeginChord(chord, size) => {
                if let Err(error) = broker.begin_chord(&chord, size).await {
                    if is_worth_a_retry(&error) {
                        actions.push_front(Action::BeginChord(chord, size));
                    }
                    return Err(error);
                }
            }
            // Of a chord that Celery counts elsewhere.
            Action::Join(joining) if joining.member.size == 0 && !broker.shares_chords() => {}
            Action::Join(joining) => match broker.join_chord(&joining.member).await {
                Ok(None) => {}
                Ok(Some(all)) => {
                    let arity = |name: &str| app.arity(name);
                    let completed = complete(&joining, all, app.origin(), &arity);
                    for action in completed.into_iter().rev() {
                        actions.push_front(action);
                    }
                }
                Err(error) if is_worth_a_retry(&error) => {
                    actions.push_front(Action::Join(joining));
                    return Err(error);
                }
                Err(error) => {
                    if let Some(joining) = unfit(joining, &error) {
                        actions.push_front(Action::Join(joining));
                    }
                    return Err(error);
                }
            },
            Action::EndChord(chord, hold) => {
                if let Err(error) = broker.end_chord(&chord).await {
                    if is_worth_a_retry(&error) {
                        actions.push_front(Action::EndChord(chord, hold));
                    }
                    return Err(error);
                }
            }
            Action::Store(message, outcome) => {
                if let Err(error) = broker.store(&message, Outcome::clone(&outcome)).await {
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

/// Carries out all actions that the broker takes; a line is logged for each that it refuses. An
/// error is one that may be over later, or [`BrokerError::Closed`].
pub(crate) async fn carry_out_rest(
    app: &App,
    broker: &dyn Broker,
    actions: &mut VecDeque<Action>,
) -> Result<(), BrokerError> {
    loop {
        match carry_out(app, broker, actions).await {
            Err(error) if !is_worth_a_retry(&error) && !matches!(error, BrokerError::Closed) => {
                tracing::warn!(%error, "a follower of a job is not told of its end");
            }
            done => return done,
        }
    }
}

/// What follows for a job that is not sent: its waiter gets a failure, as do its chord and the jobs
/// after it.
pub(crate) fn unsent(app: &App, job: Outgoing, why: &BrokerError) -> VecDeque<Action> {
    let why = format!("it could not be sent: {why}");
    let failure = Failure::new("OperationalError", "kombu.exceptions", why).into_outcome();
    let mut actions = Follow::first(app, &job.message).outcome(&failure);
    if job_with_outcome(&job.message).is_some() {
        actions.push_front(Action::Store(Box::new(job.message), Rc::new(failure)));
    }
    actions
}

/// Whether the broker, or the Redis of the results, may take later what it did not take now.
pub(crate) fn is_worth_a_retry(error: &BrokerError) -> bool {
    matches!(
        error,
        BrokerError::Lost(_)
            | BrokerError::ResultsLost(_)
            | BrokerError::Io(_)
            | BrokerError::Interrupted(_)
    )
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
    match app.publish(broker, &queue, message, outgoing.not_before, None).await {
        Ok(_) => Ok(()),
        Err(PublishError { message, cause, is_uncertain, .. }) => {
            outgoing.message = *message;
            outgoing.message.count_resent(is_uncertain.into());
            let error = match cause {
                PublishFailure::Broker(error) => error,
                blocked @ PublishFailure::Blocked(_) => BrokerError::Lost(blocked.to_string()),
            };
            if matches!(error, BrokerError::Refused(_)) {
                app.forget_queue(&queue);
            }
            Err((outgoing, error))
        }
    }
}

/// The member with a failure in the place of a value that the broker refuses, so that its chord
/// ends.
fn unfit(mut joining: Box<Joining>, error: &BrokerError) -> Option<Box<Joining>> {
    let outcome = &mut joining.member.outcome;
    if outcome.state != OutcomeState::Success || matches!(error, BrokerError::Closed) {
        return None;
    }
    let why = format!("its value cannot be added to its chord: {error}");
    *outcome = Failure::new("EncodeError", "kombu.exceptions", why).into_outcome();
    Some(joining)
}

//! What follows from a verdict at the broker: the outcome is stored first, then a message that
//! replaces this one is published, and only then is this one acknowledged. (During an alarm,
//! RabbitMQ with two connections takes outcomes for stored that wait in this process: see
//! `brokers/rabbitmq/held_outcomes.rs`.)
//!
//! While the broker is lost, each step is retried for as long as the worker runs. A second outcome
//! or a second message does no more harm than a second run.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime};

use pikake_traps::{Interrupted, random, shield, sleep, wall_time};
use serde_json::Value;

use crate::broker::outcomes::revoked;
use crate::broker::{BrokerError, Delivery, PublishFailure, Receipt};
use crate::canvas::Action;
use crate::client::carry_out::{carry_out, carry_out_rest, is_worth_a_retry, unsent};
use crate::message::{Message, Outcome, OutcomeState};
use crate::running::CancelReason;
use crate::unique::{UniqueLock, UntilWhen};
use crate::wire::failure::Failure;
use crate::wire::reason::shortened;
use crate::wire::request::{DELIVERIES, Request, UNIQUE};
use crate::wire::signature::{CanvasSignature, Refused};
use crate::worker::follow::Follow;
use crate::worker::log;
use crate::worker::ready::Ready;
use crate::worker::run::{Count, DONE, FAILED, REVOKED, Run, Verdict};
use crate::worker::state::Phase;

/// The pause before the first retry at a lost broker.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two retries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses that grow, each with a jitter of up to half its length.
#[derive(Debug)]
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) const fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = LONGEST_PAUSE.min(pause * 2);
        pause.mul_f64(0.5 + random::f64() / 2.0)
    }
}

/// The pauses between the tries of a call that goes on after an interruption, which is held, as by
/// any cleanup.
struct Retries {
    pauses: Pauses,
    held: Option<Interrupted>,
}

impl Retries {
    const fn new() -> Self {
        Self { pauses: Pauses::new(), held: None }
    }

    fn hold(&mut self, why: Interrupted) {
        self.held.get_or_insert(why);
    }

    async fn pause(&mut self) {
        // An interruption means that the worker ends; its grace limits the tries.
        if let Err(why) = sleep(self.pauses.next()).await {
            self.hold(why);
        }
    }
}

/// Jobs that are sent when a job has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Followers,
    Replacement,
    Members,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Followers => "the job after it",
            Self::Replacement => "the workflow that it has returned",
            Self::Members => "the members that it adds to its chord",
        })
    }
}

/// Why an outcome was not stored.
enum Unstored {
    /// The broker has been closed. The delivery is left to be requeued.
    Closed,
    /// The broker refuses the outcome, for the reason, and the waiters got a failure in its place.
    Refused(String, Box<Outcome>),
}

impl Run {
    /// Acknowledges a job before its run, and returns it; the verdict if it must not be run.
    pub(crate) async fn ack_before(
        &self,
        ready: Ready,
        receipt: Receipt,
        id: &str,
    ) -> Result<Ready, Verdict> {
        if let Err(error) = self.ack_early(receipt).await {
            tracing::debug!(id, %error, "a job is not run, for it cannot be acknowledged");
            return Err(Verdict::GiveBack);
        }
        // A cancel may have arrived meanwhile.
        match self.worker.app.0.revoked.borrow().contains(id) {
            true => Err(Verdict::End(revoked("cancelled"), REVOKED)),
            false => Ok(ready),
        }
    }

    /// Acknowledges; retries for as long as the worker takes jobs.
    async fn ack_early(&self, receipt: Receipt) -> Result<(), BrokerError> {
        let mut pauses = Pauses::new();
        loop {
            // If the run is dropped half-way, the job may be acknowledged, and its outcome is
            // `WorkerLostError`. The shield leaves an interruption to the job.
            self.is_acked.set(true);
            let Err(error) = shield(self.worker.broker.ack(receipt)).await else { return Ok(()) };
            self.is_acked.set(false);
            let is_lost = matches!(error, BrokerError::Lost(_) | BrokerError::Io(_));
            if !is_lost || self.worker.phase() > Phase::Open {
                return Err(error);
            }
            sleep(pauses.next()).await?;
        }
    }

    /// Does what follows from a verdict. A delivery that is left afterwards is requeued when the
    /// run is dropped.
    pub(crate) async fn settle(&mut self, verdict: Verdict) {
        self.worker.running.set_returned(self.key);
        let Some(receipt) = self.delivery.as_ref().map(|delivery| delivery.receipt) else { return };
        if self.worker.events.is_on() {
            self.tell_end(&verdict);
        }
        match verdict {
            Verdict::GiveBack => {}
            Verdict::End(outcome, count) => self.end(receipt, outcome, count).await,
            Verdict::Replace(workflow) => Box::pin(self.replace(receipt, *workflow)).await,
            Verdict::AddMembers(outcome, members) => {
                Box::pin(self.add_members(receipt, outcome, members)).await;
            }
            Verdict::Again(mut message, not_before, outcome) => {
                self.note_resent(&mut message);
                let failed = outcome.clone().map(Failure::from_outcome);
                if let Some(outcome) = outcome {
                    if let Err(unstored) = self.store(outcome).await {
                        return Box::pin(self.end_unstored(receipt, unstored, None)).await;
                    }
                }
                // A cancel may have arrived meanwhile.
                if self.worker.running.cancel_reason(self.key) == Some(CancelReason::Revoked) {
                    return self.end(receipt, revoked("cancelled"), REVOKED).await;
                }
                match Box::pin(self.publish(*message, not_before)).await {
                    Ok(()) => {
                        match &failed {
                            Some(error) => {
                                self.count(|stats| stats.retried += 1);
                                let pause = not_before.map_or(Duration::ZERO, |moment| {
                                    moment.duration_since(wall_time()).unwrap_or_default()
                                });
                                log::retried(self, error, pause);
                            }
                            None => {
                                self.count(|stats| stats.given_back += 1);
                                self.delivery.iter().for_each(|delivery| log::requeued(delivery));
                            }
                        }
                        self.ack(receipt).await;
                    }
                    // Requeueing would redeliver it in an endless loop.
                    Err(Some(why)) => {
                        let reason = format!("it could not be sent again: {why}");
                        let failure =
                            Failure::new("OperationalError", "kombu.exceptions", &*reason);
                        let failure = match failed {
                            Some(failed) => failure.traced(failed.to_string()),
                            None => failure,
                        };
                        let outcome = failure.into_outcome();
                        Box::pin(self.end_dead(receipt, reason, Some(outcome))).await;
                    }
                    Err(None) => {}
                }
            }
            Verdict::Bury(reason, outcome) => self.end_dead(receipt, reason, outcome).await,
        }
    }

    /// Has a message that replaces this one tell how often this one was delivered before, unless
    /// its own count of deliveries does.
    fn note_resent(&self, message: &mut Message) {
        let attempt = self.delivery.as_ref().map_or(0, |delivery| delivery.attempt);
        if !message.headers.contains_key(DELIVERIES) {
            message.count_resent(attempt);
        }
    }

    /// Releases the lock of a unique job that is about to begin, if its begin releases it; the
    /// verdict if the job must not be run. Retries while the broker is lost.
    pub(crate) async fn unlock_before(
        &self,
        delivery: &Delivery,
        request: &Request<'_>,
    ) -> Result<(), Verdict> {
        let lock = UniqueLock::of(&delivery.message);
        let Some(lock) = lock.filter(|lock| lock.until == UntilWhen::Begun) else { return Ok(()) };
        let mut pauses = Pauses::new();
        while let Err(error) = self.worker.broker.unlock(&lock).await {
            match error {
                // The worker ends. The job has not begun, and has nothing to be interrupted in.
                BrokerError::Interrupted(_) => return Err(Verdict::GiveBack),
                BrokerError::Lost(_) | BrokerError::Io(_) => {
                    if sleep(pauses.next()).await.is_err() {
                        return Err(Verdict::GiveBack);
                    }
                }
                error => {
                    tracing::warn!(id = request.id, %error, "the lock of a job lasts to its end");
                    break;
                }
            }
        }
        self.is_unlocked.set(true);
        // The worker may have ended meanwhile, and a cancel may have arrived.
        let reason = self.worker.running.cancel_reason(self.key);
        if reason == Some(CancelReason::Shutdown) && !self.is_acked.get() {
            return Err(Verdict::GiveBack);
        }
        self.check(delivery, request).map_or(Ok(()), Err)
    }

    /// Releases the lock of a unique job that has ended.
    async fn unlock_ended(&self) {
        let Some(delivery) = &self.delivery else { return };
        if delivery.message.headers.contains_key(UNIQUE) {
            Box::pin(self.release(&delivery.message)).await;
        }
    }

    async fn release(&self, message: &Message) {
        let lock = UniqueLock::of(message);
        let Some(lock) = lock.filter(|lock| lock.ends_with_job(self.is_unlocked.get())) else {
            return;
        };
        let _logged = self.retry(|run| run.worker.broker.unlock(&lock)).await;
    }

    /// Adds the event of the job's end.
    fn tell_end(&self, verdict: &Verdict) {
        let Some(id) = self.delivery.as_ref().and_then(|delivery| delivery.message.job()) else {
            return;
        };
        let outcome = match verdict {
            Verdict::End(outcome, _)
            | Verdict::AddMembers(outcome, _)
            | Verdict::Bury(_, Some(outcome))
            | Verdict::Again(_, _, Some(outcome)) => outcome,
            Verdict::Bury(_, None) => return self.worker.events.rejected(id),
            // The job in its place has the event.
            Verdict::Replace(_) | Verdict::Again(_, _, None) | Verdict::GiveBack => return,
        };
        let reason = self.worker.running.cancel_reason(self.key);
        let was_terminated = reason == Some(CancelReason::Revoked);
        self.worker.events.ended(id, outcome, self.seconds().unwrap_or(0.0), was_terminated);
    }

    async fn end(&mut self, receipt: Receipt, outcome: Outcome, count: Count) {
        let state = outcome.state;
        // In a box, for the size of the task: see `run.rs`.
        let error = (state != OutcomeState::Success)
            .then(|| Box::new(Failure::from_outcome(outcome.clone())));
        let is_followed = self.has_followers.get();
        if state == OutcomeState::Success
            && is_followed
            && !Box::pin(self.send_followers(receipt, &outcome.result)).await
        {
            return;
        }
        let told = is_followed.then(|| Box::new(outcome.clone()));
        let stored = self.store(outcome).await;
        if let Err(unstored) = stored {
            // The jobs after a success have been sent, and a chord gets the value.
            let told = told.filter(|_| state == OutcomeState::Success);
            let actions = told.map(|outcome| self.after_outcome(&outcome));
            Box::pin(self.end_unstored(receipt, unstored, actions)).await;
        } else {
            if let Some(outcome) = told {
                let actions = self.after_outcome(&outcome);
                if Box::pin(self.tell_followers(actions)).await.is_err() {
                    return;
                }
            }
            self.unlock_ended().await;
            self.count(count);
            match &error {
                None => log::done(self),
                Some(why) if state == OutcomeState::Revoked => log::revoked(self, &why.message),
                Some(error) => log::failed(self, error),
            }
            self.ack(receipt).await;
        }
    }

    /// Sends the jobs that follow a success; `false` if they cannot be sent, and the job's failure
    /// is settled, or if the broker has been closed or has requeued the message.
    async fn send_followers(&mut self, receipt: Receipt, value: &Value) -> bool {
        let Some(follow) = self.follow() else { return false };
        let planned = follow.success(value);
        self.send(receipt, planned, Sent::Followers).await
    }

    /// Sends the jobs of a workflow in the place of this one, and acknowledges.
    async fn replace(&mut self, receipt: Receipt, workflow: CanvasSignature) {
        let Some(follow) = self.follow() else { return };
        let planned = follow.in_place(workflow);
        if self.send(receipt, planned, Sent::Replacement).await {
            self.unlock_ended().await;
            self.count(DONE);
            log::replaced(self);
            self.ack(receipt).await;
        }
    }

    /// Adds members to the job's chord, and ends the job with its value.
    async fn add_members(
        &mut self,
        receipt: Receipt,
        outcome: Outcome,
        members: Vec<CanvasSignature>,
    ) {
        let Some((follow, delivery)) = self.follow().zip(self.delivery.as_ref()) else { return };
        let planned = follow.added_members(&outcome.result, members, &delivery.queue);
        self.joins_later.set(planned.is_ok());
        if self.send(receipt, planned, Sent::Members).await {
            self.end(receipt, outcome, DONE).await;
        }
    }

    /// Sends jobs; `false` if they cannot be sent, and the failure is settled, or if the broker has
    /// been closed or has requeued the message.
    async fn send(
        &mut self,
        receipt: Receipt,
        planned: Result<VecDeque<Action>, Refused>,
        what: Sent,
    ) -> bool {
        let app = self.worker.app.clone();
        let mut actions = VecDeque::new();
        let sent = match planned {
            Ok(planned) => {
                actions = planned;
                self.carry_out(&mut actions).await
            }
            Err(refused) => Err(BrokerError::Refused(refused.to_string())),
        };
        let error = match sent {
            Ok(()) => return true,
            Err(BrokerError::Closed | BrokerError::Stale) => return false,
            Err(error) => error,
        };
        let reason = format!("{what} could not be sent: {error}");
        let outcome = Failure::new("OperationalError", "kombu.exceptions", &*reason).into_outcome();
        let followed = match actions.is_empty() {
            true => self.after_outcome(&outcome),
            // The one that was refused has failed; the others are not sent any more.
            false => {
                let mut followed = VecDeque::new();
                for action in actions {
                    match action {
                        Action::Publish(job) => followed.extend(unsent(&app, *job, &error)),
                        action => followed.push_back(action),
                    }
                }
                if what == Sent::Replacement {
                    if self.worker.events.is_on() {
                        self.tell_end(&Verdict::End(outcome, FAILED));
                    }
                    // The last one has the outcome and the followers of this job, and fails.
                    if self.tell_followers(followed).await.is_ok() {
                        self.bury(receipt, reason).await;
                    }
                    return false;
                }
                followed.extend(self.follow().iter().flat_map(|follow| follow.unsent(&outcome)));
                followed
            }
        };
        self.end_dead_with(receipt, reason, outcome, followed).await;
        false
    }

    /// The job as its followers need it; `None` once its message is settled.
    fn follow(&self) -> Option<Follow<'_>> {
        let delivery = self.delivery.as_ref()?;
        let (attempt, joins_later) = (delivery.attempt, self.joins_later.get());
        Some(Follow { app: &self.worker.app, message: &delivery.message, attempt, joins_later })
    }

    /// What follows from an outcome that is stored.
    fn after_outcome(&self, outcome: &Outcome) -> VecDeque<Action> {
        let follow = self.follow().filter(|_| self.has_followers.get());
        follow.map(|follow| follow.outcome(outcome)).unwrap_or_default()
    }

    /// Does what follows from an outcome. An error means that the broker has been closed.
    async fn tell_followers(&self, mut actions: VecDeque<Action>) -> Result<(), ()> {
        let mut retries = Retries::new();
        loop {
            let (app, broker) = (&self.worker.app, &*self.worker.broker);
            match shield(carry_out_rest(app, broker, &mut actions)).await {
                Ok(()) => return Ok(()),
                Err(error) if is_worth_a_retry(&error) => retries.pause().await,
                Err(_) => return Err(()),
            }
        }
    }

    /// Carries out actions; retries for as long as the broker is lost.
    async fn carry_out(&self, actions: &mut VecDeque<Action>) -> Result<(), BrokerError> {
        let mut retries = Retries::new();
        loop {
            // An interrupted publish would be repeated, and the message sent twice.
            let (app, broker) = (&self.worker.app, &*self.worker.broker);
            match shield(carry_out(app, broker, actions)).await {
                Err(error) if is_worth_a_retry(&error) => retries.pause().await,
                done => return done,
            }
        }
    }

    async fn end_dead(&mut self, receipt: Receipt, reason: String, outcome: Option<Outcome>) {
        match outcome {
            Some(outcome) => {
                let actions = self.after_outcome(&outcome);
                self.end_dead_with(receipt, reason, outcome, actions).await;
            }
            None => Box::pin(self.bury(receipt, reason)).await,
        }
    }

    /// Stores the outcome, carries out the actions, and buries the message.
    async fn end_dead_with(
        &mut self,
        receipt: Receipt,
        reason: String,
        outcome: Outcome,
        actions: VecDeque<Action>,
    ) {
        if let Err(unstored) = self.store(outcome).await {
            return Box::pin(self.end_unstored(receipt, unstored, Some(actions))).await;
        }
        if actions.is_empty() || Box::pin(self.tell_followers(actions)).await.is_ok() {
            Box::pin(self.bury(receipt, reason)).await;
        }
    }

    /// Carries out the actions, or what follows from the failure to store an outcome, and buries
    /// the message.
    async fn end_unstored(
        &mut self,
        receipt: Receipt,
        unstored: Unstored,
        actions: Option<VecDeque<Action>>,
    ) {
        let Unstored::Refused(reason, failure) = unstored else { return };
        let actions = actions.unwrap_or_else(|| self.after_outcome(&failure));
        if self.tell_followers(actions).await.is_ok() {
            self.bury(receipt, reason).await;
        }
    }

    /// Stores the outcome.
    async fn store(&mut self, outcome: Outcome) -> Result<(), Unstored> {
        match self.is_ignored.get() {
            true => Ok(()),
            // In a box, for the size of the task: see `run.rs`.
            false => Box::pin(self.store_wanted(outcome)).await,
        }
    }

    async fn store_wanted(&mut self, mut outcome: Outcome) -> Result<(), Unstored> {
        let mut retries = Retries::new();
        // Why the outcome itself could not be stored.
        let mut refused: Option<String> = None;
        loop {
            let Some(delivery) = &self.delivery else { return Err(Unstored::Closed) };
            let stored = self.worker.broker.store(&delivery.message, outcome.clone()).await;
            match (stored, refused.take()) {
                (Ok(()), None) => return Ok(()),
                (Err(BrokerError::Closed), _) => return Err(Unstored::Closed),
                (Err(BrokerError::Interrupted(why)), reason) => {
                    // The worker ends; the outcome is stored before that.
                    retries.hold(why);
                    refused = reason;
                }
                (
                    Err(BrokerError::Lost(_) | BrokerError::ResultsLost(_) | BrokerError::Io(_)),
                    reason,
                ) => {
                    refused = reason;
                    retries.pause().await;
                }
                (Err(error), None) => {
                    let reason =
                        format!("its outcome ({}) cannot be stored: {error}", outcome.state);
                    // An outcome that is too big, say: its waiters get this failure instead.
                    let failed = Failure::new("EncodeError", "kombu.exceptions", &*reason);
                    outcome = failed.into_outcome();
                    refused = Some(reason);
                }
                (Ok(()) | Err(_), Some(reason)) => {
                    return Err(Unstored::Refused(reason, Box::new(outcome)));
                }
            }
        }
    }

    /// Publishes a message that replaces the delivery. The error is one that a retry would not
    /// mend; `None` if the broker has been closed.
    async fn publish(
        &self,
        message: Message,
        not_before: Option<SystemTime>,
    ) -> Result<(), Option<BrokerError>> {
        let Some(queue) = self.delivery.as_ref().map(|delivery| delivery.queue.as_str()) else {
            return Err(None);
        };
        let mut retries = Retries::new();
        let mut message = message;
        loop {
            // An interrupted publish would be repeated, and the message sent twice.
            let publish = shield(self.worker.broker.publish(queue, message, not_before));
            let Err(error) = publish.await else { return Ok(()) };
            match error.cause {
                PublishFailure::Broker(BrokerError::Interrupted(why)) => retries.hold(why),
                PublishFailure::Broker(BrokerError::Lost(_) | BrokerError::Io(_))
                | PublishFailure::Blocked(_) => retries.pause().await,
                PublishFailure::Broker(BrokerError::Closed) => return Err(None),
                PublishFailure::Broker(why) => {
                    tracing::warn!(%why, "a job could not be sent again");
                    return Err(Some(why));
                }
            }
            message = *error.message;
            message.count_resent(error.is_uncertain.into());
        }
    }

    /// Acknowledges, unless that has been done. If it fails, the job is run again: delivery is at
    /// least once.
    async fn ack(&mut self, receipt: Receipt) {
        if !self.is_acked.get() {
            let _logged = self.retry(|run| run.worker.broker.ack(receipt)).await;
        }
        self.delivery = None;
    }

    async fn bury(&mut self, receipt: Receipt, reason: String) {
        self.unlock_ended().await;
        let Some(delivery) = &self.delivery else { return };
        let (message, reason) = (&delivery.message, shortened(reason));
        if self.is_acked.get() {
            // The broker does not have the message any more.
            self.count(FAILED);
            log::failed(self, &reason);
            self.delivery = None;
            return;
        }
        let broker = &self.worker.broker;
        let buried = self.retry(|_| broker.bury(receipt, message.clone(), reason.clone())).await;
        match buried {
            Ok(()) => {
                self.count(|stats| stats.dead += 1);
                log::dead(self, &reason);
            }
            Err(BrokerError::Stale | BrokerError::Closed) => {}
            Err(_) => {
                // The delivery is requeued, and comes again at once: hence the pause.
                drop(sleep(LONGEST_PAUSE).await);
                return;
            }
        }
        self.delivery = None;
    }

    /// Repeats a call until the broker has answered it.
    async fn retry<'a>(
        &'a self,
        mut call: impl FnMut(&'a Self) -> crate::broker::LocalFuture<'a, Result<(), BrokerError>>,
    ) -> Result<(), BrokerError> {
        let mut retries = Retries::new();
        loop {
            match call(self).await {
                Ok(()) => return Ok(()),
                Err(BrokerError::Interrupted(why)) => retries.hold(why),
                // An unsettled message would stay held, and count against the prefetch.
                Err(BrokerError::Lost(_) | BrokerError::ResultsLost(_) | BrokerError::Io(_)) => {
                    retries.pause().await;
                }
                Err(error @ (BrokerError::Stale | BrokerError::Closed)) => {
                    tracing::debug!(%error, "a job could not be settled, and will be run again");
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(%error, "a job could not be settled, and will be run again");
                    return Err(error);
                }
            }
        }
    }
}

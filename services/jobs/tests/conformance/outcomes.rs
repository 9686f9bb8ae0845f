//! Outcomes: stored by one, waited for by another, forgotten.

use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{Broker, BrokerError, JobId, Outcome, OutcomeState};
use pikake_traps::{sleep, spawn, timeout_after};

use crate::help::*;
use crate::place::Place;

/// A message whose outcome one broker expects, as another has it when it was published; and its
/// job.
async fn expected(
    one: &Rc<dyn Broker>,
    other: &Rc<dyn Broker>,
    job: &str,
) -> (pikake_jobs::Message, JobId) {
    declare(one).await;
    let mut sent = message(job);
    one.expect(&mut sent).await.unwrap();
    one.publish(QUEUE, sent, None).await.unwrap();
    let mut deliveries = consume(other, 1).await;
    let delivery = take(&mut deliveries).await;
    other.ack(delivery.receipt).await.unwrap();
    (delivery.message, JobId(job.to_owned()))
}

fn state(state: OutcomeState) -> Outcome {
    Outcome::new(state, serde_json::Value::Null)
}

async fn awaited(broker: &Rc<dyn Broker>, job: &JobId) -> Result<Outcome, BrokerError> {
    timeout_after(PATIENCE, broker.wait(job)).await.expect("an outcome comes")
}

pub(crate) async fn waited_for_before_it_is_stored(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let (message, job) = expected(&one, &other, "a").await;
    let worker = spawn(async move {
        sleep(QUIET).await.unwrap();
        other.store(&message, state(OutcomeState::Started)).await.unwrap();
        other.store(&message, state(OutcomeState::Retry)).await.unwrap();
        sleep(QUIET).await.unwrap();
        other.store(&message, Outcome::success(42.into())).await.unwrap();
    });
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(42.into()));
    worker.await.unwrap();
    // Asked again, it says the same.
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(42.into()));
}

pub(crate) async fn waited_for_after_it_was_stored(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let (message, job) = expected(&one, &other, "a").await;
    let failure = Outcome::error(OutcomeState::Failure, "ValueError", "builtins", "bad")
        .with_traceback(Some("line 1".to_owned()));
    other.store(&message, failure.clone()).await.unwrap();
    assert_eq!(awaited(&one, &job).await.unwrap(), failure);
    assert_eq!(one.outcome(&job).await.unwrap(), Some(failure));
}

pub(crate) async fn an_interrupted_wait_goes_on(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let (message, job) = expected(&one, &other, "a").await;
    assert!(timeout_after(QUIET, one.wait(&job)).await.is_err());
    other.store(&message, Outcome::success(1.into())).await.unwrap();
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(1.into()));
}

pub(crate) async fn many_wait(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let mut waits = Vec::new();
    let mut messages = Vec::new();
    for number in 0..20 {
        let (message, job) = expected(&one, &other, &format!("job {number}")).await;
        messages.push(message);
        let broker = one.clone();
        waits.push(spawn(async move { awaited(&broker, &job).await.unwrap() }));
    }
    sleep(QUIET).await.unwrap();
    for (number, message) in messages.iter().enumerate().rev() {
        other.store(message, Outcome::success(number.into())).await.unwrap();
    }
    for (number, wait) in waits.into_iter().enumerate() {
        assert_eq!(wait.await.unwrap(), Outcome::success(number.into()));
    }
}

pub(crate) async fn what_nobody_expects_is_not_waited_for(place: &dyn Place) {
    let broker = place.open().await;
    let unknown = JobId("unknown".to_owned());
    assert!(matches!(awaited(&broker, &unknown).await, Err(BrokerError::NoOutcome)));
    assert_eq!(broker.outcome(&unknown).await.unwrap_or(None), None);
    // A message without an id can have no outcome.
    let nameless = broker.expect(&mut pikake_jobs::Message::default()).await;
    assert!(matches!(nameless, Err(BrokerError::Refused(_))), "{nameless:?}");
}

pub(crate) async fn forgotten(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let (message, job) = expected(&one, &other, "a").await;
    let waiting = spawn({
        let (one, job) = (one.clone(), job.clone());
        async move { awaited(&one, &job).await }
    });
    sleep(QUIET).await.unwrap();
    one.forget(&job);
    let told = waiting.await.unwrap();
    assert!(matches!(told, Err(BrokerError::NoOutcome)), "{told:?}");
    let (second, job) = expected(&one, &other, "b").await;
    other.store(&second, Outcome::success(1.into())).await.unwrap();
    awaited(&one, &job).await.unwrap();
    one.forget(&job);
    assert!(matches!(awaited(&one, &job).await, Err(BrokerError::NoOutcome)));
    // To store what nobody asks for is no error.
    other.store(&message, Outcome::success(1.into())).await.unwrap();
}

/// They sent the same id, say; the one that waits does so until the job has ended, and sleeps
/// meanwhile.
pub(crate) async fn one_waits_on_when_another_forgets(place: &dyn Place) {
    let (one, other, third) = (place.open().await, place.open().await, place.open().await);
    let (sent, job) = expected(&one, &other, "a").await;
    let fourth = place.open().await;
    third.expect(&mut message("a")).await.unwrap();
    fourth.expect(&mut message("a")).await.unwrap();
    let waiting = spawn({
        let (one, job) = (one.clone(), job.clone());
        async move { awaited(&one, &job).await }
    });
    sleep(QUIET).await.unwrap();
    third.forget(&job);
    third.forget(&job);
    sleep(QUIET).await.unwrap();
    drop(fourth);
    sleep(QUIET).await.unwrap();
    assert!(!waiting.is_finished());
    other.store(&sent, Outcome::success(1.into())).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Outcome::success(1.into()));
}

/// As two handles of one application do; the first is dropped.
pub(crate) async fn expected_twice_and_forgotten_once(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    one.expect(&mut message("a")).await.unwrap();
    let (sent, job) = expected(&one, &other, "a").await;
    let waiting = spawn({
        let (one, job) = (one.clone(), job.clone());
        async move { awaited(&one, &job).await }
    });
    sleep(QUIET).await.unwrap();
    one.forget(&job);
    sleep(QUIET).await.unwrap();
    other.store(&sent, Outcome::success(1.into())).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Outcome::success(1.into()));
    one.forget(&job);
    assert!(matches!(awaited(&one, &job).await, Err(BrokerError::NoOutcome)));
}

/// Two send the same id, so it is run twice; each of them is told, whatever the other does.
pub(crate) async fn an_id_sent_by_two_has_an_outcome_for_both(place: &dyn Place) {
    let (one, two, other) = (place.open().await, place.open().await, place.open().await);
    let (first, job) = expected(&one, &other, "a").await;
    let (second, _) = expected(&two, &other, "a").await;
    let failure = Outcome::error(OutcomeState::Failure, "ValueError", "builtins", "bad");
    other.store(&first, Outcome::success(1.into())).await.unwrap();
    other.store(&second, failure.clone()).await.unwrap();
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(1.into()));
    one.forget(&job);
    // Where outcomes are stored, a success stays.
    let told = awaited(&two, &job).await.unwrap();
    assert!(told == Outcome::success(1.into()) || told == failure, "{told:?}");
}

pub(crate) async fn a_job_that_has_ended_stays_so(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let (message, job) = expected(&one, &other, "a").await;
    other.store(&message, Outcome::success(1.into())).await.unwrap();
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(1.into()));
    for late in [OutcomeState::Started, OutcomeState::Retry, OutcomeState::Failure] {
        other.store(&message, state(late)).await.unwrap();
    }
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(1.into()));
    assert_eq!(one.outcome(&job).await.unwrap(), Some(Outcome::success(1.into())));
}

pub(crate) async fn progress_is_kept_until_the_end(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let (message, job) = expected(&one, &other, "a").await;
    let progress = |step: u64| Outcome::new(OutcomeState::Progress, step.into());
    for step in [1, 2] {
        other.store(&message, progress(step)).await.unwrap();
    }
    let read = async || {
        while one.outcome(&job).await.unwrap() != Some(progress(2)) {
            sleep(QUIET).await.unwrap();
        }
    };
    timeout_after(PATIENCE, read()).await.expect("progress comes");
    other.store(&message, Outcome::success(1.into())).await.unwrap();
    other.store(&message, progress(3)).await.unwrap();
    assert_eq!(awaited(&one, &job).await.unwrap(), Outcome::success(1.into()));
    assert_eq!(one.outcome(&job).await.unwrap(), Some(Outcome::success(1.into())));
}

/// At a broker that keeps no outcomes, one that was sent to a queue.
pub(crate) async fn removed_at_their_age(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let is_kept = async |job: &str| match broker.keeps_outcomes() {
        true => broker.outcome(&JobId(job.to_owned())).await.unwrap().is_some(),
        false => broker.counts(QUEUE).await.unwrap().ready > 0,
    };
    let store = async |job: &str, length| {
        broker.keep_outcomes(length);
        let mut ended = message(job);
        ended.reply_to = Some(QUEUE.to_owned());
        broker.store(&ended, Outcome::success(1.into())).await.unwrap();
    };
    store("soon", QUIET).await;
    let removed = async || {
        while is_kept("soon").await {
            sleep(QUIET).await.unwrap();
        }
    };
    timeout_after(PATIENCE, removed()).await.expect("it is removed");
    store("later", 100 * PATIENCE).await;
    sleep(2 * QUIET).await.unwrap();
    assert!(is_kept("later").await);
    store("for good", Duration::MAX).await;
    assert!(is_kept("for good").await);
}

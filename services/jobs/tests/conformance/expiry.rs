//! Jobs whose time is over: whoever waits for one is told, unless it was begun in time.

use std::rc::Rc;
use std::time::Duration;

use pikake_jobs::{App, Broker, Call, JobError, JobId, Outcome, OutcomeState};
use pikake_macros::job;
use pikake_traps::{sleep, spawn, timeout_after, wall_time};

use crate::help::*;
use crate::place::Place;

fn revoked() -> Outcome {
    revoked_as("expired")
}

fn revoked_as(why: &str) -> Outcome {
    Outcome::error(OutcomeState::Revoked, "TaskRevokedError", "celery.exceptions", why)
}

/// Sends a job that expires, as one who waits for its outcome.
async fn send(broker: &Rc<dyn Broker>, job: &str, length: Duration) -> JobId {
    let mut sent = message(job);
    sent.expires = Some(wall_time() + length);
    broker.expect(&mut sent).await.unwrap();
    broker.publish(QUEUE, sent, None).await.unwrap();
    JobId(job.to_owned())
}

async fn awaited(broker: &Rc<dyn Broker>, job: &JobId) -> Outcome {
    timeout_after(PATIENCE, broker.wait(job)).await.expect("an outcome comes").unwrap()
}

/// It is dropped by the broker, which says so, or comes to a consumer, which does.
pub(crate) async fn who_waits_is_told(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let job = send(&one, "short", place.step()).await;
    publish(&one, &["long"]).await;
    sleep(3 * place.step()).await.unwrap();
    let mut deliveries = consume(&other, 1).await;
    let mut delivery = take(&mut deliveries).await;
    if delivery.message.job() == Some("short") {
        assert!(delivery.message.expires.is_some_and(|expires| expires <= wall_time()));
        other.store(&delivery.message, revoked()).await.unwrap();
        other.ack(delivery.receipt).await.unwrap();
        delivery = take(&mut deliveries).await;
    }
    assert_eq!(seen(&delivery), ("long", 0));
    assert_eq!(awaited(&one, &job).await, revoked());
}

pub(crate) async fn who_was_begun_in_time_goes_on(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let mut deliveries = consume(&other, 2).await;
    let job = send(&one, "slow", 20 * place.step()).await;
    let delivery = take(&mut deliveries).await;
    let early = timeout_after(25 * place.step(), one.wait(&job)).await;
    assert!(early.is_err(), "{early:?}");
    other.store(&delivery.message, Outcome::success(1.into())).await.unwrap();
    other.ack(delivery.receipt).await.unwrap();
    assert_eq!(awaited(&one, &job).await, Outcome::success(1.into()));
}

pub(crate) async fn of_whom_nobody_asks_nothing_is_left(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let mut ignored = message("ignored");
    ignored.headers.insert("ignore_result".to_owned(), true.into());
    ignored.expires = Some(wall_time() + place.step());
    broker.publish(QUEUE, ignored, None).await.unwrap();
    sleep(2 * place.step()).await.unwrap();
    let mut deliveries = consume(&broker, 1).await;
    nothing(&mut deliveries).await;
    counted(&broker, |counts| (counts.ready, counts.dead) == (0, 0)).await;
    assert_eq!(broker.outcome(&JobId("ignored".to_owned())).await.unwrap(), None);
}

#[job(crate = pikake_jobs, name = "expiry.quick")]
async fn quick() -> u32 {
    7
}

/// Fails, and is to be tried again in an hour.
#[job(crate = pikake_jobs, name = "expiry.fails", retries = 5)]
async fn fails() -> Result<(), String> {
    pikake_jobs::current_job().retry_in(Duration::from_secs(3_600));
    Err("busy".to_owned())
}

async fn value<T: serde::de::DeserializeOwned>(call: Call<T>) -> Result<T, JobError> {
    let handle = call.send().await.unwrap();
    timeout_after(PATIENCE, handle.wait()).await.expect("an outcome comes")
}

fn is_told<T>(outcome: &Result<T, JobError>) -> bool {
    matches!(outcome, Err(JobError::Revoked(why)) if why == "expired")
}

/// With a worker that comes too late, and for each way in which a job can come to wait for longer
/// than it is worth.
pub(crate) async fn an_application_tells_of_it(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let app = App::on(one).connect().await.unwrap();
    let late = quick::with().expires(place.step()).on(&app).send().await.unwrap();
    sleep(3 * place.step()).await.unwrap();
    let worker = App::on(other).jobs([quick::JOB, fails::JOB]);
    let worker = spawn(worker.worker().run());
    let outcome = timeout_after(PATIENCE, late.wait()).await.expect("an outcome comes");
    assert!(is_told(&outcome), "{outcome:?}");
    let hour = Duration::from_secs(3_600);
    let outcome = value(fails::with().expires(60 * place.step()).on(&app)).await;
    assert!(is_told(&outcome), "{outcome:?}");
    let outcome = value(quick::with().countdown(hour).expires(3 * place.step()).on(&app)).await;
    assert!(is_told(&outcome), "{outcome:?}");
    assert_eq!(value(quick::with().expires(hour).on(&app)).await.unwrap(), 7);
    worker.request_cancel("the case is over");
    worker.await.unwrap().unwrap();
}

/// It ran when it expired, and then its worker was lost; nobody else comes.
pub(crate) async fn who_is_given_back_too_late_is_told_of(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let mut deliveries = consume(&other, 1).await;
    let job = send(&one, "slow", 10 * place.step()).await;
    take(&mut deliveries).await;
    let waiting = spawn({
        let one = one.clone();
        async move { one.wait(&job).await }
    });
    sleep(12 * place.step()).await.unwrap();
    place.lose(other, vec![deliveries]);
    let told = timeout_after(3 * PATIENCE, waiting).await.expect("an outcome comes");
    assert_eq!(told.unwrap().unwrap(), revoked());
}

/// Where the broker itself can tell, no consumer is needed.
pub(crate) async fn whom_nobody_takes_is_told_of(place: &dyn Place) {
    let broker = place.open().await;
    declare(&broker).await;
    let first = send(&broker, "first", place.step()).await;
    let second = send(&broker, "second", 2 * place.step()).await;
    publish(&broker, &["other"]).await;
    assert_eq!(awaited(&broker, &second).await, revoked());
    assert_eq!(awaited(&broker, &first).await, revoked());
    counted(&broker, |counts| counts.ready == 1).await;
}

/// Whoever waits for a job that is purged: as for one that has expired.
pub(crate) async fn who_is_purged_is_told_of(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    declare(&one).await;
    let mut deliveries = consume(&other, 1).await;
    let hour = Duration::from_secs(3_600);
    let taken = send(&one, "taken", hour).await;
    let delivery = take(&mut deliveries).await;
    let ready = send(&one, "ready", hour).await;
    let mut sent = message("delayed");
    one.expect(&mut sent).await.unwrap();
    one.publish(QUEUE, sent, Some(wall_time() + hour)).await.unwrap();
    let mut ignored = message("ignored");
    ignored.headers.insert("ignore_result".to_owned(), true.into());
    one.publish(QUEUE, ignored, None).await.unwrap();
    let waiting = spawn({
        let (one, ready) = (one.clone(), ready.clone());
        async move { awaited(&one, &ready).await }
    });
    sleep(QUIET).await.unwrap();
    assert_eq!(other.purge(QUEUE).await.unwrap(), 3);
    assert_eq!(waiting.await.unwrap(), revoked_as("purged"));
    let delayed = JobId("delayed".to_owned());
    assert_eq!(awaited(&one, &delayed).await, revoked_as("purged"));
    assert_eq!(one.outcome(&JobId("ignored".to_owned())).await.unwrap(), None);
    other.store(&delivery.message, Outcome::success(1.into())).await.unwrap();
    assert_eq!(awaited(&one, &taken).await, Outcome::success(1.into()));
}

//! Between a job's end and the next message of it: what is cancelled, refused or lost in just that
//! moment.

use std::cell::Cell;
use std::rc::Rc;

use pikake_jobs::{
    App, Broker, BrokerError, Call, JobError, JobId, MemoryStore, Message, OutcomeState,
};
use pikake_macros::job;
use pikake_traps::{elapsed_since, now, sleep, timeout_after};

use crate::meddled::{Asked, Meddled, at_once, lost};
use crate::{Running, SECOND, add, in_worlds};

thread_local!(static RUNS: Cell<u32> = const { Cell::new(0) });

#[job(crate = pikake_jobs, retries = 1, backoff(first = "10s", cap = "10s"))]
async fn fails() -> Result<u32, String> {
    RUNS.set(RUNS.get() + 1);
    Err("it is never good".into())
}

fn on(store: &MemoryStore, broker: impl FnOnce(Rc<dyn Broker>) -> Meddled) -> App {
    RUNS.set(0);
    App::on(Rc::new(broker(Rc::new(store.open())))).jobs([fails::JOB, add::JOB])
}

fn refused() -> BrokerError {
    BrokerError::Refused("not for so long".into())
}

/// It fails, and is cancelled while the broker takes its time over some calls.
async fn cancelled_half_way(
    is_slow: fn(&Asked<'_>) -> bool,
    slow: impl AsyncFn() -> Result<(), BrokerError> + Copy + 'static,
    retried: u64,
) {
    let store = MemoryStore::new();
    let app = on(&store, |inner| {
        Meddled::new(inner, move |asked| match is_slow(&asked) {
            true => Box::pin(async move { slow().await }),
            false => at_once(Ok(())),
        })
    });
    let worker = Running::start(&app, SECOND).await;
    let job = fails::delay().await.unwrap();
    sleep(SECOND / 2).await.unwrap();
    job.cancel();
    let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is told");
    assert!(matches!(waited, Err(JobError::Revoked(_))), "{waited:?}");
    sleep(60 * SECOND).await.unwrap();
    let stats = worker.end().await.stats.all;
    assert_eq!((RUNS.get(), stats.retried, stats.revoked), (1, retried, 1));
    let counts = store.open().counts("pikake").await.unwrap();
    assert_eq!((counts.ready, counts.taken, counts.delayed), (0, Some(0), 0));
}

fn is_retry(asked: &Asked<'_>) -> bool {
    matches!(asked, Asked::Store(outcome) if outcome.state == OutcomeState::Retry)
}

async fn takes_a_second() -> Result<(), BrokerError> {
    Ok(sleep(SECOND).await?)
}

#[test]
fn who_is_cancelled_before_it_is_sent_again_is_not_run_again() {
    in_worlds(async || cancelled_half_way(is_retry, takes_a_second, 0).await);
}

/// The tries go on after the cancel, and hold the interruption.
#[test]
fn who_is_cancelled_while_the_broker_is_lost_is_not_run_again() {
    in_worlds(async || {
        let begun = now();
        let is_lost = async move || match elapsed_since(begun) < 4 * SECOND {
            true => Err(lost()),
            false => Ok(()),
        };
        cancelled_half_way(is_retry, is_lost, 0).await;
    });
}

#[test]
fn who_is_cancelled_while_it_is_sent_again_is_not_run_again() {
    in_worlds(async || {
        let is_sent_again = |asked: &Asked<'_>| matches!(asked, Asked::Publish(Some(_)));
        cancelled_half_way(is_sent_again, takes_a_second, 1).await;
    });
}

/// A broker that takes nothing that is to wait.
fn without_delays(inner: Rc<dyn Broker>) -> Meddled {
    Meddled::new(inner, |asked| match asked {
        Asked::Publish(Some(_)) => at_once(Err(refused())),
        _ => at_once(Ok(())),
    })
}

#[test]
fn who_waits_for_one_that_cannot_be_sent_again_is_told() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = on(&store, without_delays);
        let worker = Running::start(&app, SECOND).await;
        let retried = fails::delay().await.unwrap();
        // As Celery sends them: with a time, and at once.
        let early = add::with(1, 2).id("early");
        let mut message = message_of(early).await;
        message.headers.insert("eta".into(), "2999-01-01T00:00:00+00:00".into());
        let sender = store.open();
        sender.expect(&mut message).await.unwrap();
        sender.publish("pikake", message, None).await.unwrap();
        let waited = timeout_after(60 * SECOND, retried.wait()).await.expect("it is told");
        match waited {
            Err(JobError::Failed(failure)) => {
                assert_eq!(failure.kind, "OperationalError");
                assert!(failure.message.contains("it could not be sent again"), "{failure}");
                assert!(failure.traceback.unwrap().contains("it is never good"));
            }
            other => panic!("{other:?}"),
        }
        let told = timeout_after(60 * SECOND, sender.wait(&JobId("early".into()))).await;
        assert_eq!(told.expect("it is told").unwrap().state, OutcomeState::Failure);
        let stats = worker.end().await.stats.all;
        assert_eq!((RUNS.get(), stats.dead), (1, 2));
        assert_eq!(sender.counts("pikake").await.unwrap().dead, 2);
    });
}

/// What is sent for a call.
async fn message_of(call: Call<i64>) -> Message {
    let store = MemoryStore::new();
    let app = App::on(Rc::new(store.open())).connect().await.unwrap();
    call.on(&app).send().await.unwrap();
    let mut deliveries = store.open().consume("pikake", 1).await.unwrap();
    deliveries.next().await.unwrap().unwrap().message
}

#[test]
fn who_waits_for_a_value_that_is_refused_is_told_although_the_broker_was_lost() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let stores = Cell::new(0);
        let app = on(&store, |inner| {
            Meddled::new(inner, move |asked| match asked {
                Asked::Store(_) => {
                    stores.set(stores.get() + 1);
                    at_once(match stores.get() {
                        1 => Err(refused()),
                        2 => Err(lost()),
                        _ => Ok(()),
                    })
                }
                _ => at_once(Ok(())),
            })
        });
        let worker = Running::start(&app, SECOND).await;
        let job = add::delay(1, 2).await.unwrap();
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it is told");
        let kind = waited.map_err(|error| match error {
            JobError::Failed(failure) => failure.kind,
            other => panic!("{other}"),
        });
        assert_eq!(kind, Err("EncodeError".to_owned()));
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.dead, 1);
    });
}

#[test]
fn one_of_which_nothing_can_be_told_is_buried() {
    in_worlds(async || {
        let store = MemoryStore::new();
        let app = on(&store, |inner| {
            Meddled::new(inner, |asked| match asked {
                Asked::Store(_) => at_once(Err(refused())),
                _ => at_once(Ok(())),
            })
        });
        let worker = Running::start(&app, SECOND).await;
        let _job = add::delay(1, 2).await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!(worker.end().await.stats.all.dead, 1);
        assert_eq!(store.open().counts("pikake").await.unwrap().dead, 1);
    });
}

//! Celery and pikake in one queue, whichever of the two declares the queue.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{QueueOptions as AmqpQueue, Value};
use pikake_jobs::{AmqpBroker, App, Broker, BrokerError, QueueOptions};
use pikake_traps::{sleep, spawn};
use serde_json::json;

use super::from_celery::{add, fail};
use super::{QUEUE, Running, python, with_celery};

fn replicated() -> QueueOptions {
    QueueOptions::new().replicated(true)
}

/// An application that says nothing of its queue.
fn unspecified(url: &str) -> App {
    App::new(url).unwrap().default_queue(QUEUE).jobs([add::JOB, fail::JOB])
}

/// Celery sends into a queue that nobody else has declared, and then an application of ours runs
/// the job. A message that cannot be a job is dead afterwards.
async fn celery_first(python: Rc<Path>, url: String, is_quorum: bool, app: App) {
    let calls = json!([{"task": "tests.add", "args": [2, 3]}, {"task": "tests.nope"}]);
    let sending = {
        let url = url.clone();
        spawn(async move {
            match is_quorum {
                true => python::send_quorum(&python, &url, calls).await,
                false => python::send(&python, &url, calls).await,
            }
        })
    };
    let broker = AmqpBroker::open(&url).await.unwrap();
    while !broker.counts(QUEUE).await.is_ok_and(|counts| counts.ready == 2) {
        sleep(Duration::from_millis(50)).await.unwrap();
    }
    let worker = Running::start(&app).await;
    let told = sending.await.unwrap();
    assert_eq!(told[0]["value"], 5, "{told:?}");
    assert_eq!(told[1]["kind"], "NotRegistered", "{told:?}");
    assert_eq!(worker.end().await.stats.all.dead, 1);
    broker.declare(QUEUE, app.queues().get(QUEUE).unwrap()).await.unwrap();
    assert_eq!(broker.counts(QUEUE).await.unwrap().dead, 1);
}

/// The queue is ours, and Celery sends to it.
async fn pikake_first(python: Rc<Path>, url: String, is_quorum: bool, app: App) {
    let worker = Running::start(&app).await;
    let calls = json!([{"task": "tests.add", "args": [2, 3]}, {"task": "tests.nope"}]);
    let told = match is_quorum {
        true => python::send_quorum(&python, &url, calls).await,
        false => python::send(&python, &url, calls).await,
    };
    assert_eq!(told[0]["value"], 5, "{told:?}");
    assert_eq!(told[1]["kind"], "NotRegistered", "{told:?}");
    assert_eq!(worker.end().await.stats.all.dead, 1);
}

#[test]
fn celery_declares_before_unspecified() {
    with_celery(async |python, url| {
        let app = unspecified(&url);
        celery_first(python, url, false, app).await;
    });
}

#[test]
fn celery_declares_before_default_options() {
    with_celery(async |python, url| {
        let app = unspecified(&url).queue(QUEUE, QueueOptions::default());
        celery_first(python, url, false, app).await;
    });
}

#[test]
fn celery_declares_quorum_before_unspecified() {
    with_celery(async |python, url| {
        let app = unspecified(&url);
        celery_first(python, url, true, app).await;
    });
}

#[test]
fn celery_declares_quorum_before_replicated() {
    with_celery(async |python, url| {
        let app = unspecified(&url).queue(QUEUE, replicated());
        celery_first(python, url, true, app).await;
    });
}

#[test]
fn unspecified_queue_declared_before_celery() {
    with_celery(async |python, url| {
        let app = unspecified(&url);
        pikake_first(python, url, false, app).await;
    });
}

#[test]
fn default_queue_declared_before_celery() {
    with_celery(async |python, url| {
        let app = unspecified(&url).queue(QUEUE, QueueOptions::default());
        pikake_first(python, url, false, app).await;
    });
}

#[test]
fn replicated_queue_declared_before_celery() {
    with_celery(async |python, url| {
        let app = unspecified(&url).queue(QUEUE, replicated());
        pikake_first(python, url, true, app).await;
    });
}

/// Earlier versions of pikake limited the deliveries of each quorum queue.
#[test]
fn queue_of_an_earlier_version_is_replicated() {
    with_celery(async |_, url| {
        let broker = AmqpBroker::open(&url).await.unwrap();
        let limit = Value::LongLongInt(1_000_000);
        let earlier = AmqpQueue::quorum().argument("x-delivery-limit", limit);
        let channel = broker.connection().channel().await.unwrap();
        channel.declare_queue(QUEUE, earlier).await.unwrap();
        broker.declare(QUEUE, &replicated()).await.unwrap();
    });
}

/// A job that is sent from here before a Celery worker has declared its queue.
#[test]
fn pikake_sends_before_celery_works() {
    with_celery(async |python, url| {
        let app = unspecified(&url).connect().await.unwrap();
        let job = add::with(2, 3).on(&app).send().await.unwrap();
        let _worker = python::Worker::start(&python, &url, QUEUE);
        assert_eq!(job.wait().await.unwrap(), 5);
        app.close().await.unwrap();
    });
}

#[test]
fn other_options_are_refused_with_advice() {
    with_celery(async |_, url| {
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
        let refused = broker.declare(QUEUE, &replicated()).await;
        let Err(BrokerError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("`as_found`") && why.contains("x-queue-type"), "{why}");
        // One of the two kinds has the dead of the other.
        broker.connection().channel().await.unwrap().delete_queue(QUEUE).await.unwrap();
        broker.declare(QUEUE, &replicated()).await.unwrap();
    });
}

//! Delays at the broker: Celery and pikake share the queues in which messages wait.

use std::time::{Duration, SystemTime};

use pikake_amqp::{ConsumeOptions, ExchangeOptions, QueueOptions as AmqpQueue, Value};
use pikake_jobs::{AmqpBroker, App, Broker, Call, Message, QueueOptions};
use pikake_traps::{sleep, timeout_after, wall_time};
use serde_json::json;

use super::from_celery::now;
use super::{HANG, QUEUE, Running, python, with_celery};

const SECOND: Duration = Duration::from_secs(1);

fn app(url: &str, is_replicated: bool) -> App {
    let options = QueueOptions::new().replicated(is_replicated);
    App::new(url).unwrap().default_queue(QUEUE).queue(QUEUE, options).jobs([now::JOB])
}

/// It came when its time had come, and not much later: the machine may be busy.
fn in_time(took: f64, wait: f64) {
    assert!(took >= wait - 0.01 && took < wait + 20.0, "{took} instead of {wait}");
}

/// Celery publishes it to an exchange that somebody has to have declared.
#[test]
fn celery_delays_at_the_broker_for_pikake() {
    with_celery(async |python, url| {
        let worker = Running::start(&app(&url, true)).await;
        let broker = AmqpBroker::open(&url).await.unwrap();
        let calls = json!([
            {"task": "tests.now", "options": {"countdown": 4}},
            {"task": "tests.now", "options": {"countdown": 2, "expires": 60}},
            {"task": "tests.now"},
        ]);
        let told = python::send_quorum(&python, &url, calls).await;
        for (told, wait) in told.iter().zip([4.0, 2.0, 0.0]) {
            in_time(told["value"].as_f64().expect("a time") - told["sent"].as_f64().unwrap(), wait);
        }
        assert_eq!(broker.counts(QUEUE).await.unwrap().delayed, 0);
        assert_eq!(worker.end().await.stats.all.done, 3);
    });
}

/// Each finds what the other has declared, and a message that is bound by both comes once.
#[test]
fn celery_and_pikake_work_at_delayed_jobs_of_one_queue() {
    with_celery(async |python, url| {
        let ours = app(&url, true).connect().await.unwrap();
        let send = async |length| {
            let call = Call::<f64>::named("tests.now", ()).countdown(length).on(&ours);
            (SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64(), call.send().await.unwrap())
        };
        let before = send(Duration::from_millis(3_300)).await;
        let _worker = python::Worker::start_quorum(&python, &url, QUEUE);
        let worker = Running::start(&app(&url, true)).await;
        let mut sent = vec![(3.3, before)];
        for (wait, length) in [(1.0, SECOND), (0.4, SECOND * 2 / 5), (2.7, SECOND * 27 / 10)] {
            sent.push((wait, send(length).await));
        }
        for (wait, (since, job)) in sent {
            in_time(job.wait().await.unwrap() - since, wait);
        }
        drop(worker.end().await);
        ours.close().await.unwrap();
    });
}

/// Of two queues that wait together, one is purged.
#[test]
fn purge_leaves_the_delayed_messages_of_others() {
    with_celery(async |_, url| {
        let broker = AmqpBroker::open(&url).await.unwrap();
        for queue in ["one", "other"] {
            broker.declare(queue, &QueueOptions::new()).await.unwrap();
            for length in [5_300, 6_000, 7_000, 3_600_000] {
                let not_before = wall_time() + Duration::from_millis(length);
                let message = Message::default();
                broker.publish(queue, message, Some(not_before)).await.unwrap();
            }
        }
        // For a moment, a message that goes from one delay queue to the next is in both.
        let eight = async {
            while broker.counts("one").await.unwrap().delayed != 8 {
                sleep(Duration::from_millis(10)).await.unwrap();
            }
        };
        timeout_after(HANG, eight).await.expect("all are counted");
        assert!(broker.counts("one").await.unwrap().delayed_of_all);
        assert_eq!(broker.purge("one").await.unwrap(), 4);
        let mut deliveries = broker.consume("other", 10).await.unwrap();
        for _ in 0..3 {
            let next = timeout_after(HANG, deliveries.next()).await.expect("it comes");
            broker.ack(next.unwrap().unwrap().receipt).await.unwrap();
        }
        let counts = broker.counts("one").await.unwrap();
        assert_eq!((counts.ready, counts.delayed), (0, 1), "the one of an hour is left");
    });
}

/// Earlier versions of pikake had delay queues for each queue, of which the last leads to it.
#[test]
fn what_waits_in_queues_of_earlier_versions_comes() {
    with_celery(async |_, url| {
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare("jobs", &QueueOptions::new()).await.unwrap();
        let channel = broker.connection().channel().await.unwrap();
        let topic = || ExchangeOptions::of_kind("topic");
        channel.declare_exchange("pikake.due", topic()).await.unwrap();
        channel.declare_exchange("pikake.delay.0", topic()).await.unwrap();
        let text = |text: &str| Value::LongString(text.into());
        let options = AmqpQueue::quorum()
            .argument("x-dead-letter-strategy", text("at-least-once"))
            .argument("x-overflow", text("reject-publish"))
            .argument("x-message-ttl", Value::LongLongInt(2_000))
            .argument("x-dead-letter-exchange", text("pikake.due"));
        channel.declare_queue("jobs.delay.0", options).await.unwrap();
        let any = "*.".repeat(26) + "jobs";
        channel.bind("jobs", "pikake.due", &any, Default::default()).await.unwrap();
        channel.bind("jobs.delay.0", "pikake.delay.0", &any, Default::default()).await.unwrap();
        let key = "0.".repeat(25) + "1.jobs";
        let properties = pikake_amqp::persistent();
        channel.publish("pikake.delay.0", &key, properties, Vec::new(), true).await.unwrap();
        // This version delays, too.
        let soon = Some(wall_time() + SECOND);
        broker.publish("jobs", Message::default(), soon).await.unwrap();
        let consumer = channel.consume("jobs", ConsumeOptions::default()).await;
        let mut consumer = consumer.unwrap();
        for _ in 0..2 {
            timeout_after(HANG, consumer.next()).await.expect("it comes").unwrap().ack().unwrap();
        }
    });
}

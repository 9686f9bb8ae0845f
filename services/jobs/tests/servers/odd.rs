//! Messages of other publishers that RabbitMQ or this crate cannot handle. On a real broker.

use std::cell::Cell;
use std::time::Duration;

use pikake_amqp::is_malformed_reply_to;
use pikake_jobs::{AmqpBroker, App, Broker, JobId, Message, Outcome, QueueOptions};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{sleep, spawn, timeout_after, wall_time};

const PATIENCE: Duration = Duration::from_secs(20);

/// Names that look like those of direct reply-to, and have another form.
const MALFORMED: [&str; 2] = ["x.y", "g1h3Bm5AaG9zdAAAAAEAAAAAAAAAAQ==.y"];
/// A name in the form of direct reply-to, of a node that is not running. RabbitMQ 3.10 ends the
/// connection.
const DEPARTED: &str = "g1h3B3JlcGx5QDIAAAABAAAAAAAAAAE=.y";

/// To be answered at such a name.
fn answered_at(name: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some("a".to_owned());
    message.reply_to = Some(format!("amq.rabbitmq.reply-to.{name}"));
    message
}

/// Answers three times to each name, with other messages beside the answers, and tells how many
/// connections that has cost.
async fn answer_beside_others(url: &str, names: &[&str]) -> u64 {
    let broker = AmqpBroker::open(url).await.unwrap();
    broker.declare("jobs", &QueueOptions::default()).await.unwrap();
    for to in names {
        let message = answered_at(to);
        let others: Vec<_> = (0..20)
            .map(|_| {
                let broker = broker.clone();
                spawn(async move { broker.publish("jobs", Message::default(), None).await })
            })
            .collect();
        for _ in 0..3 {
            let stored = broker.store(&message, Outcome::success(1.into()));
            timeout_after(PATIENCE, stored).await.expect("it goes on for ever").unwrap();
        }
        for other in others {
            timeout_after(PATIENCE, other).await.expect("it hangs").unwrap().unwrap();
        }
    }
    let expected = 20 * names.len() as u64;
    // A busy queue may say 0.
    let all_are_there = timeout_after(PATIENCE, async {
        while broker.counts("jobs").await.unwrap().ready < expected {
            sleep(Duration::from_millis(50)).await.unwrap();
        }
    });
    all_are_there.await.expect("none is lost");
    let epoch = broker.connection().epoch();
    broker.close().await.unwrap();
    epoch
}

#[test]
fn answers_to_malformed_names_cost_no_connection() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        assert_eq!(answer_beside_others(&url, &MALFORMED).await, 0);
    });
}

#[test]
fn answers_to_a_departed_node_are_dropped() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        // Later versions than 3.10 drop them themselves.
        let cost = answer_beside_others(&url, &[DEPARTED]).await;
        assert!(cost <= 3, "{cost} connections");
    });
}

/// What RabbitMQ names itself must pass the check.
#[test]
fn real_names_of_direct_reply_to_are_answered() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let asking = AmqpBroker::open(&url).await.unwrap();
        asking.declare("jobs", &QueueOptions::default()).await.unwrap();
        let answering = AmqpBroker::open(&url).await.unwrap();
        let mut message = Message::default();
        message.correlation_id = Some("a".to_owned());
        asking.expect(&mut message).await.unwrap();
        asking.publish("jobs", message, None).await.unwrap();
        let mut deliveries = answering.consume("jobs", 1).await.unwrap();
        let came = deliveries.next().await.unwrap().unwrap();
        let name = came.message.reply_to.clone().unwrap();
        assert!(name.starts_with("amq.rabbitmq.reply-to."), "{name}");
        assert!(!is_malformed_reply_to(&name), "{name}");
        answering.store(&came.message, Outcome::success(7.into())).await.unwrap();
        let waited = timeout_after(PATIENCE, asking.wait(&JobId("a".to_owned()))).await;
        assert_eq!(waited.expect("it is answered").unwrap(), Outcome::success(7.into()));
        answering.ack(came.receipt).await.unwrap();
        for broker in [asking, answering] {
            broker.close().await.unwrap();
        }
    });
}

thread_local! {
    static RUNS: Cell<u32> = const { Cell::new(0) };
}

#[job(crate = pikake_jobs, name = "odd.runs")]
async fn runs() -> u32 {
    RUNS.set(RUNS.get() + 1);
    RUNS.get()
}

/// Runs a job that is to be answered at that name, until its message is settled. Tells how often it
/// ran.
async fn run_answered_at(url: &str, name: &str) -> u32 {
    let app = App::new(url).unwrap().jobs([runs::JOB]);
    let broker = AmqpBroker::open(url).await.unwrap();
    broker.declare("pikake", &QueueOptions::default()).await.unwrap();
    let mut message = answered_at(name);
    message.content_type = Some("application/json".to_owned());
    message.content_encoding = Some("utf-8".to_owned());
    message.headers.insert("task".to_owned(), "odd.runs".into());
    message.headers.insert("id".to_owned(), "a".into());
    message.body = b"[[], {}, {}]".to_vec();
    broker.publish("pikake", message, None).await.unwrap();
    RUNS.set(0);
    let worker = spawn(app.run_worker());
    timeout_after(PATIENCE, async {
        while app.stats().all.done == 0 || app.stats().all.running > 0 {
            sleep(Duration::from_millis(50)).await.unwrap();
        }
    })
    .await
    .expect("it is done");
    sleep(Duration::from_secs(1)).await.unwrap();
    worker.request_cancel("the test is over");
    let report = timeout_after(PATIENCE, worker).await.expect("it ends").unwrap().unwrap();
    assert!(report.stats.all.done >= 1, "{:?}", report.stats.all);
    let counts = broker.counts("pikake").await.unwrap();
    assert_eq!((counts.ready, counts.dead), (0, 0));
    broker.close().await.unwrap();
    RUNS.get()
}

#[test]
fn a_malformed_reply_to_runs_its_job_once() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async { assert_eq!(run_answered_at(&url, MALFORMED[0]).await, 1) });
}

/// Its message comes again with each connection that it costs.
#[test]
fn a_job_for_a_departed_node_ends() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let times = run_answered_at(&url, DEPARTED).await;
        assert!((1..=4).contains(&times), "{times} runs");
    });
}

#[test]
fn what_expires_later_than_the_broker_can_count_is_sent() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        for years in [1, 100, 10_000] {
            let mut message = Message::default();
            message.expires = Some(wall_time() + years * Duration::from_secs(365 * 24 * 3_600));
            let expires = message.expires;
            broker.publish("jobs", message, None).await.unwrap();
            let mut deliveries = broker.consume("jobs", 1).await.unwrap();
            let came = deliveries.next().await.unwrap().unwrap();
            let apart = came.message.expires.unwrap().duration_since(expires.unwrap());
            assert!(apart.unwrap_or_else(|error| error.duration()) < Duration::from_millis(2));
            broker.ack(came.receipt).await.unwrap();
        }
        broker.close().await.unwrap();
    });
}

thread_local!(static BEGUN: Cell<u32> = const { Cell::new(0) });

/// It never ends, as a job does that takes its worker with it.
#[job(crate = pikake_jobs)]
async fn endless() {
    BEGUN.set(BEGUN.get() + 1);
    std::future::pending().await
}

/// A classic queue counts no deliveries, so a header does.
#[test]
fn job_that_never_ends_is_buried_on_classic_queue() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let app = || App::new(&url).unwrap().jobs([endless::JOB]).max_deliveries(3);
        let sender = app().connect().await.unwrap();
        let job = endless::with().on(&sender).send().await.unwrap();
        for round in 1..=3 {
            let worker = spawn(app().run_worker());
            while BEGUN.get() < round {
                sleep(Duration::from_millis(10)).await.unwrap();
            }
            worker.abort();
            drop(worker.await);
        }
        let worker = spawn(app().run_worker());
        let outcome = timeout_after(PATIENCE, job.wait()).await.expect("it is buried");
        assert!(outcome.unwrap_err().to_string().contains("delivered 3 times"));
        assert_eq!(BEGUN.get(), 3);
        worker.request_cancel("the test is over");
        worker.await.unwrap().unwrap();
        let broker = sender.broker().unwrap();
        let dead = broker.dead("pikake", 1).await.unwrap();
        assert_eq!(dead[0].message.job(), Some(job.id().0.as_str()));
        // Replayed, it is a new one.
        assert_eq!(broker.replay("pikake", None).await.unwrap(), 1);
        let mut deliveries = broker.consume("pikake", 1).await.unwrap();
        assert_eq!(deliveries.next().await.unwrap().unwrap().attempt, 0);
    });
}

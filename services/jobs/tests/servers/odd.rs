//! What somebody else may write into a message, and RabbitMQ stumbles over. On a real one.

use std::cell::Cell;
use std::mem;
use std::time::Duration;

use pikake_amqp::State;
use pikake_jobs::{AmqpBroker, App, Broker, Message, Outcome, QueueOptions};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{Task, sleep, spawn, timeout_after, wall_time};

const PATIENCE: Duration = Duration::from_secs(20);

/// To be answered at something that looks like one of the broker's own names, and is none.
fn answered_at(name: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some("a".to_owned());
    message.reply_to = Some(format!("amq.rabbitmq.reply-to.{name}"));
    message
}

/// It looks like one of the broker's own names for who waits for an answer, and is none: its channel dies
/// of it, and the connection with that.
#[test]
fn a_name_to_answer_to_that_costs_the_connection_is_given_up() {
    let url = crate::rabbit::fresh_url();
    Kernel::new().unwrap().run(async {
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        for to in ["x.y", "g1h3Bm5AaG9zdAAAAAEAAAAAAAAAAQ==.y"] {
            let message = answered_at(to);
            let others: Vec<_> = (0..20)
                .map(|_| {
                    let broker = broker.clone();
                    spawn(async move { broker.publish("jobs", Message::default(), None).await })
                })
                .collect();
            let stored = broker.store(&message, Outcome::success(1.into()));
            let stored = timeout_after(PATIENCE, stored).await.expect("it goes on for ever");
            stored.unwrap();
            for other in others {
                let sent = timeout_after(PATIENCE, other).await.expect("it hangs").unwrap();
                sent.unwrap();
            }
        }
        // It costs nothing any more.
        let connection = broker.connection().clone();
        let changed = spawn(async move { connection.changed().await });
        let message = answered_at("x.y");
        broker.store(&message, Outcome::success(1.into())).await.unwrap();
        broker.publish("jobs", Message::default(), None).await.unwrap();
        assert!(!changed.is_finished());
        // A busy queue may say 0.
        let all_are_there = timeout_after(PATIENCE, async {
            while broker.counts("jobs").await.unwrap().ready < 41 {
                sleep(Duration::from_millis(50)).await.unwrap();
            }
        });
        all_are_there.await.expect("none is lost");
        broker.close().await.unwrap();
    });
}

/// What is to be answered there while it is found out costs nothing more.
#[test]
fn a_name_that_costs_connections_is_found_out_once() {
    let url = crate::rabbit::fresh_url();
    Kernel::new().unwrap().run(async {
        let broker = AmqpBroker::open(&url).await.unwrap();
        let message = answered_at("x.y");
        let store = || {
            let (broker, message) = (broker.clone(), message.clone());
            spawn(async move { broker.store(&message, Outcome::success(1.into())).await })
        };
        let mut stores = vec![store(), store()];
        let connection = broker.connection().clone();
        let (mut cost, mut is_up) = (0, true);
        while !stores.iter().all(Task::is_finished) {
            // A change, or a look at who has finished.
            let _ = timeout_after(Duration::from_millis(50), connection.changed()).await;
            let was_up = mem::replace(&mut is_up, matches!(connection.state(), State::Open));
            if was_up && !is_up {
                cost += 1;
                stores.push(store());
            }
        }
        for stored in stores {
            timeout_after(PATIENCE, stored).await.expect("it hangs").unwrap().unwrap();
        }
        assert_eq!(cost, 3, "one that it may have cost, and two by itself");
        broker.close().await.unwrap();
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

/// Its message comes again with each connection that it costs.
#[test]
fn a_job_that_is_to_be_answered_there_comes_to_its_end() {
    let url = crate::rabbit::fresh_url();
    Kernel::new().unwrap().run(async {
        let app = App::new(&url).unwrap().jobs(runs);
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare("pikake", &QueueOptions::default()).await.unwrap();
        let mut message = answered_at("x.y");
        message.content_type = Some("application/json".to_owned());
        message.content_encoding = Some("utf-8".to_owned());
        message.headers.insert("task".to_owned(), "odd.runs".into());
        message.headers.insert("id".to_owned(), "a".into());
        message.body = b"[[], {}, {}]".to_vec();
        broker.publish("pikake", message, None).await.unwrap();
        let worker = spawn(app.run_worker());
        timeout_after(PATIENCE, async {
            while RUNS.get() < 2 {
                sleep(Duration::from_millis(50)).await.unwrap();
            }
        })
        .await
        .expect("it runs");
        timeout_after(PATIENCE, async {
            while app.stats().all.done == 0 {
                sleep(Duration::from_millis(50)).await.unwrap();
            }
        })
        .await
        .expect("it is done");
        sleep(Duration::from_secs(1)).await.unwrap();
        worker.request_cancel("the test is over");
        let report = timeout_after(PATIENCE, worker).await.expect("it ends").unwrap().unwrap();
        assert!(RUNS.get() <= 4, "{} runs", RUNS.get());
        assert!(report.stats.all.done >= 1, "{:?}", report.stats.all);
        let counts = broker.counts("pikake").await.unwrap();
        assert_eq!((counts.ready, counts.dead), (0, 0));
        broker.close().await.unwrap();
    });
}

#[test]
fn what_expires_later_than_the_broker_can_count_is_sent() {
    let url = crate::rabbit::fresh_url();
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

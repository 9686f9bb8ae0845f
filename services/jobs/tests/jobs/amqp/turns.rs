//! Messages that wait for others before they are sent: not for long, and so that they are not lost with
//! them. On the broker for tests, in virtual time.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::broker::{PublishError, PublishFailure};
use pikake_jobs::{AmqpBroker, Broker, BrokerError, Outcome};
use pikake_sim::{Schedule, Sim};
use pikake_time::Ticks;
use pikake_traps::{Task, elapsed_since, now, random, sleep, spawn, timeout_after, wall_time};

use super::fake::{SECOND, connected, in_a_world, message, on_a_broker, serving, without_delays};

/// With the task that serves it.
fn on_a_broker_that_goes<F: Future<Output = ()>>(
    test: impl FnOnce(Task<io::Result<()>>, AmqpBroker) -> F,
) {
    in_a_world(async {
        let serving = serving(&Server::new()).await;
        test(serving, connected("amqp://127.0.0.1").await).await;
    });
}

type Sent = Task<(Result<(), PublishError>, Duration)>;

/// Publishes, and tells when that came to its end.
fn publish(broker: &AmqpBroker, job: &str, waits: bool, since: Ticks) -> Sent {
    let (broker, message) = (broker.clone(), message(job));
    spawn(async move {
        let sent = broker.publish("jobs", message, waits.then(|| wall_time() + SECOND)).await;
        (sent, elapsed_since(since))
    })
}

async fn all_are_told_soon(sent: Vec<Sent>) {
    for sent in sent {
        let (sent, after) = sent.await.unwrap();
        let error = sent.expect_err("there is no broker");
        let is_lost = matches!(&error.cause, PublishFailure::Broker(BrokerError::Lost(_)));
        assert!(is_lost, "{:?}", error.cause);
        assert!(after <= 32 * SECOND, "{after:?}: {}", error);
    }
}

#[test]
fn whoever_waits_behind_others_is_told_as_soon() {
    for pause in [Duration::ZERO, SECOND] {
        on_a_broker_that_goes(async |server, broker| {
            server.cancel().await.unwrap();
            sleep(pause).await.unwrap();
            let since = now();
            // Each would have delays made, when it is its turn.
            let sent = (0..4).map(|_| publish(&broker, "late", true, since)).collect();
            all_are_told_soon(sent).await;
            let closed = timeout_after(5 * SECOND, broker.close()).await;
            closed.expect("it waits for nobody").unwrap();
        });
    }
}

#[test]
fn whoever_waits_for_another_channel_is_told_as_soon() {
    on_a_broker_that_goes(async |server, broker| {
        without_delays(&broker).await;
        publish(&broker, "to blame", true, now()).await.unwrap().0.expect_err("no exchange");
        server.cancel().await.unwrap();
        let since = now();
        let sent = (0..4).map(|_| publish(&broker, "next", false, since)).collect();
        all_are_told_soon(sent).await;
    });
}

/// Whatever the order is in which all of them go on.
#[test]
fn a_name_that_costs_connections_costs_no_more_however_many_answer() {
    for seed in 0..40 {
        let mut sim = Sim::new(seed);
        sim.schedule(Schedule::Random);
        let ran = sim.run_here("test", async {
            let server = Server::new();
            let _serving = serving(&server).await.cancel_on_drop();
            let broker = connected("amqp://127.0.0.1").await;
            let stored = Rc::new(Cell::new(0));
            let store = |n: u64| {
                let (broker, mut message) = (broker.clone(), message("a"));
                let stored = stored.clone();
                spawn(async move {
                    message.reply_to = Some("amq.rabbitmq.reply-to.x.y".to_owned());
                    sleep(Duration::from_micros(random::range(0..2_000))).await.unwrap();
                    match n % 3 {
                        0 => broker.publish("jobs", message, None).await.unwrap(),
                        _ => broker.store(&message, Outcome::success(1.into())).await.unwrap(),
                    }
                    stored.set(stored.get() + 1);
                })
            };
            let stores: Vec<_> = (0..300).map(store).collect();
            for store in stores {
                store.await.unwrap();
            }
            assert_eq!(stored.get(), 300);
            assert!(server.ready("jobs") >= 100);
            broker.connection().epoch()
        });
        let cost = ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).outcome.unwrap();
        assert!(cost <= 3, "seed {seed}: one that it may have cost, two by itself, and not {cost}");
    }
}

#[test]
fn a_message_that_was_held_back_comes_in_time_all_the_same() {
    on_a_broker(async |server, broker| {
        let since = now();
        let later = wall_time() + 20 * SECOND;
        let soon = wall_time() + SECOND;
        broker.publish("jobs", message("first"), Some(soon)).await.unwrap();
        server.block(Some("memory"));
        // This is what the broker says so at.
        let held_back = publish(&broker, "held back", false, since);
        sleep(SECOND).await.unwrap();
        let (publishing, delayed) = (broker.clone(), message("delayed"));
        let delayed = spawn(async move { publishing.publish("jobs", delayed, Some(later)).await });
        sleep(10 * SECOND).await.unwrap();
        server.block(None);
        held_back.await.unwrap().0.unwrap();
        delayed.await.unwrap().unwrap();
        let mut deliveries = broker.consume("jobs", 10).await.unwrap();
        let mut came = Vec::new();
        for _ in 0..3 {
            let delivery = deliveries.next().await.unwrap().unwrap();
            came.push((delivery.message.job().unwrap().to_owned(), elapsed_since(since).as_secs()));
        }
        came.sort();
        assert_eq!((came[0].0.as_str(), came[0].1), ("delayed", 20), "{came:?}");
    });
}

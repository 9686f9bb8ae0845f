//! Messages that wait before they are sent, and for how long at most. On the broker for tests, in
//! virtual time.

use std::future::Future;
use std::io;
use std::time::Duration;

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::broker::{PublishError, PublishFailure};
use pikake_jobs::{AmqpBroker, Broker, BrokerError};
use pikake_time::Ticks;
use pikake_traps::{Task, elapsed_since, now, sleep, spawn, timeout_after, wall_time};

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

async fn all_fail_soon(sent: Vec<Sent>) {
    for sent in sent {
        let (sent, after) = sent.await.unwrap();
        let error = sent.expect_err("there is no broker");
        let is_lost = matches!(&error.cause, PublishFailure::Broker(BrokerError::Lost(_)));
        assert!(is_lost, "{:?}", error.cause);
        assert!(after <= 32 * SECOND, "{after:?}: {}", error);
    }
}

#[test]
fn a_message_behind_others_fails_as_soon() {
    for pause in [Duration::ZERO, SECOND] {
        on_a_broker_that_goes(async |server, broker| {
            server.cancel().await.unwrap();
            sleep(pause).await.unwrap();
            let since = now();
            // Each would have delays made, when it is its turn.
            let sent = (0..4).map(|_| publish(&broker, "late", true, since)).collect();
            all_fail_soon(sent).await;
            let closed = timeout_after(5 * SECOND, broker.close()).await;
            closed.expect("it waits for nobody").unwrap();
        });
    }
}

#[test]
fn a_message_without_a_channel_fails_as_soon() {
    on_a_broker_that_goes(async |server, broker| {
        without_delays(&broker).await;
        publish(&broker, "to blame", true, now()).await.unwrap().0.expect_err("no exchange");
        server.cancel().await.unwrap();
        let since = now();
        let sent = (0..4).map(|_| publish(&broker, "next", false, since)).collect();
        all_fail_soon(sent).await;
    });
}

#[test]
fn a_held_back_delayed_message_is_in_time() {
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

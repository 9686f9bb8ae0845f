//! How many channels jobs need of a broker that grants few, and what becomes of messages whose
//! channel is lost. On the broker for tests, in virtual time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::State;
use pikake_amqp_testing::Broker as Server;
use pikake_jobs::broker::{PublishError, PublishFailure};
use pikake_jobs::{AmqpBroker, Broker, BrokerError, JobId, Outcome};
use pikake_traps::{CancelOnDrop, Task, sleep, spawn, timeout_after, wall_time};

use super::fake::{SECOND, message, on_a_broker, on_a_broker_at, without_delays};

const FEW: &str = "amqp://127.0.0.1?channel_max=10";

/// Sees how many channels there are at most.
fn most_channels(server: &Server) -> (Rc<Cell<usize>>, CancelOnDrop<()>) {
    let most = Rc::new(Cell::new(0));
    let (seen, server) = (most.clone(), server.clone());
    let looking = spawn(async move {
        while sleep(Duration::from_micros(10)).await.is_ok() {
            seen.set(seen.get().max(server.channels()));
        }
    });
    (most, looking.cancel_on_drop())
}

fn publish(
    broker: &AmqpBroker,
    job: &str,
    asks: bool,
    waits: bool,
) -> Task<Result<(), PublishError>> {
    let (broker, mut message) = (broker.clone(), message(job));
    spawn(async move {
        if asks {
            broker.expect(&mut message).await.unwrap();
        }
        broker.publish("jobs", message, waits.then(|| wall_time() + SECOND)).await
    })
}

/// Publishes `count` messages whose outcomes are awaited, which all lose their channel to another
/// message.
async fn asks_beside_one_to_blame(broker: &AmqpBroker, count: usize) {
    without_delays(broker).await;
    // Has the answers read that come to the channel, so that all go in the same turn.
    broker.expect(&mut message("nothing")).await.unwrap();
    let to_blame = publish(broker, "to blame", false, true);
    let sent: Vec<_> = (0..count).map(|n| publish(broker, &n.to_string(), true, false)).collect();
    to_blame.await.unwrap().expect_err("there is no exchange");
    for sent in sent {
        sent.await.unwrap().unwrap();
    }
}

/// Carries out so many jobs.
async fn carry_out(broker: &AmqpBroker, count: usize) {
    let mut deliveries = broker.consume("jobs", 10).await.unwrap();
    for _ in 0..count {
        let came = deliveries.next().await.unwrap().unwrap();
        broker.store(&came.message, Outcome::success(1.into())).await.unwrap();
        broker.ack(came.receipt).await.unwrap();
    }
}

#[test]
fn few_channels_are_enough_to_delay() {
    on_a_broker_at(FEW, async |server, broker| {
        let (most, _looking) = most_channels(&server);
        broker.publish("jobs", message("a"), Some(wall_time() + SECOND)).await.unwrap();
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        let came = timeout_after(3 * SECOND, deliveries.next()).await.expect("it comes");
        assert_eq!(came.unwrap().unwrap().message.job(), Some("a"));
        assert!(most.get() < 10, "{} channels", most.get());
    });
}

#[test]
fn one_channel_is_enough_to_send_again() {
    on_a_broker_at(FEW, async |server, broker| {
        without_delays(&broker).await;
        let (most, _looking) = most_channels(&server);
        let mut sent: Vec<_> =
            (0..300).map(|n| publish(&broker, &n.to_string(), false, false)).collect();
        let to_blame = publish(&broker, "to blame", false, true);
        sent.extend((300..600).map(|n| publish(&broker, &n.to_string(), false, false)));
        to_blame.await.unwrap().expect_err("there is no exchange");
        for sent in sent {
            sent.await.unwrap().unwrap();
        }
        // The broker closes the old one a moment after the next one is open.
        assert!(most.get() <= 2, "{} channels", most.get());
    });
}

#[test]
fn an_outcome_that_has_come_needs_no_channel() {
    on_a_broker(async |server, broker| {
        asks_beside_one_to_blame(&broker, 5).await;
        sleep(SECOND).await.unwrap();
        assert_eq!(server.channels(), 5);
        carry_out(&broker, 5).await;
        sleep(SECOND).await.unwrap();
        // The handles are there, and have not been looked at.
        assert_eq!(server.channels(), 1);
        for job in 0..5 {
            let job = JobId(job.to_string());
            assert!(broker.wait(&job).await.is_ok());
            broker.forget(&job);
        }
    });
}

#[test]
fn expect_survives_a_refused_message() {
    on_a_broker(async |server, broker| {
        without_delays(&broker).await;
        let to_blame = publish(&broker, "to blame", false, true);
        let asks = publish(&broker, "asks", true, false);
        to_blame.await.unwrap().expect_err("there is no exchange");
        asks.await.unwrap().unwrap();
        assert_eq!(server.ready("jobs"), 1);
    });
}

/// The broker came back with fewer channels to grant.
#[test]
fn messages_go_on_when_there_is_a_channel_for_them_again() {
    on_a_broker(async |server, broker| {
        without_delays(&broker).await;
        let first = broker.consume("jobs", 1).await.unwrap();
        let second = broker.consume("jobs", 1).await.unwrap();
        // What goes out from here on does so over the last channel of all.
        publish(&broker, "to blame", false, true).await.unwrap().expect_err("no exchange");
        publish(&broker, "before", false, false).await.unwrap().unwrap();
        server.limit_channels(2);
        server.cut();
        while !matches!(broker.connection().changed().await, Ok(State::Open)) {}
        let none_to_be_had = publish(&broker, "none", false, false).await.unwrap().unwrap_err();
        let is_lost = matches!(none_to_be_had.cause, PublishFailure::Broker(BrokerError::Lost(_)));
        assert!(is_lost && !none_to_be_had.is_uncertain, "{none_to_be_had:?}");
        let waits = publish(&broker, "after", false, false);
        sleep(SECOND).await.unwrap();
        drop(second);
        waits.await.unwrap().unwrap();
        drop(first);
        sleep(SECOND).await.unwrap();
        assert_eq!(server.ready("jobs"), 2);
    });
}

#[test]
fn an_outcome_that_cannot_come_needs_no_channel() {
    on_a_broker(async |server, broker| {
        asks_beside_one_to_blame(&broker, 5).await;
        publish(&broker, "another", false, false).await.unwrap().unwrap();
        assert_eq!(server.channels(), 5);
        server.cut();
        while !matches!(broker.connection().changed().await, Ok(State::Open)) {}
        sleep(SECOND).await.unwrap();
        assert_eq!(server.channels(), 1);
        let waited = broker.wait(&JobId("0".to_owned())).await;
        assert!(matches!(waited, Err(BrokerError::NoOutcome)), "{waited:?}");
    });
}

/// Beyond a number of channels.
#[test]
fn many_awaited_outcomes_share_channels() {
    on_a_broker(async |server, broker| {
        asks_beside_one_to_blame(&broker, 600).await;
        sleep(SECOND).await.unwrap();
        assert!((200..=257).contains(&server.channels()), "{} channels", server.channels());
        carry_out(&broker, 600).await;
        for job in 0..600 {
            let job = JobId(job.to_string());
            assert!(timeout_after(SECOND, broker.wait(&job)).await.unwrap().is_ok(), "{job:?}");
        }
        sleep(SECOND).await.unwrap();
        assert_eq!(server.channels(), 1);
    });
}

//! Messages that lose their channel or their connection to another one: they are sent again, and
//! the message to blame alone fails. On the broker for tests, in virtual time.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use pikake_amqp_testing::Broker as Server;
use pikake_jobs::broker::{PublishError, PublishFailure};
use pikake_jobs::{AmqpBroker, Broker, BrokerError, JobId, Message, Outcome, QueueOptions};
use pikake_sim::{Latency, Network, Schedule, Sim};
use pikake_traps::{Task, elapsed_since, now, random, sleep, spawn, timeout_after, wall_time};

use super::fake::{
    SECOND, connected, delay_names, message, on_a_broker, on_a_broker_at, serving, without_delays,
};

/// A name as the broker gives to direct reply-to, of a node that is not running.
const DEPARTED: &str = "amq.rabbitmq.reply-to.g1h3B3JlcGx5QDIAAAABAAAAAAAAAAE=.1-1";

type Sent = Task<Result<(), PublishError>>;

/// By then no message of a test is under way any more.
const LATER: Duration = Duration::from_secs(3_600);

/// Publishes a message. A delayed one is refused, as its exchange is gone.
fn publish(broker: &AmqpBroker, mut message: Message, asks: bool, is_refused: bool) -> Sent {
    let broker = broker.clone();
    spawn(async move {
        if asks {
            broker.expect(&mut message).await.unwrap();
        }
        broker.publish("jobs", message, is_refused.then(|| wall_time() + LATER)).await
    })
}

/// Publishes `count` messages. Every second one asks for an outcome, and the broker refuses those
/// in `refused`. The others must be confirmed.
async fn publish_beside(broker: &AmqpBroker, count: usize, refused: &[usize]) {
    without_delays(broker).await;
    // From here on answers are read, so that all messages leave in the same turn.
    broker.expect(&mut message("nothing")).await.unwrap();
    let publish =
        |n: usize| publish(broker, message(&n.to_string()), n % 2 == 0, refused.contains(&n));
    let sent: Vec<_> = (0..count).map(publish).collect();
    for (n, sent) in sent.into_iter().enumerate() {
        match sent.await.unwrap() {
            Err(error) if refused.contains(&n) => {
                let PublishFailure::Broker(BrokerError::Refused(why)) = &error.cause else {
                    panic!("{n}: {error}");
                };
                assert!(why.contains("404 NOT_FOUND - no exchange"), "{n}: {why}");
                assert!(error.is_uncertain, "{n}: {error}");
            }
            sent => assert!(sent.is_ok() && !refused.contains(&n), "{n}: {sent:?}"),
        }
    }
}

/// Takes all messages that are there, answers them, and tells how often each job came.
async fn take_all(broker: &AmqpBroker) -> BTreeMap<usize, u32> {
    let mut deliveries = broker.consume("jobs", 10).await.unwrap();
    let mut came = BTreeMap::new();
    while let Ok(delivery) = timeout_after(3 * SECOND, deliveries.next()).await {
        let delivery = delivery.unwrap().unwrap();
        broker.ack(delivery.receipt).await.unwrap();
        // The one of `without_delays` has no job.
        let Some(job) = delivery.message.job() else { continue };
        *came.entry(job.parse().unwrap()).or_default() += 1;
        broker.store(&delivery.message, Outcome::success(1.into())).await.unwrap();
    }
    came
}

/// All messages but those have arrived, twice at most, and the questions among them are answered.
async fn all_arrive(broker: &AmqpBroker, count: usize, refused: &[usize]) {
    let came = take_all(broker).await;
    let expected: Vec<usize> = (0..count).filter(|n| !refused.contains(n)).collect();
    assert_eq!(came.keys().copied().collect::<Vec<_>>(), expected);
    assert!(came.values().all(|times| *times <= 2), "{came:?}");
    let asked = expected.into_iter().filter(|n| n % 2 == 0);
    // What was confirmed before the first loss is not sent again, and its answer is lost with the
    // channel.
    let first = refused.iter().copied().min().unwrap_or_default();
    for n in asked.filter(|n| *n > first) {
        let waited = timeout_after(SECOND, broker.wait(&JobId(n.to_string()))).await;
        assert!(matches!(waited, Ok(Ok(_))), "{n}: {waited:?}");
    }
}

#[test]
fn neighbours_of_a_missing_exchange_all_arrive() {
    for at in [0, 50, 100] {
        on_a_broker(async |_server, broker| {
            publish_beside(&broker, 101, &[at]).await;
            all_arrive(&broker, 101, &[at]).await;
        });
    }
}

#[test]
fn neighbours_of_many_refused_messages_all_arrive() {
    let refused: Vec<usize> = (0..120).filter(|n| n % 6 == 1).collect();
    on_a_broker(async |_server, broker| {
        publish_beside(&broker, 120, &refused).await;
        all_arrive(&broker, 120, &refused).await;
    });
}

/// Runs a test once for each of some seeds, which have the tasks go on in any order.
fn in_any_order(seeds: u64, test: impl AsyncFn(Server, AmqpBroker)) {
    for seed in 0..seeds {
        let mut sim = Sim::new(seed);
        sim.schedule(Schedule::Random);
        let ran = sim.run_here("test", async {
            let server = Server::new();
            let _serving = serving(&server).await.cancel_on_drop();
            test(server, connected("amqp://127.0.0.1").await).await;
        });
        ran.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).outcome.unwrap();
    }
}

/// In any order, and with publishers that stop waiting at any time, also of refused messages.
#[test]
fn interrupted_publishers_fail_no_neighbours() {
    let is_refused = |n: usize| n % 10 == 1;
    let is_interrupted = |n: usize| n % 10 == 5 || n % 20 == 1;
    in_any_order(40, async |_server, broker| {
        without_delays(&broker).await;
        let publish =
            |n: usize| publish(&broker, message(&n.to_string()), n % 3 == 0, is_refused(n));
        let sent: Vec<_> = (0..60).map(publish).collect();
        let (mut expected, mut possible) = (Vec::new(), Vec::new());
        for (n, sent) in sent.into_iter().enumerate() {
            if is_interrupted(n) {
                sleep(Duration::from_micros(random::range(0..200))).await.unwrap();
                sent.request_cancel("interrupted");
            }
            match (sent.await.unwrap(), is_refused(n)) {
                (Ok(()), false) => expected.push(n),
                (Err(error), true) => assert!(!error.to_string().contains("within"), "{error}"),
                (Err(_), false) if is_interrupted(n) => possible.push(n),
                (sent, _) => panic!("{n}: {sent:?}"),
            }
        }
        let came = take_all(&broker).await;
        assert!(expected.iter().all(|n| came.contains_key(n)), "{expected:?} {came:?}");
        assert!(came.keys().all(|n| expected.contains(n) || possible.contains(n)), "{came:?}");
    });
}

/// Whenever it is interrupted, also while its retry is under way: that costs the next retry its
/// channel.
#[test]
fn an_interrupted_retry_fails_no_neighbour() {
    for quarter in 0..24 {
        on_a_distant_broker(async |_server, broker| {
            without_delays(&broker).await;
            let refused = publish(&broker, message("0"), false, true);
            let beside = publish(&broker, message("1"), false, false);
            sleep(quarter * SECOND / 4).await.unwrap();
            refused.request_cancel("interrupted");
            refused.await.unwrap().expect_err("refused or interrupted");
            beside.await.unwrap().unwrap_or_else(|error| panic!("{quarter}: {error}"));
            assert!(take_all(&broker).await.contains_key(&1));
        });
    }
}

/// The retries take minutes, each message may wait for thirty seconds, and others come meanwhile.
#[test]
fn retries_longer_than_the_limit_fail_nobody() {
    on_a_distant_broker(async |_server, broker| {
        let (begun, behind) = (now(), broker.clone());
        let behind = spawn(async move {
            sleep(100 * SECOND).await.unwrap();
            behind.publish("jobs", message("1000"), None).await
        });
        publish_beside(&broker, 101, &[50]).await;
        assert!(elapsed_since(begun) > 150 * SECOND, "{:?}", elapsed_since(begun));
        behind.await.unwrap().unwrap();
        let came = take_all(&broker).await;
        assert_eq!(came.len(), 101, "all but the refused one, and the one behind them");
    });
}

/// What is sent arrives half a second later.
fn on_a_distant_broker<F: Future<Output = ()>>(test: impl FnOnce(Server, AmqpBroker) -> F) {
    let mut network = Network::default();
    network.loopback = Latency::Fixed(SECOND / 2);
    let mut sim = Sim::new(0);
    sim.schedule(Schedule::Fifo).network(network);
    let ran = sim.run_here("test", async {
        let server = Server::new();
        let _serving = serving(&server).await.cancel_on_drop();
        test(server, connected("amqp://127.0.0.1").await).await;
    });
    ran.unwrap_or_else(|failure| panic!("{failure}")).outcome.unwrap();
}

fn answered_at(name: &str) -> Message {
    let mut message = message("a");
    message.reply_to = Some(name.to_owned());
    message
}

#[test]
fn answers_that_end_the_connection_are_dropped() {
    on_a_broker(async |_server, broker| {
        let publish = |n: usize| publish(&broker, message(&n.to_string()), false, false);
        let store = |_| {
            let broker = broker.clone();
            spawn(
                async move { broker.store(&answered_at(DEPARTED), Outcome::success(1.into())).await },
            )
        };
        let mut sent: Vec<_> = (0..50).map(publish).collect();
        let stored: Vec<_> = (0..20).map(store).collect();
        sent.extend((50..100).map(publish));
        for stored in stored {
            stored.await.unwrap().unwrap();
        }
        for sent in sent {
            sent.await.unwrap().unwrap();
        }
        store(0).await.unwrap().unwrap();
        let epoch = broker.connection().epoch();
        assert_eq!(epoch, 3, "the first beside others, and one of them twice by itself");
        let came = take_all(&broker).await;
        assert_eq!(came.into_keys().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn a_message_that_ends_the_connection_fails_alone() {
    on_a_broker(async |_server, broker| {
        let publish = |n: usize| publish(&broker, message(&n.to_string()), false, false);
        let before: Vec<_> = (0..10).map(publish).collect();
        let to_blame = broker.publish(DEPARTED, message("to blame"), None).await.unwrap_err();
        assert!(to_blame.to_string().contains("541 INTERNAL_ERROR"), "{to_blame}");
        assert!(to_blame.is_uncertain);
        for sent in before {
            sent.await.unwrap().unwrap();
        }
        assert_eq!(take_all(&broker).await.len(), 10);
    });
}

/// Whatever the order is in which all of them go on.
#[test]
fn malformed_names_cost_no_connection() {
    in_any_order(20, async |server, broker| {
        let store = |n: u64| {
            let broker = broker.clone();
            spawn(async move {
                let message = answered_at("amq.rabbitmq.reply-to.x.y");
                sleep(Duration::from_micros(random::range(0..2_000))).await.unwrap();
                match n % 3 {
                    0 => broker.publish("jobs", message, None).await.unwrap(),
                    _ => broker.store(&message, Outcome::success(1.into())).await.unwrap(),
                }
            })
        };
        let stores: Vec<_> = (0..60).map(store).collect();
        for store in stores {
            store.await.unwrap();
        }
        assert_eq!((server.ready("jobs"), broker.connection().epoch()), (20, 0));
    });
}

/// The answer was not refused, so its job has to be delivered again.
#[test]
fn store_to_malformed_name_fails_after_close() {
    on_a_broker(async |_server, broker| {
        let message = answered_at("amq.rabbitmq.reply-to.x.y");
        broker.store(&message, Outcome::success(1.into())).await.unwrap();
        broker.close().await.unwrap();
        let stored = broker.store(&message, Outcome::success(1.into())).await;
        assert!(matches!(stored, Err(BrokerError::Closed)), "{stored:?}");
    });
}

#[test]
fn unsendable_messages_are_refused_before_they_leave() {
    on_a_broker(async |server, broker| {
        publish(&broker, message("1"), true, false).await.unwrap().unwrap();
        let mut large = message("large");
        large.headers.insert("large".to_owned(), "x".repeat(128 * 1024).into());
        let mut named = message("named");
        named.headers.insert("x".repeat(256), "x".into());
        let cases = [
            ("jobs", large, "exceed the frame limit of 131072"),
            ("jobs", named, "255 are allowed"),
            ("amq.rabbitmq.reply-to.x.y", message("reply"), "is a malformed direct reply-to name"),
        ];
        for (queue, message, words) in cases {
            let error = broker.publish(queue, message, None).await.unwrap_err();
            let PublishFailure::Broker(BrokerError::Refused(why)) = &error.cause else {
                panic!("{error}");
            };
            assert!(why.contains(words) && !error.is_uncertain, "{error}");
        }
        // The channel is the same: what was asked over it before is answered.
        assert_eq!((server.channels(), broker.connection().epoch()), (1, 0));
        assert_eq!(take_all(&broker).await.len(), 1);
        let waited = timeout_after(SECOND, broker.wait(&JobId("1".to_owned()))).await;
        assert!(matches!(waited, Ok(Ok(_))), "{waited:?}");
    });
}

#[test]
fn a_burial_is_sent_again_beside_a_refused_message() {
    on_a_broker(async |server, broker| {
        without_delays(&broker).await;
        broker.publish("jobs", message("a"), None).await.unwrap();
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        let delivery = deliveries.next().await.unwrap().unwrap();
        let to_blame = publish(&broker, message("to blame"), false, true);
        let (receipt, message) = (delivery.receipt, delivery.message);
        let burying = broker.clone();
        let buried = spawn(async move { burying.bury(receipt, message, "why".to_owned()).await });
        to_blame.await.unwrap().expect_err("there is no exchange");
        buried.await.unwrap().unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!((server.ready("jobs.dead"), server.unacked("jobs")), (1, 0));
    });
}

/// The broker keeps the message, and never confirms it.
#[test]
fn withheld_confirm_fails_no_other_message() {
    on_a_broker(async |server, broker| {
        broker.declare("held", &QueueOptions::default()).await.unwrap();
        without_delays(&broker).await;
        server.hold_confirms("held");
        let holding = broker.clone();
        let held = spawn(async move { holding.publish("held", message("held"), None).await });
        sleep(SECOND).await.unwrap();
        let to_blame = publish(&broker, message("to blame"), false, true);
        sleep(SECOND).await.unwrap();
        for n in 0..20 {
            publish(&broker, message(&n.to_string()), false, false).await.unwrap().unwrap();
        }
        to_blame.await.unwrap().expect_err("there is no exchange");
        let error = held.await.unwrap().expect_err("there is no confirm");
        let is_lost = matches!(&error.cause, PublishFailure::Broker(BrokerError::Lost(_)));
        assert!(is_lost && error.is_uncertain, "{error}");
        assert_eq!(server.ready("held"), 2, "the retry came, too");
        timeout_after(SECOND, broker.close()).await.expect("nothing is under way").unwrap();
    });
}

/// The exchange is gone before the retry.
#[test]
fn arrived_message_with_refused_retry_is_uncertain() {
    on_a_broker(async |server, broker| {
        let later = Some(wall_time() + LATER);
        broker.publish("jobs", message("before"), later).await.unwrap();
        let delayed = || delay_names().map(|queue| server.ready(&queue)).sum::<usize>();
        assert_eq!(delayed(), 1);
        delay_names().for_each(|queue| server.hold_confirms(&queue));
        let arrived = publish(&broker, message("1"), false, true);
        sleep(SECOND).await.unwrap();
        assert_eq!(delayed(), 2);
        let channel = broker.connection().channel().await.unwrap();
        for exchange in delay_names() {
            channel.delete_exchange(&exchange).await.unwrap();
        }
        let to_blame = publish(&broker, message("2"), false, true);
        for sent in [to_blame, arrived] {
            let error = sent.await.unwrap().expect_err("there is no exchange");
            assert!(error.is_uncertain && error.to_string().contains("404"), "{error}");
        }
        assert_eq!(delayed(), 2);
    });
}

/// The retries take longer than the thirty seconds for which a message waits.
#[test]
fn neighbours_wait_behind_ten_refused_messages() {
    on_a_distant_broker(async |_server, broker| {
        without_delays(&broker).await;
        let begun = now();
        let publish = |n: usize| publish(&broker, message(&n.to_string()), false, n < 10);
        let sent: Vec<_> = (0..20).map(publish).collect();
        for (n, sent) in sent.into_iter().enumerate() {
            let sent = sent.await.unwrap();
            assert_eq!(sent.is_err(), n < 10, "{n}: {sent:?}");
        }
        assert!(elapsed_since(begun) > 30 * SECOND, "{:?}", elapsed_since(begun));
    });
}

/// The last retry closes the channel, so the message that waits behind it has to open one.
#[test]
fn waiting_behind_retries_leaves_time_for_a_channel() {
    on_a_distant_broker(async |_server, broker| {
        without_delays(&broker).await;
        let begun = now();
        let waiting = broker.clone();
        let behind = spawn(async move {
            sleep(SECOND + SECOND / 2).await.unwrap();
            waiting.publish("jobs", message("behind"), None).await
        });
        let is_refused = |n: usize| n == 0 || n == 59;
        let publish = |n: usize| publish(&broker, message(&n.to_string()), false, is_refused(n));
        let sent: Vec<_> = (0..60).map(publish).collect();
        for (n, sent) in sent.into_iter().enumerate() {
            let sent = sent.await.unwrap();
            assert_eq!(sent.is_err(), is_refused(n), "{n}: {sent:?}");
        }
        assert!(elapsed_since(begun) > 40 * SECOND, "{:?}", elapsed_since(begun));
        behind.await.unwrap().unwrap();
    });
}

#[test]
fn close_ends_while_others_publish() {
    on_a_distant_broker(async |_server, broker| {
        let publish_on = |n: u32| {
            let broker = broker.clone();
            spawn(async move {
                sleep(n * SECOND / 2).await.unwrap();
                for confirmed in 0..100 {
                    if let Err(error) = broker.publish("jobs", message("1"), None).await {
                        return (confirmed, error);
                    }
                }
                panic!("the broker was not closed");
            })
        };
        let publishing: Vec<_> = (0..2).map(publish_on).collect();
        sleep(3 * SECOND).await.unwrap();
        timeout_after(5 * SECOND, broker.close()).await.expect("it ends").unwrap();
        for publishing in publishing {
            let (confirmed, error) = publishing.await.unwrap();
            let is_closed = matches!(&error.cause, PublishFailure::Broker(BrokerError::Closed));
            assert!(confirmed > 0 && is_closed && !error.is_uncertain, "{confirmed}: {error}");
        }
    });
}

#[test]
fn refused_expect_leaves_publishing_intact() {
    on_a_broker(async |server, broker| {
        server.refuse_direct_reply();
        let begun = now();
        let beside = publish(&broker, message("1"), false, false);
        let expected = broker.expect(&mut message("2")).await;
        assert!(matches!(expected, Err(BrokerError::Refused(_))), "{expected:?}");
        beside.await.unwrap().unwrap();
        publish(&broker, message("3"), false, false).await.unwrap().unwrap();
        assert!(elapsed_since(begun) < SECOND, "{:?}", elapsed_since(begun));
    });
}

#[test]
fn few_channels_are_enough_for_retries_of_questions() {
    on_a_broker_at("amqp://127.0.0.1?channel_max=20", async |_server, broker| {
        assert_eq!(broker.connection().channel_max(), Some(20));
        without_delays(&broker).await;
        broker.expect(&mut message("nothing")).await.unwrap();
        let publish = |n: usize| publish(&broker, message(&n.to_string()), true, n == 0);
        let sent: Vec<_> = (0..60).map(publish).collect();
        for (n, sent) in sent.into_iter().enumerate() {
            let sent = sent.await.unwrap();
            assert_eq!(sent.is_err(), n == 0, "{n}: {sent:?}");
        }
    });
}

/// The queue for dead letters is gone, and the headers leave no room for a reason.
#[test]
fn full_headers_are_buried_after_a_repair() {
    on_a_broker(async |server, broker| {
        let mut full = message("a");
        full.headers.insert("full".to_owned(), "x".repeat(128 * 1024 - 200).into());
        broker.publish("jobs", full, None).await.unwrap();
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        let delivery = deliveries.next().await.unwrap().unwrap();
        let channel = broker.connection().channel().await.unwrap();
        channel.delete_queue("jobs.dead").await.unwrap();
        let reason = "x".repeat(500);
        broker.bury(delivery.receipt, delivery.message, reason).await.unwrap();
        sleep(SECOND).await.unwrap();
        assert_eq!((server.ready("jobs.dead"), server.unacked("jobs")), (1, 0));
    });
}

//! Brokers that say strange things, or too much, or nothing.

use std::cell::Cell;
use std::rc::Rc;

use pikake_amqp::{
    Backoff, Connection, ConsumeOptions, ExchangeOptions, Options, PublishError, QueueOptions,
    State, Table, Value, persistent,
};
use pikake_traps::{elapsed_since, now, sleep, spawn};

use crate::middle::Middle;
use crate::{SECOND, message, options, with_broker};

/// The publisher of such a message could otherwise end every connection that it is delivered over.
#[test]
fn messages_not_in_utf8_become_dead_letters() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        middle.others.replace(vec![
            (b"a-key".to_vec(), b"\xff\xfe\xc3(y".to_vec()),
            (b"an-id".to_vec(), b"\xf0\x9f\x98-d".to_vec()),
        ]);
        let connection = Connection::open(&address, options()).await?;
        let channel = connection.channel().await?;
        channel.declare_exchange("all", ExchangeOptions::of_kind("fanout")).await?;
        channel.declare_queue("dead", QueueOptions::quorum()).await?;
        let jobs = QueueOptions::quorum()
            .argument("x-dead-letter-exchange", Value::LongString("".into()))
            .argument("x-dead-letter-routing-key", Value::LongString("dead".into()));
        channel.declare_queue("jobs", jobs).await?;
        channel.bind("jobs", "all", "", Table::default()).await?;
        let publish = async |key: &str, id: &str, body: &[u8]| {
            let properties = persistent().with_message_id(id.into());
            channel.publish("all", key, properties, body.to_vec(), true).await.unwrap();
        };
        publish("a-key", "id", b"1").await;
        publish("key", "an-id", b"2").await;
        publish("key", "id", b"3").await;
        // With one at a time, the third comes only if the others are settled.
        let one = ConsumeOptions { prefetch: 1, ..ConsumeOptions::default() };
        let mut consumer = channel.consume("jobs", one).await?;
        let third = consumer.next().await?;
        assert_eq!((&*third.body, &*third.routing_key), (&b"3"[..], "key"));
        third.ack().unwrap();
        consumer.cancel().await?;
        publish("a-key", "id", b"4").await;
        publish("key", "id", b"5").await;
        let got = channel.get("jobs", false).await?.expect("the one behind it");
        assert_eq!(&*got.body, b"5");
        got.ack().unwrap();
        publish("a-key", "id", b"6").await;
        assert!(channel.get("jobs", false).await?.is_none());
        connection.close().await?;
        let dead = [b"1", b"2", b"4", b"6"].map(|body| body.to_vec());
        assert_eq!((broker.bodies("jobs").len(), broker.bodies("dead")), (0, dead.to_vec()));
        assert_eq!(middle.came.get(), 1);
        Ok(())
    });
}

#[test]
fn a_peer_that_falls_silent_is_lost_after_two_heartbeats() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let heartbeat = 2 * SECOND;
        let connection = Connection::open(&address, options()).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        channel.post(message("jobs", 1)).await.unwrap().await.unwrap();
        let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
        let held = consumer.next().await?;
        middle.is_silent.set(true);
        let silent = now();
        let sent = channel.post(message("jobs", 2)).await.unwrap();
        while !matches!(connection.changed().await?, State::Recovering { .. }) {}
        let took = elapsed_since(silent);
        assert!(took < 2 * heartbeat + SECOND / 100, "lost after {took:?}");
        assert!(took > 2 * heartbeat - SECOND / 10, "lost after {took:?}");
        assert!(!held.receipt.can_settle());
        // Nobody answers in the handshake, either.
        sleep(15 * SECOND).await?;
        assert!(matches!(connection.state(), State::Recovering { attempt: 2.. }));
        middle.is_silent.set(false);
        sent.await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let delivery = consumer.next().await?;
            seen.push(delivery.body.clone());
            delivery.ack().unwrap();
        }
        assert_eq!(seen, [1_u32.to_be_bytes(), 2_u32.to_be_bytes()]);
        connection.close().await
    });
}

/// A peer without anything to say is alive as long as it says so.
#[test]
fn an_idle_connection_is_kept_by_heartbeats_of_both_sides() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let connection = Connection::open(&address, options()).await?;
        let beat = vec![8, 0, 0, 0, 0, 0, 0, 0xce];
        for _ in 0..30 {
            sleep(SECOND).await?;
            middle.besides.replace(beat.clone());
            assert!(matches!(connection.state(), State::Open), "{:?}", connection.state());
        }
        assert_eq!(middle.came.get(), 1);
        connection.close().await
    });
}

/// channel.flow, on channel 1.
fn flow(is_active: bool) -> Vec<u8> {
    vec![1, 0, 1, 0, 0, 0, 5, 0, 20, 0, 20, u8::from(is_active), 0xce]
}

#[test]
fn a_channel_that_the_broker_pauses_holds_its_messages_back() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let options = Options { blocked_deadline: 5 * SECOND, ..Options::default() };
        let connection = Connection::open(&address, options).await?;
        let paused = connection.channel().await?;
        let other = connection.channel().await?;
        paused.declare_queue("jobs", QueueOptions::quorum()).await?;
        middle.besides.replace(flow(false));
        sleep(SECOND).await?;
        let held = spawn({
            let paused = paused.clone();
            async move { paused.post(message("jobs", 1)).await?.await }
        });
        other.post(message("jobs", 2)).await.unwrap().await.unwrap();
        sleep(SECOND).await?;
        assert_eq!(broker.bodies("jobs"), [2_u32.to_be_bytes()]);
        middle.besides.replace(flow(true));
        held.await.unwrap().unwrap();
        // Not for ever, and then it is given back.
        middle.besides.replace(flow(false));
        sleep(SECOND).await?;
        let begun = now();
        let error = paused.post(message("jobs", 3)).await.unwrap_err();
        assert!(elapsed_since(begun) >= 5 * SECOND);
        assert!(matches!(&error, PublishError::Blocked { .. }), "{error}");
        assert!(error.to_string().contains("paused"), "{error}");
        assert_eq!(error.into_message().expect("it was not sent"), message("jobs", 3));
        // Requests go on.
        assert_eq!(paused.purge("jobs").await?, 2);
        connection.close().await
    });
}

/// A delivery to the first consumer of channel 1.
fn delivery(tag: u64) -> Vec<u8> {
    let mut method = vec![0, 60, 0, 60, 8];
    method.extend(b"pikake-1");
    method.extend(tag.to_be_bytes());
    method.extend([0, 0, 1, b'q']);
    let header = [&[0, 60, 0, 0][..], &[0; 8], &[0, 0]].concat();
    let mut bytes = Vec::new();
    for (kind, payload) in [(1, method), (2, header)] {
        bytes.extend([kind, 0, 1]);
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        bytes.push(0xce);
    }
    bytes
}

#[test]
fn a_broker_that_delivers_far_more_than_was_asked_for_is_left() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let connection = Connection::open(&address, options()).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        let few = ConsumeOptions { prefetch: 3, ..ConsumeOptions::default() };
        let mut consumer = channel.consume("jobs", few).await?;
        // What RabbitMQ delivers of a stream may be more by some thousands.
        middle.besides.replace((1..=5_000).flat_map(delivery).collect());
        sleep(SECOND).await?;
        assert!(matches!(connection.state(), State::Open));
        middle.besides.replace((5_001..=20_000).flat_map(delivery).collect());
        while !matches!(connection.changed().await?, State::Recovering { .. }) {}
        assert!(consumer.try_next().is_none(), "they are the broker's again");
        channel.post(message("jobs", 1)).await.unwrap().await.unwrap();
        consumer.next().await?.ack().unwrap();
        connection.close().await
    });
}

#[test]
fn a_broker_that_hangs_up_each_time_is_not_asked_without_a_pause() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let backoff = Backoff { first: SECOND / 10, cap: SECOND, jitter: 0.0 };
        let options = Options { reconnect: Some(backoff), ..Options::default() };
        let connection = Connection::open(&address, options).await?;
        let is_bad = Rc::new(Cell::new(true));
        let cutter = spawn({
            let (connection, middle, is_bad) = (connection.clone(), middle.clone(), is_bad.clone());
            async move {
                while is_bad.get() {
                    if matches!(connection.state(), State::Open) {
                        middle.cut();
                    }
                    connection.changed().await.unwrap();
                }
            }
        });
        sleep(20 * SECOND).await?;
        let came = middle.came.get();
        assert!((15..30).contains(&came), "{came} connections in twenty seconds");
        is_bad.set(false);
        cutter.await.unwrap();
        // Once it has been steady, a loss is met at once again.
        sleep(5 * SECOND).await?;
        middle.cut();
        let cut = now();
        while !matches!(connection.changed().await?, State::Open) {}
        assert!(elapsed_since(cut) < SECOND / 10, "{:?}", elapsed_since(cut));
        connection.close().await
    });
}

/// RabbitMQ hangs up on what it cannot read. Such a message must not be sent again for ever.
#[test]
fn a_message_that_costs_every_connection_is_given_up() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        middle.poison.replace(b"poison".to_vec());
        let connection = Connection::open(&address, Options::default()).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        sleep(5 * SECOND).await?;
        let begun = now();
        let posted = channel.publish("", "jobs", persistent(), b"poison".to_vec(), true);
        let error = posted.await.unwrap_err();
        assert!(matches!(error, PublishError::Uncertain), "{error}");
        assert!(elapsed_since(begun) < 35 * SECOND, "{:?}", elapsed_since(begun));
        channel.post(message("jobs", 1)).await.unwrap().await.unwrap();
        assert!(matches!(connection.state(), State::Open));
        assert!(middle.came.get() < 200, "{} connections", middle.came.get());
        connection.close().await
    });
}

/// What is published waits here when the broker does not read, and not without end.
#[test]
fn a_broker_that_reads_too_slowly_is_waited_for() {
    const LARGE: usize = 1 << 20;
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let patience = 5 * SECOND;
        let options = Options { blocked_deadline: patience, ..Options::default() };
        let connection = Connection::open(&address, options).await?;
        let channel = connection.channel_unconfirmed().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        middle.is_deaf.set(true);
        let begun = now();
        let mut sent = 0;
        let error = loop {
            let body = vec![b'x'; LARGE];
            match channel.publish("", "jobs", persistent(), body, false).await {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("reads too slowly"), "{error}");
        assert_eq!(error.into_message().expect("it was not sent").body.len(), LARGE);
        assert!(elapsed_since(begun) >= patience && sent < 20, "{sent} were sent");
        middle.is_deaf.set(false);
        let last = channel.publish("", "jobs", persistent(), b"last".to_vec(), false);
        last.await.unwrap();
        while broker.ready("jobs") < sent + 1 {
            sleep(SECOND / 10).await?;
        }
        connection.close().await
    });
}

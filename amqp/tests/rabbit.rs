//! The client on a real RabbitMQ: everything it can be asked, and the errors a broker gives.

mod support;

use std::time::{Duration, Instant};

use pikake_amqp::{
    Channel, Connection, ConsumeOptions, Error, ExchangeOptions, Message, Options, Properties,
    PublishError, QueueOptions, Stale, State, Table, Value, persistent, short,
};
use pikake_traps::{Interrupted, sleep, spawn, timeout_after};
use support::{Shared, connect, run};

static BROKER: Shared = Shared::new();

fn message(key: &str, body: &[u8]) -> Message {
    Message {
        exchange: short("").unwrap(),
        routing_key: short(key).unwrap(),
        properties: persistent(),
        body: body.to_vec(),
        mandatory: false,
    }
}

/// A quorum queue counts a while later.
async fn until_it_has(channel: &Channel, queue: &str, (messages, consumers): (u32, u32)) {
    let begun = Instant::now();
    loop {
        let found = channel.declare_queue(queue, QueueOptions::passive()).await.unwrap();
        if (found.messages, found.consumers) == (messages, consumers) {
            return;
        }
        assert!(begun.elapsed() < support::HANG, "{found:?}");
        sleep(Duration::from_millis(20)).await.unwrap();
    }
}

#[test]
fn what_is_published_is_delivered_once_with_all_of_it() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap();
        assert!(queue.name.starts_with("pikake."), "{}", queue.name);

        let mut headers = Table::default();
        headers.insert("text".into(), Value::LongString("åäö".into()));
        headers.insert("number".into(), Value::LongLongInt(-5_000_000_000));
        headers.insert(
            "list".into(),
            Value::FieldArray(vec![Value::Boolean(true), Value::Void].into()),
        );
        let properties = Properties::default()
            .with_headers(headers)
            .with_content_type("application/json".into())
            .with_correlation_id("c".into())
            .with_priority(3)
            .with_timestamp(1_234_567_890);
        // None, some, one frame exactly, one octet more, and many frames.
        let frame = 128 * 1024 - 8;
        let bodies = [0, 78, frame, frame + 1, 1_000_000].map(|n| vec![b'x'; n]);
        for body in &bodies {
            channel.publish("", &queue.name, properties.clone(), body.clone(), true).await.unwrap();
        }
        let mut consumer = channel.consume(&queue.name, ConsumeOptions::default()).await.unwrap();
        for body in &bodies {
            let delivery = consumer.next().await.unwrap();
            assert!(delivery.body == *body, "{} for {}", delivery.body.len(), body.len());
            assert_eq!(delivery.properties, properties);
            assert_eq!((&*delivery.exchange, &*delivery.routing_key), ("", &*queue.name));
            assert!(!delivery.redelivered);
            delivery.ack().unwrap();
            assert_eq!(delivery.ack(), Err(Stale));
        }
        connection.close().await.unwrap();
        assert!(matches!(connection.state(), State::Closed(Error::Closed)));
        assert!(matches!(channel.get(&queue.name, false).await, Err(Error::Closed)));
    });
}

#[test]
fn a_thousand_confirms_are_under_way_at_once_and_acks_reach_the_broker() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("thousand", QueueOptions::quorum()).await.unwrap();
        let mut confirms = Vec::new();
        for number in 0..1000_u32 {
            let posted = channel.post(message("thousand", &number.to_be_bytes())).await;
            confirms.push(posted.unwrap());
        }
        for confirm in confirms {
            confirm.await.unwrap();
        }
        let options = ConsumeOptions { prefetch: 50, ..ConsumeOptions::default() };
        let mut consumer = channel.consume("thousand", options).await.unwrap();
        for number in 0..1000_u32 {
            let delivery = consumer.next().await.unwrap();
            assert_eq!(delivery.body, number.to_be_bytes());
            delivery.ack().unwrap();
        }
        consumer.cancel().await.unwrap();
        until_it_has(&channel, "thousand", (0, 0)).await;
        channel.delete_queue("thousand").await.unwrap();
    });
}

#[test]
fn exchanges_route_by_their_bindings() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let none = Table::default;
        channel.declare_exchange("logs", ExchangeOptions::of_kind("topic")).await.unwrap();
        channel.declare_exchange("all", ExchangeOptions::of_kind("fanout")).await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        channel.bind_exchange("all", "logs", "disk.#", none()).await.unwrap();
        channel.bind(&queue, "all", "", none()).await.unwrap();
        let publish = |key: &'static str| {
            channel.publish("logs", key, Properties::default(), key.into(), true)
        };
        publish("disk.full").await.unwrap();
        let Err(PublishError::Returned { code: 312, text }) = publish("net.up").await else {
            panic!("it was routed");
        };
        assert_eq!(text, "NO_ROUTE");
        assert_eq!(channel.get(&queue, true).await.unwrap().unwrap().body, b"disk.full");
        assert!(channel.get(&queue, true).await.unwrap().is_none());
        channel.unbind(&queue, "all", "", none()).await.unwrap();
        assert!(matches!(publish("disk.full").await, Err(PublishError::Returned { .. })));
        channel.bind(&queue, "all", "", none()).await.unwrap();
        channel.unbind_exchange("all", "logs", "disk.#", none()).await.unwrap();
        assert!(matches!(publish("disk.full").await, Err(PublishError::Returned { .. })));
        channel.publish("all", "", Properties::default(), vec![], true).await.unwrap();
        assert_eq!(channel.purge(&queue).await.unwrap(), 1);
        channel.delete_exchange("logs").await.unwrap();
        channel.delete_exchange("all").await.unwrap();
        assert_eq!(channel.delete_queue(&queue).await.unwrap(), 0);
    });
}

#[test]
fn an_error_of_one_channel_is_told_there_and_nowhere_else() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let good = connection.channel().await.unwrap();
        let queue = good.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let mut good_consumer = good.consume(&queue, ConsumeOptions::default()).await.unwrap();

        let bad = connection.channel().await.unwrap();
        let mut bad_consumer = bad.consume(&queue, ConsumeOptions::default()).await.unwrap();
        let (missing, after) =
            (bad.declare_queue("none", QueueOptions::passive()), bad.purge(&queue));
        let second = spawn(after);
        let error = missing.await.unwrap_err();
        assert_eq!(error.reason().map(|reason| reason.code), Some(404), "{error}");
        assert!(error.to_string().contains("no queue 'none'"), "{error}");
        // The one that was queued behind it, what waits, and what comes later.
        assert_eq!(second.await.unwrap().unwrap_err().reason().unwrap().code, 404);
        assert_eq!(bad_consumer.next().await.unwrap_err().reason().unwrap().code, 404);
        let late = bad.publish("", &queue, persistent(), b"mine".to_vec(), false).await;
        let back = late.unwrap_err().into_message().expect("it was not sent");
        assert_eq!(back.body, b"mine");

        good.publish("", &queue, persistent(), b"fine".to_vec(), true).await.unwrap();
        let delivery = good_consumer.next().await.unwrap();
        assert_eq!(delivery.body, b"fine");
        delivery.ack().unwrap();
    });
}

#[test]
fn a_publish_to_no_exchange_fails_with_its_channel() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let error = channel.publish("none", "k", persistent(), vec![], false).await.unwrap_err();
        assert!(error.is_uncertain() && error.to_string().contains("404"), "{error}");
        let long = "x".repeat(256);
        let fresh = connection.channel().await.unwrap();
        let error = fresh.publish("", &long, persistent(), vec![], false).await.unwrap_err();
        assert!(error.to_string().contains("255 are allowed"), "{error}");
        let mut table = Table::default();
        table.insert("h".into(), Value::LongString(vec![b'x'; 200_000].into()));
        let large = persistent().with_headers(table);
        let error = fresh.publish("", "q", large, b"b".to_vec(), false).await.unwrap_err();
        assert_eq!(error.into_message().expect("it was not sent").body, b"b");
        // Nothing of it is left on the channel.
        let queue = fresh.declare_queue("", QueueOptions::private()).await.unwrap().name;
        fresh.publish("", &queue, persistent(), vec![], true).await.unwrap();
    });
}

#[test]
fn what_is_not_acknowledged_goes_back() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let other = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        for n in 0..4_u8 {
            channel.publish("", &queue, persistent(), vec![n], true).await.unwrap();
        }
        // (An auto-delete queue goes with its last consumer.)
        let _keeps = channel.consume(&other, ConsumeOptions::default()).await.unwrap();
        let get = async || channel.get(&queue, false).await.unwrap().expect("a message");
        let first = get().await;
        first.nack(true).unwrap();
        let again = get().await;
        assert!(again.redelivered && again.body == [0]);
        drop(again); // unsettled
        let again = get().await;
        assert!(again.redelivered && again.body == [0], "{again:?}");
        again.reject(false).unwrap();
        let kept = get().await.receipt;
        let lost = get().await;
        channel.recover().await.unwrap();
        assert_eq!(lost.ack(), Err(Stale));
        assert_eq!(kept.ack(), Err(Stale));
        for n in 1..4_u8 {
            let delivery = get().await;
            assert_eq!(delivery.body, [n]);
            delivery.ack().unwrap();
        }
        assert!(channel.get(&queue, false).await.unwrap().is_none());
    });
}

#[test]
fn a_dropped_consumer_gives_back_what_it_had() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("dropped", QueueOptions::quorum()).await.unwrap();
        for n in 0..20_u8 {
            channel.publish("", "dropped", persistent(), vec![n], true).await.unwrap();
        }
        let mut consumer = channel.consume("dropped", ConsumeOptions::default()).await.unwrap();
        let taken = consumer.next().await.unwrap();
        drop(consumer);
        taken.ack().unwrap();
        until_it_has(&channel, "dropped", (19, 0)).await;
        channel.delete_queue("dropped").await.unwrap();
    });
}

#[test]
fn a_consumer_ends_with_its_queue() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("short-lived", QueueOptions::default()).await.unwrap();
        let mut consumer = channel.consume("short-lived", ConsumeOptions::default()).await.unwrap();
        let other = connection.channel().await.unwrap();
        other.delete_queue("short-lived").await.unwrap();
        assert!(matches!(consumer.next().await, Err(Error::ConsumerCancelled)));
        // The channel lives.
        channel.declare_queue("", QueueOptions::private()).await.unwrap();
    });
}

#[test]
fn answers_come_over_direct_reply_to() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let server = connection.channel().await.unwrap();
        let queue = server.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let mut requests = server.consume(&queue, ConsumeOptions::default()).await.unwrap();
        let serving = spawn(async move {
            let request = requests.next().await.unwrap();
            let to = request.properties.reply_to().clone().expect("where to");
            let body = request.body.to_ascii_uppercase();
            server.publish("", to.as_str(), Properties::default(), body, false).await.unwrap();
            request.ack().unwrap();
        });
        let client = connection.channel().await.unwrap();
        let mut answers = client.direct_reply_to().await.unwrap();
        let asks = Properties::default().with_reply_to("amq.rabbitmq.reply-to".into());
        client.publish("", &queue, asks, b"hello".to_vec(), true).await.unwrap();
        assert_eq!(answers.next().await.unwrap().body, b"HELLO");
        serving.await.unwrap();
    });
}

#[test]
fn prefetch_limits_each_consumer_and_a_quorum_queue_refuses_a_global_limit() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("limits", QueueOptions::quorum()).await.unwrap();
        for _ in 0..10 {
            channel.publish("", "limits", persistent(), vec![], true).await.unwrap();
        }
        let three = ConsumeOptions { prefetch: 3, ..ConsumeOptions::default() };
        let mut consumer = channel.consume("limits", three).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(consumer.next().await.unwrap());
        }
        let more = timeout_after(Duration::from_millis(200), consumer.next()).await;
        assert!(more.is_err(), "a fourth came");
        held.pop().unwrap().ack().unwrap();
        held.push(consumer.next().await.unwrap());

        let limited = connection.channel().await.unwrap();
        limited.qos(10, true).await.unwrap();
        let error = limited.consume("limits", ConsumeOptions::default()).await.unwrap_err();
        assert!(matches!(error, Error::NoGlobalQos(_)), "{error}");
        assert!(error.to_string().contains("prefetch of each consumer"), "{error}");
        channel.delete_queue("limits").await.unwrap();
    });
}

#[test]
fn an_interrupted_wait_loses_nothing_and_leaves_the_channel_usable() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let exclusive = QueueOptions { exclusive: true, ..QueueOptions::default() };
        let queue = channel.declare_queue("", exclusive).await.unwrap().name;
        // Each is interrupted after its bytes are queued, before the answer can be there.
        let none = Duration::ZERO;
        channel.publish("", &queue, persistent(), b"one".to_vec(), true).await.unwrap();
        assert!(timeout_after(none, channel.get(&queue, false)).await.is_err());
        assert!(timeout_after(none, channel.purge("none-such")).await.is_err());
        let fresh = connection.channel().await.unwrap();
        let published =
            async { fresh.publish("", &queue, persistent(), b"two".to_vec(), true).await };
        let told = timeout_after(none, async {
            let error = published.await.unwrap_err();
            assert!(error.is_uncertain() && error.interrupted().is_some());
        });
        assert!(told.await.is_err());
        assert!(
            timeout_after(none, fresh.consume(&queue, ConsumeOptions::default())).await.is_err()
        );
        let mut consumer = fresh.consume(&queue, ConsumeOptions::default()).await.unwrap();
        let mut bodies = Vec::new();
        while bodies.len() < 2 {
            assert!(timeout_after(none, consumer.next()).await.is_err() || bodies.len() < 2);
            let delivery = consumer.next().await.unwrap();
            delivery.ack().unwrap();
            bodies.push(String::from_utf8(delivery.body).unwrap());
        }
        bodies.sort();
        assert_eq!(bodies, ["one", "two"]);
    });
}

#[test]
fn a_cancelled_task_gives_its_delivery_back() {
    let broker = BROKER.get();
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("given-back", QueueOptions::default()).await.unwrap();
        channel.publish("", "given-back", persistent(), vec![], true).await.unwrap();
        let mut consumer = channel.consume("given-back", ConsumeOptions::default()).await.unwrap();
        let worker = spawn(async move {
            let _delivery = consumer.next().await.map_err(|_| Interrupted::cancelled("early"))?;
            sleep(support::HANG).await
        });
        sleep(Duration::from_millis(50)).await.unwrap();
        worker.cancel().await.unwrap();
        let begun = Instant::now();
        let again = loop {
            if let Some(delivery) = channel.get("given-back", false).await.unwrap() {
                break delivery;
            }
            assert!(begun.elapsed() < support::HANG);
        };
        assert!(again.redelivered);
        again.ack().unwrap();
        channel.delete_queue("given-back").await.unwrap();
    });
}

#[test]
fn who_is_not_let_in_is_told_why_at_once() {
    let broker = BROKER.get();
    run(async {
        let open = async |url: String| {
            Connection::open(&url.parse().unwrap(), Options::default()).await.unwrap_err()
        };
        let port = broker.port();
        let wrong = open(format!("amqp://guest:wrong@127.0.0.1:{port}")).await.to_string();
        assert!(wrong.contains(&format!("127.0.0.1:{port}")) && wrong.contains("403"), "{wrong}");
        let wrong = open(format!("amqp://127.0.0.1:{port}/no%2Fsuch")).await.to_string();
        assert!(wrong.contains("530") && wrong.contains("no/such"), "{wrong}");
        let nobody = open("amqp://127.0.0.1:9".to_owned()).await;
        assert!(matches!(nobody, Error::Connect { .. }), "{nobody}");
        assert!(nobody.to_string().contains("127.0.0.1:9: "), "{nobody}");
    });
}

#[test]
fn the_last_handle_closes_the_connection() {
    let mut broker = BROKER.get();
    let address = broker.address();
    run(async {
        let connection = connect(&address).await;
        let channel = connection.channel().await.unwrap();
        drop(connection);
        channel.declare_queue("", QueueOptions::private()).await.unwrap();
        drop(channel);
        sleep(Duration::from_millis(200)).await.unwrap();
    });
    assert_eq!(broker.command("ctl list_connections pid").len(), 0);
}

//! Messages on their way through a broker: exchanges, confirms, answers.

use pikake_amqp::{
    ConsumeOptions, Error, ExchangeOptions, Properties, PublishError, QueueOptions, Stale, State,
    Table, Value, persistent,
};
use pikake_traps::spawn;

use crate::support::{connect, run};
use crate::{BROKER, message, until_it_has};

#[test]
fn what_is_published_is_delivered_once_with_all_of_it() {
    let Some(broker) = BROKER.get() else { return };
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
    let Some(broker) = BROKER.get() else { return };
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
    let Some(broker) = BROKER.get() else { return };
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
fn a_publish_to_no_exchange_fails_with_its_channel() {
    let Some(broker) = BROKER.get() else { return };
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
fn answers_come_over_direct_reply_to() {
    let Some(broker) = BROKER.get() else { return };
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

//! Messages of publishers that write octets which are not UTF-8: RabbitMQ passes them on unread.

use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{
    Channel, Connection, ConsumeOptions, Delivery, Error, ExchangeOptions, Options, Properties,
    QueueOptions, State, Table, Value, persistent,
};
use pikake_net::{TcpListener, TcpStream};
use pikake_traps::{CancelOnDrop, sleep, spawn};

use crate::BROKER;
use crate::support::{connect, run, version};

/// What is written, and what is sent in its place: as many octets.
type Others = &'static [(&'static [u8], &'static [u8])];

/// A connection whose words come to the broker as others: what it publishes is what a client may
/// publish that does not care for UTF-8.
async fn stranger(to: u16, others: Others) -> (Connection, CancelOnDrop<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let passing_on = spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let broker = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
        let (client, broker) = (Rc::new(client), Rc::new(broker));
        let (from, back) = (broker.clone(), client.clone());
        let _back = spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer).await {
                back.write_all(&buffer[..length]).await.unwrap();
            }
        })
        .cancel_on_drop();
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = client.read(&mut buffer).await {
            let mut said = buffer[..length].to_vec();
            for (one, other) in others {
                for at in 0..length {
                    if said[at..].starts_with(one) {
                        said[at..at + other.len()].copy_from_slice(other);
                    }
                }
            }
            broker.write_all(&said).await.unwrap();
        }
    });
    let options = Options { reconnect: None, ..Options::default() };
    (Connection::open(&address, options).await.unwrap(), passing_on.cancel_on_drop())
}

fn properties(header: &str, id: &str) -> Properties {
    let mut headers = Table::default();
    headers.insert(header.into(), Value::LongInt(1));
    headers.insert("fine".into(), Value::LongString("text".into()));
    persistent().with_headers(headers).with_correlation_id(id.into())
}

#[test]
fn messages_that_are_not_utf8_are_rejected() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let all = ExchangeOptions::of_kind("fanout");
        channel.declare_exchange("to-all", all).await.unwrap();
        channel.declare_queue("rejected", QueueOptions::default()).await.unwrap();
        for (queue, options) in
            [("strange", QueueOptions::default()), ("strange-quorum", QueueOptions::quorum())]
        {
            let options = options
                .argument("x-dead-letter-exchange", Value::LongString("".into()))
                .argument("x-dead-letter-routing-key", Value::LongString("rejected".into()));
            channel.declare_queue(queue, options).await.unwrap();
            channel.bind(queue, "to-all", "", Table::default()).await.unwrap();
            let (other, _passing_on) = stranger(
                broker.port(),
                &[
                    (b"the-key", b"\xff\xfe-key"),
                    (b"the-id", b"\xc3-id"),
                    (b"the-header", b"\xe2\x82"),
                ],
            )
            .await;
            let strange = other.channel().await.unwrap();
            let publish = async |key: &str, header: &str, id: &str| {
                let properties = properties(header, id);
                let published = strange.publish("to-all", key, properties, b"x".to_vec(), true);
                published.await.unwrap();
            };
            publish("the-key", "header", "id").await;
            publish("key", "header", "the-id").await;
            publish("key", "the-header", "id").await;
            publish("key", "header", "id").await;
            // With one at a time, the last comes only if the others are settled.
            let one = ConsumeOptions { prefetch: 1, ..ConsumeOptions::default() };
            let mut consumer = channel.consume(queue, one).await.unwrap();
            let last = consumer.next().await.unwrap();
            let id = last.properties.correlation_id().as_ref().map(ToString::to_string);
            assert_eq!((&*last.routing_key, id.as_deref()), ("key", Some("id")));
            last.ack().unwrap();
            consumer.cancel().await.unwrap();
            // The same of a get.
            publish("the-key", "header", "id").await;
            publish("key", "header", "id").await;
            let got = got(&channel, queue).await;
            assert_eq!(&*got.routing_key, "key");
            got.ack().unwrap();
            until_left(&channel, "rejected", 4).await;
            assert_eq!(channel.purge("rejected").await.unwrap(), 4);
            // Without acknowledgements there is nothing to reject.
            publish("the-key", "header", "id").await;
            publish("key", "header", "id").await;
            let free = ConsumeOptions { no_ack: true, ..ConsumeOptions::default() };
            let mut consumer = channel.consume(queue, free).await.unwrap();
            assert_eq!(&*consumer.next().await.unwrap().routing_key, "key");
            consumer.cancel().await.unwrap();
            assert!(matches!(connection.state(), State::Open) && connection.epoch() == 0);
            assert_eq!(channel.delete_queue(queue).await.unwrap(), 0);
            until_left(&channel, "rejected", 0).await;
        }
        channel.delete_queue("rejected").await.unwrap();
        channel.delete_exchange("to-all").await.unwrap();
    });
}

async fn got(channel: &Channel, queue: &str) -> Delivery {
    loop {
        if let Some(delivery) = channel.get(queue, false).await.unwrap() {
            return delivery;
        }
    }
}

/// Waits until a queue has this many messages: dead letters arrive a moment later.
async fn until_left(channel: &Channel, queue: &str, count: u32) {
    let counted =
        async || channel.declare_queue(queue, QueueOptions::passive()).await.unwrap().messages;
    for _ in 0..100 {
        if counted().await == count {
            return;
        }
        sleep(Duration::from_millis(20)).await.unwrap();
    }
    assert_eq!(counted().await, count, "in {queue}");
}

/// The broker cuts its reason at 255 octets, wherever that is in a character.
#[test]
fn a_long_name_in_a_reason_costs_the_channel_and_no_more() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let version = version(&connection);
        let other = connection.channel().await.unwrap();
        for letters in ["å".repeat(127), format!("x{}", "å".repeat(127)), "日".repeat(85)] {
            let channel = connection.channel().await.unwrap();
            let declared = channel.declare_queue(&letters, QueueOptions::passive()).await;
            match declared.unwrap_err() {
                Error::ChannelClosed(why) if why.code == 404 => {}
                // RabbitMQ 4 counts characters, has an internal error, and closes the connection.
                Error::ConnectionLost(_) if version >= (4, 0) => {}
                error => panic!("{error}"),
            }
        }
        other.declare_queue("", QueueOptions::private()).await.unwrap();
        assert!(matches!(connection.state(), State::Open));
    });
}

/// RabbitMQ would hang up, and again when it is sent over the next connection.
#[test]
fn a_number_that_is_none_is_not_sent() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let mut headers = Table::default();
        headers.insert("nan".into(), Value::Double(f64::NAN));
        let nan = persistent().with_headers(headers);
        let error = channel.publish("", &queue, nan, b"x".to_vec(), true).await.unwrap_err();
        assert!(error.to_string().contains("finite numbers"), "{error}");
        assert_eq!(error.into_message().expect("it was not sent").body, b"x");
        channel.publish("", &queue, persistent(), b"x".to_vec(), true).await.unwrap();
        assert!(matches!(connection.state(), State::Open));
    });
}

/// It is the mandatory message that comes back, with a name of the broker's as the place for
/// answers.
#[test]
fn a_returned_question_is_told_to_who_asked() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let _answers = channel.direct_reply_to().await.unwrap();
        let asks = persistent().with_reply_to("amq.rabbitmq.reply-to".into());
        for properties in [persistent(), asks] {
            let published = channel.publish("", "no-such-queue", properties, b"x".to_vec(), true);
            let error = published.await.unwrap_err();
            assert!(error.to_string().contains("312 NO_ROUTE"), "{error}");
        }
    });
}

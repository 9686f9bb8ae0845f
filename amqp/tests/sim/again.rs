//! What is declared and asked for again over the next connection, and in which order.
//!
//! Apart from `recovery`: that is about what those notice who hold channels, consumers and messages.

use pikake_amqp::{Connection, ConsumeOptions, ExchangeOptions, QueueOptions, State, persistent};
use pikake_traps::timeout_after;

use crate::middle::Middle;
use crate::{SECOND, here, message, options, with_broker};

/// Numbers of channels of the connection that was lost are used again while the next one is set up.
#[test]
fn what_cannot_be_declared_again_costs_no_channel() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let other = Connection::open(&here(), options()).await?;
        let elsewhere = other.channel().await?;
        let connection = Connection::open(&address, options()).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        channel.declare_queue("other", QueueOptions::quorum()).await?;
        let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
        elsewhere.delete_queue("other").await?;
        elsewhere.declare_queue("other", QueueOptions::default()).await?;
        middle.cut();
        while !matches!(connection.changed().await?, State::Recovering { .. }) {}
        channel.post(message("jobs", 1)).await.unwrap().await.unwrap();
        consumer.next().await?.ack().unwrap();
        assert!(channel.closed().is_none());
        connection.close().await?;
        other.close().await
    });
}

/// RabbitMQ closes a channel that asks for an answer and has no consumer of answers yet.
#[test]
fn messages_do_not_overtake_the_consumer_of_their_answers() {
    with_broker(async |broker| {
        let connection = Connection::open(&here(), options()).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        channel.declare_queue("asked", QueueOptions::quorum()).await?;
        let mut first = channel.consume("jobs", ConsumeOptions::default()).await?;
        let mut answers = channel.direct_reply_to().await?;
        let asks = |n| {
            let mut asks = message("asked", n);
            asks.properties = asks.properties.with_reply_to("amq.rabbitmq.reply-to".into());
            asks
        };
        let lost = channel.post(asks(1)).await.unwrap();
        broker.cut();
        while !matches!(connection.changed().await?, State::Recovering { .. }) {}
        let held = channel.post(asks(2)).await.unwrap();
        lost.await.unwrap();
        held.await.unwrap();
        assert!(channel.closed().is_none());
        // Both consumers are back.
        channel.post(message("jobs", 3)).await.unwrap().await.unwrap();
        first.next().await?.ack().unwrap();
        let asked = channel.get("asked", true).await?.expect("it is there");
        let to = asked.properties.reply_to().clone().expect("where to");
        let mut answer = message(to.as_str(), 4);
        answer.mandatory = false;
        channel.post(answer).await.unwrap().await.unwrap();
        let got = timeout_after(SECOND, answers.next()).await.expect("no answer")?;
        assert_eq!(got.body, 4_u32.to_be_bytes());
        connection.close().await
    });
}

/// RabbitMQ without the plugin that brings a kind of exchanges closes the connection, and says for which
/// method, not for which exchange.
#[test]
fn what_costs_the_connection_to_declare_again_is_left_out_alone() {
    with_broker(async |broker| {
        let other = Connection::open(&here(), options()).await?;
        let elsewhere = other.channel().await?;
        let connection = Connection::open(&here(), options()).await?;
        let channel = connection.channel().await?;
        let names: Vec<String> = (0..24).map(|n| format!("all{n}")).collect();
        for (n, name) in names.iter().enumerate() {
            channel.declare_exchange(name, ExchangeOptions::of_kind("fanout")).await?;
            if n == 10 {
                let plugin = ExchangeOptions::of_kind("x-delayed-message");
                channel.declare_exchange("delayed", plugin).await?;
            }
        }
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
        broker.forget_kind("x-delayed-message");
        for name in &names {
            elsewhere.delete_exchange(name).await?;
        }
        other.close().await?;
        for most in [4, 1] {
            broker.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            loop {
                match connection.state() {
                    State::Open => break,
                    State::Recovering { attempt } => assert!(attempt <= most, "{attempt}"),
                    state => panic!("{state:?}"),
                }
                connection.changed().await?;
            }
            channel.post(message("jobs", 1)).await.unwrap().await.unwrap();
            let delivery = timeout_after(SECOND, consumer.next()).await.expect("none came")?;
            delivery.ack().unwrap();
            for name in &names {
                channel.publish(name, "", persistent(), b"x".to_vec(), false).await.unwrap();
            }
        }
        connection.close().await
    });
}

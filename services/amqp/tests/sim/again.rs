//! What is declared and asked for again over the next connection, and in which order.
//!
//! Apart from `recovery`: that is about what those notice who hold channels, consumers and
//! messages.

use std::time::Duration;

use pikake_amqp::{
    Connection, ConsumeOptions, Error, ExchangeOptions, QueueOptions, State, persistent,
};
use pikake_amqp_testing::{Broker, serve};
use pikake_net::TcpListener;
use pikake_traps::{elapsed_since, now, sleep, spawn, timeout_after};

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

/// RabbitMQ without the plugin that brings a kind of exchanges closes the connection, and says for
/// which method, not for which exchange.
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
            // In the middle of those that are declared side by side.
            if n == 8 {
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

#[test]
fn a_channel_that_is_closed_without_a_connection_does_not_come_back() {
    pikake_sim::example(async {
        let broker = Broker::new();
        let listen = async || TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let serving = spawn(serve(broker.clone(), listen().await));
        let connection = Connection::open(&here(), options()).await.unwrap();
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("jobs", QueueOptions::quorum()).await.unwrap();
        let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await.unwrap();
        serving.cancel().await.unwrap();
        while !matches!(connection.state(), State::Recovering { .. }) {
            connection.changed().await.unwrap();
        }
        let begun = now();
        timeout_after(SECOND, channel.close()).await.expect("it waits").unwrap();
        assert_eq!(elapsed_since(begun), Duration::ZERO);
        assert!(matches!(channel.closed(), Some(Error::Closed)));
        assert!(matches!(consumer.next().await, Err(Error::Closed)));
        assert!(matches!(channel.close().await, Err(Error::Closed)));
        let _serving = spawn(serve(broker.clone(), listen().await)).cancel_on_drop();
        while !matches!(connection.state(), State::Open) {
            connection.changed().await.unwrap();
        }
        sleep(SECOND).await.unwrap();
        assert_eq!((broker.consumers("jobs"), broker.channels()), (0, 0));
        connection.close().await.unwrap();
    });
}

/// Whatever of it there is again.
#[test]
fn a_channel_that_is_closed_while_it_recovers_costs_nothing_else() {
    for closed_after in 0..70 {
        with_broker(async move |broker| {
            let (middle, address, _listening) = Middle::new(&broker).await;
            let connection = Connection::open(&address, options()).await?;
            let (before, channel) = (connection.channel().await?, connection.channel().await?);
            let after = connection.channel().await?;
            channel.qos(5, true).await?;
            channel.declare_queue("jobs", QueueOptions::default()).await?;
            channel.declare_queue("others", QueueOptions::quorum()).await?;
            let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
            let mut others = after.consume("others", ConsumeOptions::default()).await?;
            // Lost sooner, it would be waited.
            sleep(SECOND).await?;
            let lost = channel.post(message("jobs", 1)).await.unwrap();
            middle.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            sleep(closed_after * Duration::from_micros(15)).await?;
            if closed_after % 2 == 0 {
                channel.close().await?;
            } else {
                let closing = spawn(channel.close());
                while channel.closed().is_none() {
                    sleep(Duration::from_micros(1)).await?;
                }
                drop(closing.cancel_on_drop());
            }
            assert!(matches!(channel.closed(), Some(Error::Closed)));
            assert!(consumer.next().await.is_err() || consumer.next().await.is_err());
            if let Err(error) = lost.await {
                assert!(error.is_uncertain(), "after {closed_after}: {error}");
            }
            before.post(message("others", 2)).await.unwrap().await.unwrap();
            others.next().await?.ack().unwrap();
            sleep(SECOND / 20).await?;
            assert_eq!((broker.consumers("jobs"), broker.unacked("jobs")), (0, 0));
            assert_eq!(broker.channels(), 2, "closed after {closed_after}");
            assert_eq!(middle.came.get(), 2, "closed after {closed_after}");
            connection.close().await
        });
    }
}

//! Every call of the AMQP client, interrupted at each suspension, over a broker in the same kernel.
//!
//! Each program starts with a queue of two messages and a channel. The error of an interrupted call
//! says so. Afterwards the connection works, no message is lost, and the broker has no channel, no
//! consumer and no unsettled delivery of abandoned calls.

use std::net::Ipv4Addr;

use pikake::net::TcpListener;
use pikake::testing::Injector;
use pikake::{Interrupted, sleep, spawn};
use pikake_amqp::{
    Address, Channel, Connection, ConsumeOptions, Error, ExchangeOptions, Message, Options,
    PublishError, QueueOptions, State, Table, persistent, short,
};
use pikake_amqp_testing::{Broker, serve};

use crate::support::insist::{Failure, Insistent, SOCKETS, insist, ms};

impl Failure for Error {
    fn interruption(&self) -> Option<&Interrupted> {
        self.interrupted()
    }
}

impl Failure for PublishError {
    fn interruption(&self) -> Option<&Interrupted> {
        self.interrupted()
    }
}

const QUEUE: &str = "jobs";

fn message(number: u8) -> Message {
    Message {
        exchange: short("").unwrap(),
        routing_key: short(QUEUE).unwrap(),
        properties: persistent(),
        body: vec![number],
        mandatory: true,
    }
}

/// A broker, and a connection with a channel.
struct Stage {
    broker: Broker,
    address: Address,
    connection: Connection,
    channel: Channel,
}

async fn set_up(broker: Broker, address: Address) -> Stage {
    // A window of one, so that who posts has to wait.
    let options = Options { publish_window: 1, ..Options::default() };
    let connection = Connection::open(&address, options).await.unwrap();
    let channel = connection.channel().await.unwrap();
    channel.declare_queue(QUEUE, QueueOptions::quorum()).await.unwrap();
    for number in [1, 2] {
        channel.post(message(number)).await.unwrap().await.unwrap();
    }
    Stage { broker, address, connection, channel }
}

/// The connection serves, and nothing is left. Gives the messages in the queue.
async fn look_after(broker: Broker, connection: Connection) -> Vec<u8> {
    let channel = connection.channel().await.unwrap();
    channel.declare_queue("usable", QueueOptions::default()).await.unwrap();
    channel.publish("", "usable", persistent(), b"x".to_vec(), true).await.unwrap();
    channel.get("usable", false).await.unwrap().expect("a message").ack().unwrap();
    assert_eq!(channel.delete_queue("usable").await.unwrap(), 0);
    channel.close().await.unwrap();
    let left = || (broker.channels(), broker.consumers(QUEUE), broker.unacked(QUEUE));
    for _ in 0..100 {
        if left() == (0, 0, 0) && broker.connections() == 1 {
            break;
        }
        sleep(ms(5)).await.unwrap();
    }
    assert_eq!(left(), (0, 0, 0), "channels, consumers, deliveries");
    assert_eq!(broker.connections(), 1);
    assert!(matches!(connection.state(), State::Open));
    connection.close().await.unwrap();
    while broker.connections() > 0 {
        sleep(ms(5)).await.unwrap();
    }
    broker.bodies(QUEUE).concat()
}

/// Interrupts a program everywhere. It gives the numbers of the messages it has acknowledged, which
/// with those that are left are to be one of these.
#[track_caller]
fn everywhere(expected: &[&[u8]], program: impl AsyncFn(&Insistent, Stage) -> Vec<u8>) {
    let report = insist(Injector::new().patience(SOCKETS), true, async |insistent| {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let broker = Broker::new();
        let listener = TcpListener::from_std(listener).unwrap();
        let _serving = spawn(serve(broker.clone(), listener)).cancel_on_drop();
        let mut task = spawn(set_up(broker.clone(), address));
        let stage = insistent.on(async || (&mut task).await).await;
        let connection = stage.connection.clone();
        let mut all = program(insistent, stage).await;
        let mut task = spawn(look_after(broker, connection));
        all.extend(insistent.on(async || (&mut task).await).await);
        all.sort_unstable();
        assert!(expected.contains(&all.as_slice()), "{all:?} of {expected:?}");
        true
    });
    // The set-up and the look afterwards are one suspension each.
    assert!(report.suspensions > 2, "{report:?}");
}

const BOTH: &[&[u8]] = &[&[1, 2]];

#[test]
fn opening_and_closing() {
    everywhere(BOTH, async |insistent, stage| {
        let open = async || Connection::open(&stage.address, Options::default()).await;
        let connection = insistent.on(open).await;
        insistent.on(async || connection.close().await).await;
        assert!(matches!(connection.changed().await, Ok(State::Closed(Error::Closed))));
        let connection = insistent.on(open).await;
        let closer = connection.clone();
        spawn(async move {
            sleep(ms(1)).await.unwrap();
            closer.close().await.unwrap();
        })
        .detach();
        while !matches!(connection.state(), State::Closed(_)) {
            insistent.on(async || connection.changed().await).await;
        }
        vec![]
    });
}

#[test]
fn channels() {
    everywhere(BOTH, async |insistent, Stage { connection, channel, .. }| {
        drop(channel);
        let channel = insistent.on(async || connection.channel().await).await;
        insistent.on(async || channel.qos(10, false).await).await;
        let unconfirmed = insistent.on(async || connection.channel_unconfirmed().await).await;
        insistent.on(async || channel.recover().await).await;
        // Closed also if that was interrupted.
        insistent.note_if_open(channel.close().await);
        assert!(matches!(channel.closed(), Some(Error::Closed)));
        drop(unconfirmed);
        vec![]
    });
}

impl Insistent {
    fn note_if_open(&self, closed: Result<(), Error>) {
        if let Err(error) = closed {
            self.note(&error);
        }
    }
}

#[test]
fn queues_exchanges_and_routes() {
    everywhere(BOTH, async |insistent, Stage { channel, broker, .. }| {
        let fanout = || ExchangeOptions::of_kind("fanout");
        let none = Table::default;
        insistent.on(async || channel.declare_queue("q", QueueOptions::default()).await).await;
        insistent.on(async || channel.declare_exchange("a", fanout()).await).await;
        insistent.on(async || channel.declare_exchange("b", fanout()).await).await;
        insistent.on(async || channel.bind("q", "b", "", none()).await).await;
        insistent.on(async || channel.bind_exchange("b", "a", "", none()).await).await;
        insistent.on(async || channel.unbind("q", "b", "", none()).await).await;
        insistent.on(async || channel.unbind_exchange("b", "a", "", none()).await).await;
        insistent.on(async || channel.purge("q").await).await;
        insistent.on(async || channel.delete_exchange("a").await).await;
        insistent.on(async || channel.delete_exchange("b").await).await;
        insistent.on(async || channel.delete_queue("q").await).await;
        assert_eq!(broker.queues(), [QUEUE]);
        vec![]
    });
}

#[test]
fn consuming() {
    everywhere(BOTH, async |insistent, Stage { channel, .. }| {
        let consume = async || channel.consume(QUEUE, ConsumeOptions::default()).await;
        let mut consumer = insistent.on(consume).await;
        let mut done = Vec::new();
        while done.len() < 2 {
            let delivery = insistent.on(async || consumer.next().await).await;
            delivery.ack().unwrap();
            done.extend(delivery.body);
        }
        // It ends also if that was interrupted.
        insistent.note_if_open(consumer.cancel().await);
        done
    });
}

#[test]
fn a_consumer_that_is_ended_with_deliveries() {
    everywhere(BOTH, async |insistent, Stage { channel, .. }| {
        let consume = async || channel.consume(QUEUE, ConsumeOptions::default()).await;
        let mut consumer = insistent.on(consume).await;
        let delivery = insistent.on(async || consumer.next().await).await;
        insistent.note_if_open(consumer.cancel().await);
        delivery.ack().unwrap();
        delivery.body
    });
}

#[test]
fn getting() {
    everywhere(BOTH, async |insistent, Stage { channel, .. }| {
        let mut done = Vec::new();
        while done.len() < 2 {
            // The delivery of an interrupted get may be on its way back.
            let got = insistent.on(async || channel.get(QUEUE, false).await).await;
            if let Some(delivery) = got {
                delivery.ack().unwrap();
                done.extend(delivery.body);
            }
        }
        done
    });
}

#[test]
fn publishing() {
    everywhere(&[&[1, 2, 3], &[1, 2, 3, 3]], async |insistent, Stage { channel, .. }| {
        let publish = async || channel.publish("", QUEUE, persistent(), vec![3], true).await;
        insistent.on(publish).await;
        vec![]
    });
}

/// A sender that keeps the returned message and the confirm sends it exactly once.
#[test]
fn posting_exactly_once() {
    everywhere(&[&[1, 2, 3, 4]], async |insistent, Stage { channel, .. }| {
        let mut confirms = Vec::new();
        for number in [3, 4] {
            confirms.push(post(insistent, &channel, message(number)).await);
        }
        for mut confirm in confirms {
            insistent.on(async || (&mut confirm).await).await;
        }
        vec![]
    });
}

async fn post(
    insistent: &Insistent,
    channel: &Channel,
    mut message: Message,
) -> pikake_amqp::Confirm {
    loop {
        match channel.post(message).await {
            Ok(confirm) => return confirm,
            Err(error) => {
                insistent.note(&error);
                message = error.into_message().expect("it was not sent");
            }
        }
    }
}

#[test]
fn while_the_broker_takes_nothing() {
    everywhere(&[&[1, 2, 3, 4]], async |insistent, Stage { channel, broker, .. }| {
        broker.block(Some("low on memory"));
        let unblocker = broker.clone();
        spawn(async move {
            sleep(ms(50)).await.unwrap();
            unblocker.block(None);
        })
        .detach();
        let mut first = post(insistent, &channel, message(3)).await;
        while !matches!(channel.connection().state(), State::Blocked { .. }) {
            insistent.on(async || channel.connection().changed().await).await;
        }
        let mut second = post(insistent, &channel, message(4)).await;
        insistent.on(async || (&mut first).await).await;
        insistent.on(async || (&mut second).await).await;
        vec![]
    });
}

/// Requests wait for the next connection, as do messages; deliveries of the last one come again.
#[test]
fn while_the_connection_is_made_again() {
    everywhere(&[&[1, 2, 3]], async |insistent, Stage { channel, broker, .. }| {
        let consume = async || channel.consume(QUEUE, ConsumeOptions::default()).await;
        let mut consumer = insistent.on(consume).await;
        let held = insistent.on(async || consumer.next().await).await;
        broker.cut();
        while !matches!(channel.connection().state(), State::Recovering { .. }) {
            insistent.on(async || channel.connection().changed().await).await;
        }
        assert!(held.ack().is_err());
        insistent.on(async || channel.declare_queue("q", QueueOptions::default()).await).await;
        let mut confirm = post(insistent, &channel, message(3)).await;
        insistent.on(async || (&mut confirm).await).await;
        insistent.on(async || channel.delete_queue("q").await).await;
        let mut done = Vec::new();
        while done.len() < 3 {
            let delivery = insistent.on(async || consumer.next().await).await;
            delivery.ack().unwrap();
            done.extend(delivery.body);
        }
        done
    });
}

#[test]
fn answers_without_a_queue() {
    everywhere(BOTH, async |insistent, Stage { channel, .. }| {
        let mut answers = insistent.on(async || channel.direct_reply_to().await).await;
        insistent.on(async || channel.declare_queue("q", QueueOptions::default()).await).await;
        let asks = persistent().with_reply_to("amq.rabbitmq.reply-to".into());
        let ask = async || channel.publish("", "q", asks.clone(), vec![9], true).await;
        insistent.on(ask).await;
        let mut question = loop {
            // The delivery of an interrupted get may be on its way back.
            if let Some(question) = insistent.on(async || channel.get("q", false).await).await {
                break question;
            }
        };
        question.ack().unwrap();
        let to = question.properties.reply_to().clone().expect("where to");
        let answer = std::mem::take(&mut question.body);
        let publish =
            async || channel.publish("", to.as_str(), persistent(), answer.clone(), false).await;
        insistent.on(publish).await;
        assert_eq!(insistent.on(async || answers.next().await).await.body, [9]);
        vec![]
    });
}

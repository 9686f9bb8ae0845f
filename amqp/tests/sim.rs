//! The client and the broker for tests in simulated worlds: connections are cut, hosts partitioned and
//! crashed, in many orders; and peers that are no brokers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::fake::{Broker, serve};
use pikake_amqp::{
    Address, Backoff, Connection, ConsumeOptions, Error, Message, Options, PublishError,
    QueueOptions, State, Value, persistent, short,
};
use pikake_net::TcpListener;
use pikake_sim::{FaultMix, Runs, Sim};
use pikake_traps::{elapsed_since, now, random, sleep, spawn, timeout_after};

const SECOND: Duration = Duration::from_secs(1);

fn options() -> Options {
    // A partition is noticed within four seconds.
    Options { heartbeat: 2 * SECOND, keep_trying: true, ..Options::default() }
}

fn address() -> Address {
    "amqp://broker".parse().unwrap()
}

fn message(queue: &str, number: u32) -> Message {
    Message {
        exchange: short("").unwrap(),
        routing_key: short(queue).unwrap(),
        properties: persistent().with_message_id(number.to_string().as_str().into()),
        body: number.to_be_bytes().to_vec(),
        mandatory: true,
    }
}

fn number(body: &[u8]) -> u32 {
    u32::from_be_bytes(body.try_into().unwrap())
}

/// A broker of the world, which comes back with what it knew when its host has crashed.
fn broker_host(sim: &mut Sim) -> Broker {
    let broker = Broker::new();
    sim.host("broker", {
        let broker = broker.clone();
        move || {
            let broker = broker.clone();
            async move {
                broker.restart();
                let listener = TcpListener::bind("0.0.0.0:5672").await.unwrap();
                drop(serve(broker, listener).await);
            }
        }
    });
    broker
}

/// No confirmed message is lost, and none whose acknowledgement the broker has seen comes again.
#[test]
fn nothing_confirmed_is_lost_under_faults() {
    const COUNT: u32 = 60;
    Runs::new("nothing_confirmed_is_lost_under_faults").seeds(60).run(|sim| {
        broker_host(sim);
        let seen = Rc::new(RefCell::new(BTreeMap::<u32, u32>::new()));
        sim.client("producer", || async move {
            let connection = Connection::open(&address(), options()).await?;
            let channel = jobs(&connection).await?;
            let mut confirms = VecDeque::new();
            for n in 0..COUNT {
                confirms.push_back(post(&channel, n).await);
                sleep(Duration::from_millis(random::range(0..800))).await?;
                while confirms.len() > 10 {
                    confirm(&channel, confirms.pop_front().unwrap()).await;
                }
            }
            for (n, posted) in confirms {
                confirm(&channel, (n, posted)).await;
            }
            Ok::<(), Error>(())
        });
        let taken = seen.clone();
        sim.client("consumer", move || {
            let seen = taken.clone();
            async move {
                let connection = Connection::open(&address(), options()).await?;
                let mut consumer = loop {
                    let channel = jobs(&connection).await?;
                    match channel.consume("jobs", ConsumeOptions::default()).await {
                        Err(Error::ConnectionLost(_) | Error::Unavailable(_)) => {}
                        result => break result?,
                    }
                };
                while seen.borrow().len() < COUNT as usize {
                    let delivery = consumer.next().await?;
                    sleep(Duration::from_millis(random::range(0..50))).await?;
                    let _stale = delivery.ack();
                    *seen.borrow_mut().entry(number(&delivery.body)).or_default() += 1;
                }
                connection.close().await
            }
        });
        sim.fault_mix(FaultMix::network(20 * SECOND));
        sim.time_limit(Duration::from_secs(600));
    });
}

/// A channel and the queue. A request that is under way when the connection is lost is asked again.
async fn jobs(connection: &Connection) -> Result<pikake_amqp::Channel, Error> {
    loop {
        let declared = async {
            let channel = connection.channel().await?;
            channel.declare_queue("jobs", QueueOptions::quorum()).await?;
            Ok(channel)
        };
        match declared.await {
            Err(Error::ConnectionLost(_) | Error::Unavailable(_)) => {}
            result => return result,
        }
    }
}

type Posted = (u32, Result<pikake_amqp::Confirm, PublishError>);

async fn post(channel: &pikake_amqp::Channel, n: u32) -> Posted {
    (n, channel.post(message("jobs", n)).await)
}

/// Whatever went wrong, it is published again: at least once.
async fn confirm(channel: &pikake_amqp::Channel, (n, mut posted): Posted) {
    loop {
        let result = match posted {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => return,
            Err(PublishError::Uncertain | PublishError::Blocked { .. }) => {}
            Err(error) => panic!("message {n}: {error}"),
        }
        posted = channel.post(message("jobs", n)).await;
    }
}

#[test]
fn what_was_acknowledged_is_not_delivered_again() {
    Runs::new("what_was_acknowledged_is_not_delivered_again").seeds(200).run(|sim| {
        let broker = broker_host(sim);
        sim.step_limit(300_000);
        let cutter = broker.clone();
        sim.client("client", move || {
            let broker = cutter.clone();
            async move {
                let connection = Connection::open(&address(), options()).await?;
                let channel = connection.channel().await?;
                channel.declare_queue("jobs", QueueOptions::quorum()).await?;
                for n in 0..40 {
                    channel.post(message("jobs", n)).await.unwrap().await.unwrap();
                }
                let few = ConsumeOptions { prefetch: 8, ..ConsumeOptions::default() };
                let mut consumer = channel.consume("jobs", few).await?;
                let mut known = BTreeSet::new();
                while !broker.bodies("jobs").is_empty() {
                    // The last acknowledgement may be under way.
                    let Ok(delivery) = timeout_after(SECOND, consumer.next()).await else {
                        continue;
                    };
                    let delivery = delivery?;
                    let n = number(&delivery.body);
                    assert!(!known.contains(&n), "{n} came again");
                    if delivery.ack().is_err() {
                        continue;
                    }
                    sleep(Duration::from_millis(random::range(0..30))).await?;
                    if !broker.bodies("jobs").contains(&delivery.body) {
                        known.insert(n);
                    }
                    if random::range(0..8) == 0 {
                        broker.cut();
                    }
                }
                Ok::<(), Error>(())
            }
        });
    });
}

#[test]
fn expired_and_refused_messages_go_where_dead_ones_go() {
    pikake_sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let broker = Broker::new();
        let _serving = spawn(serve(broker.clone(), listener)).cancel_on_drop();
        let address = "amqp://127.0.0.1".parse().unwrap();
        let connection = Connection::open(&address, Options::default()).await.unwrap();
        let channel = connection.channel().await.unwrap();
        let to = |queue: &str| Value::LongString(queue.into());
        channel.declare_queue("work", QueueOptions::quorum()).await.unwrap();
        let delay = QueueOptions::quorum()
            .argument("x-message-ttl", Value::LongInt(5000))
            .argument("x-dead-letter-exchange", to(""))
            .argument("x-dead-letter-routing-key", to("work"));
        channel.declare_queue("delay", delay).await.unwrap();
        let begun = now();
        channel.post(message("delay", 1)).await.unwrap().await.unwrap();
        assert_eq!((broker.ready("delay"), broker.ready("work")), (1, 0));
        let mut consumer = channel.consume("work", ConsumeOptions::default()).await.unwrap();
        let delivery = consumer.next().await.unwrap();
        let took = elapsed_since(begun);
        assert!(took >= 5 * SECOND && took < 6 * SECOND, "{took:?}");
        let headers = delivery.properties.headers().clone().unwrap();
        assert_eq!(headers.inner()["x-first-death-queue"], to("delay"));
        delivery.nack(true).unwrap();
        let again = consumer.next().await.unwrap();
        let headers = again.properties.headers().clone().unwrap();
        assert_eq!(headers.inner()["x-delivery-count"], Value::LongLongInt(1));
        broker.block(Some("low on memory"));
        let held = spawn({
            let channel = channel.clone();
            async move { channel.post(message("work", 2)).await?.await }
        });
        while !matches!(connection.state(), State::Blocked { .. }) {
            connection.changed().await.unwrap();
        }
        broker.block(None);
        held.await.unwrap().unwrap();
        again.ack().unwrap();
        consumer.next().await.unwrap().ack().unwrap();
    });
}

/// Peers that are no brokers, or no good ones.
async fn opened_to(say: Vec<u8>, hold: bool) -> (Result<Connection, Error>, Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("amqp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let _peer = spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.write_all(&say).await.unwrap();
        if hold {
            let _ended = sleep(1000 * SECOND).await;
        }
    })
    .cancel_on_drop();
    let begun = now();
    let opened = Connection::open(&address, Options::default()).await;
    (opened, elapsed_since(begun))
}

#[test]
fn peers_that_are_no_brokers_are_named_for_what_they_are() {
    pikake_sim::example(async {
        let error = |said: (Result<Connection, Error>, Duration)| said.0.unwrap_err().to_string();
        let said = error(opened_to(b"HTTP/1.1 400 Bad Request\r\n".to_vec(), true).await);
        assert!(said.contains("HTTP/1.1 400"), "{said}");
        let said = error(opened_to(b"AMQP\0\x01\0\0".to_vec(), true).await);
        assert!(said.contains("version 1.0.0"), "{said}");
        let said = error(opened_to(vec![1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0], true).await);
        assert!(said.contains("4294967295 bytes"), "{said}");
        let said = error(opened_to(vec![], false).await);
        assert!(said.contains("in the handshake: the broker hung up"), "{said}");
        // Silence, and half a frame of it.
        for begin in [vec![], vec![1, 0, 0]] {
            let (opened, took) = opened_to(begin, true).await;
            let said = opened.unwrap_err().to_string();
            assert!(said.contains("within 10s"), "{said}");
            assert!(took >= 10 * SECOND && took < 11 * SECOND, "{took:?}");
        }
    });
}

#[test]
fn a_peer_that_goes_mad_later_is_left_and_tried_again() {
    pikake_sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let broker = Broker::new();
        // One that speaks AMQP to the first connection for a while, and then says what is no frame.
        let mad = spawn({
            let broker = broker.clone();
            async move {
                let (stream, _) = listener.accept().await.unwrap();
                let id = broker.connect();
                let mut buffer = [0; 4096];
                while broker.queues().is_empty() {
                    let length = stream.read(&mut buffer).await.unwrap();
                    broker.input(id, &buffer[..length]);
                    stream.write_all(&broker.output(id).0).await.unwrap();
                }
                stream.write_all(&[0xff; 20]).await.unwrap();
                broker.disconnect(id);
                serve(broker, listener).await
            }
        });
        let address = "amqp://127.0.0.1".parse().unwrap();
        let connection = Connection::open(&address, Options::default()).await.unwrap();
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("q", QueueOptions::default()).await.unwrap();
        while !matches!(connection.state(), State::Recovering { .. }) {
            connection.changed().await.unwrap();
        }
        channel.post(message("q", 1)).await.unwrap().await.unwrap();
        assert_eq!(broker.ready("q"), 1);
        mad.abort();
    });
}

#[test]
fn without_a_broker_nothing_hangs_and_messages_come_back() {
    pikake_sim::example(async {
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let broker = Broker::new();
        let serving = spawn(serve(broker.clone(), listener));
        let address = "amqp://127.0.0.1".parse().unwrap();
        let backoff = Backoff { first: SECOND, cap: 60 * SECOND, jitter: 0.0 };
        let options = Options { reconnect: Some(backoff), ..Options::default() };
        let connection = Connection::open(&address, options).await.unwrap();
        let channel = connection.channel().await.unwrap();
        serving.cancel().await.unwrap();
        while !matches!(connection.state(), State::Recovering { attempt: 3.. }) {
            connection.changed().await.unwrap();
        }
        let begun = now();
        let asked = channel.declare_queue("q", QueueOptions::default()).await.unwrap_err();
        assert!(matches!(asked, Error::Unavailable(_)), "{asked}");
        assert!(elapsed_since(begun) >= 30 * SECOND);
        let held = channel.post(message("q", 7)).await.unwrap_err();
        assert_eq!(number(&held.into_message().expect("it was not sent").body), 7);
        // Who is interrupted gets it back, too.
        let told = timeout_after(SECOND, async {
            let error = channel.post(message("q", 8)).await.unwrap_err();
            assert!(error.interrupted().is_some());
            error.into_message().expect("it was not sent")
        });
        assert!(told.await.is_err());
        let waited = now();
        connection.close().await.unwrap();
        assert!(elapsed_since(waited) < SECOND);
    });
}

/// A world with a broker, and what a task of it does.
fn with_broker<F>(test: impl FnOnce(Broker) -> F + 'static)
where
    F: Future<Output = Result<(), Error>> + 'static,
{
    pikake_sim::example(async {
        let broker = Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(serve(broker.clone(), listener)).cancel_on_drop();
        test(broker).await.unwrap();
    });
}

fn here() -> Address {
    "amqp://127.0.0.1".parse().unwrap()
}

/// Numbers of channels are used again, and tags begin anew with each channel.
#[test]
fn a_receipt_of_a_closed_channel_settles_nothing_of_the_next_one() {
    with_broker(async |broker| {
        let connection = Connection::open(&here(), options()).await?;
        let first = connection.channel().await?;
        first.declare_queue("jobs", QueueOptions::quorum()).await?;
        for n in 0..2 {
            first.post(message("jobs", n)).await.unwrap().await.unwrap();
        }
        let one = ConsumeOptions { prefetch: 1, ..ConsumeOptions::default() };
        let mut consumer = first.consume("jobs", one.clone()).await?;
        let old = consumer.next().await?;
        let refused = first.declare_queue("none", QueueOptions::passive()).await;
        assert!(matches!(refused, Err(Error::ChannelClosed(_))), "{refused:?}");

        let second = connection.channel().await?;
        let mut consumer = second.consume("jobs", one).await?;
        let new = consumer.next().await?;
        assert_eq!(new.tag(), old.tag());
        assert!(old.ack().is_err(), "another delivery was acknowledged by it");
        assert!(new.nack(true).is_ok());
        let again = consumer.next().await?;
        assert_eq!(again.body, new.body, "it came again");
        drop((again, consumer));
        second.close().await?;
        assert_eq!(broker.ready("jobs"), 2);
        Ok(())
    });
}

/// The second connection is lost while the consumers of the first are being set up on it.
#[test]
fn a_connection_that_is_lost_while_it_recovers_forgets_no_channel() {
    for cut_after in 0..40 {
        with_broker(async move |broker| {
            let connection = Connection::open(&here(), options()).await?;
            let setup = connection.channel().await?;
            let mut consumers = Vec::new();
            for n in 0..4 {
                let queue = format!("jobs{n}");
                let channel = connection.channel().await?;
                channel.declare_queue(&queue, QueueOptions::quorum()).await?;
                consumers.push(channel.consume(&queue, ConsumeOptions::default()).await?);
            }
            broker.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            while broker.connections() == 0 {
                sleep(Duration::from_micros(10)).await?;
            }
            sleep(cut_after * Duration::from_micros(100)).await?;
            broker.cut();
            sleep(5 * SECOND).await?;
            for (n, consumer) in consumers.iter_mut().enumerate() {
                setup.post(message(&format!("jobs{n}"), 7)).await.unwrap().await.unwrap();
                let next = timeout_after(SECOND, consumer.next()).await;
                let next = next.unwrap_or_else(|_| panic!("consumer {n}, cut after {cut_after}"));
                next?.ack().unwrap();
            }
            connection.close().await
        });
    }
}

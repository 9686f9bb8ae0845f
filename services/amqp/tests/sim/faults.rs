//! Worlds with faults, by many seeds.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::{
    Channel, Confirm, Connection, ConsumeOptions, Error, Options, PublishError, QueueOptions,
    State, Table, persistent,
};
use pikake_amqp_testing::{Broker, serve};
use pikake_net::TcpListener;
use pikake_sim::{FaultMix, Latency, Link, Network, Runs, Sim};
use pikake_traps::{elapsed_since, now, random, sleep, spawn, timeout_after};

use crate::{SECOND, address, here, message, number, options};

/// Over a link on which each answer takes long.
#[test]
fn what_was_declared_is_declared_again_side_by_side() {
    const COUNT: u32 = 100;
    const LATENCY: Duration = Duration::from_millis(50);
    let mut sim = Sim::new(1);
    let mut network = Network::default();
    network.link = Link::new(Latency::Fixed(LATENCY));
    sim.network(network);
    let broker = broker_host(&mut sim);
    sim.client("client", move || {
        let broker = broker.clone();
        async move {
            let connection = Connection::open(&address(), options()).await?;
            let channel = connection.channel().await?;
            for n in 0..COUNT {
                let queue = format!("q{n}");
                channel.declare_queue(&queue, QueueOptions::quorum()).await?;
                channel.bind(&queue, "amq.topic", &queue, Table::default()).await?;
            }
            broker.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            let begun = now();
            while !matches!(connection.state(), State::Open) {
                connection.changed().await?;
            }
            // One after the other, 200 answers take 20 s.
            let took = elapsed_since(begun);
            assert!(took < 5 * SECOND, "{took:?}");
            let last = format!("q{}", COUNT - 1);
            channel.publish("amq.topic", &last, persistent(), b"x".to_vec(), true).await.unwrap();
            Ok::<(), Error>(())
        }
    });
    sim.run().unwrap();
}

/// As many channels as there may be.
#[test]
fn no_channel_is_lost_where_there_may_be_few() {
    for most in 1..=3 {
        let (few, broker) = (Options { channel_max: most, ..options() }, Broker::new());
        pikake_sim::example(async move {
            let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
            let _serving = spawn(serve(broker.clone(), listener)).cancel_on_drop();
            let connection = Connection::open(&here(), few).await.unwrap();
            let mut channels = Vec::new();
            for _ in 0..most {
                channels.push(connection.channel().await.unwrap());
            }
            for n in 0..50 {
                channels[0].declare_queue(&format!("q{n}"), QueueOptions::quorum()).await.unwrap();
            }
            broker.cut();
            while !matches!(connection.changed().await.unwrap(), State::Recovering { .. }) {}
            for channel in &channels {
                channel.publish("", "q49", persistent(), b"x".to_vec(), true).await.unwrap();
            }
            assert_eq!(broker.ready("q49"), usize::from(most));
        });
    }
}

/// A broker of the world, which comes back with what it knew when its host has crashed.
pub(crate) fn broker_host(sim: &mut Sim) -> Broker {
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
async fn jobs(connection: &Connection) -> Result<Channel, Error> {
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

type Posted = (u32, Result<Confirm, PublishError>);

async fn post(channel: &Channel, n: u32) -> Posted {
    (n, channel.post(message("jobs", n)).await)
}

/// Whatever went wrong, it is published again: at least once.
async fn confirm(channel: &Channel, (n, mut posted): Posted) {
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

//! A broker that takes no messages for longer than there is patience, and those who wait for room.

use std::time::Duration;

use pikake_amqp::{Connection, Error, Options, PublishError, QueueOptions, State};
use pikake_sim::{Latency, Link, Network, Sim};
use pikake_traps::{elapsed_since, now, sleep, spawn, timeout_after};

use crate::faults::broker_host;
use crate::{SECOND, address, here, message, number, options, with_broker};

#[test]
fn who_waits_for_room_waits_no_longer_than_who_waits_for_the_broker() {
    with_broker(async |broker| {
        let options =
            Options { publish_window: 1, blocked_deadline: 5 * SECOND, ..Options::default() };
        let connection = Connection::open(&here(), options).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        let post = |n| {
            let channel = channel.clone();
            spawn(async move { channel.post(message("jobs", n)).await?.await })
        };
        broker.block(Some("low on memory"));
        let begun = now();
        let sent = channel.post(message("jobs", 1)).await.unwrap();
        let waits = post(2);
        let waited = timeout_after(8 * SECOND, waits).await.expect("it hangs").unwrap();
        let error = waited.unwrap_err();
        assert!(matches!(error, PublishError::Blocked { .. }), "{error}");
        assert_eq!(number(&error.into_message().expect("it was not sent").body), 2);
        assert!(elapsed_since(begun) < 6 * SECOND);
        let error = sent.await.unwrap_err();
        assert!(error.is_uncertain(), "{error}");
        // The room that the first one takes is free once it is confirmed, which nobody waits for.
        let (third, fourth) = (post(3), post(4));
        sleep(SECOND).await?;
        broker.block(None);
        for waits in [third, fourth] {
            timeout_after(SECOND, waits).await.expect("it hangs").unwrap().unwrap();
        }
        assert_eq!(broker.ready("jobs"), 3);
        connection.close().await
    });
}

/// Two outages that are short, and between them much to wait for.
#[test]
fn who_has_waited_for_room_has_new_patience() {
    const COUNT: u32 = 45;
    let mut sim = Sim::new(1);
    let mut network = Network::default();
    network.link = Link::new(Latency::Fixed(SECOND / 2));
    sim.network(network);
    let broker = broker_host(&mut sim);
    sim.client("client", move || {
        let broker = broker.clone();
        async move {
            let options = Options { publish_window: 1, keep_trying: true, ..Options::default() };
            let connection = Connection::open(&address(), options).await?;
            let channel = connection.channel().await?;
            channel.declare_queue("jobs", QueueOptions::quorum()).await?;
            // Lost sooner, it would be waited.
            sleep(2 * SECOND).await?;
            broker.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            let posts: Vec<_> = (0..COUNT)
                .map(|n| {
                    let channel = channel.clone();
                    spawn(async move { channel.post(message("jobs", n)).await?.await })
                })
                .collect();
            sleep(35 * SECOND).await?;
            assert!((10..COUNT as usize - 10).contains(&broker.ready("jobs")));
            broker.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            for post in posts {
                post.await.unwrap().unwrap();
            }
            Ok::<(), Error>(())
        }
    });
    sim.run().unwrap();
}

/// The broker for tests says nothing at all while it is blocked, so the connection is lost every
/// four seconds.
#[test]
fn a_message_is_given_up_also_if_each_connection_is_lost_before() {
    with_broker(async |broker| {
        let connection = Connection::open(&here(), options()).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        broker.block(Some("low on memory"));
        let sent = channel.post(message("jobs", 1)).await.unwrap();
        let waited = timeout_after(60 * SECOND, sent).await.expect("it hangs");
        let error = waited.unwrap_err();
        assert!(matches!(error, PublishError::Uncertain), "{error}");
        connection.close().await
    });
}

#[test]
fn who_holds_nothing_back_gets_answers_all_the_same() {
    with_broker(async |broker| {
        let options = Options { blocked_deadline: Duration::ZERO, ..Options::default() };
        let connection = Connection::open(&here(), options).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        channel.post(message("jobs", 1)).await.unwrap().await.unwrap();
        broker.block(Some("low on memory"));
        let sent = channel.post(message("jobs", 2)).await.unwrap();
        let error = timeout_after(SECOND, sent).await.expect("it hangs").unwrap_err();
        assert!(error.is_uncertain(), "{error}");
        let error = channel.post(message("jobs", 3)).await.unwrap_err();
        assert!(error.into_message().is_some());
        broker.block(None);
        connection.close().await
    });
}

//! What becomes of channels, consumers and messages while a connection is made again, and without
//! one.

use std::time::Duration;

use pikake_amqp::{
    Backoff, Connection, ConsumeOptions, Error, Options, PublishError, QueueOptions, State, Table,
    Value, persistent,
};
use pikake_amqp_testing::{Broker, serve};
use pikake_net::TcpListener;
use pikake_traps::{elapsed_since, now, sleep, spawn, timeout_after};

use crate::middle::Middle;
use crate::{SECOND, here, message, number, options, with_broker};

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

#[test]
fn a_consumer_that_is_dropped_while_its_connection_recovers_does_not_come_back() {
    for dropped_after in 0..40 {
        with_broker(async move |broker| {
            let connection = Connection::open(&here(), options()).await?;
            let channel = connection.channel().await?;
            channel.declare_queue("jobs", QueueOptions::quorum()).await?;
            for n in 0..5 {
                channel.post(message("jobs", n)).await.unwrap().await.unwrap();
            }
            let mut stays = channel.consume("jobs", ConsumeOptions::default()).await?;
            stays.next().await?.ack().unwrap();
            let goes = channel.consume("jobs", ConsumeOptions::default()).await?;
            broker.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            sleep(dropped_after * Duration::from_micros(100)).await?;
            drop(goes);
            let mut seen = Vec::new();
            while seen.len() < 4 {
                let next = timeout_after(SECOND, stays.next()).await;
                let delivery =
                    next.unwrap_or_else(|_| panic!("after {dropped_after}: {seen:?}"))?;
                seen.push(number(&delivery.body));
                delivery.ack().unwrap();
            }
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 3, 4], "dropped after {dropped_after}");
            sleep(SECOND).await?;
            let left = (broker.consumers("jobs"), broker.ready("jobs"), broker.unacked("jobs"));
            assert_eq!(left, (1, 0, 0), "dropped after {dropped_after}");
            assert_eq!(broker.channels(), 1);
            connection.close().await
        });
    }
}

#[test]
fn a_channel_that_cannot_recover_ends_alone_and_says_why() {
    with_broker(async |broker| {
        let (middle, address, _listening) = Middle::new(&broker).await;
        let other = Connection::open(&here(), options()).await?;
        let elsewhere = other.channel().await?;
        elsewhere.declare_queue("theirs", QueueOptions::quorum()).await?;
        let connection = Connection::open(&address, options()).await?;
        let ours = connection.channel().await?;
        ours.declare_queue("ours", QueueOptions::quorum()).await?;
        let mut lives = ours.consume("ours", ConsumeOptions::default()).await?;
        let ends = connection.channel().await?;
        let mut consumer = ends.consume("theirs", ConsumeOptions::default()).await?;
        let mut beside = ends.consume("ours", ConsumeOptions::default()).await?;
        // A message that is sent and lost, of the channel that will not come back.
        middle.is_silent.set(true);
        let lost = ends.post(message("ours", 1)).await.unwrap();
        sleep(SECOND / 10).await?;
        elsewhere.delete_queue("theirs").await?;
        middle.cut();
        middle.is_silent.set(false);
        let code = |error: &Error| error.reason().map(|reason| reason.code);
        assert_eq!(code(&consumer.next().await.unwrap_err()), Some(404));
        // It may have been delivered to the other consumer of the channel, whose end gives it back.
        while beside.next().await.is_ok() {}
        assert_eq!(code(&ends.closed().expect("it has ended")), Some(404));
        assert_eq!(code(&ends.purge("ours").await.unwrap_err()), Some(404));
        let sent_again = lost.await;
        match &sent_again {
            Ok(()) => assert_eq!(lives.next().await?.body, 1_u32.to_be_bytes()),
            Err(error) => assert!(error.is_uncertain(), "{error}"),
        }
        ours.post(message("ours", 2)).await.unwrap().await.unwrap();
        while lives.next().await?.body != 2_u32.to_be_bytes() {}
        assert!(matches!(connection.state(), State::Open));
        drop((consumer, beside));
        connection.close().await?;
        other.close().await
    });
}

/// Broker and client end the same consumer, and their words cross.
#[test]
fn a_consumer_that_both_sides_end_costs_nothing_else() {
    for dropped_after in 0..30 {
        with_broker(async move |broker| {
            let connection = Connection::open(&here(), options()).await?;
            let channel = connection.channel().await?;
            channel.declare_queue("jobs", QueueOptions::quorum()).await?;
            channel.declare_queue("others", QueueOptions::quorum()).await?;
            let consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
            let elsewhere = connection.channel().await?;
            let deleting = spawn(async move { elsewhere.delete_queue("jobs").await });
            sleep(dropped_after * Duration::from_micros(100)).await?;
            match dropped_after % 2 {
                0 => drop(consumer),
                _ => match consumer.cancel().await {
                    Ok(()) | Err(Error::ConsumerCancelled) => {}
                    Err(error) => panic!("after {dropped_after}: {error}"),
                },
            }
            deleting.await.unwrap()?;
            channel.post(message("others", 1)).await.unwrap().await.unwrap();
            assert_eq!(channel.purge("others").await?, 1);
            assert_eq!((broker.consumers("jobs"), broker.consumers("others")), (0, 0));
            connection.close().await
        });
    }
}

/// One of those who wait for room cannot use it.
#[test]
fn room_that_one_message_does_not_need_is_the_next_ones() {
    with_broker(async |_broker| {
        let options = Options { publish_window: 1, ..options() };
        let connection = Connection::open(&here(), options).await?;
        let channel = connection.channel().await?;
        channel.declare_queue("jobs", QueueOptions::quorum()).await?;
        let post = |message| {
            let channel = channel.clone();
            spawn(async move { channel.post(message).await?.await })
        };
        let first = channel.post(message("jobs", 1)).await.unwrap();
        let mut large = message("jobs", 2);
        large.properties = persistent().with_headers(headers_of(200_000));
        let large = post(large);
        sleep(Duration::from_micros(1)).await?;
        let last = post(message("jobs", 3));
        first.await.unwrap();
        assert!(matches!(large.await.unwrap(), Err(PublishError::Closed { .. })));
        timeout_after(SECOND, last).await.expect("it hangs").unwrap().unwrap();
        connection.close().await
    });
}

fn headers_of(octets: usize) -> Table {
    let mut headers = Table::default();
    headers.insert("h".into(), Value::LongString(vec![b'x'; octets].into()));
    headers
}

/// What is under way to a channel that is being closed goes back with it. A word about it
/// afterwards, on a channel that the broker does not know any more, would cost the connection.
#[test]
fn a_channel_that_is_closed_with_deliveries_under_way_costs_nothing_else() {
    for ended_after in 0..60 {
        with_broker(async move |broker| {
            let connection = Connection::open(&here(), options()).await?;
            let other = connection.channel().await?;
            other.declare_queue("jobs", QueueOptions::quorum()).await?;
            for n in 0..50 {
                other.post(message("jobs", n)).await.unwrap().await.unwrap();
            }
            let channel = connection.channel().await?;
            let watching = spawn({
                let connection = connection.clone();
                async move { connection.changed().await }
            });
            let consuming = spawn({
                let channel = channel.clone();
                async move { channel.consume("jobs", ConsumeOptions::default()).await }
            });
            sleep(ended_after * Duration::from_micros(50)).await?;
            match ended_after % 3 {
                0 => channel.close().await?,
                1 => drop(consuming),
                _ => {
                    consuming.request_cancel("enough");
                    drop(consuming.await);
                }
            }
            drop(channel);
            sleep(SECOND).await?;
            assert!(!watching.is_finished(), "after {ended_after}: {:?}", watching.await);
            assert_eq!(other.purge("jobs").await?, 50, "after {ended_after}");
            assert_eq!(broker.channels(), 1);
            connection.close().await
        });
    }
}

#[test]
fn a_broker_that_falls_silent_while_all_is_made_again_keeps_nobody_who_wants_to_go() {
    for silent_after in 0..30 {
        with_broker(async move |broker| {
            let (middle, address, _listening) = Middle::new(&broker).await;
            let connection = Connection::open(&address, Options::default()).await?;
            let mut channels = Vec::new();
            for n in 0..4 {
                let channel = connection.channel().await?;
                channel.declare_queue(&format!("jobs{n}"), QueueOptions::quorum()).await?;
                channels.push(channel);
            }
            // Lost sooner, it would be waited.
            sleep(2 * SECOND).await?;
            middle.cut();
            while !matches!(connection.changed().await?, State::Recovering { .. }) {}
            sleep(silent_after * Duration::from_micros(500)).await?;
            middle.is_silent.set(true);
            let begun = now();
            connection.close().await?;
            let took = elapsed_since(begun);
            assert!(took < 3 * SECOND + SECOND / 10, "silent after {silent_after}: {took:?}");
            Ok(())
        });
    }
}

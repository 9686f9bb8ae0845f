//! What channels and queues do while all is well.

use std::future::{Future, poll_fn};
use std::task::Poll;

use pikake_amqp::{
    Channel, Connection, ConsumeOptions, Error, Options, QueueOptions, State, Value,
};
use pikake_traps::{Task, elapsed_since, now, sleep, spawn, timeout_after};

use crate::{SECOND, here, message, options, with_broker};

#[test]
fn expired_and_refused_messages_go_where_dead_ones_go() {
    with_broker(async |broker| {
        let connection = Connection::open(&here(), Options::default()).await.unwrap();
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
        Ok(())
    });
}

/// The broker may have delivered already. It requeues all of that with the end of the channel.
#[test]
fn a_dropped_start_of_an_exclusive_consumer_closes_the_channel() {
    with_broker(async |broker| {
        let connection = Connection::open(&here(), options()).await?;
        let sender = connection.channel().await?;
        sender.declare_queue("jobs", QueueOptions::default()).await?;
        sender.post(message("jobs", 1)).await.unwrap().await.unwrap();
        for exclusive in [false, true] {
            let channel = connection.channel().await?;
            let how = ConsumeOptions { exclusive, ..ConsumeOptions::default() };
            let mut start = Box::pin(channel.consume("jobs", how));
            poll_fn(|cx| {
                assert!(start.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(start);
            assert_eq!(channel.closed().is_some(), exclusive);
            sleep(SECOND).await?;
            assert_eq!((broker.ready("jobs"), broker.consumers("jobs")), (1, 0));
        }
        Ok(())
    });
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

/// They are the broker's again, which delivers them to others.
#[test]
fn deliveries_of_a_channel_that_the_broker_closes_are_not_handed_out() {
    with_broker(async |broker| {
        let connection = Connection::open(&here(), options()).await?;
        let other = connection.channel().await?;
        other.declare_queue("jobs", QueueOptions::quorum()).await?;
        for n in 0..3 {
            other.post(message("jobs", n)).await.unwrap().await.unwrap();
        }
        let channel = connection.channel().await?;
        let mut consumer = channel.consume("jobs", ConsumeOptions::default()).await?;
        let held = consumer.next().await?;
        assert!(held.receipt.can_settle());
        channel.purge("no such queue").await.unwrap_err();
        assert_eq!((broker.ready("jobs"), broker.unacked("jobs")), (3, 0));
        assert!(!held.receipt.can_settle());
        let next = consumer.next().await;
        assert!(matches!(next, Err(pikake_amqp::Error::ChannelClosed(_))), "{next:?}");
        held.ack().unwrap_err();
        drop(consumer);
        connection.close().await
    });
}

/// A task that opens a channel, and has begun to.
async fn opening(connection: &Connection) -> Task<Result<Channel, Error>> {
    let connection = connection.clone();
    let opening = spawn(async move { connection.channel().await });
    sleep(SECOND / 10).await.unwrap();
    opening
}

#[test]
fn one_channel_too_many_waits_for_the_end_of_another() {
    with_broker(async |broker| {
        let few = Options { channel_max: 2, ..options() };
        let connection = Connection::open(&here(), few).await?;
        let (first, second) = (connection.channel().await?, connection.channel().await?);
        second.declare_queue("jobs", QueueOptions::quorum()).await?;
        let given_up = opening(&connection).await;
        let waits =
            [opening(&connection).await, opening(&connection).await, opening(&connection).await];
        given_up.request_cancel("enough");
        assert!(given_up.await.unwrap().unwrap_err().interrupted().is_some());
        let finished = || [0, 1, 2].map(|n| waits[n].is_finished());
        assert_eq!((finished(), broker.channels()), ([false; 3], 2));
        // Closed by its holder, who does not even wait for it; by the broker; and over a lost
        // connection.
        drop(first);
        let latecomer = opening(&connection).await;
        assert_eq!(finished(), [true, false, false]);
        second.purge("no such queue").await.unwrap_err();
        sleep(SECOND).await?;
        assert_eq!(finished(), [true, true, false]);
        broker.cut();
        while !matches!(connection.changed().await?, State::Recovering { .. }) {}
        sleep(SECOND).await?;
        assert_eq!((finished(), latecomer.is_finished()), ([true, true, false], false));
        let [third, fourth, fifth] = waits;
        third.await.unwrap()?.close().await?;
        let fifth = fifth.await.unwrap()?;
        fourth.await.unwrap()?.close().await?;
        let latecomer = latecomer.await.unwrap()?;
        assert_eq!((fifth.purge("jobs").await?, latecomer.purge("jobs").await?), (0, 0));
        assert_eq!(broker.channels(), 2);
        connection.close().await
    });
}

#[test]
fn who_waits_for_a_channel_does_not_wait_for_ever() {
    with_broker(async |broker| {
        let few = Options { channel_max: 1, ..options() };
        let connection = Connection::open(&here(), few).await?;
        let only = connection.channel().await?;
        let begun = now();
        for waits in [opening(&connection).await, opening(&connection).await] {
            let error = timeout_after(60 * SECOND, waits).await.expect("it hangs").unwrap();
            assert!(matches!(error, Err(Error::Unavailable(_))), "{error:?}");
            let error = error.unwrap_err().to_string();
            assert!(error.contains("all 1 channels"), "{error}");
        }
        let took = elapsed_since(begun);
        assert!(took >= 30 * SECOND && took < 31 * SECOND, "{took:?}");
        // Nothing is left of them.
        let next = opening(&connection).await;
        only.close().await?;
        let next = timeout_after(SECOND, next).await.expect("it hangs").unwrap()?;
        assert_eq!(broker.channels(), 1);
        // The end of the connection is the end of the wait.
        let mut last = Vec::new();
        for _ in 0..5 {
            last.push(opening(&connection).await);
        }
        connection.close().await?;
        for last in last {
            assert!(matches!(last.await.unwrap(), Err(Error::Closed)));
        }
        drop(next);
        Ok(())
    });
}

//! Deliveries and their consumers: what is given back, and when.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use pikake_amqp::{ConsumeOptions, Error, QueueOptions, Stale, Value, persistent};
use pikake_traps::{Interrupted, sleep, spawn, timeout_after, yield_now};

use crate::support::{HANG, connect, run, version};
use crate::{BROKER, until_it_has};

#[test]
fn what_is_not_acknowledged_goes_back() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let queue = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        let other = channel.declare_queue("", QueueOptions::private()).await.unwrap().name;
        for n in 0..4_u8 {
            channel.publish("", &queue, persistent(), vec![n], true).await.unwrap();
        }
        // (An auto-delete queue goes with its last consumer.)
        let _keeps = channel.consume(&other, ConsumeOptions::default()).await.unwrap();
        let get = async || channel.get(&queue, false).await.unwrap().expect("a message");
        let first = get().await;
        first.nack(true).unwrap();
        let again = get().await;
        assert!(again.redelivered && again.body == [0]);
        drop(again); // unsettled
        let again = get().await;
        assert!(again.redelivered && again.body == [0], "{again:?}");
        again.reject(false).unwrap();
        let kept = get().await.receipt;
        let lost = get().await;
        channel.recover().await.unwrap();
        assert_eq!(lost.ack(), Err(Stale));
        assert_eq!(kept.ack(), Err(Stale));
        for n in 1..4_u8 {
            let delivery = get().await;
            assert_eq!(delivery.body, [n]);
            delivery.ack().unwrap();
        }
        assert!(channel.get(&queue, false).await.unwrap().is_none());
    });
}

#[test]
fn a_dropped_consumer_gives_back_what_it_had() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("dropped", QueueOptions::quorum()).await.unwrap();
        for n in 0..20_u8 {
            channel.publish("", "dropped", persistent(), vec![n], true).await.unwrap();
        }
        let mut consumer = channel.consume("dropped", ConsumeOptions::default()).await.unwrap();
        let taken = consumer.next().await.unwrap();
        drop(consumer);
        taken.ack().unwrap();
        until_it_has(&channel, "dropped", (19, 0)).await;
        channel.delete_queue("dropped").await.unwrap();
    });
}

#[test]
fn a_consumer_ends_with_its_queue() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("short-lived", QueueOptions::default()).await.unwrap();
        let mut consumer = channel.consume("short-lived", ConsumeOptions::default()).await.unwrap();
        let other = connection.channel().await.unwrap();
        other.delete_queue("short-lived").await.unwrap();
        let next = consumer.next().await;
        assert!(matches!(next, Err(Error::ConsumerCancelled)), "{next:?}");
        // The channel lives.
        channel.declare_queue("", QueueOptions::private()).await.unwrap();
    });
}

#[test]
fn prefetch_limits_each_consumer_and_a_quorum_queue_refuses_a_global_limit() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("limits", QueueOptions::quorum()).await.unwrap();
        for _ in 0..10 {
            channel.publish("", "limits", persistent(), vec![], true).await.unwrap();
        }
        let three = ConsumeOptions { prefetch: 3, ..ConsumeOptions::default() };
        let mut consumer = channel.consume("limits", three).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(consumer.next().await.unwrap());
        }
        let more = timeout_after(Duration::from_millis(200), consumer.next()).await;
        assert!(more.is_err(), "a fourth came");
        held.pop().unwrap().ack().unwrap();
        held.push(consumer.next().await.unwrap());

        let limited = connection.channel().await.unwrap();
        limited.qos(10, true).await.unwrap();
        match limited.consume("limits", ConsumeOptions::default()).await {
            // These versions take the limit for that of each consumer.
            Ok(_) => assert!(version(&connection) >= (4, 3)),
            Err(error) => {
                assert!(matches!(error, Error::NoGlobalQos(_)), "{error}");
                assert!(error.to_string().contains("prefetch of each consumer"), "{error}");
            }
        }
        channel.delete_queue("limits").await.unwrap();
    });
}

/// Interrupts a call after its bytes are queued, before an answer can be there: the kernel asks the
/// system for events after the next step at the earliest.
async fn cut_short<T: Debug + 'static, E: 'static>(
    call: impl Future<Output = Result<T, E>> + 'static,
) -> E {
    let task = spawn(call);
    yield_now().await.unwrap();
    task.request_cancel("cut short");
    match task.await.expect("it returns") {
        Ok(done) => panic!("it was not interrupted: {done:?}"),
        Err(error) => error,
    }
}

#[test]
fn an_interrupted_wait_loses_nothing_and_leaves_the_channel_usable() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        let exclusive = QueueOptions { exclusive: true, ..QueueOptions::default() };
        let queue = channel.declare_queue("", exclusive).await.unwrap().name;
        channel.publish("", &queue, persistent(), b"one".to_vec(), true).await.unwrap();
        let (on, from) = (channel.clone(), queue.clone());
        let error = cut_short(async move { on.get(&from, false).await }).await;
        assert!(error.interrupted().is_some(), "{error}");
        let on = channel.clone();
        let error = cut_short(async move { on.purge("none-such").await }).await;
        assert!(error.interrupted().is_some(), "{error}");
        let fresh = connection.channel().await.unwrap();
        let (on, to) = (fresh.clone(), queue.clone());
        let published =
            async move { on.publish("", &to, persistent(), b"two".to_vec(), true).await };
        let error = cut_short(published).await;
        assert!(error.is_uncertain() && error.interrupted().is_some(), "{error}");
        let (on, from) = (fresh.clone(), queue.clone());
        let consume = async move { on.consume(&from, ConsumeOptions::default()).await };
        let error = cut_short(consume).await;
        assert!(error.interrupted().is_some(), "{error}");
        let mut consumer = fresh.consume(&queue, ConsumeOptions::default()).await.unwrap();
        let mut bodies = Vec::new();
        while bodies.len() < 2 {
            let delivery = match timeout_after(Duration::ZERO, consumer.next()).await {
                Ok(delivery) => delivery.unwrap(),
                Err(_) => consumer.next().await.unwrap(),
            };
            delivery.ack().unwrap();
            bodies.push(String::from_utf8(delivery.body).unwrap());
        }
        bodies.sort();
        assert_eq!(bodies, ["one", "two"]);
    });
}

#[test]
fn a_cancelled_task_gives_its_delivery_back() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        let channel = connection.channel().await.unwrap();
        channel.declare_queue("given-back", QueueOptions::default()).await.unwrap();
        channel.publish("", "given-back", persistent(), vec![], true).await.unwrap();
        let mut consumer = channel.consume("given-back", ConsumeOptions::default()).await.unwrap();
        let worker = spawn(async move {
            let _delivery = consumer.next().await.map_err(|_| Interrupted::cancelled("early"))?;
            sleep(HANG).await
        });
        sleep(Duration::from_millis(50)).await.unwrap();
        worker.cancel().await.unwrap();
        let begun = Instant::now();
        let again = loop {
            if let Some(delivery) = channel.get("given-back", false).await.unwrap() {
                break delivery;
            }
            assert!(begun.elapsed() < HANG);
        };
        assert!(again.redelivered);
        again.ack().unwrap();
        channel.delete_queue("given-back").await.unwrap();
    });
}

/// Deliveries are under way when all are asked back: none is lost, and none costs the channel.
#[test]
fn what_is_taken_back_comes_again_and_the_old_settles_nothing() {
    let Some(broker) = BROKER.get() else { return };
    run(async {
        let connection = connect(&broker.address()).await;
        // By default, RabbitMQ 4.0 drops a message that it has redelivered 20 times.
        let quorum = QueueOptions::quorum().argument("x-delivery-limit", Value::LongInt(1_000));
        for (queue, options) in [("back", QueueOptions::default()), ("back-quorum", quorum)] {
            let channel = connection.channel().await.unwrap();
            channel.declare_queue(queue, options).await.unwrap();
            for n in 0..100_u8 {
                channel.publish("", queue, persistent(), vec![n], true).await.unwrap();
            }
            let ten = ConsumeOptions { prefetch: 10, ..ConsumeOptions::default() };
            let mut consumer = channel.consume(queue, ten).await.unwrap();
            let mut done = BTreeSet::<u8>::new();
            let mut round = 0;
            while done.len() < 100 {
                round += 1;
                let held = consumer.next().await.unwrap();
                if round % 3 == 0 {
                    let back = spawn({
                        let channel = channel.clone();
                        async move { channel.recover().await }
                    });
                    sleep(Duration::ZERO).await.unwrap();
                    assert_eq!(held.ack(), Err(Stale));
                    back.await.unwrap().unwrap();
                } else if held.ack().is_ok() {
                    done.extend(&held.body);
                }
            }
            consumer.cancel().await.unwrap();
            until_it_has(&channel, queue, (0, 0)).await;
            channel.delete_queue(queue).await.unwrap();
        }
    });
}

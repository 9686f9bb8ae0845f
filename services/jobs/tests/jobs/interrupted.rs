//! Each function of the contract of brokers, interrupted at every moment at which it waits: it says
//! so, nothing is lost, the broker goes on, and nothing is left over at the server. In virtual
//! time: RabbitMQ's broker on the server for tests, and the one in memory.

mod control;

mod schedules;
mod world;

use std::time::Duration;

use pikake_amqp_testing as fake;
use pikake_jobs::{AmqpBroker, Broker, BrokerError, ChordMember, JobId, Outcome, QueueOptions};
use pikake_net::TcpListener;
use pikake_traps::{sleep, spawn, wall_time};

use world::{
    LONG_MOMENT, MOMENT, QUEUE, QUIET, URL, at_every_moment, at_moments, certainly_not_sent,
    is_interrupted, message, next, within,
};

#[test]
fn open() {
    let mut moments = 0;
    loop {
        let is_interrupted = pikake_sim::example(async {
            let server = fake::Broker::new();
            let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
            let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
            let opened = within(MOMENT * moments, AmqpBroker::open_with_two(URL)).await;
            let is_interrupted = is_interrupted(&opened);
            drop(opened);
            sleep(QUIET).await.unwrap();
            assert_eq!(server.connections(), 0);
            is_interrupted
        });
        if !is_interrupted {
            break;
        }
        moments += 1;
    }
    assert!(moments > 0);
}

#[test]
fn declare() {
    at_every_moment(async |world, length| {
        let options = QueueOptions::default();
        let told = within(length, world.broker.declare("other", &options)).await;
        world.broker.declare("other", &options).await.unwrap();
        assert_eq!(world.broker.counts("other").await.unwrap().ready, 0);
        is_interrupted(&told)
    });
}

#[test]
fn publish() {
    at_every_moment(async |world, length| {
        let told = within(length, world.broker.publish(QUEUE, message("d"), None)).await;
        sleep(QUIET).await.unwrap();
        let there = world.messages().await.0;
        match certainly_not_sent(&told) {
            Some(true) => assert_eq!(there, 3),
            Some(false) => assert!((3..=4).contains(&there)),
            None => assert_eq!(there, 4),
        }
        told.is_err()
    });
}

#[test]
fn publish_for_later() {
    at_moments(LONG_MOMENT, async |world, length| {
        let later = Some(wall_time() + Duration::from_secs(1));
        let told = within(length, world.broker.publish(QUEUE, message("d"), later)).await;
        sleep(QUIET).await.unwrap();
        let there = world.messages().await.0;
        match certainly_not_sent(&told) {
            Some(true) => assert_eq!(there, 3),
            Some(false) => assert!((3..=4).contains(&there)),
            None => assert_eq!(there, 4),
        }
        let later = Some(wall_time() + Duration::from_secs(1));
        world.broker.publish(QUEUE, message("e"), later).await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(world.messages().await.0, there + 1);
        told.is_err()
    });
}

#[test]
fn consume() {
    at_every_moment(async |world, length| {
        let told = within(length, world.broker.consume(QUEUE, 2)).await;
        let is_interrupted = is_interrupted(&told);
        drop(told);
        sleep(QUIET).await.unwrap();
        assert_eq!(world.ready().await, 3);
        next(&mut world.consume().await).await;
        is_interrupted
    });
}

#[test]
fn next_one() {
    at_every_moment(async |world, length| {
        let mut deliveries = world.consume().await;
        for _ in 0..3 {
            let delivery = next(&mut deliveries).await;
            world.broker.ack(delivery.receipt).await.unwrap();
        }
        let broker = world.broker.clone();
        let publishing = spawn(async move { broker.publish(QUEUE, message("d"), None).await });
        let told = within(length, deliveries.next()).await;
        let is_interrupted = is_interrupted(&told);
        publishing.await.unwrap().unwrap();
        let delivery = match told {
            Ok(delivery) => delivery.expect("it was not cancelled"),
            Err(_) => next(&mut deliveries).await,
        };
        assert_eq!((delivery.message.job(), delivery.attempt), (Some("d"), 0));
        world.broker.ack(delivery.receipt).await.unwrap();
        is_interrupted
    });
}

#[test]
fn cancel() {
    at_every_moment(async |world, length| {
        let mut deliveries = world.consume().await;
        let taken = next(&mut deliveries).await;
        let told = within(length, deliveries.cancel()).await;
        let is_interrupted = is_interrupted(&told);
        let mut came = 1;
        while let Some(delivery) = deliveries.next().await.unwrap() {
            world.broker.give_back(delivery.receipt).await.unwrap();
            came += 1;
        }
        assert!(came <= 3);
        world.broker.ack(taken.receipt).await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(world.ready().await, 2);
        is_interrupted
    });
}

/// Neither waits for the server.
#[test]
fn ack_and_give_back() {
    pikake_sim::example(async {
        let server = fake::Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
        let broker = AmqpBroker::open(URL).await.unwrap();
        broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
        for job in ["a", "b"] {
            broker.publish(QUEUE, message(job), None).await.unwrap();
        }
        let mut deliveries = broker.consume(QUEUE, 2).await.unwrap();
        let (a, b) = (next(&mut deliveries).await, next(&mut deliveries).await);
        within(Duration::ZERO, broker.ack(a.receipt)).await.unwrap();
        within(Duration::ZERO, broker.give_back(b.receipt)).await.unwrap();
        drop(deliveries);
        sleep(QUIET).await.unwrap();
        assert_eq!(server.bodies(QUEUE), [b"b"]);
    });
}

#[test]
fn bury() {
    at_every_moment(async |world, length| {
        let mut deliveries = world.consume().await;
        let delivery = next(&mut deliveries).await;
        let bury = || {
            let message = delivery.message.clone();
            world.broker.bury(delivery.receipt, message, "why".to_owned())
        };
        let told = within(length, bury()).await;
        let is_interrupted = is_interrupted(&told);
        sleep(QUIET).await.unwrap();
        let before = world.messages().await;
        if is_interrupted {
            assert_eq!(before.0, 3, "it has its message");
            bury().await.unwrap();
        }
        sleep(QUIET).await.unwrap();
        // What was on its way the first time is there twice.
        assert_eq!(world.messages().await, (2, before.1 + usize::from(is_interrupted)));
        assert!(before.1 <= 1);
        is_interrupted
    });
}

#[test]
fn counts() {
    at_every_moment(async |world, length| {
        let told = within(length, world.broker.counts(QUEUE)).await;
        assert_eq!(world.ready().await, 3);
        is_interrupted(&told)
    });
}

#[test]
fn purge() {
    at_every_moment(async |world, length| {
        let told = within(length, world.broker.purge(QUEUE)).await;
        world.broker.purge(QUEUE).await.unwrap();
        assert_eq!(world.messages().await, (0, 0));
        is_interrupted(&told)
    });
}

#[test]
fn dead() {
    at_every_moment(async |world, length| {
        world.bury(2).await;
        let told = within(length, world.broker.dead(QUEUE, 10)).await;
        sleep(QUIET).await.unwrap();
        assert_eq!(world.broker.dead(QUEUE, 10).await.unwrap().len(), 2);
        is_interrupted(&told)
    });
}

#[test]
fn replay() {
    at_every_moment(async |world, length| {
        world.bury(2).await;
        sleep(QUIET).await.unwrap();
        let told = within(length, world.broker.replay(QUEUE, None)).await;
        let is_interrupted = is_interrupted(&told);
        sleep(QUIET).await.unwrap();
        let (there, dead) = world.messages().await;
        // One that was on its way is there twice, if it came at all.
        assert!((3..=4).contains(&(there + dead)), "{there} and {dead}");
        world.broker.replay(QUEUE, None).await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(world.messages().await, (there + dead, 0));
        is_interrupted
    });
}

#[test]
fn expect_store_and_wait() {
    // Which of the three is interrupted.
    for interrupted in 0..3 {
        at_every_moment(async |world, length| {
            let limit = move |number| match number == interrupted {
                true => length,
                false => Duration::from_secs(3_600),
            };
            let (broker, job) = (&world.broker, JobId("d".to_owned()));
            let mut asked = message("d");
            let expected = within(limit(0), broker.expect(&mut asked)).await;
            if is_interrupted(&expected) {
                broker.expect(&mut asked).await.unwrap();
            }
            broker.publish(QUEUE, asked, None).await.unwrap();
            let mut deliveries = world.consume().await;
            let delivery = loop {
                let delivery = next(&mut deliveries).await;
                if delivery.message.job() == Some("d") {
                    break delivery;
                }
                broker.ack(delivery.receipt).await.unwrap();
            };
            let outcome = || Outcome::success(1.into());
            let (storing, receipt) = (broker.clone(), delivery.receipt);
            let store = async move {
                let stored = within(limit(1), storing.store(&delivery.message, outcome())).await;
                if is_interrupted(&stored) {
                    storing.store(&delivery.message, outcome()).await.unwrap();
                }
                stored.is_err()
            };
            let storing = spawn(store);
            let waited = within(limit(2), broker.wait(&job)).await;
            if is_interrupted(&waited) {
                assert_eq!(broker.wait(&job).await.unwrap(), outcome());
            }
            let store_was_interrupted = storing.await.unwrap();
            broker.ack(receipt).await.unwrap();
            broker.forget(&job);
            assert!(matches!(broker.wait(&job).await, Err(BrokerError::NoOutcome)));
            expected.is_err() || store_was_interrupted || waited.is_err()
        });
    }
}

#[test]
fn probe() {
    at_every_moment(async |world, length| {
        let told = within(length, world.broker.probe()).await;
        assert_eq!(world.messages().await, (3, 0));
        is_interrupted(&told)
    });
}

#[test]
fn close() {
    let mut moments = 0;
    loop {
        let is_interrupted = pikake_sim::example(async {
            let server = fake::Broker::new();
            let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
            let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
            let broker = AmqpBroker::open_with_two(URL).await.unwrap();
            broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
            broker.publish(QUEUE, message("a"), None).await.unwrap();
            let mut deliveries = broker.consume(QUEUE, 1).await.unwrap();
            let delivery = next(&mut deliveries).await;
            broker.ack(delivery.receipt).await.unwrap();
            let told = within(MOMENT * moments, broker.close()).await;
            let is_interrupted = is_interrupted(&told);
            if is_interrupted {
                broker.close().await.unwrap();
            }
            sleep(QUIET).await.unwrap();
            assert_eq!((server.connections(), server.bodies(QUEUE).len()), (0, 0));
            is_interrupted
        });
        if !is_interrupted {
            break;
        }
        moments += 1;
    }
    assert!(moments > 0);
}

#[test]
fn expect_later() {
    at_every_moment(async |world, length| {
        let (broker, job) = (&world.broker, JobId("d".to_owned()));
        let told = within(length, broker.expect_later(&job)).await;
        let is_interrupted = is_interrupted(&told);
        let mut message = message("d");
        message.reply_to = match told {
            Ok(address) => address,
            Err(_) => broker.expect_later(&job).await.unwrap(),
        };
        broker.store(&message, Outcome::success(1.into())).await.unwrap();
        assert_eq!(broker.wait(&job).await.unwrap(), Outcome::success(1.into()));
        broker.forget(&job);
        sleep(QUIET).await.unwrap();
        is_interrupted
    });
}

/// The queue of the message that brings our own name is lost with the connection.
#[test]
fn expect_later_outlives_a_cut() {
    let mut moments = 0;
    loop {
        let is_cut = pikake_sim::example(async {
            let server = fake::Broker::new();
            let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
            let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
            let broker = AmqpBroker::open(URL).await.unwrap();
            let cutting = spawn(async move {
                sleep(MOMENT * moments).await.unwrap();
                server.cut();
            });
            match broker.expect_later(&JobId("d".to_owned())).await {
                Ok(address) => assert!(address.is_some()),
                // It may be asked again.
                Err(error) => assert!(error.is_lost(), "{error}"),
            }
            cutting.is_finished()
        });
        if !is_cut {
            break;
        }
        moments += 1;
    }
    assert!(moments > 10, "{moments}");
}

#[test]
fn join_and_end_chord() {
    // Which of the two is interrupted.
    for joins in [true, false] {
        at_every_moment(async |world, length| {
            let member = |index: u64| {
                let outcome = Outcome::success(index.into());
                ChordMember::new("chord".to_owned(), 2, index, index.to_string(), outcome)
            };
            let limit = |is_limited| match is_limited {
                true => length,
                false => Duration::from_secs(3_600),
            };
            let broker = &world.broker;
            assert!(broker.join_chord(&member(1)).await.unwrap().is_none());
            let last = member(0);
            let joined = within(limit(joins), broker.join_chord(&last)).await;
            let mut is_one_interrupted = is_interrupted(&joined);
            let all = match joined {
                Ok(all) => all,
                Err(_) => broker.join_chord(&last).await.unwrap(),
            };
            let all = all.expect("it was the last member");
            assert_eq!(all.members, [member(0), member(1)]);
            let ended = within(limit(!joins), broker.end_chord("chord")).await;
            if is_interrupted(&ended) {
                is_one_interrupted = true;
                broker.end_chord("chord").await.unwrap();
            }
            sleep(QUIET).await.unwrap();
            if let Some(server) = &world.server {
                assert!(!server.queues().contains(&"pikake.chord.chord".to_owned()));
            }
            is_one_interrupted
        });
    }
}

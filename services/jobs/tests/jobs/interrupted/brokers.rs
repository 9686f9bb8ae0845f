//! Each function of the contract of brokers: nothing is lost, the broker goes on, and nothing is
//! left over at the server. On RabbitMQ's broker with the server for tests, and on the one in
//! memory.

use std::rc::Rc;
use std::time::Duration;

use pikake_amqp_testing as fake;
use pikake_jobs::{
    AmqpBroker, Broker, BrokerError, ChordMember, Deliveries, Delivery, JobId, MemoryStore,
    Message, Outcome, PublishError, QueueOptions,
};
use pikake_traps::{sleep, spawn, timed, timeout_after, wall_time};

use super::{Interruption, Kind, MOMENT, QUIET, STEP};
use crate::amqp::fake::serving;

const QUEUE: &str = "jobs";
pub(super) const URL: &str = "amqp://127.0.0.1";
/// Moments are so far apart where there are a hundred waits, one after the other.
const LONG_MOMENT: Duration = Duration::from_micros(25);

/// A broker with three jobs in a queue.
struct World {
    broker: Rc<dyn Broker>,
    /// Where it is RabbitMQ's.
    server: Option<fake::Broker>,
}

impl World {
    async fn new(broker: Rc<dyn Broker>, server: Option<fake::Broker>) -> Self {
        broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
        for job in ["a", "b", "c"] {
            broker.publish(QUEUE, message(job), None).await.unwrap();
        }
        Self { broker, server }
    }

    /// How many messages a queue has, and how many its dead are. What is taken is counted, too.
    async fn messages(&self) -> (usize, usize) {
        match &self.server {
            Some(server) => {
                (server.bodies(QUEUE).len(), server.bodies(&format!("{QUEUE}.dead")).len())
            }
            None => {
                let counts = self.broker.counts(QUEUE).await.unwrap();
                let there = counts.ready + counts.taken.unwrap_or_default();
                (there as usize, counts.dead as usize)
            }
        }
    }

    async fn ready(&self) -> u64 {
        self.broker.counts(QUEUE).await.unwrap().ready
    }

    async fn consume(&self) -> Box<dyn Deliveries> {
        self.broker.consume(QUEUE, 2).await.unwrap()
    }

    /// Has so many buried.
    async fn bury(&self, count: usize) {
        let mut deliveries = self.consume().await;
        for _ in 0..count {
            let delivery = next(&mut deliveries).await;
            self.broker.bury(delivery.receipt, delivery.message, "why".to_owned()).await.unwrap();
        }
    }

    /// After a call to publish `d`, which may be there if the call says so.
    async fn is_published(&self, told: &Result<(), PublishError>) {
        sleep(QUIET).await.unwrap();
        let there = self.messages().await.0;
        match told {
            Ok(()) => assert_eq!(there, 4),
            Err(error) => {
                assert_eq!(error.message.job(), Some("d"), "it is given back");
                assert!(there == 3 || error.is_uncertain && there == 4, "{there}");
            }
        }
    }

    /// The broker goes on, and nothing is left over.
    async fn end(self) {
        sleep(QUIET).await.unwrap();
        let before = self.messages().await.0;
        self.broker.publish(QUEUE, message("after"), None).await.unwrap();
        assert_eq!(self.messages().await.0, before + 1);
        if let Some(server) = &self.server {
            assert_eq!(server.channels(), 1, "only the one that publishes is left");
        }
        self.broker.close().await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(self.server.map_or(0, |server| server.connections()), 0);
    }
}

fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message.body = job.as_bytes().to_vec();
    message
}

async fn next(deliveries: &mut Box<dyn Deliveries>) -> Delivery {
    let next = timeout_after(QUIET, deliveries.next()).await.expect("one comes");
    next.unwrap().expect("it was not cancelled")
}

/// Interrupts a case on each broker. It makes one call that is interrupted, and checks what came of
/// it.
fn at_every_moment(case: impl AsyncFn(&World, &Interruption)) {
    at_moments(MOMENT, case);
}

fn at_moments(moment: Duration, case: impl AsyncFn(&World, &Interruption)) {
    for kind in super::BOTH {
        super::at_every_moment(kind, STEP, async |interruption| {
            let world = World::new(Rc::new(MemoryStore::new().open()), None).await;
            case(&world, interruption).await;
            world.end().await;
        });
    }
    let moments = at_server(moment, async |server, interruption| {
        let broker = Rc::new(AmqpBroker::open(URL).await.unwrap());
        let world = World::new(broker, Some(server.clone())).await;
        case(&world, interruption).await;
        world.end().await;
    });
    assert!(moments > 0, "it never waits");
}

/// Interrupts a case beside the server for tests.
fn at_server(moment: Duration, case: impl AsyncFn(&fake::Broker, &Interruption)) -> u32 {
    super::at_every_moment(Kind::Timeout, moment, async |interruption| {
        let server = fake::Broker::new();
        let _serving = serving(&server).await.cancel_on_drop();
        case(&server, interruption).await;
    })
}

#[test]
fn open() {
    let moments = at_server(MOMENT, async |server, interruption| {
        drop(interruption.call(AmqpBroker::open_with_two(URL)).await);
        sleep(QUIET).await.unwrap();
        assert_eq!(server.connections(), 0);
    });
    assert!(moments > 0);
}

#[test]
fn declare() {
    at_every_moment(async |world, interruption| {
        let options = QueueOptions::default();
        drop(interruption.call(world.broker.declare("other", &options)).await);
        world.broker.declare("other", &options).await.unwrap();
        assert_eq!(world.broker.counts("other").await.unwrap().ready, 0);
    });
}

#[test]
fn publish() {
    at_every_moment(async |world, interruption| {
        let told = interruption.call(world.broker.publish(QUEUE, message("d"), None)).await;
        world.is_published(&told).await;
    });
}

#[test]
fn publish_for_later() {
    at_moments(LONG_MOMENT, async |world, interruption| {
        let later = || Some(wall_time() + Duration::from_secs(1));
        let told = interruption.call(world.broker.publish(QUEUE, message("d"), later())).await;
        world.is_published(&told).await;
        let there = world.messages().await.0;
        world.broker.publish(QUEUE, message("e"), later()).await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(world.messages().await.0, there + 1);
    });
}

#[test]
fn consume() {
    at_every_moment(async |world, interruption| {
        drop(interruption.call(world.broker.consume(QUEUE, 2)).await);
        sleep(QUIET).await.unwrap();
        assert_eq!(world.ready().await, 3);
        next(&mut world.consume().await).await;
    });
}

#[test]
fn next_one() {
    at_every_moment(async |world, interruption| {
        let mut deliveries = world.consume().await;
        for _ in 0..3 {
            let delivery = next(&mut deliveries).await;
            world.broker.ack(delivery.receipt).await.unwrap();
        }
        let broker = world.broker.clone();
        let publishing = spawn(async move { broker.publish(QUEUE, message("d"), None).await });
        let told = interruption.call(deliveries.next()).await;
        publishing.await.unwrap().unwrap();
        let delivery = match told {
            Ok(delivery) => delivery.expect("it was not cancelled"),
            Err(_) => next(&mut deliveries).await,
        };
        assert_eq!((delivery.message.job(), delivery.attempt), (Some("d"), 0));
        world.broker.ack(delivery.receipt).await.unwrap();
    });
}

#[test]
fn cancel() {
    at_every_moment(async |world, interruption| {
        let mut deliveries = world.consume().await;
        let taken = next(&mut deliveries).await;
        drop(interruption.call(deliveries.cancel()).await);
        let mut came = 1;
        while let Some(delivery) = deliveries.next().await.unwrap() {
            world.broker.give_back(delivery.receipt).await.unwrap();
            came += 1;
        }
        assert!(came <= 3);
        world.broker.ack(taken.receipt).await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(world.ready().await, 2);
    });
}

/// Neither waits for the server.
#[test]
fn ack_and_give_back() {
    crate::amqp::fake::on_a_broker(async |server, broker| {
        for job in ["a", "b"] {
            broker.publish(QUEUE, message(job), None).await.unwrap();
        }
        let mut deliveries = broker.consume(QUEUE, 2).await.unwrap();
        let (a, b) = (next(&mut deliveries).await, next(&mut deliveries).await);
        let (ack, give_back) = (broker.ack(a.receipt), broker.give_back(b.receipt));
        timed(Duration::ZERO, ack).await.output.unwrap().unwrap();
        timed(Duration::ZERO, give_back).await.output.unwrap().unwrap();
        drop(deliveries);
        sleep(QUIET).await.unwrap();
        assert_eq!(server.bodies(QUEUE), [b"b"]);
    });
}

#[test]
fn bury() {
    at_every_moment(async |world, interruption| {
        let mut deliveries = world.consume().await;
        let delivery = next(&mut deliveries).await;
        let bury = || {
            let message = delivery.message.clone();
            world.broker.bury(delivery.receipt, message, "why".to_owned())
        };
        let told = interruption.call(bury()).await;
        sleep(QUIET).await.unwrap();
        let before = world.messages().await;
        if told.is_err() {
            assert_eq!(before.0, 3, "it has its message");
            bury().await.unwrap();
        }
        sleep(QUIET).await.unwrap();
        // What was on its way the first time is there twice.
        assert_eq!(world.messages().await, (2, before.1 + usize::from(told.is_err())));
        assert!(before.1 <= 1);
    });
}

#[test]
fn counts() {
    at_every_moment(async |world, interruption| {
        drop(interruption.call(world.broker.counts(QUEUE)).await);
        assert_eq!(world.ready().await, 3);
    });
}

#[test]
fn purge() {
    at_every_moment(async |world, interruption| {
        drop(interruption.call(world.broker.purge(QUEUE)).await);
        world.broker.purge(QUEUE).await.unwrap();
        assert_eq!(world.messages().await, (0, 0));
    });
}

#[test]
fn dead() {
    at_every_moment(async |world, interruption| {
        world.bury(2).await;
        drop(interruption.call(world.broker.dead(QUEUE, 10)).await);
        sleep(QUIET).await.unwrap();
        assert_eq!(world.broker.dead(QUEUE, 10).await.unwrap().len(), 2);
    });
}

#[test]
fn replay() {
    at_every_moment(async |world, interruption| {
        world.bury(2).await;
        sleep(QUIET).await.unwrap();
        drop(interruption.call(world.broker.replay(QUEUE, None)).await);
        sleep(QUIET).await.unwrap();
        let (there, dead) = world.messages().await;
        // One that was on its way is there twice, if it came at all.
        assert!((3..=4).contains(&(there + dead)), "{there} and {dead}");
        world.broker.replay(QUEUE, None).await.unwrap();
        sleep(QUIET).await.unwrap();
        assert_eq!(world.messages().await, (there + dead, 0));
    });
}

#[test]
fn expect_store_and_wait() {
    // Which of the three is interrupted.
    for interrupted in 0..3 {
        at_every_moment(async |world, interruption| {
            let (broker, job) = (&world.broker, JobId("d".to_owned()));
            let mut asked = message("d");
            if interruption.call_if(interrupted == 0, broker.expect(&mut asked)).await.is_err() {
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
            let (of_store, is_store) = (interruption.clone(), interrupted == 1);
            let storing = spawn(async move {
                let store = || storing.store(&delivery.message, outcome());
                if of_store.call_if(is_store, store()).await.is_err() {
                    store().await.unwrap();
                }
            });
            let waited = interruption.call_if(interrupted == 2, broker.wait(&job)).await;
            if waited.is_err() {
                assert_eq!(broker.wait(&job).await.unwrap(), outcome());
            }
            storing.await.unwrap();
            broker.ack(receipt).await.unwrap();
            broker.forget(&job);
            assert!(matches!(broker.wait(&job).await, Err(BrokerError::NoOutcome)));
        });
    }
}

#[test]
fn probe() {
    at_every_moment(async |world, interruption| {
        drop(interruption.call(world.broker.probe()).await);
        assert_eq!(world.messages().await, (3, 0));
    });
}

#[test]
fn close() {
    let moments = at_server(MOMENT, async |server, interruption| {
        let broker = AmqpBroker::open_with_two(URL).await.unwrap();
        broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
        broker.publish(QUEUE, message("a"), None).await.unwrap();
        let mut deliveries = broker.consume(QUEUE, 1).await.unwrap();
        let delivery = next(&mut deliveries).await;
        broker.ack(delivery.receipt).await.unwrap();
        if interruption.call(broker.close()).await.is_err() {
            broker.close().await.unwrap();
        }
        sleep(QUIET).await.unwrap();
        assert_eq!((server.connections(), server.bodies(QUEUE).len()), (0, 0));
    });
    assert!(moments > 0);
}

#[test]
fn expect_later() {
    at_every_moment(async |world, interruption| {
        let (broker, job) = (&world.broker, JobId("d".to_owned()));
        let told = interruption.call(broker.expect_later(&job)).await;
        let mut message = message("d");
        message.reply_to = match told {
            Ok(address) => address,
            Err(_) => broker.expect_later(&job).await.unwrap(),
        };
        broker.store(&message, Outcome::success(1.into())).await.unwrap();
        assert_eq!(broker.wait(&job).await.unwrap(), Outcome::success(1.into()));
        broker.forget(&job);
        sleep(QUIET).await.unwrap();
    });
}

/// The queue of the message that brings our own name is lost with the connection.
#[test]
fn expect_later_outlives_a_cut() {
    let moments = at_server(MOMENT, async |server, cut| {
        let broker = AmqpBroker::open(URL).await.unwrap();
        let (server, after) = (server.clone(), cut.after);
        let cutting = spawn(async move {
            sleep(after).await.unwrap();
            server.cut();
        });
        match broker.expect_later(&JobId("d".to_owned())).await {
            Ok(address) => assert!(address.is_some()),
            // It may be asked again.
            Err(error) => assert!(error.is_lost(), "{error}"),
        }
        cut.is_met.set(cutting.is_finished());
    });
    assert!(moments > 10, "{moments}");
}

#[test]
fn join_and_end_chord() {
    // Which of the two is interrupted.
    for joins in [true, false] {
        at_every_moment(async |world, interruption| {
            let member = |index: u64| {
                let outcome = Outcome::success(index.into());
                ChordMember::new("chord".to_owned(), 2, index, index.to_string(), outcome)
            };
            let broker = &world.broker;
            assert!(broker.join_chord(&member(1)).await.unwrap().is_none());
            let last = member(0);
            let all = match interruption.call_if(joins, broker.join_chord(&last)).await {
                Ok(all) => all,
                Err(_) => broker.join_chord(&last).await.unwrap(),
            };
            let all = all.expect("it was the last member");
            assert_eq!(all.members, [member(0), member(1)]);
            if interruption.call_if(!joins, broker.end_chord("chord")).await.is_err() {
                broker.end_chord("chord").await.unwrap();
            }
            sleep(QUIET).await.unwrap();
            if let Some(server) = &world.server {
                assert!(!server.queues().contains(&"pikake.chord.chord".to_owned()));
            }
        });
    }
}

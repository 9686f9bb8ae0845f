//! A broker with three jobs in a queue, and what interrupts a call of it at each moment.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp_testing as fake;
use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{
    AmqpBroker, Broker, BrokerError, Deliveries, Delivery, MemoryStore, Message, PublishError,
    QueueOptions,
};
use pikake_net::TcpListener;
use pikake_traps::{sleep, spawn, timed, timeout_after};

pub(crate) const QUEUE: &str = "jobs";
pub(crate) const URL: &str = "amqp://127.0.0.1";
/// Moments are so far apart: a wait for the server has several.
pub(crate) const MOMENT: Duration = Duration::from_micros(7);
/// And so far where there are a hundred waits, one after the other.
pub(crate) const LONG_MOMENT: Duration = Duration::from_micros(25);
/// What is on its way has come by then, and what is being closed is closed.
pub(crate) const QUIET: Duration = Duration::from_secs(5);
/// More moments than anything here takes.
pub(crate) const MANY: u32 = 20_000;

/// A broker with three jobs in a queue.
pub(crate) struct World {
    pub(crate) broker: Rc<dyn Broker>,
    /// Where it is RabbitMQ's.
    pub(crate) server: Option<fake::Broker>,
}

impl World {
    /// How many messages a queue has, and how many its dead are. What is taken is counted, too.
    pub(crate) async fn messages(&self) -> (usize, usize) {
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

    pub(crate) async fn ready(&self) -> u64 {
        self.broker.counts(QUEUE).await.unwrap().ready
    }

    pub(crate) async fn consume(&self) -> Box<dyn Deliveries> {
        self.broker.consume(QUEUE, 2).await.unwrap()
    }

    /// Has so many buried.
    pub(crate) async fn bury(&self, count: usize) {
        let mut deliveries = self.consume().await;
        for _ in 0..count {
            let delivery = next(&mut deliveries).await;
            self.broker.bury(delivery.receipt, delivery.message, "why".to_owned()).await.unwrap();
        }
    }
}

pub(crate) fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message.body = job.as_bytes().to_vec();
    message
}

pub(crate) async fn next(deliveries: &mut Box<dyn Deliveries>) -> Delivery {
    let next = timeout_after(QUIET, deliveries.next()).await.expect("one comes");
    next.unwrap().expect("it was not cancelled")
}

/// What a call comes to that is interrupted after so long.
pub(crate) async fn within<T>(length: Duration, call: impl Future<Output = T>) -> T {
    timed(length, call).await.output.expect("it waits on nothing but traps")
}

pub(crate) fn is_interrupted<T>(result: &Result<T, BrokerError>) -> bool {
    match result {
        Ok(_) => false,
        Err(BrokerError::Interrupted(_)) => true,
        Err(other) => panic!("it is not told that it was interrupted, but {other}"),
    }
}

pub(crate) fn certainly_not_sent(result: &Result<(), PublishError>) -> Option<bool> {
    let error = result.as_ref().err()?;
    assert!(matches!(error.cause, PublishFailure::Broker(BrokerError::Interrupted(_))), "{error}");
    assert_eq!(error.message.job(), Some("d"), "it is given back");
    Some(!error.is_uncertain)
}

/// Runs a case again and again, interrupted one moment later each time, until it no longer is. A
/// case makes one call that is interrupted after so long, checks what came of it, and tells whether
/// it was.
pub(crate) fn at_every_moment(case: impl AsyncFn(&World, Duration) -> bool) {
    at_moments(MOMENT, case);
}

pub(crate) fn at_moments(moment: Duration, case: impl AsyncFn(&World, Duration) -> bool) {
    for in_memory in [true, false] {
        let mut moments = 0;
        let is_interrupted = |length| {
            pikake_sim::example(async {
                let server = fake::Broker::new();
                let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
                let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
                let world = match in_memory {
                    true => World { broker: Rc::new(MemoryStore::new().open()), server: None },
                    false => {
                        let broker = Rc::new(AmqpBroker::open(URL).await.unwrap());
                        World { broker, server: Some(server.clone()) }
                    }
                };
                world.broker.declare(QUEUE, &QueueOptions::default()).await.unwrap();
                for job in ["a", "b", "c"] {
                    world.broker.publish(QUEUE, message(job), None).await.unwrap();
                }
                let is_interrupted = case(&world, length).await;
                // It goes on.
                sleep(QUIET).await.unwrap();
                let before = world.messages().await.0;
                world.broker.publish(QUEUE, message("after"), None).await.unwrap();
                assert_eq!(world.messages().await.0, before + 1);
                if let Some(server) = &world.server {
                    assert_eq!(server.channels(), 1, "only the one that publishes is left");
                }
                world.broker.close().await.unwrap();
                sleep(QUIET).await.unwrap();
                assert_eq!(server.connections(), 0);
                is_interrupted
            })
        };
        while is_interrupted(moment * moments) {
            moments += 1;
            assert!(moments < MANY, "it does not come to its end");
        }
        println!("in memory {in_memory}: interrupted at {moments} moments");
        assert!(in_memory || moments > 0, "it never waits");
    }
}

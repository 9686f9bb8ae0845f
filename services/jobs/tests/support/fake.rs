//! A world with a broker for tests in it, and one of ours that is connected to it.

use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::time::Duration;

use pikake_amqp_testing as fake;
use pikake_jobs::{AmqpBroker, Broker, Message, QueueOptions};
use pikake_net::TcpListener;
use pikake_sim::{Schedule, Sim};
use pikake_traps::{Task, TaskError, spawn, wall_time};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// With a queue `jobs`.
pub(crate) fn on_a_broker<F: Future<Output = ()>>(
    test: impl FnOnce(fake::Broker, AmqpBroker) -> F,
) {
    on_a_broker_at("amqp://127.0.0.1", test);
}

/// The same, connected by that URL.
pub(crate) fn on_a_broker_at<F: Future<Output = ()>>(
    url: &str,
    test: impl FnOnce(fake::Broker, AmqpBroker) -> F,
) {
    in_a_world(async {
        let server = fake::Broker::new();
        let _serving = serving(&server).await.cancel_on_drop();
        test(server, connected(url).await).await;
    });
}

pub(crate) async fn serving(server: &fake::Broker) -> Task<io::Result<()>> {
    let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
    spawn(fake::serve(server.clone(), listener))
}

pub(crate) async fn connected(url: &str) -> AmqpBroker {
    let broker = AmqpBroker::open(url).await.unwrap();
    broker.declare("jobs", &QueueOptions::default()).await.unwrap();
    broker
}

pub(crate) fn in_a_world(test: impl Future<Output = ()>) {
    let _ = ended_after(test);
}

/// Runs it, and tells when all of its tasks have ended, in virtual time.
pub(crate) fn ended_after(test: impl Future<Output = ()>) -> Duration {
    let mut sim = Sim::new(0);
    // What goes out in the same turn does so whatever else has happened.
    sim.schedule(Schedule::Fifo);
    let ran = sim.run_here("test", test).unwrap_or_else(|failure| panic!("{failure}"));
    match ran.outcome {
        Err(TaskError::Panicked(panic)) => resume_unwind(panic.into_payload()),
        ended => ended.expect("it comes to its end"),
    }
    ran.report.time
}

pub(crate) fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message
}

/// From here on a message that waits costs its channel.
pub(crate) async fn without_delays(broker: &AmqpBroker) {
    let soon = Some(wall_time() + SECOND);
    broker.publish("jobs", Message::default(), soon).await.unwrap();
    let channel = broker.connection().channel().await.unwrap();
    for exchange in delay_names() {
        channel.delete_exchange(&exchange).await.unwrap();
    }
    channel.delete_exchange("celery_delayed_delivery").await.unwrap();
}

/// The exchanges that messages which wait go to, and their queues.
pub(crate) fn delay_names() -> impl Iterator<Item = String> {
    let tenths = (1..10).map(|tenths| format!("pikake_delayed_{tenths}00ms"));
    tenths.chain((0..28).map(|level| format!("celery_delayed_{level}")))
}

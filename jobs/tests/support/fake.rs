//! A world with a broker for tests in it, and one of ours that is connected to it.

use std::future::Future;
use std::time::Duration;

use pikake_amqp::fake;
use pikake_jobs::{AmqpBroker, Broker, Message, QueueOptions};
use pikake_net::TcpListener;
use pikake_traps::spawn;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// With a queue `jobs`.
pub(crate) fn on_a_broker<F: Future<Output = ()>>(test: impl FnOnce(fake::Broker, AmqpBroker) -> F) {
    on_a_broker_at("amqp://127.0.0.1", test);
}

/// The same, connected by that URL.
pub(crate) fn on_a_broker_at<F: Future<Output = ()>>(
    url: &str,
    test: impl FnOnce(fake::Broker, AmqpBroker) -> F,
) {
    pikake_sim::example(async {
        let server = fake::Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
        let broker = AmqpBroker::open(url).await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        test(server, broker).await;
    });
}

pub(crate) fn message(job: &str) -> Message {
    let mut message = Message::default();
    message.correlation_id = Some(job.to_owned());
    message
}

//! What a broker takes away while jobs are under way: a queue, a connection, a channel. On the broker
//! for tests, in virtual time.
#![cfg(feature = "amqp")]

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use pikake_amqp::fake;
use pikake_jobs::{AmqpBroker, App, Broker, BrokerError, JobError, Message, QueueOptions};
use pikake_net::TcpListener;
use pikake_traps::{sleep, spawn, timeout_after, wall_time};

const SECOND: Duration = Duration::from_secs(1);

fn on_a_broker<F: Future<Output = ()>>(test: impl FnOnce(fake::Broker, AmqpBroker) -> F) {
    pikake_sim::example(async {
        let server = fake::Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(fake::serve(server.clone(), listener)).cancel_on_drop();
        let broker = AmqpBroker::open("amqp://127.0.0.1").await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        test(server, broker).await;
    });
}

#[test]
fn a_consumer_whose_queue_is_gone_has_come_to_its_end() {
    on_a_broker(async |_server, broker| {
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        let channel = broker.connection().channel().await.unwrap();
        channel.delete_queue("jobs").await.unwrap();
        let next = timeout_after(SECOND, deliveries.next()).await.unwrap();
        assert!(matches!(next, Ok(None)), "{next:?}");
    });
}

#[test]
fn who_waits_for_an_outcome_that_cannot_come_any_more_is_told() {
    on_a_broker(async |server, broker| {
        let app = App::on(Rc::new(broker)).default_queue("jobs").connect().await.unwrap();
        let job = pikake_jobs::Call::<i64>::named("none", ()).send().await.unwrap();
        let cut = spawn(async move {
            sleep(SECOND).await.unwrap();
            server.cut();
        });
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it waits for ever");
        assert!(matches!(waited, Err(JobError::Broker(BrokerError::NoOutcome))), "{waited:?}");
        // Nor is it another time.
        let waited = timeout_after(60 * SECOND, job.wait()).await.expect("it waits for ever");
        assert!(matches!(waited, Err(JobError::Broker(BrokerError::NoOutcome))), "{waited:?}");
        cut.await.unwrap();
        drop(app);
    });
}

#[test]
fn a_message_that_costs_its_channel_does_not_cost_the_next_one_its_way() {
    on_a_broker(async |_server, broker| {
        let soon = || Some(wall_time() + SECOND);
        broker.publish("jobs", Message::default(), soon()).await.unwrap();
        let mut asked = Message::default();
        asked.correlation_id = Some("a".to_owned());
        broker.expect(&mut asked).await.unwrap();
        broker.publish("jobs", asked, None).await.unwrap();
        let channel = broker.connection().channel().await.unwrap();
        for level in 0..26 {
            channel.delete_exchange(&format!("pikake.delay.{level}")).await.unwrap();
        }
        broker.publish("jobs", Message::default(), soon()).await.expect_err("no exchange");
        broker.publish("jobs", Message::default(), None).await.expect("the next one goes");
        // Answers come to the channel that asked, which has gone.
        let job = pikake_jobs::JobId("a".to_owned());
        let waited = timeout_after(SECOND, broker.wait(&job)).await.expect("it waits for ever");
        assert!(matches!(waited, Err(BrokerError::NoOutcome)), "{waited:?}");
        // What is asked from here on is answered.
        let mut asked = Message::default();
        asked.correlation_id = Some("b".to_owned());
        broker.expect(&mut asked).await.unwrap();
        broker.publish("jobs", asked, None).await.unwrap();
        let mut deliveries = broker.consume("jobs", 10).await.unwrap();
        loop {
            let delivery = deliveries.next().await.unwrap().unwrap();
            broker.ack(delivery.receipt).await.unwrap();
            if delivery.message.job() == Some("b") {
                let outcome = pikake_jobs::Outcome::success(1.into());
                broker.store(&delivery.message, outcome).await.unwrap();
                break;
            }
        }
        let job = pikake_jobs::JobId("b".to_owned());
        assert!(timeout_after(SECOND, broker.wait(&job)).await.unwrap().is_ok());
    });
}

//! Messages that a real RabbitMQ refuses, among many that it takes.

use std::collections::BTreeSet;
use std::time::Duration;

use pikake_jobs::broker::PublishFailure;
use pikake_jobs::{AmqpBroker, App, Broker, BrokerError, Message, QueueOptions, SendError};
use pikake_kernel::Kernel;
use pikake_macros::job;
use pikake_traps::{spawn, timeout_after, wall_time};
use xtask::Kind;

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(30);
const JOBS: usize = 200;
/// The largest message, in octets.
const LARGEST: usize = 100_000;

#[job(crate = pikake_jobs)]
async fn length(text: String) -> usize {
    text.len()
}

#[test]
fn neighbours_of_messages_too_large_are_answered() {
    let Some(rabbit) = xtask::Server::start_or_skip(Kind::RabbitMq) else { return };
    let server = Server::of(rabbit);
    Kernel::new().unwrap().run(async {
        let limit = format!("ctl eval application:set_env(rabbit,max_message_size,{LARGEST}).");
        server.command(limit).await;
        let app = App::new(server.url()).unwrap().jobs([length::JOB]).connect().await.unwrap();
        // Has a queue, and answers that are read.
        let worker = spawn(App::new(server.url()).unwrap().jobs([length::JOB]).run_worker());
        length::with("first".to_owned()).on(&app).send().await.unwrap().wait().await.unwrap();
        let mut sending = Vec::new();
        for number in 0..JOBS {
            let size = if number % 50 == 25 { LARGEST } else { number };
            let call = length::with("x".repeat(size)).on(&app);
            sending.push(spawn(async move { call.send().await }));
        }
        let (mut refused, mut answered, mut unanswered) = (0, 0, 0);
        for (number, sending) in sending.into_iter().enumerate() {
            match sending.await.unwrap() {
                Ok(handle) => match timeout_after(PATIENCE, handle.wait()).await.expect("an end") {
                    Ok(value) => {
                        assert_eq!(value, number);
                        answered += 1;
                    }
                    // Sent over a channel that another one cost afterwards: it cannot be answered.
                    Err(_) => unanswered += 1,
                },
                Err(SendError::Publish(error)) => {
                    assert_eq!(number % 50, 25, "{error}");
                    assert!(error.is_uncertain);
                    let PublishFailure::Broker(BrokerError::Refused(why)) = &error.cause else {
                        panic!("{error}");
                    };
                    assert!(why.contains("larger than configured max size"), "{why}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        println!("{refused} refused, {answered} answered, {unanswered} not");
        assert_eq!(refused, 4);
        assert!(answered >= JOBS - 4 - 25, "those before the first that was too large");
        worker.request_cancel("the test is over");
        let done = worker.await.unwrap().unwrap().stats.all.done as usize;
        assert!(done > JOBS - 4, "each was run, {done} in all");
        server.comes_to("pikake", (0, 0)).await;
        app.close().await.unwrap();
    });
}

#[test]
fn neighbours_of_a_missing_exchange_all_arrive() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        let later = wall_time() + Duration::from_secs(3_600);
        broker.publish("jobs", Message::default(), Some(later)).await.unwrap();
        let channel = broker.connection().channel().await.unwrap();
        let tenths = (1..10).map(|tenths| format!("pikake_delayed_{tenths}00ms"));
        for exchange in tenths.chain((0..28).map(|level| format!("celery_delayed_{level}"))) {
            channel.delete_exchange(&exchange).await.unwrap();
        }
        let publish = |job: u32| {
            let (broker, mut message) = (broker.clone(), Message::default());
            message.correlation_id = Some(job.to_string());
            spawn(
                async move { broker.publish("jobs", message, (job == 50).then_some(later)).await },
            )
        };
        let sent: Vec<_> = (0..=100).map(publish).collect();
        for (job, sent) in sent.into_iter().enumerate() {
            match timeout_after(PATIENCE, sent).await.expect("it hangs").unwrap() {
                Err(error) if job == 50 => {
                    assert!(error.to_string().contains("404 NOT_FOUND - no exchange"), "{error}");
                    assert!(error.is_uncertain, "{error}");
                }
                sent => assert!(sent.is_ok() && job != 50, "{job}: {sent:?}"),
            }
        }
        let mut deliveries = broker.consume("jobs", 100).await.unwrap();
        let mut came = BTreeSet::new();
        while came.len() < 100 {
            let next = timeout_after(PATIENCE, deliveries.next()).await.expect("all are there");
            let delivery = next.unwrap().unwrap();
            came.insert(delivery.message.job().unwrap().parse::<u32>().unwrap());
            broker.ack(delivery.receipt).await.unwrap();
        }
        assert!(!came.contains(&50) && came.contains(&0) && came.contains(&100));
        drop(deliveries);
        broker.close().await.unwrap();
    });
}

/// RabbitMQ adds `x-delivery-count` to the header upon redelivery.
#[test]
fn redelivered_header_that_fills_a_frame_arrives() {
    let Some(url) = xtask::fresh_url() else { return };
    Kernel::new().unwrap().run(async {
        let broker = AmqpBroker::open(&url).await.unwrap();
        // RabbitMQ counts the deliveries of a quorum queue in one more header.
        let mut options = QueueOptions::default();
        options.replicated = true;
        broker.declare("jobs", &options).await.unwrap();
        let mut size = 128 * 1024;
        loop {
            let mut message = Message::default();
            message.headers.insert("full".to_owned(), "x".repeat(size).into());
            let Err(error) = broker.publish("jobs", message, None).await else { break };
            assert!(error.to_string().contains("exceed the frame limit of 131072"), "{error}");
            size -= 1;
        }
        let mut deliveries = broker.consume("jobs", 1).await.unwrap();
        for attempt in 0..3 {
            let next = timeout_after(PATIENCE, deliveries.next()).await.expect("it is redelivered");
            let delivery = next.unwrap().unwrap();
            assert_eq!(delivery.attempt, attempt);
            broker.give_back(delivery.receipt).await.unwrap();
        }
        assert_eq!(broker.connection().epoch(), 0);
        drop(deliveries);
        broker.close().await.unwrap();
    });
}

//! What somebody else may write into a message, and RabbitMQ stumbles over. On a real one.
#![cfg(feature = "amqp")]

#[path = "support/rabbit.rs"]
mod rabbit;

use std::time::Duration;

use pikake_jobs::{AmqpBroker, Broker, Message, Outcome, QueueOptions};
use pikake_kernel::Kernel;
use pikake_traps::{spawn, timeout_after};

const PATIENCE: Duration = Duration::from_secs(20);

/// It looks like one of the broker's own names for who waits for an answer, and is none: its channel dies
/// of it, and the connection with that.
#[test]
fn a_name_to_answer_to_that_costs_the_connection_is_given_up() {
    let url = rabbit::fresh_url();
    Kernel::new().unwrap().run(async {
        let broker = AmqpBroker::open(&url).await.unwrap();
        broker.declare("jobs", &QueueOptions::default()).await.unwrap();
        for to in ["x.y", "g1h3Bm5AaG9zdAAAAAEAAAAAAAAAAQ==.y"] {
            let mut message = Message::default();
            message.correlation_id = Some("a".to_owned());
            message.reply_to = Some(format!("amq.rabbitmq.reply-to.{to}"));
            let others: Vec<_> = (0..20)
                .map(|_| {
                    let broker = broker.clone();
                    spawn(async move { broker.publish("jobs", Message::default(), None).await })
                })
                .collect();
            let stored = broker.store(&message, Outcome::success(1.into()));
            let stored = timeout_after(PATIENCE, stored).await.expect("it goes on for ever");
            stored.unwrap();
            for other in others {
                let sent = timeout_after(PATIENCE, other).await.expect("it hangs").unwrap();
                sent.unwrap();
            }
        }
        // It costs nothing any more.
        let connection = broker.connection().clone();
        let changed = spawn(async move { connection.changed().await });
        let mut message = Message::default();
        message.correlation_id = Some("a".to_owned());
        message.reply_to = Some("amq.rabbitmq.reply-to.x.y".to_owned());
        broker.store(&message, Outcome::success(1.into())).await.unwrap();
        broker.publish("jobs", Message::default(), None).await.unwrap();
        assert!(!changed.is_finished());
        let ready = broker.counts("jobs").await.unwrap().ready;
        assert!(ready >= 41, "{ready}");
        broker.close().await.unwrap();
    });
}

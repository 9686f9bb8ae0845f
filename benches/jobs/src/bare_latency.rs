//! amqprs without a framework: one message at a time to a worker, and its answer over direct
//! reply-to.
//!
//! What the broker alone makes of it: the worker reads nothing, stores nothing, and acknowledges
//! when it has answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use amqprs::channel::{
    BasicAckArguments, BasicConsumeArguments, BasicPublishArguments, BasicQosArguments, Channel,
    ConfirmSelectArguments,
};
use amqprs::consumer::AsyncConsumer;
use amqprs::{BasicProperties, Deliver};
use async_trait::async_trait;
use tokio::sync::{Notify, mpsc};

use crate::Latencies;
use crate::bare::{BODY, Confirms, open, properties, run};

/// The queue that stands for the answers to what a channel publishes.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

struct Answers;

#[async_trait]
impl AsyncConsumer for Answers {
    async fn consume(
        &mut self,
        channel: &Channel,
        deliver: Deliver,
        properties: BasicProperties,
        body: Vec<u8>,
    ) {
        let to = properties.reply_to().expect("somebody asks");
        let back = BasicPublishArguments::new("", to);
        channel.basic_publish(BasicProperties::default(), body, back).await.expect("it is sent");
        let ack = BasicAckArguments::new(deliver.delivery_tag(), false);
        channel.basic_ack(ack).await.expect("it is there");
    }
}

pub fn answer(port: u16, host: &str, prefetch: u16) {
    run(async {
        let (connection, channel) = open(port, host).await;
        channel.basic_qos(BasicQosArguments::new(0, prefetch, false)).await.expect("a limit");
        let consume = BasicConsumeArguments::new("bench", "");
        channel.basic_consume(Answers, consume).await.expect("a consumer");
        connection.listen_network_io_failure().await;
    });
}

struct Answered(mpsc::UnboundedSender<()>);

#[async_trait]
impl AsyncConsumer for Answered {
    async fn consume(&mut self, _: &Channel, _: Deliver, _: BasicProperties, _: Vec<u8>) {
        self.0.send(()).expect("it is waited for");
    }
}

pub fn ask(port: u16, host: &str, count: usize) {
    run(async {
        let (_connection, channel) = open(port, host).await;
        let (seen, told) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let confirms = Confirms { seen: seen.clone(), told: told.clone() };
        channel.register_callback(confirms).await.expect("it is there");
        channel.confirm_select(ConfirmSelectArguments::default()).await.expect("confirms");
        let (sender, mut answers) = mpsc::unbounded_channel();
        let mut consume = BasicConsumeArguments::new(REPLY_TO, "");
        let consume = consume.manual_ack(false).finish();
        channel.basic_consume(Answered(sender), consume).await.expect("a consumer");
        let publish = BasicPublishArguments::new("", "bench");
        let question = properties().with_reply_to(REPLY_TO).finish();
        let mut latencies = Latencies::default();
        for number in 1..=count as u64 {
            let begun = Instant::now();
            channel
                .basic_publish(question.clone(), BODY.to_vec(), publish.clone())
                .await
                .expect("it is sent");
            while seen.load(Ordering::Relaxed) < number {
                told.notified().await;
            }
            let confirmed = begun.elapsed();
            answers.recv().await.expect("it comes");
            latencies.add(confirmed, begun.elapsed());
        }
        latencies.print();
        std::process::exit(0);
    });
}

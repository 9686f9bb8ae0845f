//! amqprs without a framework: the floor of a message that is consumed and acknowledged, or
//! published and confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amqprs::callbacks::ChannelCallback;
use amqprs::channel::{
    BasicAckArguments, BasicConsumeArguments, BasicPublishArguments, BasicQosArguments, Channel,
    ConfirmSelectArguments,
};
use amqprs::connection::{Connection, OpenConnectionArguments};
use amqprs::consumer::AsyncConsumer;
use amqprs::error::Error;
use amqprs::{
    Ack, BasicProperties, Cancel, CloseChannel, DELIVERY_MODE_PERSISTENT, Deliver, FieldTable,
    FieldValue, Nack, Return,
};
use async_trait::async_trait;
use tokio::sync::Notify;

use crate::Taken;

/// Messages without their confirm, at most.
const WINDOW: u64 = 200;
/// As long as a job's.
pub(crate) const BODY: &[u8] =
    br#"[[7],{},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]"#;

/// A job's headers, as pikake sends them.
pub(crate) fn properties() -> BasicProperties {
    let mut headers = FieldTable::new();
    let id = "9f1c2d8e-4a55-4c8d-8a53-0d8c7f8f5a10";
    for (name, value) in [
        ("lang", "rs"),
        ("task", "bench.noop"),
        ("id", id),
        ("root_id", id),
        ("argsrepr", "[7]"),
        ("kwargsrepr", "{}"),
        ("origin", "pikake12345"),
    ] {
        headers.insert(
            name.try_into().expect("short"),
            FieldValue::S(value.try_into().expect("a text")),
        );
    }
    for name in ["shadow", "eta", "expires", "group", "group_index", "parent_id"] {
        headers.insert(name.try_into().expect("short"), FieldValue::V);
    }
    headers.insert("retries".try_into().expect("short"), FieldValue::I(0));
    headers.insert("ignore_result".try_into().expect("short"), FieldValue::t(true));
    BasicProperties::default()
        .with_headers(headers)
        .with_content_type("application/json")
        .with_content_encoding("utf-8")
        .with_correlation_id(id)
        .with_delivery_mode(DELIVERY_MODE_PERSISTENT)
        .with_priority(0)
        .finish()
}

pub(crate) fn run(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future);
}

pub(crate) async fn open(port: u16, host: &str) -> (Connection, Channel) {
    let mut arguments = OpenConnectionArguments::new("127.0.0.1", port, "guest", "guest");
    let connection = Connection::open(arguments.virtual_host(host)).await.expect("it connects");
    let channel = connection.open_channel(None).await.expect("a channel");
    (connection, channel)
}

pub(crate) struct Confirms {
    pub(crate) seen: Arc<AtomicU64>,
    pub(crate) told: Arc<Notify>,
}

impl Confirms {
    fn up_to(&self, tag: u64) {
        self.seen.fetch_max(tag, Ordering::Relaxed);
        self.told.notify_one();
    }
}

#[async_trait]
impl ChannelCallback for Confirms {
    async fn close(&mut self, _: &Channel, close: CloseChannel) -> Result<(), Error> {
        panic!("{close}");
    }
    async fn cancel(&mut self, _: &Channel, _: Cancel) -> Result<(), Error> {
        Ok(())
    }
    async fn flow(&mut self, _: &Channel, active: bool) -> Result<bool, Error> {
        Ok(active)
    }
    async fn publish_ack(&mut self, _: &Channel, ack: Ack) {
        self.up_to(ack.delivery_tag());
    }
    async fn publish_nack(&mut self, _: &Channel, _: Nack) {
        panic!("a message was refused");
    }
    async fn publish_return(&mut self, _: &Channel, _: Return, _: BasicProperties, _: Vec<u8>) {
        panic!("a message was returned");
    }
}

pub fn publish(port: u16, host: &str, count: usize) {
    run(async {
        let (_connection, channel) = open(port, host).await;
        let (seen, told) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let confirms = Confirms { seen: seen.clone(), told: told.clone() };
        channel.register_callback(confirms).await.expect("it is there");
        channel.confirm_select(ConfirmSelectArguments::default()).await.expect("confirms");
        let mut arguments = BasicPublishArguments::new("", "bench");
        let arguments = arguments.mandatory(true).finish();
        let count = count as u64;
        let taken = Taken::begin();
        for number in 1..=count {
            // Tags may come out of order, so this is a bound and no more; amqprs's favour.
            while number - seen.load(Ordering::Relaxed).min(number) > WINDOW {
                told.notified().await;
            }
            channel
                .basic_publish(properties(), BODY.to_vec(), arguments.clone())
                .await
                .expect("it is sent");
        }
        while seen.load(Ordering::Relaxed) < count {
            told.notified().await;
        }
        taken.print(count as usize);
        std::process::exit(0);
    });
}

struct Acks;

#[async_trait]
impl AsyncConsumer for Acks {
    async fn consume(
        &mut self,
        channel: &Channel,
        deliver: Deliver,
        properties: BasicProperties,
        _: Vec<u8>,
    ) {
        assert!(properties.headers().is_some());
        let ack = BasicAckArguments::new(deliver.delivery_tag(), false);
        channel.basic_ack(ack).await.expect("it is there");
    }
}

pub fn work(port: u16, host: &str, prefetch: u16) {
    run(async {
        let (connection, channel) = open(port, host).await;
        channel.basic_qos(BasicQosArguments::new(0, prefetch, false)).await.expect("a limit");
        channel
            .basic_consume(Acks, BasicConsumeArguments::new("bench", ""))
            .await
            .expect("a consumer");
        connection.listen_network_io_failure().await;
    });
}

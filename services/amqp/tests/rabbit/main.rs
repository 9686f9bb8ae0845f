//! The client on a real RabbitMQ: everything it can be asked, the errors a broker gives, TLS,
//! and outages.

mod connections;
mod deliveries;
mod messages;
mod outages;
mod strangers;
mod support;
mod tls;

use std::time::{Duration, Instant};

use pikake_amqp::{Channel, Message, QueueOptions, persistent, short};
use pikake_traps::sleep;
use support::Shared;

pub(crate) static BROKER: Shared = Shared::new();

pub(crate) fn message(key: &str, body: &[u8]) -> Message {
    Message {
        exchange: short("").unwrap(),
        routing_key: short(key).unwrap(),
        properties: persistent(),
        body: body.to_vec(),
        mandatory: false,
    }
}

/// A quorum queue counts a while later.
pub(crate) async fn until_it_has(
    channel: &Channel,
    queue: &str,
    (messages, consumers): (u32, u32),
) {
    let begun = Instant::now();
    loop {
        let found = channel.declare_queue(queue, QueueOptions::passive()).await.unwrap();
        if (found.messages, found.consumers) == (messages, consumers) {
            return;
        }
        assert!(begun.elapsed() < support::HANG, "{found:?}");
        sleep(Duration::from_millis(20)).await.unwrap();
    }
}

//! The client and the broker for tests in simulated worlds: connections are cut, hosts partitioned
//! and crashed, in many orders; and peers that are no brokers, or no good ones.

mod again;
mod alarms;
mod brokers;
mod channels;
mod faults;
mod middle;
mod peers;
mod recovery;

use std::time::Duration;

use pikake_amqp::{Address, Error, Message, Options, persistent, short};
use pikake_amqp_testing::{Broker, serve};
use pikake_net::TcpListener;
use pikake_traps::spawn;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn options() -> Options {
    // A partition is noticed within four seconds.
    Options { heartbeat: 2 * SECOND, keep_trying: true, ..Options::default() }
}

pub(crate) fn address() -> Address {
    "amqp://broker".parse().unwrap()
}

pub(crate) fn message(queue: &str, number: u32) -> Message {
    Message {
        exchange: short("").unwrap(),
        routing_key: short(queue).unwrap(),
        properties: persistent().with_message_id(number.to_string().as_str().into()),
        body: number.to_be_bytes().to_vec(),
        mandatory: true,
    }
}

pub(crate) fn number(body: &[u8]) -> u32 {
    u32::from_be_bytes(body.try_into().unwrap())
}

/// A world with a broker, and what a task of it does.
pub(crate) fn with_broker<F>(test: impl FnOnce(Broker) -> F + 'static)
where
    F: Future<Output = Result<(), Error>> + 'static,
{
    pikake_sim::example(async {
        let broker = Broker::new();
        let listener = TcpListener::bind("127.0.0.1:5672").await.unwrap();
        let _serving = spawn(serve(broker.clone(), listener)).cancel_on_drop();
        test(broker).await.unwrap();
    });
}

pub(crate) fn here() -> Address {
    "amqp://127.0.0.1".parse().unwrap()
}

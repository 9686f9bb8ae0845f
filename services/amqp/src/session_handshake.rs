//! How a session begins: who we are, what we can, what both can live with.

use std::time::Duration;

use amq_protocol::protocol::connection::{self, AMQPMethod};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};

use crate::error::Error;
use crate::session::{Limits, Phase, Session};

/// What this client can do; announced, so that a broker uses it.
const CAPABILITIES: [&str; 6] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
];

/// Who we are, and what we want.
#[derive(Clone, Debug)]
pub(crate) struct Greeter {
    /// What carries the session says who asks (by a certificate), and user and password do not count.
    pub(crate) is_external: bool,
    pub(crate) user: String,
    pub(crate) password: Password,
    pub(crate) vhost: ShortString,
    /// What the broker shows.
    pub(crate) name: String,
    pub(crate) wanted: Limits,
}

/// Not shown by `Debug`.
#[derive(Clone)]
pub(crate) struct Password(pub(crate) String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Greeter {
    fn properties(&self) -> FieldTable {
        let mut capabilities = FieldTable::default();
        for capability in CAPABILITIES {
            capabilities.insert(capability.into(), AMQPValue::Boolean(true));
        }
        let text = |text: &str| AMQPValue::LongString(text.into());
        let mut properties = FieldTable::default();
        properties.insert("product".into(), text("pikake"));
        properties.insert("version".into(), text(env!("CARGO_PKG_VERSION")));
        properties.insert("platform".into(), text("Rust"));
        properties.insert("connection_name".into(), text(&self.name));
        properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
        properties
    }
}

/// The smaller of both, where zero is no limit.
fn agreed<N: Ord + Default>(ours: N, theirs: N) -> N {
    let none = N::default();
    match (ours == none, theirs == none) {
        (true, _) => theirs,
        (_, true) => ours,
        _ => ours.min(theirs),
    }
}

impl<T, P> Session<T, P> {
    pub(crate) fn on_start(&mut self, start: &connection::Start) -> Result<(), Error> {
        if (start.version_major, start.version_minor) != (0, 9) {
            let (a, b) = (start.version_major, start.version_minor);
            return Err(Error::Protocol(format!("it wants version {a}.{b} of AMQP, this is 0.9")));
        }
        let (mechanism, what, response) = match self.greeter.is_external {
            true => ("EXTERNAL", "by certificate", String::new()),
            false => {
                let response = format!("\0{}\0{}", self.greeter.user, self.greeter.password.0);
                ("PLAIN", "with user and password", response)
            }
        };
        let mechanisms = start.mechanisms.to_string();
        if !mechanisms.split(' ').any(|known| known == mechanism) {
            let known: String = mechanisms.chars().take(100).collect();
            return Err(Error::Protocol(format!(
                "it knows no login {what} ({mechanism}), but: {known}"
            )));
        }
        self.phase = Phase::Tuning;
        self.queue_connection(AMQPMethod::StartOk(connection::StartOk {
            client_properties: self.greeter.properties(),
            mechanism: mechanism.into(),
            response: response.into(),
            locale: "en_US".into(),
        }))
    }

    pub(crate) fn on_tune(&mut self, tune: &connection::Tune) -> Result<(), Error> {
        let wanted = self.greeter.wanted;
        let theirs = tune.frame_max as usize;
        if theirs != 0 && theirs < 4096 {
            return Err(Error::Protocol(format!("it wants frames of at most {theirs} bytes")));
        }
        // Zero would be no limit; what a frame may have must be known here.
        let channel_max = match agreed(wanted.channel_max, tune.channel_max) {
            0 => u16::MAX,
            most => most,
        };
        let heartbeat =
            agreed(wanted.heartbeat.as_secs().min(u16::MAX.into()) as u16, tune.heartbeat);
        self.limits = Limits {
            frame_max: agreed(self.limits.frame_max, theirs),
            channel_max,
            heartbeat: Duration::from_secs(heartbeat.into()),
        };
        self.queue_connection(AMQPMethod::TuneOk(connection::TuneOk {
            channel_max,
            frame_max: self.limits.frame_max as u32,
            heartbeat,
        }))?;
        self.phase = Phase::Opening;
        let virtual_host = self.greeter.vhost.clone();
        self.queue_connection(AMQPMethod::Open(connection::Open { virtual_host }))
    }
}

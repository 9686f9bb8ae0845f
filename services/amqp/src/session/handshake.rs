//! How a session begins: who we are, what we can, what both can live with.

use std::time::Duration;

use amq_protocol::protocol::connection::{Start, StartOk, Tune, TuneOk};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};

use crate::error::Error;

/// What this client can do; announced, so that a broker uses it.
const CAPABILITIES: [&str; 6] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
];

/// What was agreed with the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) frame_max: usize,
    pub(crate) channel_max: u16,
    /// Zero: none.
    pub(crate) heartbeat: Duration,
}

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

    /// The answer to the broker's start.
    pub(super) fn start_ok(&self, start: &Start) -> Result<StartOk, Error> {
        if (start.version_major, start.version_minor) != (0, 9) {
            let (a, b) = (start.version_major, start.version_minor);
            return Err(Error::Protocol(format!("it wants version {a}.{b} of AMQP, this is 0.9")));
        }
        let (mechanism, what, response) = match self.is_external {
            true => ("EXTERNAL", "by certificate", String::new()),
            false => {
                let response = format!("\0{}\0{}", self.user, self.password.0);
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
        Ok(StartOk {
            client_properties: self.properties(),
            mechanism: mechanism.into(),
            response: response.into(),
            locale: "en_US".into(),
        })
    }

    /// The limits that the broker's tune and this side agree on; `frame_max` is this side's.
    pub(super) fn agree(&self, frame_max: usize, tune: &Tune) -> Result<Limits, Error> {
        let theirs = tune.frame_max as usize;
        if theirs != 0 && theirs < 4096 {
            return Err(Error::Protocol(format!("it wants frames of at most {theirs} bytes")));
        }
        // Zero would be no limit; what a frame may have must be known here.
        let channel_max = match agreed(self.wanted.channel_max, tune.channel_max) {
            0 => u16::MAX,
            most => most,
        };
        let heartbeat =
            agreed(self.wanted.heartbeat.as_secs().min(u16::MAX.into()) as u16, tune.heartbeat);
        Ok(Limits {
            frame_max: agreed(frame_max, theirs),
            channel_max,
            heartbeat: Duration::from_secs(heartbeat.into()),
        })
    }
}

impl Limits {
    /// The answer to the broker's tune, with the limits agreed on.
    pub(super) fn tune_ok(&self) -> TuneOk {
        TuneOk {
            channel_max: self.channel_max,
            frame_max: self.frame_max as u32,
            heartbeat: self.heartbeat.as_secs() as u16,
        }
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

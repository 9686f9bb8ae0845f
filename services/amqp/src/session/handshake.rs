//! The handshake: authentication, capabilities, and the limits that both sides accept.

use std::time::Duration;

use amq_protocol::protocol::connection::{Start, StartOk, Tune, TuneOk};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};

use crate::error::Error;

/// Extensions that this client announces.
const CAPABILITIES: [&str; 6] = [
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
];

/// The limits of a connection: wanted ones, or those agreed with the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) frame_max: usize,
    pub(crate) channel_max: u16,
    /// Zero is no heartbeats.
    pub(crate) heartbeat: Duration,
}

/// Credentials and wanted limits of this side.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeConfig {
    /// Whether the TLS certificate authenticates this side, instead of user and password
    /// (EXTERNAL).
    pub(crate) is_external: bool,
    pub(crate) user: String,
    pub(crate) password: Password,
    pub(crate) vhost: ShortString,
    /// The connection's name in the broker's listings.
    pub(crate) name: String,
    pub(crate) wanted: Limits,
}

/// A password, which `Debug` does not show.
#[derive(Clone)]
pub(crate) struct Password(pub(crate) String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(not shown)")
    }
}

impl HandshakeConfig {
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

    /// The reply to connection.start.
    pub(super) fn start_ok(&self, start: &Start) -> Result<StartOk, Error> {
        if (start.version_major, start.version_minor) != (0, 9) {
            let (a, b) = (start.version_major, start.version_minor);
            return Err(Error::Protocol(format!("the broker speaks AMQP {a}.{b}, not 0.9")));
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
                "the broker offers no login {what} ({mechanism}), only: {known}"
            )));
        }
        Ok(StartOk {
            client_properties: self.properties(),
            mechanism: mechanism.into(),
            response: response.into(),
            locale: "en_US".into(),
        })
    }

    /// The agreed limits after connection.tune; `frame_max` is this side's limit.
    pub(super) fn agreed_limits(&self, frame_max: usize, tune: &Tune) -> Result<Limits, Error> {
        let theirs = tune.frame_max as usize;
        if theirs != 0 && theirs < 4096 {
            return Err(Error::Protocol(format!("the frame limit {theirs} is below 4096")));
        }
        // Zero is no limit, so all channel numbers are allowed.
        let channel_max = match min_limit(self.wanted.channel_max, tune.channel_max) {
            0 => u16::MAX,
            most => most,
        };
        let heartbeat =
            min_limit(self.wanted.heartbeat.as_secs().min(u16::MAX.into()) as u16, tune.heartbeat);
        Ok(Limits {
            frame_max: min_limit(frame_max, theirs),
            channel_max,
            heartbeat: Duration::from_secs(heartbeat.into()),
        })
    }
}

impl Limits {
    /// The reply to connection.tune, with the agreed limits.
    pub(super) fn tune_ok(&self) -> TuneOk {
        TuneOk {
            channel_max: self.channel_max,
            frame_max: self.frame_max as u32,
            heartbeat: self.heartbeat.as_secs() as u16,
        }
    }
}

/// The version that the broker says of itself.
pub(super) fn server_version(start: &Start) -> Option<String> {
    match start.server_properties.inner().get("version")? {
        AMQPValue::LongString(version) => Some(version.to_string()),
        _ => None,
    }
}

/// The smaller limit, where zero is no limit.
fn min_limit<N: Ord + Default>(ours: N, theirs: N) -> N {
    let none = N::default();
    match (ours == none, theirs == none) {
        (true, _) => theirs,
        (_, true) => ours,
        _ => ours.min(theirs),
    }
}

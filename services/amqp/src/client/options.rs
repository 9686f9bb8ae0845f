//! The options of a connection.

use std::time::Duration;

/// The options of a connection. The default suits most programs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The connection's name in the broker's listings.
    pub name: String,
    /// The heartbeat interval: the connection is lost after twice this time without input. The
    /// broker may choose less; zero leaves the interval to the broker.
    pub heartbeat: Duration,
    /// The time limit for TCP connect and handshake together.
    pub connect_timeout: Duration,
    /// The largest frame, in bytes. The broker may choose less.
    pub frame_max: u32,
    /// The largest number of channels. The broker may choose less. Opening another one waits.
    pub channel_max: u16,
    /// The waits between reconnects; `None` never reconnects.
    pub reconnect: Option<Backoff>,
    /// Whether a failed first connection is retried like a lost one. Otherwise its failure is an
    /// error at once.
    pub keep_trying: bool,
    /// How long messages and requests wait while the broker is blocked, or for a connection or
    /// channel. The limit for a reply is the longer of this and `connect_timeout`.
    pub blocked_deadline: Duration,
    /// The largest number of unconfirmed messages of a channel. Publishing more waits.
    pub publish_window: usize,
    /// Whether messages that are unconfirmed when the connection is lost are sent again, so that
    /// some may be duplicates. Otherwise they fail as
    /// [`Uncertain`](crate::PublishError::Uncertain).
    pub republish: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "pikake".to_owned(),
            heartbeat: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(10),
            frame_max: 128 * 1024,
            channel_max: 2047,
            reconnect: Some(Backoff::default()),
            keep_trying: false,
            blocked_deadline: Duration::from_secs(30),
            publish_window: 1000,
            republish: true,
        }
    }
}

/// Waits between attempts to connect. Each wait is twice as long as the one before, up to `cap`,
/// less a random part, so that many clients do not reconnect at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backoff {
    /// The wait before the second attempt. The first attempt has none.
    pub first: Duration,
    /// The longest wait. More than five seconds counts as five.
    pub cap: Duration,
    /// The random part of a wait, from 0 to 1.
    pub jitter: f64,
}

/// The upper bound of `cap`.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), cap: Duration::from_millis(500), jitter: 0.5 }
    }
}

impl Backoff {
    /// The wait after `failed` attempts; `chance` is a random number from 0 to 1.
    pub fn wait(&self, failed: u32, chance: f64) -> Duration {
        let cap = self.cap.min(LONGEST_WAIT);
        let doubled = self.first.saturating_mul(1 << failed.saturating_sub(1).min(20));
        let part = 1.0 - self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0);
        doubled.min(cap).mul_f64(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let ms = Duration::from_millis;
        let backoff = Backoff { first: ms(100), cap: Duration::from_secs(60), jitter: 0.5 };
        let waits: Vec<_> = [1, 2, 3, 7, 1000].map(|n| backoff.wait(n, 0.0)).into();
        assert_eq!(waits, [ms(100), ms(200), ms(400), ms(5000), ms(5000)]);
        assert_eq!(backoff.wait(2, 1.0), ms(100));
    }
}

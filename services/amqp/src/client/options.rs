//! How a connection behaves, and how it is made again.

use std::time::Duration;

/// How a connection behaves. The default is right for most.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the broker shows in its list of connections.
    pub name: String,
    /// After twice this time without a sign of life the connection is lost. The broker may ask for
    /// less; zero leaves it to the broker.
    pub heartbeat: Duration,
    /// How long TCP and the handshake may take together.
    pub connect_timeout: Duration,
    /// The largest frame, in bytes. The broker may ask for less.
    pub frame_max: u32,
    /// How many channels there may be. The broker may ask for less. Who opens one more waits.
    pub channel_max: u16,
    /// How a lost connection is made again; `None` leaves it lost.
    pub reconnect: Option<Backoff>,
    /// Whether the first connection is tried again like a lost one. Otherwise its failure is an error
    /// at once.
    pub keep_trying: bool,
    /// How long a message is held back, and a request waits, while the broker takes none or there is
    /// no connection, or no channel to be had. An answer is waited for as long, and no less than `connect_timeout`.
    pub blocked_deadline: Duration,
    /// How many unconfirmed messages a channel may have; who publishes more waits.
    pub publish_window: usize,
    /// Whether messages that were not confirmed when the connection was lost are sent again, so that
    /// some may be there twice. Otherwise they are [`Uncertain`](crate::PublishError::Uncertain).
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

/// Waits between attempts to connect: each twice as long as the one before, up to `cap`, less a part
/// that is left to chance, so that many clients do not come back at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Backoff {
    /// The wait before the second attempt; the first is made at once.
    pub first: Duration,
    /// No wait is longer. More than five seconds counts as five.
    pub cap: Duration,
    /// The part of a wait that is left to chance, from 0 to 1.
    pub jitter: f64,
}

/// No wait between two attempts is longer, whatever was asked for.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), cap: Duration::from_millis(500), jitter: 0.5 }
    }
}

impl Backoff {
    /// The wait after so many failed attempts; `chance` is a number from 0 to 1.
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
    fn waits_double_up_to_the_cap_and_jitter_only_shortens() {
        let ms = Duration::from_millis;
        let backoff = Backoff { first: ms(100), cap: Duration::from_secs(60), jitter: 0.5 };
        let waits: Vec<_> = [1, 2, 3, 7, 1000].map(|n| backoff.wait(n, 0.0)).into();
        assert_eq!(waits, [ms(100), ms(200), ms(400), ms(5000), ms(5000)]);
        assert_eq!(backoff.wait(2, 1.0), ms(100));
    }
}

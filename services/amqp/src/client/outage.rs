//! What the log says of an outage: a warning when it begins, further ones after growing pauses, and
//! one at its end.

use std::time::Duration;

use crate::error::Error;

/// The pause after the first warning of an outage.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two warnings of an outage.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// An outage of a connection. It ends once a connection lasts, so a broker that accepts connections
/// and closes them at once is one outage.
#[derive(Debug)]
pub(crate) struct Outage {
    /// When it began, in the time of the hub.
    begun: Duration,
    /// How many attempts to connect have failed.
    failed: u32,
    /// When the next warning is due.
    due: Duration,
    pause: Duration,
}

impl Outage {
    pub(crate) fn begin(now: Duration) -> Self {
        Self { begun: now, failed: 0, due: now, pause: FIRST_PAUSE }
    }

    /// A connection was lost or not made, for this reason. `attempts` is the number of failed
    /// attempts that this adds.
    pub(crate) fn note(&mut self, broker: &str, now: Duration, attempts: u32, error: &Error) {
        self.failed = self.failed.saturating_add(attempts);
        if now < self.due {
            return;
        }
        self.due = now + self.pause;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        tracing::warn!(broker, failed = self.failed, %error, "no connection");
    }

    /// A connection has lasted. A warning, too: it ends what the other warnings began.
    pub(crate) fn end(self, broker: &str, now: Duration) {
        let seconds = now.saturating_sub(self.begun).as_secs_f64();
        tracing::warn!(broker, failed = self.failed, seconds, "connected again");
    }
}

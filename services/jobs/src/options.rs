//! What can be said about a job: where it is defined, and when it is sent.

use std::time::Duration;

use pikake_traps::random;

/// What a job's definition says of all its runs. Made by `#[pikake::job]`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct JobOptions {
    /// The queue it is sent to; `None`: the application's default.
    pub queue: Option<&'static str>,
    /// How often it is tried again after a failure.
    pub retries: u32,
    /// How long it waits before it is.
    pub backoff: Backoff,
    /// Interrupted after so long.
    pub soft_limit: Option<Duration>,
    /// Dropped after so long.
    pub hard_limit: Option<Duration>,
    /// When its message is acknowledged.
    pub acks: Acks,
    /// The priority it is sent with.
    pub priority: u8,
    /// Worth nothing if not begun so long after it was sent.
    pub expires: Option<Duration>,
    /// Nobody wants its outcome.
    pub ignore_result: bool,
}

impl JobOptions {
    /// What holds if nothing is said.
    pub const DEFAULT: Self = Self {
        queue: None,
        retries: 0,
        backoff: Backoff::DEFAULT,
        soft_limit: None,
        hard_limit: None,
        acks: Acks::Late,
        priority: 0,
        expires: None,
        ignore_result: false,
    };
}

/// When a job's message is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acks {
    /// After its outcome is stored: a job whose worker is lost is run again.
    Late,
    /// Before it is run: a job whose worker is lost is lost. For jobs that had better not run at all than twice.
    ///
    /// RabbitMQ confirms no acknowledgement: where the connection or the worker is lost in the moment in which the job is
    /// begun, it is delivered again, and runs twice all the same.
    Early,
}

/// How long to wait before the next try: exponential, with full jitter.
///
/// Before try `n + 1` it is a random length between nothing and `first · 2ⁿ⁻¹`, or `cap` if that is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    /// The longest wait before the first retry.
    pub first: Duration,
    /// The longest wait of all.
    pub cap: Duration,
}

impl Backoff {
    /// From a second to ten minutes.
    pub const DEFAULT: Self = Self::new(Duration::from_secs(1), Duration::from_secs(600));

    /// From `first` to `cap`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap }
    }

    /// The longest wait before a retry, when so many were made already.
    pub fn limit(self, retries: u32) -> Duration {
        let factor = 1_u32.checked_shl(retries).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.cap)
    }

    /// The wait before a retry, when so many were made already.
    ///
    /// # Panics
    ///
    /// Outside a kernel, which is asked for the chance.
    pub fn draw(self, retries: u32) -> Duration {
        self.limit(retries).mul_f64(random::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_doubles_up_to_the_cap() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let limits: Vec<_> = (0..5).map(|n| backoff.limit(n).as_secs()).collect();
        assert_eq!(limits, [1, 2, 4, 5, 5]);
        assert_eq!(backoff.limit(400), Duration::from_secs(5));
    }
}

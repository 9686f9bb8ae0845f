//! The options of a job.

use std::time::Duration;

use pikake_traps::random;

use crate::rate::Rate;
use crate::unique::Unique;
use crate::wire::Parameter;

/// The options in a job's definition, for all its runs. Made by `#[pikake::job]`, or from
/// [`DEFAULT`](Self::DEFAULT).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct JobOptions {
    /// The queue for the job's messages; `None`: the application's default.
    pub queue: Option<&'static str>,
    /// How many retries follow a failure.
    pub retries: u32,
    /// The delay before a retry.
    pub backoff: Backoff,
    /// How long a run may take before it is interrupted.
    pub soft_limit: Option<Duration>,
    /// How long a run may take before it is dropped, or its process killed.
    pub hard_limit: Option<Duration>,
    /// When the message is acknowledged.
    pub acks: Acks,
    /// The priority of the message.
    pub priority: u8,
    /// How long after sending the job is revoked unless it has begun.
    pub expires: Option<Duration>,
    /// Whether no outcome is stored.
    pub ignore_result: bool,
    /// How often a worker begins the job at most.
    pub rate: Option<Rate>,
    /// The argument of which each value has the rate for itself; `None`: all runs share it.
    pub rate_by: Option<Parameter>,
    /// For how long a job is the only one of its key.
    pub unique: Option<Unique>,
}

impl JobOptions {
    /// The options of a job whose definition sets none.
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
        rate: None,
        rate_by: None,
        unique: None,
    };
}

impl Default for JobOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// When a job's message is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acks {
    /// After the outcome is stored: a job whose worker is lost runs again.
    Late,
    /// Before the job runs: a job whose worker is lost is lost. For jobs that should rather be lost
    /// than run twice.
    ///
    /// RabbitMQ confirms no acknowledgement: if the connection or the worker is lost just when the
    /// job begins, the message is delivered again and the job runs twice.
    Early,
}

/// The delay before a retry: exponential, with full jitter.
///
/// The delay before retry `n` is random, between zero and the lesser of `first · 2ⁿ⁻¹` and `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    /// The longest delay before the first retry.
    pub first: Duration,
    /// The longest delay before any retry.
    pub cap: Duration,
}

impl Backoff {
    /// A first delay of one second at most, and a cap of ten minutes.
    pub const DEFAULT: Self = Self::new(Duration::from_secs(1), Duration::from_secs(600));

    /// A back-off with these limits.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap }
    }

    /// The longest delay before a retry, after `retries` earlier ones.
    pub fn limit(self, retries: u32) -> Duration {
        let factor = 1_u32.checked_shl(retries).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.cap)
    }

    /// A random delay before a retry, after `retries` earlier ones.
    ///
    /// # Panics
    ///
    /// Outside a kernel, which supplies the random number.
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

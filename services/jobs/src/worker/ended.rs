//! How a run of a job ended.

use crate::completion::Returned;
use crate::wire::failure::Failure;
use crate::worker::limits::{Limit, Limited};

/// How a run of a job ended.
pub(crate) enum Ended {
    Returned(Returned),
    Panicked(String),
    WrongArguments(String),
    Exceeded(Limit),
    /// The wait for the job was interrupted.
    Interrupted,
    /// The job's process has ended; how.
    Killed(String),
}

/// How a limited run ended: a returned value counts even if a limit was exceeded.
pub(crate) fn ended<T>(limited: Limited<T>, end: impl FnOnce(T) -> Ended) -> Ended {
    match (limited.output.map(end), limited.exceeded) {
        (Some(Ended::Returned(Ok(value))), _) => Ended::Returned(Ok(value)),
        (_, Some(limit)) => Ended::Exceeded(limit),
        (Some(ended), None) => ended,
        (None, None) => Ended::Interrupted,
    }
}

pub(crate) fn exceeded(limit: Limit) -> Failure {
    let kind = match limit {
        Limit::Soft => "SoftTimeLimitExceeded",
        Limit::Hard => "TimeLimitExceeded",
    };
    Failure::new(kind, "billiard.exceptions", "the job exceeded its time limit")
}

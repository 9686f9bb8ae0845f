//! Requests that are answered 503 at once, since the server is late.
//!
//! The kernel knows since when the tasks that are ready may have waited, and so the request that
//! begins in the current step. A request that another kernel takes has waited since its offer, and
//! one that has come with its connection since the poll of the driver before the accept.

use std::fmt;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response};
use pikake_time::Ticks;
use pikake_traps::inspect::kernel_lateness;
use pikake_traps::{elapsed_since, now};

use crate::BoxError;

/// The seconds after which the client of a request that was shed may ask again. The least that the
/// header can say.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// The error of a request that was not passed to the service.
#[derive(Debug)]
pub(crate) struct Shed;

impl fmt::Display for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server is overloaded")
    }
}

impl std::error::Error for Shed {}

impl Shed {
    /// Whether a task has ended so, and not with an error of its service.
    pub(crate) fn is(error: &BoxError) -> bool {
        error.is::<Self>()
    }

    /// Adds to a response when to ask again.
    pub(crate) fn add_retry_after<B>(response: &mut Response<B>) {
        response.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS);
    }
}

/// Whether the current kernel is so late that a request which begins now is shed.
pub(crate) fn is_late(limit: Option<Duration>) -> bool {
    limit.is_some_and(|limit| kernel_lateness().is_some_and(|late| late > limit))
}

/// The time that a request may wait for another kernel, or for the task of its connection.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    since: Ticks,
    /// The wait before that.
    waited: Duration,
    limit: Duration,
}

impl Patience {
    /// Begins now; `None` without a limit.
    pub(crate) fn begin(limit: Option<Duration>) -> Option<Self> {
        limit.map(|limit| Self { since: now(), waited: Duration::ZERO, limit })
    }

    /// Begins when the events of the current step may have come.
    pub(crate) fn begin_before_step(limit: Option<Duration>) -> Option<Self> {
        let begun = Self::begin(limit)?;
        kernel_lateness().map(|waited| Self { waited, ..begun })
    }

    /// Whether the request has waited for longer. On any kernel of the process: their clocks are
    /// one.
    pub(crate) fn is_over(self) -> bool {
        self.waited + elapsed_since(self.since) > self.limit
    }
}

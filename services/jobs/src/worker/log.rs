//! The lines of the log about jobs: events of `tracing` with the target [`TARGET`].
//!
//! | message | level | when |
//! | --- | --- | --- |
//! | `started` | debug | the job's function is about to be called |
//! | `done` | info | its value is stored |
//! | `replaced` | info | it has returned a workflow, whose first jobs are sent |
//! | `retried` | info | it failed (`error`), and its message is sent again, for the moment in `retry_in` seconds |
//! | `revoked` | info | it was cancelled, or had expired; with the reason in `error` |
//! | `failed` | error | it failed for good, and the failure is stored |
//! | `dead` | error | its message is moved to the dead, with the reason in `error` |
//! | `killed` | warn | its worker process ended (`error`), and its message is sent again |
//! | `requeued` | debug | its message is returned to the queue: not due yet, a shutdown, or a lost broker |
//!
//! All have `id`, `job` (the name) and `queue`. `seconds` is the time from the start of the run to
//! the event; it is missing where the job did not start. The brokers log their outages themselves.

use std::fmt::Display;
use std::time::Duration;

use serde_json::Value;
use tracing::{debug, error, info, warn};

use crate::broker::Delivery;
use crate::worker::run::Run;

/// The target of the events.
const TARGET: &str = "pikake::jobs";

/// The name of a delivered job.
fn name(delivery: &Delivery) -> Option<&str> {
    delivery.message.headers.get("task").and_then(Value::as_str)
}

/// An event about a job. Nothing is read for a line that nobody wants.
macro_rules! line {
    ($level:ident, $delivery:expr, $($more:tt)*) => {
        $level!(
            target: TARGET,
            id = $delivery.message.job(),
            job = name($delivery),
            queue = $delivery.queue,
            $($more)*
        )
    };
}

/// An event about the run of a job, unless its delivery is settled.
macro_rules! run_line {
    ($level:ident, $run:expr, $($more:tt)*) => {
        if let Some(delivery) = &$run.delivery {
            line!($level, delivery, seconds = $run.seconds(), $($more)*);
        }
    };
}

pub(crate) fn started(delivery: &Delivery, retries: u32) {
    line!(debug, delivery, retries, "started");
}

pub(crate) fn done(run: &Run) {
    run_line!(info, run, "done");
}

pub(crate) fn replaced(run: &Run) {
    run_line!(info, run, "replaced");
}

pub(crate) fn failed(run: &Run, error: &dyn Display) {
    run_line!(error, run, %error, "failed");
}

pub(crate) fn revoked(run: &Run, error: &dyn Display) {
    run_line!(info, run, %error, "revoked");
}

pub(crate) fn retried(run: &Run, error: &dyn Display, retry_in: Duration) {
    run_line!(info, run, %error, retry_in = retry_in.as_secs_f64(), "retried");
}

pub(crate) fn killed(run: &Run, error: &dyn Display) {
    run_line!(warn, run, %error, "killed");
}

pub(crate) fn dead(run: &Run, error: &dyn Display) {
    run_line!(error, run, %error, "dead");
}

pub(crate) fn requeued(delivery: &Delivery) {
    line!(debug, delivery, "requeued");
}

/// A job whose run was dropped after a cancel.
pub(crate) fn dropped_by_cancel(delivery: &Delivery) {
    line!(info, delivery, error = "cancelled", "revoked");
}

/// A job that was acknowledged before its run, which was dropped.
pub(crate) fn lost(delivery: &Delivery) {
    line!(error, delivery, error = "its worker ended in the middle of it", "failed");
}

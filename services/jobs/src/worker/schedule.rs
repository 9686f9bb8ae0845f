//! Jobs that are sent at intervals.

use std::time::Duration;

use pikake_traps::{deadline_after, elapsed_since, now, sleep_until};
use serde_json::Value;

use crate::broker::{BrokerError, PublishFailure};
use crate::client::app::App;
use crate::client::call::Call;
use crate::client::signature::Signature;
use crate::error::SendError;

/// Sends a job every interval until it is interrupted.
pub(crate) async fn repeat(app: App, interval: Duration, signature: Signature) {
    let begin = now();
    let mut intervals = 0_u128;
    loop {
        // Intervals that have passed while this task could not send are skipped.
        let passed = elapsed_since(begin).as_nanos() / interval.as_nanos();
        intervals = passed.max(intervals) + 1;
        let due = interval.as_nanos().saturating_mul(intervals);
        let ahead = due.saturating_sub(elapsed_since(begin).as_nanos());
        let ahead = Duration::from_nanos(u64::try_from(ahead).unwrap_or(u64::MAX));
        if sleep_until(deadline_after(ahead)).await.is_err() {
            return;
        }
        match Call::<Value>::from_signature(signature.clone()).on(&app).send().await {
            Ok(_) => {}
            Err(error) if is_interrupted(&error) => return,
            Err(error) => tracing::warn!(%error, "a scheduled job was not sent this time"),
        }
    }
}

fn is_interrupted(error: &SendError) -> bool {
    let error = match error {
        SendError::Broker(error) => error,
        SendError::Publish(error) => match &error.cause {
            PublishFailure::Broker(error) => error,
            PublishFailure::Blocked(_) => return false,
        },
        SendError::NoApp | SendError::Arguments(_) => return false,
    };
    matches!(error, BrokerError::Interrupted(_))
}

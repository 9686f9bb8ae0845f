//! Time: tokio's timers on the kernel's.

mod clock;
mod sleep;

tokio_files! {
    "../../../../target/tokio-source/src/time/error.rs" pub mod error;
    "../../../../target/tokio-source/src/time/instant.rs" mod instant;
    "../../../../target/tokio-source/src/time/interval.rs" mod interval;
    "../../../../target/tokio-source/src/time/timeout.rs" mod timeout;
}

pub use std::time::Duration;

pub use clock::{advance, pause, resume};
pub use instant::Instant;
pub use interval::{interval, interval_at, Interval, MissedTickBehavior};
pub use sleep::{sleep, sleep_until, Sleep};
pub use timeout::{timeout, timeout_at, Timeout};

/// A time that can be added to a moment without an overflow.
fn safe_delay(length: Duration) -> Duration {
    length.min(Duration::from_secs(86_400 * 365 * 30))
}

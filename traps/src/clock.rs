//! Readings of the current kernel's clock.

use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};

use crate::door;

/// A fresh reading of the kernel's clock.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn now() -> Ticks {
    door::with(|local| local.kernel().now())
}

/// The rate that converts ticks of the kernel's clock to durations.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn clock_rate() -> Rate {
    door::with(|local| local.kernel().rate())
}

/// The time since `earlier`, a reading of the same kernel's clock, rounded down.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn elapsed_since(earlier: Ticks) -> Duration {
    let (now, rate) = door::with(|local| (local.kernel().now(), local.kernel().rate()));
    rate.duration_floor(now.since(earlier))
}

/// The moment that is `length` from now, rounded up to the next tick.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn deadline_after(length: Duration) -> Deadline {
    let (now, rate) = door::with(|local| (local.kernel().now(), local.kernel().rate()));
    Deadline::at(now.saturating_add(rate.ticks_ceil(length)))
}

/// Makes the kernel let other threads run once before it sleeps.
///
/// For a wait on a thread that is about to send more: a sleep and a wake-up for each message cost
/// more than the message. Outside a kernel, nothing happens.
pub fn yield_thread_before_sleep() {
    door::try_with(|local| local.kernel().outside().yield_thread_before_sleep());
}

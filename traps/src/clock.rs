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

/// A deadline at most `slack` after this one, which other such deadlines share.
///
/// Each moment at which a timer fires costs a wake-up of the processor. Timers that nobody
/// measures, such as those of idle connections, cost less if many of them fire at one moment.
/// Deadlines with the same slack are rounded up to common moments, more than half of the slack
/// apart. The moments of a greater slack are among those of a smaller one. With virtual time, as in
/// a simulation, the deadline stays what it is.
///
/// `Builder::timer_slack` is for all timers of a kernel.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::sleep_until;
/// use pikake::time::{deadline_after, with_timer_slack};
/// use std::time::Duration;
///
/// let idle = Duration::from_secs(60);
/// sleep_until(with_timer_slack(deadline_after(idle), idle / 16)).await?;
/// # Ok::<_, pikake::Interrupted>(())
/// # }).unwrap();
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
#[doc(alias = "timer_slack")]
pub fn with_timer_slack(deadline: impl Into<Deadline>, slack: Duration) -> Deadline {
    let deadline = deadline.into();
    door::with(|local| match local.kernel() {
        kernel if kernel.is_real_time() && !deadline.is_never() => {
            let slack = kernel.rate().ticks_floor(slack);
            Deadline::at(deadline.ticks().rounded_up_within(slack))
        }
        _ => deadline,
    })
}

/// Makes the kernel let other threads run once before it sleeps.
///
/// For a wait on a thread that is about to send more: a sleep and a wake-up for each message cost
/// more than the message. Outside a kernel, nothing happens.
pub fn yield_thread_before_sleep() {
    door::try_with(|local| local.kernel().outside().yield_thread_before_sleep());
}

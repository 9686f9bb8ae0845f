//! Time for pikake: ticks, deadlines, clocks and the timer heap.
//!
//! This is one of the two ground crates. The crate does not know tasks, traps or kernels. Every
//! other crate uses its four parts.
//!
//! 1. *Moments* ([`Ticks`], [`Deadline`], [`Rate`]). The scheduler counts ticks of one source
//!    clock, and computes with nothing else. A moment ([`Deadline`]) and a length
//!    ([`Duration`](std::time::Duration)) are different types, so that one is never passed for the
//!    other. Waits round up to ticks, and readings round down to durations. So no wait ends early,
//!    and no clock shows a time that has not come.
//! 2. *Clocks* ([`Clock`], [`SystemClock`], [`ManualClock`]). A kernel reads its clock, and asks
//!    the clock how long an idle kernel may block. A clock that moves itself to the next deadline,
//!    and answers "not at all", makes the whole kernel run on virtual time.
//! 3. *Wall time* ([`WallTime`]). One relation, which can be refreshed, pins wall time to ticks. A
//!    change of the wall clock moves no timer. [`Utc`] prints it.
//! 4. *Timers* ([`TimerHeap`]). Pending deadlines, earliest first, first in first out among equals,
//!    with removal.
//!
//! # Examples
//!
//! The whole crate in one loop: a clock, two timers, and time that moves when the kernel is idle.
//!
//! ```
//! use pikake::time::{Clock, Deadline, ManualClock, TimerHeap};
//! use std::time::Duration;
//!
//! let clock = ManualClock::auto();
//! let mut timers = TimerHeap::new();
//! timers.insert(clock.after(Duration::from_secs(2)).ticks(), "later");
//! timers.insert(clock.after(Duration::from_secs(1)).ticks(), "sooner");
//!
//! let mut fired = Vec::new();
//! while let Some(next) = timers.next() {
//!     clock.idle(Some(Deadline::at(next)));
//!     while let Some((at, item)) = timers.pop_due(clock.now()) {
//!         fired.push((at.get(), item));
//!     }
//! }
//! assert_eq!(fired, [(1_000_000_000, "sooner"), (2_000_000_000, "later")]);
//! ```

// Here, since this crate is built before those that name what Unix has.
#[cfg(not(unix))]
compile_error!(
    "pikake needs a Unix system, with epoll, kqueue or poll: it does not run on Windows"
);

mod calibration;
mod clock;
mod entry;
mod heap;
#[cfg(test)]
mod heap_tests;
mod system;
mod ticks;
mod tsc;
mod utc;
mod wall;

pub use clock::{Clock, ManualClock};
pub use entry::TimerKey;
pub use heap::{PRUNE_SLACK, TimerHeap};
pub use system::SystemClock;
pub use ticks::{Deadline, Rate, Ticks};
pub use tsc::{INITIAL_DRIFT_BOUND_PPM, REFINED_BASELINE, REFINED_DRIFT_BOUND_PPM};
pub use utc::Utc;
pub use wall::WallTime;

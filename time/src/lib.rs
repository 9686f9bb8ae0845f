//! What "when" means to pikake: ticks, deadlines, clocks and the timer heap.
//!
//! This is one of the two ground crates. It knows nothing of tasks, traps or kernels; it answers
//! four questions, one file each, and every other crate takes its answers from here.
//!
//! 1. *What is a moment?* ([`Ticks`], [`Deadline`], [`Rate`].) The scheduler counts ticks of one
//!    source clock and does arithmetic on nothing else. A moment ([`Deadline`]) and a length
//!    ([`Duration`](std::time::Duration)) are different types, so that one is never passed for
//!    the other. A wait that is turned into ticks is rounded up, a reading that is turned into a
//!    duration is rounded down: nobody is woken early, no clock shows a time that has not come.
//! 2. *Who tells the time?* ([`Clock`], [`SystemClock`], [`ManualClock`].) A kernel asks its clock
//!    what time it is and, when it has nothing to do, how long it may block. A clock that answers
//!    "not at all, it is later now" makes the whole kernel run on virtual time.
//! 3. *What does the user's watch say?* ([`WallTime`].) Wall time is pinned to ticks by one
//!    relation that can be refreshed. Changing the wall clock changes what the watch shows and
//!    moves no timer.
//! 4. *What comes next?* ([`TimerHeap`].) Pending deadlines, earliest first, first in first out
//!    among equals, with removal.
//!
//! # Examples
//!
//! The whole crate in one loop: a clock, two timers, and time that moves when nobody is busy.
//!
//! ```
//! use pikake_time::{Clock, Deadline, ManualClock, TimerHeap};
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

mod calibration;
mod clock;
mod entry;
mod heap;
#[cfg(test)]
mod heap_tests;
mod system;
mod ticks;
mod tsc;
mod wall;

pub use clock::{Clock, ManualClock};
pub use entry::TimerKey;
pub use heap::{PRUNE_SLACK, TimerHeap};
pub use system::SystemClock;
pub use ticks::{Deadline, Rate, Ticks};
pub use tsc::{INITIAL_DRIFT_BOUND_PPM, REFINED_BASELINE, REFINED_DRIFT_BOUND_PPM};
pub use wall::WallTime;

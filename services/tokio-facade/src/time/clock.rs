//! The kernel's time as moments of the standard library.

use std::cell::Cell;
use std::time::Duration;

use pikake_time::{Deadline, Ticks};
use pikake_traps::{clock_rate, door, KernelId};

use super::Instant;
use crate::runtime::clock::PausableClock;
use crate::runtime::kernels;

/// The moment of the standard library at which a kernel's clock showed this reading.
#[derive(Clone, Copy)]
struct Anchor {
    kernel: KernelId,
    at: Ticks,
    moment: std::time::Instant,
}

thread_local! {
    static ANCHOR: Cell<Option<Anchor>> = const { Cell::new(None) };
}

/// The anchor of the current kernel: set at its first use, and again after another kernel's.
fn anchor() -> Option<Anchor> {
    let kernel = door::current_kernel()?;
    let kept = ANCHOR.with(Cell::get).filter(|kept| kept.kernel == kernel);
    Some(kept.unwrap_or_else(|| {
        let fresh = Anchor { kernel, at: pikake_traps::now(), moment: std::time::Instant::now() };
        ANCHOR.with(|anchor| anchor.set(Some(fresh)));
        fresh
    }))
}

/// Now, by the current kernel's clock; outside of a kernel by the system's.
pub(super) fn now() -> Instant {
    Instant::from_std(match anchor() {
        None => std::time::Instant::now(),
        Some(Anchor { at, moment, .. }) => {
            moment + clock_rate().duration_floor(pikake_traps::now().since(at))
        }
    })
}

/// A moment as the current kernel's deadline.
pub(super) fn deadline_of(instant: Instant) -> Deadline {
    let Anchor { at, moment, .. } = anchor().expect("a timer is polled in a kernel");
    let length = instant.into_std().saturating_duration_since(moment);
    Deadline::at(at.saturating_add(clock_rate().ticks_ceil(length)))
}

#[track_caller]
fn current() -> PausableClock {
    kernels::current_clock().expect(
        "time cannot be frozen from outside the Tokio runtime, nor in a kernel that no runtime made: \
         the simulator has virtual time for those",
    )
}

/// Pauses the clock of the current runtime. It then jumps to the next deadline whenever the runtime
/// is idle.
///
/// # Panics
///
/// If the clock is paused, or the current kernel was not made by a
/// [`Runtime`](crate::runtime::Runtime).
#[track_caller]
pub fn pause() {
    let clock = current();
    assert!(!clock.is_paused(), "time is already frozen");
    clock.pause();
}

/// Ends the pause of the clock.
///
/// # Panics
///
/// If the clock is not paused, or as for [`pause`].
#[track_caller]
pub fn resume() {
    let clock = current();
    assert!(clock.is_paused(), "time is not frozen");
    clock.resume();
}

/// Advances a paused clock, and lets the tasks go on whose timers are due.
///
/// # Panics
///
/// As for [`resume`].
pub async fn advance(length: Duration) {
    move_on(length);
    crate::task::yield_now().await;
}

fn move_on(length: Duration) {
    let clock = current();
    assert!(clock.is_paused(), "time is not frozen");
    clock.advance(length);
}

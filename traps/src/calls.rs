//! The awaitable calls that are one trap each: sleep, yield, and the clock.

use std::panic::Location;
use std::time::Duration;

use pikake_time::{Deadline, Rate, Ticks};

use crate::door;
use crate::handler::{TrapKind, Until, Wait};
use crate::interrupt::Interrupted;
use crate::trap::{KernelTrap, Trap, kernel_trap_at};

/// The trap that waits for a moment. See [`sleep`] and [`sleep_until`].
#[derive(Debug)]
pub struct SleepTrap {
    until: Until,
}

impl SleepTrap {
    /// Waits so long.
    pub fn new(until: Until) -> Self {
        Self { until }
    }
}

impl Trap for SleepTrap {
    type Answer = Result<(), Interrupted>;
    const KIND: TrapKind = TrapKind::Sleep;

    fn wait(&mut self) -> Wait<'_> {
        Wait::Sleep(self.until)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }
}

/// Waits at least as long as `length`, counted from the first poll.
///
/// A length of zero waits for nothing, but lets the other ready tasks run first.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// pikake_traps::sleep(std::time::Duration::from_millis(20)).await?;
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the time was up.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep(length: Duration) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::After(length)), Location::caller())
}

/// Waits until `deadline`, or not at all (but for the other ready tasks) if it has passed.
///
/// # Examples
///
/// A loop that does not drift:
///
/// ```
/// # async fn example() -> Result<(), pikake_traps::Interrupted> {
/// use pikake_traps::{deadline_after, sleep, sleep_until};
/// use std::time::Duration;
///
/// let soon = deadline_after(Duration::from_millis(250));
/// sleep(Duration::from_millis(200)).await?;
/// sleep_until(soon).await?; // 50 ms, not 250
/// # Ok(()) }
/// # pikake_sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when it is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the deadline.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep_until(deadline: Deadline) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::At(deadline)), Location::caller())
}

/// The trap that waits for a moment and cannot be interrupted. See [`elapse`].
#[derive(Debug)]
pub struct ElapseTrap {
    until: Until,
}

impl ElapseTrap {
    /// Waits so long.
    pub fn new(until: Until) -> Self {
        Self { until }
    }
}

impl Trap for ElapseTrap {
    type Answer = ();
    const KIND: TrapKind = TrapKind::Elapse;

    fn wait(&mut self) -> Wait<'_> {
        Wait::Elapse(self.until)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) {
        debug_assert!(result.is_ok(), "an uninterruptible wait is never told of a cause");
    }
}

/// Waits at least as long as `length`, counted from the first poll, and is never interrupted.
///
/// For the timers that other libraries ask for, whose output has no room for an error. To the rules
/// of interruption it is a foreign future: code that waits on nothing else when its deadline passes
/// is dropped. In code of your own, [`sleep`].
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// use pikake_traps::{TimedOut, elapse, timeout_after};
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// elapse(second).await;
/// assert_eq!(timeout_after(second / 2, elapse(second)).await, Err(TimedOut));
/// # });
/// ```
///
/// # Cancellation
///
/// Not an interruption point. Nothing is lost when it is dropped.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn elapse(length: Duration) -> KernelTrap<ElapseTrap> {
    kernel_trap_at(ElapseTrap::new(Until::After(length)), Location::caller())
}

/// Waits until `deadline`, and is never interrupted. See [`elapse`].
///
/// # Cancellation
///
/// Not an interruption point. Nothing is lost when it is dropped.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn elapse_until(deadline: Deadline) -> KernelTrap<ElapseTrap> {
    kernel_trap_at(ElapseTrap::new(Until::At(deadline)), Location::caller())
}

/// A fresh reading of the kernel's clock.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn now() -> Ticks {
    door::with(|kernel| kernel.now())
}

/// How the ticks of the kernel's clock relate to durations.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn clock_rate() -> Rate {
    door::with(|kernel| kernel.rate())
}

/// How long it is since `earlier`, a reading of the same kernel's clock; rounded down.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn elapsed_since(earlier: Ticks) -> Duration {
    door::with(|kernel| kernel.rate().duration_floor(kernel.now().since(earlier)))
}

/// The moment that is `length` from now, rounded up to the next tick.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn deadline_after(length: Duration) -> Deadline {
    door::with(|kernel| Deadline::at(kernel.now().saturating_add(kernel.rate().ticks_ceil(length))))
}

/// Has the kernel let other threads run once before it sleeps, should it have nothing else to do.
///
/// For waits on another thread that is about to have something more: to be put to sleep and woken
/// for each single thing costs more than all the rest. Outside a kernel, nothing happens.
pub fn linger() {
    door::try_with(|kernel| kernel.linger());
}

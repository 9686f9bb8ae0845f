//! The trap `elapse`: waits for a moment, and cannot be interrupted.

use std::panic::Location;
use std::time::Duration;

use pikake_time::Deadline;

use super::sleep::{about_moment, collect, leave};
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::seen::About;
use crate::trap::{KernelTrap, OneEntry, Progress, Trap, TrapContext, kernel_trap_at};
use crate::wait::{Until, WaitPlace};

static NAME: TrapName = TrapName::new("elapse").ended_by_time().uninterruptible();

/// Waits at least as long as `length`, counted from the first poll, and is never interrupted.
///
/// For timers of other libraries whose output has no room for an error; elsewhere use
/// [`sleep`](crate::sleep). The rules of interruption treat this wait as a foreign future: when a
/// deadline passes, they drop code that waits for nothing else.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// use pikake::traps::elapse;
/// use pikake::{TimedOut, timeout_after};
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
/// Not an interruption point. Nothing is lost when the future is dropped.
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
/// Not an interruption point. Nothing is lost when the future is dropped.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn elapse_until(deadline: impl Into<Deadline>) -> KernelTrap<ElapseTrap> {
    kernel_trap_at(ElapseTrap::new(Until::At(deadline.into())), Location::caller())
}

/// The trap that waits for a moment and cannot be interrupted. See [`elapse`].
#[derive(Debug)]
pub struct ElapseTrap {
    until: Until,
}

impl ElapseTrap {
    /// A wait that ends at this moment.
    pub fn new(until: Until) -> Self {
        Self { until }
    }
}

impl Trap for ElapseTrap {
    type Answer = ();
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<()> {
        match cx.moment(&mut self.until) {
            Some(at) => cx.park(entry, WaitPlace::Moment(at)),
            None => cx.answer(()),
        }
    }

    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<()> {
        collect(entry, self.until, cx)
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        leave(entry, self.until, kernel);
    }

    fn about(&self) -> Option<About> {
        about_moment(self.until)
    }
}

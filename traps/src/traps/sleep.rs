//! The trap `sleep`: waits for a moment.
//!
//! A sleep whose moment has come waits for the task's next step.

use std::panic::Location;
use std::time::Duration;

use pikake_time::{Deadline, Ticks};

use crate::door;
use crate::interrupt::Interrupted;
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::seen::About;
use crate::trap::{Entry, KernelTrap, OneEntry, Progress, Trap, TrapContext, kernel_trap_at};
use crate::wait::{Until, WaitPlace};

static NAME: TrapName = TrapName::new("sleep").ended_by_time();

/// Waits at least as long as `length`, counted from the first poll.
///
/// A length of zero lets the other ready tasks run first.
///
/// # Examples
///
/// ```
/// use pikake::{Interrupted, sleep};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), Interrupted> {
/// sleep(Duration::from_millis(20)).await?;
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the length has passed.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep(length: Duration) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::After(length)), Location::caller())
}

/// Waits until `deadline`, a [`Deadline`] or an [`Instant`](crate::Instant). If that has passed,
/// lets the other ready tasks run first.
///
/// # Examples
///
/// A loop that does not drift:
///
/// ```
/// # async fn example() -> Result<(), pikake::Interrupted> {
/// use pikake::time::Instant;
/// use pikake::{sleep, sleep_until};
/// use std::time::Duration;
///
/// let soon = Instant::now() + Duration::from_millis(250);
/// sleep(Duration::from_millis(200)).await?;
/// sleep_until(soon).await?; // 50 ms, not 250
/// # Ok(()) }
/// # pikake::sim::example(example()).unwrap();
/// ```
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`], before the deadline.
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
pub fn sleep_until(deadline: impl Into<Deadline>) -> KernelTrap<SleepTrap> {
    kernel_trap_at(SleepTrap::new(Until::At(deadline.into())), Location::caller())
}

/// The trap that waits for a moment. See [`sleep`] and [`sleep_until`].
#[doc(alias = "Sleep")]
#[derive(Debug)]
pub struct SleepTrap {
    until: Until,
}

impl SleepTrap {
    /// A wait that ends at this moment.
    pub fn new(until: Until) -> Self {
        Self { until }
    }
}

impl Trap for SleepTrap {
    type Answer = Result<(), Interrupted>;
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        match cx.moment(&mut self.until) {
            Some(at) => cx.park(entry, WaitPlace::Moment(at)).map(Ok),
            None => Progress::NextStep,
        }
    }

    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        if entry.key().is_none() && moment(self.until) != Ticks::MAX {
            // The moment had come at the first poll, and this is the task's next step.
            return Progress::Answered(Ok(()));
        }
        collect(entry, self.until, cx).map(Ok)
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        leave(entry, self.until, kernel);
    }

    fn about(&self) -> Option<About> {
        about_moment(self.until)
    }
}

/// Collects a wait for a moment, which `until` has since the wait began.
#[inline]
pub(super) fn collect(entry: &mut Entry, until: Until, cx: &TrapContext<'_>) -> Progress<()> {
    cx.collect(entry, WaitPlace::Moment(moment(until)))
}

/// Leaves a wait for a moment.
pub(super) fn leave(entry: &mut Entry, until: Until, kernel: &dyn TrapHandler) {
    entry.leave(kernel, WaitPlace::Moment(moment(until)));
}

fn moment(until: Until) -> Ticks {
    match until {
        Until::At(at) => at.ticks(),
        // The wait is for the next step.
        Until::After(_) => Ticks::ZERO,
    }
}

/// The description of a wait for a moment, for listings.
pub(super) fn about_moment(until: Until) -> Option<About> {
    let (now, rate) = door::try_with(|local| (local.kernel().now(), local.kernel().rate()))?;
    let at = match until {
        Until::At(at) => at,
        // The wait is for the next step.
        Until::After(_) => Deadline::at(now),
    };
    if at.is_never() {
        return Some(About::new("timer that never fires"));
    }
    let left = rate.duration_ceil(at.ticks().since(now));
    Some(About::new(match left.is_zero() {
        true => "timer, due".to_owned(),
        false => format!("timer, {left:?} left"),
    }))
}

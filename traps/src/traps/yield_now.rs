//! The trap `yield`: waits for the task's next step.

use std::panic::Location;

use crate::interrupt::Interrupted;
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::seen::About;
use crate::trap::{KernelTrap, OneEntry, Progress, Trap, TrapContext, kernel_trap_at};

static NAME: TrapName = TrapName::new("yield").ended_by_time();

/// Lets every other task that is ready run once.
///
/// # Cancellation
///
/// An interruption point. Nothing is lost when the future is dropped.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// When polled outside a task of a kernel.
#[track_caller]
#[inline]
pub fn yield_now() -> KernelTrap<YieldTrap> {
    kernel_trap_at(YieldTrap, Location::caller())
}

/// The trap that goes to the end of the ready queue. See [`yield_now`].
#[derive(Debug)]
pub struct YieldTrap;

impl Trap for YieldTrap {
    type Answer = Result<(), Interrupted>;
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    #[inline(always)]
    fn begin(&mut self, _: &mut OneEntry, _: &TrapContext<'_>) -> Progress<Self::Answer> {
        Progress::NextStep
    }

    #[inline(always)]
    fn collect(&mut self, _: &mut OneEntry, _: &TrapContext<'_>) -> Progress<Self::Answer> {
        Progress::Answered(Ok(()))
    }

    fn leave(&mut self, _: &mut OneEntry, _: &dyn TrapHandler) {}

    fn about(&self) -> Option<About> {
        Some(About::new("the task's next step"))
    }
}

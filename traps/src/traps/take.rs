//! The trap `take`: waits in a queue for permits.
//!
//! Granted permits that nobody collects are free again.

use std::panic::Location;

use super::park::{NAME, Queued};
use crate::interrupt::Interrupted;
use crate::kind::TrapKind;
use crate::local::TrapHandler;
use crate::queue::WaitQueue;
use crate::seen::{About, SeenThing};
use crate::trap::{KernelTrap, OneEntry, Progress, Trap, TrapContext, kernel_trap_at};
use crate::wait::WaitPlace;

/// Takes `count` permits of the queue, as soon as they are free and no earlier waiter is left.
///
/// Return the permits with [`WaitQueue::give`].
///
/// # Cancellation
///
/// An interruption point. The drop of a waiting future leaves the queue, and passes granted permits
/// on to the waiters behind.
///
/// # Errors
///
/// [`Interrupted`], without permits.
///
/// # Panics
///
/// As for [`park`](crate::park), or while tasks wait in the queue for a signal.
#[track_caller]
#[inline]
pub fn take(queue: &WaitQueue, count: usize) -> KernelTrap<TakeTrap<&WaitQueue>> {
    take_at(queue, count, Location::caller())
}

/// [`take`], reported as awaited at `place`, from the queue of a primitive.
#[inline]
pub fn take_at<Q: Queued>(
    of: Q,
    count: usize,
    place: &'static Location<'static>,
) -> KernelTrap<TakeTrap<Q>> {
    kernel_trap_at(TakeTrap { of, count }, place)
}

/// The trap that takes permits of a [`WaitQueue`]. See [`take`].
#[derive(Debug)]
pub struct TakeTrap<Q> {
    of: Q,
    count: usize,
}

impl<Q> TakeTrap<Q> {
    /// The primitive that has the permits.
    #[inline]
    pub fn of(&self) -> &Q {
        &self.of
    }
}

impl<Q: Queued> Trap for TakeTrap<Q> {
    type Answer = Result<(), Interrupted>;
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    #[inline]
    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        let queue = self.of.queue();
        // What an ended kernel had granted is free from now on.
        queue.join(cx.kernel(), true);
        let is_taken = queue.try_take(self.count);
        if is_taken && cx.take_answer() {
            return Progress::Answered(Ok(()));
        }
        let progress = cx.park(entry, WaitPlace::Queue(queue, Some(self.count))).map(Ok);
        if is_taken {
            // The task's quota of answers is spent, so the permits are granted for its next step.
            queue.give(self.count);
        }
        progress
    }

    #[inline]
    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        let queue = self.of.queue();
        cx.collect(entry, WaitPlace::Queue(queue, Some(self.count))).map(|()| {
            queue.collected(self.count);
            Ok(())
        })
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        if entry.leave(kernel, WaitPlace::Queue(self.of.queue(), Some(self.count))) {
            self.of.queue().returned(self.count);
        }
    }

    fn left(&mut self) {
        self.of.left();
    }

    fn about(&self) -> Option<About> {
        Some(self.of.about().of(SeenThing::queue(self.of.queue())))
    }
}

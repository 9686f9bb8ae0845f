//! The trap `park`: waits in a queue for a signal.
//!
//! A signal that nobody collects goes to the next waiter of the queue.

use std::panic::Location;
use std::rc::Rc;

use crate::interrupt::Interrupted;
use crate::kind::{TrapKind, TrapName};
use crate::local::TrapHandler;
use crate::queue::WaitQueue;
use crate::seen::{About, SeenThing};
use crate::trap::{KernelTrap, OneEntry, Progress, Trap, TrapContext, kernel_trap_at};
use crate::wait::WaitPlace;

/// The name of [`Park`] and [`Take`](crate::TakeTrap), which wait alike.
pub(super) static NAME: TrapName = TrapName::new("park");

/// Waits in the queue until [`WaitQueue::wake`] signals the waiter.
///
/// # Cancellation
///
/// An interruption point. The drop of a waiting future leaves the queue. The drop of a signalled
/// future passes the signal on to the next waiter.
///
/// # Errors
///
/// [`Interrupted`]; the wait has left the queue.
///
/// # Panics
///
/// When polled outside a task, in another kernel than that of the queue's waiters, or while tasks
/// wait in the queue for permits.
#[track_caller]
#[inline]
pub fn park(queue: &WaitQueue) -> KernelTrap<Park<&WaitQueue>> {
    park_at(queue, Location::caller())
}

/// [`park`], reported as awaited at `place`, in the queue of a primitive.
#[inline]
pub fn park_at<Q: Queued>(of: Q, place: &'static Location<'static>) -> KernelTrap<Park<Q>> {
    kernel_trap_at(Park { of }, place)
}

/// A primitive with a queue that tasks wait in.
pub trait Queued {
    /// The queue: always the same one.
    fn queue(&self) -> &WaitQueue;

    /// A description of what the tasks wait for, for listings.
    fn about(&self) -> About;

    /// Called when a wait for permits was dropped or interrupted, and has left the queue. Permits
    /// that were granted to it are free again; if the kernel has ended since, they still count as
    /// granted. By default, the queue recovers them and serves the waiters behind.
    fn left(&self) {
        self.queue().recover();
        self.queue().serve();
    }
}

impl Queued for WaitQueue {
    fn queue(&self) -> &WaitQueue {
        self
    }

    fn about(&self) -> About {
        let (free, waiting) = (self.free(), self.len());
        About::new(match self.has_takers() {
            true => format!(
                "permits of a wait queue, of which {free} are free and in which {waiting} wait"
            ),
            false => format!("signal of a wait queue, in which {waiting} wait"),
        })
    }
}

impl<Q: Queued> Queued for &Q {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        (**self).queue()
    }

    fn about(&self) -> About {
        (**self).about()
    }

    fn left(&self) {
        (**self).left();
    }
}

impl<Q: Queued> Queued for Rc<Q> {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        (**self).queue()
    }

    fn about(&self) -> About {
        (**self).about()
    }

    fn left(&self) {
        (**self).left();
    }
}

/// A queue with a description.
impl<F: Fn() -> About> Queued for (&WaitQueue, F) {
    fn queue(&self) -> &WaitQueue {
        self.0
    }

    fn about(&self) -> About {
        (self.1)()
    }
}

/// The trap that waits in a [`WaitQueue`]. See [`park`].
#[derive(Debug)]
pub struct Park<Q> {
    of: Q,
}

impl<Q: Queued> Trap for Park<Q> {
    type Answer = Result<(), Interrupted>;
    type Entries = OneEntry;

    #[inline(always)]
    fn kind(&mut self) -> TrapKind {
        TrapKind::of(&NAME)
    }

    #[inline]
    fn begin(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        cx.park(entry, WaitPlace::Queue(self.of.queue(), None)).map(Ok)
    }

    #[inline]
    fn collect(&mut self, [entry]: &mut OneEntry, cx: &TrapContext<'_>) -> Progress<Self::Answer> {
        cx.collect(entry, WaitPlace::Queue(self.of.queue(), None)).map(Ok)
    }

    fn leave(&mut self, [entry]: &mut OneEntry, kernel: &dyn TrapHandler) {
        if entry.leave(kernel, WaitPlace::Queue(self.of.queue(), None)) {
            self.of.queue().wake(1);
        }
    }

    fn about(&self) -> Option<About> {
        Some(self.of.about().of(SeenThing::queue(self.of.queue())))
    }
}

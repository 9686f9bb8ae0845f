//! Waits for a signal of a primitive's wait queue.

use std::panic::Location;
use std::rc::Rc;

use pikake_traps::{About, Interrupted, KernelTrap, Trap, Wait, WaitQueue, kernel_trap_at};

/// A primitive that signals its waiters.
pub(crate) trait Signals {
    /// The queue of the waiters.
    fn queue(&self) -> &WaitQueue;

    /// A description for listings of waits.
    fn about(&self) -> About;
}

impl<P: Signals> Signals for &P {
    fn queue(&self) -> &WaitQueue {
        (**self).queue()
    }

    fn about(&self) -> About {
        (**self).about()
    }
}

impl<P: Signals> Signals for Rc<P> {
    fn queue(&self) -> &WaitQueue {
        (**self).queue()
    }

    fn about(&self) -> About {
        (**self).about()
    }
}

/// The trap that waits for a signal.
pub(crate) struct Signal<P>(P);

impl<P: Signals> Trap for Signal<P> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Park(self.0.queue())
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn about(&self) -> Option<About> {
        Some(self.0.about())
    }
}

/// Waits for a signal of a primitive, held by reference or shared. Listings show the wait at
/// `place`.
#[inline]
pub(crate) fn signal<P: Signals>(
    of: P,
    place: &'static Location<'static>,
) -> KernelTrap<Signal<P>> {
    kernel_trap_at(Signal(of), place)
}

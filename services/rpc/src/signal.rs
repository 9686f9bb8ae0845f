//! Waits in a queue, with a description for listings.

use std::panic::Location;

use pikake_traps::{About, Interrupted, KernelTrap, Trap, Wait, WaitQueue, kernel_trap_at};

/// The trap that waits in a queue.
pub(crate) struct Signal<'a, F> {
    queue: &'a WaitQueue,
    /// Whether the wait is for a permit.
    is_permit: bool,
    about: F,
}

impl<F: Fn() -> About> Trap for Signal<'_, F> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        match self.is_permit {
            true => Wait::Take(self.queue, 1),
            false => Wait::Park(self.queue),
        }
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn about(&self) -> Option<About> {
        Some((self.about)())
    }

    fn left(&mut self) {
        self.queue.serve();
    }
}

/// Waits until the queue signals the waiter. Listings show the wait at `place`.
pub(crate) fn signal<'a, F: Fn() -> About>(
    queue: &'a WaitQueue,
    place: &'static Location<'static>,
    about: F,
) -> KernelTrap<Signal<'a, F>> {
    kernel_trap_at(Signal { queue, is_permit: false, about }, place)
}

/// Takes a permit of the queue. Listings show the wait at `place`.
pub(crate) fn permit<'a, F: Fn() -> About>(
    queue: &'a WaitQueue,
    place: &'static Location<'static>,
    about: F,
) -> KernelTrap<Signal<'a, F>> {
    kernel_trap_at(Signal { queue, is_permit: true, about }, place)
}

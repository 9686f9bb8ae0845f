//! Waits for a signal of a wait queue, with a description for listings.

use std::panic::Location;

use pikake_traps::{About, Interrupted, KernelTrap, Trap, Wait, WaitQueue, kernel_trap_at};

/// The trap that waits in a queue.
pub(crate) struct Signal<'a, F> {
    queue: &'a WaitQueue,
    about: F,
}

impl<F: Fn() -> About> Trap for Signal<'_, F> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Park(self.queue)
    }

    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn about(&self) -> Option<About> {
        Some((self.about)())
    }
}

/// Waits until the queue signals the waiter. Listings show the wait at `place`.
pub(crate) fn signal<'a, F: Fn() -> About>(
    queue: &'a WaitQueue,
    place: &'static Location<'static>,
    about: F,
) -> KernelTrap<Signal<'a, F>> {
    kernel_trap_at(Signal { queue, about }, place)
}

//! Waits in a queue, with a description for listings, and the first of two waits.

use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::Poll;

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

/// The output of the future that was ready first.
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<A> Either<A, A> {
    pub(crate) fn either(self) -> A {
        match self {
            Self::First(output) | Self::Second(output) => output,
        }
    }
}

/// Waits for the first of two futures. They stay where they are: each request would move them
/// otherwise.
pub(crate) fn either<A: Future, B: Future>(
    mut first: Pin<&mut A>,
    mut second: Pin<&mut B>,
) -> impl Future<Output = Either<A::Output, B::Output>> {
    poll_fn(move |cx| match first.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Either::First(output)),
        Poll::Pending => second.as_mut().poll(cx).map(Either::Second),
    })
}

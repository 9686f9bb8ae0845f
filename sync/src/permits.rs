//! Waiting for the permits of a primitive's wait queue: what a lock, a semaphore and a queue of items have in
//! common.
//!
//! A primitive says how many permits are free, by its [`WaitQueue`], and hands them on. Here is the wait. The
//! kernel serves it in its turn, and what a waiter did not collect is free again when the waiter has left.

use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::{Interrupted, KernelTrap, Trap, Wait, WaitQueue, kernel_trap_at};

/// A request for permits: of which queue, and how many.
pub(crate) trait Permits: Clone {
    /// The queue that has the permits.
    fn queue(&self) -> &WaitQueue;

    /// How many.
    #[inline]
    fn count(&self) -> usize {
        1
    }

    /// What has the permits, for a listing.
    fn about(&self) -> String;

    /// A waiter has left, and what was granted to it is free again.
    fn left(&self) {
        self.queue().recover();
        self.queue().serve();
    }
}

/// The trap that takes permits.
struct Take<P>(P);

impl<P: Permits> Trap for Take<P> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Take(self.0.queue(), self.0.count())
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn about(&self) -> Option<String> {
        Some(self.0.about())
    }

    fn left(&mut self) {
        self.0.left();
    }
}

/// A wait for permits, begun by its first poll.
pub(crate) struct Taking<P: Permits>(Stage<P>);

enum Stage<P: Permits> {
    New(P),
    Waiting(KernelTrap<Take<P>>),
    Ended,
}

impl<P: Permits> Taking<P> {
    #[inline]
    pub(crate) fn new(permits: P) -> Self {
        Self(Stage::New(permits))
    }

    /// The request, before the first poll.
    #[inline]
    pub(crate) fn if_new(&self) -> Option<&P> {
        match &self.0 {
            Stage::New(permits) => Some(permits),
            _ => None,
        }
    }

    /// It is over: what it would have waited for was there.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.0 = Stage::Ended;
    }

    /// Waits, as one that is awaited at `place`. The request comes back with the answer.
    ///
    /// # Panics
    ///
    /// After the answer.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        place: &'static Location<'static>,
    ) -> Poll<Result<P, Interrupted>> {
        if let Stage::New(permits) = &self.0 {
            self.0 = Stage::Waiting(kernel_trap_at(Take(permits.clone()), place));
        }
        let Stage::Waiting(trap) = &mut self.0 else {
            panic!("a wait for permits (at {place}) was polled after it had ended")
        };
        let answer = ready!(Pin::new(&mut *trap).poll(cx));
        let permits = trap.trap().0.clone();
        self.0 = Stage::Ended;
        Poll::Ready(answer.map(|()| permits))
    }
}

// It is used by reference and by value, and never pinned.
impl<P: Permits> Unpin for Taking<P> {}

/// Takes permits, if need be by waiting for them, reported as awaited at `place`.
pub(crate) async fn take<P: Permits>(
    permits: P,
    place: &'static Location<'static>,
) -> Result<(), Interrupted> {
    if permits.queue().try_take(permits.count()) {
        return Ok(());
    }
    let mut taking = Taking::new(permits);
    std::future::poll_fn(|cx| taking.poll(cx, place)).await.map(drop)
}

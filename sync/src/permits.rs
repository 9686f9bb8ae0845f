//! Waiting for the permits of a primitive's wait queue: what a lock, a semaphore and a queue of items have in
//! common.
//!
//! A primitive says how many permits are free, by its [`WaitQueue`], and hands them on. Here is the wait. The
//! kernel serves it in its turn, and what a waiter did not collect is free again when the waiter has left.

use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::{Interrupted, KernelTrap, Trap, Wait, WaitQueue, kernel_trap_at};

/// Something with permits to wait for: a primitive, or a share of one.
pub(crate) trait Permits {
    /// The queue that has the permits.
    fn queue(&self) -> &WaitQueue;

    /// A waiter has left, and what was granted to it is free again.
    fn left(&self) {
        self.queue().recover();
        self.queue().serve();
    }
}

impl Permits for &WaitQueue {
    #[inline]
    fn queue(&self) -> &WaitQueue {
        self
    }
}

/// The trap that takes permits.
struct Take<P> {
    from: P,
    count: usize,
}

impl<P: Permits> Trap for Take<P> {
    type Answer = Result<(), Interrupted>;
    type Given = ();

    #[inline]
    fn wait(&mut self, (): &mut ()) -> Wait<'_> {
        Wait::Take(self.from.queue(), self.count)
    }

    #[inline]
    fn answer(&mut self, result: Result<(), Interrupted>) -> Self::Answer {
        result
    }

    fn left(&mut self) {
        self.from.left();
    }
}

/// A wait for permits, begun by its first poll.
pub(crate) struct Taking<P: Permits>(Stage<P>);

enum Stage<P: Permits> {
    New(Take<P>, &'static Location<'static>),
    Waiting(KernelTrap<Take<P>>),
    Ended,
}

impl<P: Permits> Taking<P> {
    #[inline]
    pub(crate) fn new(from: P, count: usize, awaited_at: &'static Location<'static>) -> Self {
        Self(Stage::New(Take { from, count }, awaited_at))
    }

    /// Where it is awaited, before its first poll.
    #[inline]
    pub(crate) fn if_new(&self) -> Option<(&P, &'static Location<'static>)> {
        match &self.0 {
            Stage::New(take, awaited_at) => Some((&take.from, awaited_at)),
            _ => None,
        }
    }

    /// It is over: what it would have waited for was there.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.0 = Stage::Ended;
    }

    /// Waits. What it took from comes back with the answer.
    ///
    /// # Panics
    ///
    /// After the answer.
    pub(crate) fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<P, Interrupted>>
    where
        P: Clone,
    {
        if let Stage::New(..) = self.0
            && let Stage::New(take, awaited_at) = std::mem::replace(&mut self.0, Stage::Ended)
        {
            self.0 = Stage::Waiting(kernel_trap_at(take, awaited_at));
        }
        let Stage::Waiting(trap) = &mut self.0 else {
            panic!("a wait for permits was polled after it had ended")
        };
        let answer = ready!(Pin::new(&mut *trap).poll(cx));
        let from = trap.trap().from.clone();
        self.0 = Stage::Ended;
        Poll::Ready(answer.map(|()| from))
    }
}

// It is used by reference and by value, and never pinned.
impl<P: Permits> Unpin for Taking<P> {}

impl<P: Permits + Clone> Future for Taking<P> {
    type Output = Result<(), Interrupted>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::New(take, _) = &self.0
            && take.from.queue().try_take(take.count)
        {
            self.end();
            return Poll::Ready(Ok(()));
        }
        self.poll_wait(cx).map(|answer| answer.map(drop))
    }
}

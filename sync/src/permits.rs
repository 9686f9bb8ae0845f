//! Waits for the permits of a wait queue, as locks, semaphores and queues of items use them.
//!
//! The primitive keeps its free permits in a [`WaitQueue`] and releases them. The kernel grants
//! them to waiters in order. A permit that a waiter did not collect is free again once the waiter
//! has left.

use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pikake_traps::locks::{WaitBegan, WaitedLock, wait_begins, wait_ends};
use pikake_traps::{Interrupted, KernelTrap, Queued, TakeTrap, take_at};

/// A request for permits of a queue.
pub(crate) trait PermitRequest: Queued + Clone {
    /// The number of permits.
    #[inline]
    fn count(&self) -> usize {
        1
    }

    /// The lock that the permits are of, for figures of its waits. `None`: they are of no lock.
    fn lock(&self) -> Option<WaitedLock> {
        None
    }
}

/// A wait for permits, begun by its first poll.
pub(crate) struct Taking<P: PermitRequest>(Stage<P>);

enum Stage<P: PermitRequest> {
    New(P),
    /// With the moment at which the wait began, if it is measured.
    Waiting(KernelTrap<TakeTrap<P>>, Option<WaitBegan>),
    Ended,
}

impl<P: PermitRequest> Taking<P> {
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

    /// Ends the wait: its caller got the permits without waiting.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.0 = Stage::Ended;
    }

    /// Waits, awaited at `place`, and returns the request with the answer.
    ///
    /// # Panics
    ///
    /// When it is polled after the answer, or outside a task.
    #[track_caller]
    #[inline]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        place: &'static Location<'static>,
    ) -> Poll<Result<P, Interrupted>> {
        if let Stage::New(permits) = &self.0 {
            let began = wait_begins(|| permits.lock());
            self.0 = Stage::Waiting(take_at(permits.clone(), permits.count(), place), began);
        }
        let Stage::Waiting(trap, began) = &mut self.0 else {
            panic!("a wait for permits (at {place}) was polled after it had ended")
        };
        let answer = ready!(Pin::new(&mut *trap).poll(cx));
        let permits = trap.trap().of().clone();
        let began = began.take();
        self.0 = Stage::Ended;
        if let Some(began) = began {
            if let (Ok(()), Some(lock)) = (&answer, permits.lock()) {
                wait_ends(&lock, began, place);
            }
        }
        Poll::Ready(answer.map(|()| permits))
    }
}

// The wait is used by reference and by value, and never pinned.
impl<P: PermitRequest> Unpin for Taking<P> {}

/// Takes permits, waiting for them if necessary. Listings show the wait at `place`.
pub(crate) async fn take<P: PermitRequest>(
    permits: P,
    place: &'static Location<'static>,
) -> Result<(), Interrupted> {
    if permits.queue().try_take(permits.count()) {
        return Ok(());
    }
    let mut taking = Taking::new(permits);
    std::future::poll_fn(|cx| taking.poll(cx, place)).await.map(drop)
}

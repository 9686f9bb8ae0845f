//! Replies: values that other threads send to a waiting task.
//!
//! The traps that other threads answer (a blocking call, a name lookup) wait for a reply with
//! [`future_wait`](crate::future_wait), so their kernel needs only its wake queue (I5).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::threads::{Mutex, MutexGuard};

struct Slot<T> {
    value: Option<T>,
    /// The reply was sent, or its sender was dropped.
    done: bool,
    waker: Option<Waker>,
}

type Shared<T> = Arc<Mutex<Slot<T>>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, Slot<T>> {
    // No user code runs under the lock, so the slot behind a poisoned lock is whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sender of one answer, from any thread. The drop of an unused sender ends the wait without an
/// answer.
pub struct Reply<T>(Shared<T>);

impl<T> Reply<T> {
    /// A sender, and the future of its answer: `None` if the `Reply` was dropped unused.
    pub fn channel() -> (Self, Replied<T>) {
        let shared = Arc::new(Mutex::new(Slot { value: None, done: false, waker: None }));
        (Self(shared.clone()), Replied(shared))
    }

    /// Whether the future of the answer still exists.
    pub fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Sends the answer.
    pub fn send(self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = lock(&self.0);
            slot.done = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("is_awaited", &self.is_awaited()).finish()
    }
}

/// The future of a [`Reply`]'s answer; `None` if there is no answer. Await the future inside
/// [`future_wait`](crate::future_wait).
#[must_use = "a future does nothing until it is awaited"]
pub struct Replied<T>(Shared<T>);

impl<T> Future for Replied<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.0);
        if slot.done {
            return Poll::Ready(slot.value.take());
        }
        if slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        // A waker's clone and drop are user code, and do not run under the lock.
        drop(slot);
        let waker = cx.waker().clone();
        let mut slot = lock(&self.0);
        if slot.done {
            return Poll::Ready(slot.value.take());
        }
        let before = slot.waker.replace(waker);
        drop(slot);
        drop(before);
        Poll::Pending
    }
}

/// The sender drops a later answer.
impl<T> Drop for Replied<T> {
    fn drop(&mut self) {
        let left = {
            let mut slot = lock(&self.0);
            (slot.value.take(), slot.waker.take())
        };
        drop(left);
    }
}

impl<T> fmt::Debug for Replied<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replied").field("is_answered", &lock(&self.0).done).finish()
    }
}

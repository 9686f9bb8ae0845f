//! A value on its way back from a helper thread.
//!
//! The traps that other threads answer (a blocking call, a name lookup) wait with
//! [`future_wait`](crate::future_wait) on such a value, so their kernel needs nothing but its wake
//! queue to hear of it (I5).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    /// The reply was given, or cannot be given any more.
    done: bool,
    waker: Option<Waker>,
}

type Shared<T> = Arc<Mutex<Slot<T>>>;

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, Slot<T>> {
    // No user code runs under the lock, so a poisoned one is whole all the same.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to answer once, from any thread. Dropped unused, it tells the waiter that no answer
/// will come.
pub struct Reply<T>(Shared<T>);

impl<T> Reply<T> {
    /// A reply, and the future that gives it: `None` if the `Reply` was dropped unused.
    pub(crate) fn channel() -> (Self, Replied<T>) {
        let shared = Arc::new(Mutex::new(Slot { value: None, done: false, waker: None }));
        (Self(shared.clone()), Replied(shared))
    }

    /// Answers.
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
        f.write_str("Reply")
    }
}

/// The waiting side of a [`Reply`].
pub(crate) struct Replied<T>(Shared<T>);

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
        // A waker is another's code, so it is neither cloned nor dropped under the lock.
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

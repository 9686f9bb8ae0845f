//! A channel for a value that changes, between threads and tasks of any kernel.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pikake_traps::Interrupted;

use super::block::{self, Guard};
use super::wait::{TaskWait, Wait};
use super::waiters::{Shared, WaitKind, Waitable, Waiters, Wakers};

pub use crate::error::SendError;
pub use crate::watch::RecvError;

/// The errors of the channel, at the path where tokio has them.
pub mod error {
    #[doc(no_inline)]
    pub use super::{RecvError, SendError};
}

/// Creates a channel for a value that changes. Receivers see the last state and skip those that
/// they missed.
///
/// The value is behind a lock, which a borrow and the closure of `send_modify` hold. Both should be
/// short, and must not use the value of the same channel.
///
/// # Examples
///
/// ```
/// let (sender, mut receiver) = pikake::sync::shared::watch::channel("starting");
/// let thread = std::thread::spawn(move || {
///     sender.send_replace("loading");
///     sender.send_replace("running");
/// });
/// // A task would say `receiver.changed().await?`.
/// while receiver.blocking_changed().is_ok() {}
/// assert_eq!(*receiver.borrow(), "running");
/// # thread.join().unwrap();
/// ```
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let changes = Changes { count: 0, served: 0, is_sender_gone: false, waiters: Waiters::new() };
    let watched = Watched { value: block::Mutex::new(value), changes: Shared::new(changes) };
    let watched = Arc::new(watched);
    (Sender(watched.clone()), Receiver { watched, seen: 0 })
}

struct Watched<T> {
    /// Locked before the changes.
    value: block::Mutex<T>,
    changes: Shared<Changes>,
}

#[derive(Debug)]
struct Changes {
    /// How often the value was changed.
    count: u64,
    /// The last change of which the waiters were notified.
    served: u64,
    is_sender_gone: bool,
    /// A request is the number of the last change that the waiter has seen; a grant, of this one.
    waiters: Waiters<u64, u64>,
}

impl Waitable for Changes {
    fn serve(&mut self, wakers: &mut Wakers) {
        if self.served != self.count {
            while self.waiters.grant(wakers, || self.count).is_some() {}
            self.served = self.count;
        }
        if self.is_sender_gone {
            self.waiters.dismiss_all(wakers);
        }
    }
}

struct Changed;

impl WaitKind<Changes> for Changed {
    type Request = u64;
    type Grant = u64;
    const NAME: &'static str = "change of a value that several threads watch";

    fn waiters(changes: &mut Changes) -> &mut Waiters<u64, u64> {
        &mut changes.waiters
    }

    fn try_now(changes: &mut Changes, seen: u64) -> Result<u64, u64> {
        if changes.count != seen { Ok(changes.count) } else { Err(seen) }
    }

    fn collected(changes: &mut Changes, seen: &mut u64) {
        *seen = changes.count;
    }

    fn give_back(_: &mut Changes, _: u64) {}
}

/// A borrow of the value, which holds its lock.
#[must_use = "a borrow that is dropped at once reads nothing"]
pub struct Ref<'a, T>(Guard<'a, T>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The side of a [`channel`] that changes the value.
pub struct Sender<T>(Arc<Watched<T>>);

impl<T> Sender<T> {
    /// Replaces the value, if there are receivers.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the new value: there are no receivers. The value stays as it is.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.receiver_count() == 0 {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Replaces the value, and returns the previous one.
    pub fn send_replace(&self, value: T) -> T {
        let mut before = value;
        self.send_modify(|current| std::mem::swap(current, &mut before));
        before
    }

    /// Changes the value in place.
    pub fn send_modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut value = block::lock(&self.0.value);
        let result = change(&mut value);
        let ((), wakers) = self.0.changes.change_and_serve(|changes| changes.count += 1);
        drop(value);
        wakers.wake();
        result
    }

    /// The value. All other threads wait for the lock meanwhile, so do not hold it across an
    /// await.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(block::lock(&self.0.value))
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Adds a receiver, which counts the current value as seen.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { watched: self.0.clone(), seen: self.0.changes.lock().count }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.changes.change(|changes| changes.is_sender_gone = true);
    }
}

/// The side of a [`channel`] that sees the changes.
pub struct Receiver<T> {
    watched: Arc<Watched<T>>,
    /// The number of the last change that the receiver has seen.
    seen: u64,
}

impl<T> Receiver<T> {
    /// Waits, as a task, for a change that the receiver has not seen.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: there is no such change and the sender is gone, or the wait was interrupted.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn changed(&mut self) -> impl Future<Output = Result<(), RecvError>> {
        let place = Location::caller();
        async move {
            let wait = TaskWait::<_, _, Changed>::new(&self.watched.changes, self.seen, place);
            let seen = wait.await.map_err(RecvError::Interrupted)?;
            self.seen = seen.map_err(|_| RecvError::Closed)?;
            Ok(())
        }
    }

    /// Blocks the thread until there is a change that the receiver has not seen.
    ///
    /// # Errors
    ///
    /// [`RecvError::Closed`]: there is no such change, and the sender is gone.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_changed(&mut self) -> Result<(), RecvError> {
        self.block(None).expect("a wait without a limit ends by its event")
    }

    /// Blocks the thread until there is a change that the receiver has not seen, at most `length`.
    /// `None` if the time is up.
    ///
    /// # Errors
    ///
    /// As [`blocking_changed`](Self::blocking_changed).
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_changed_timeout(&mut self, length: Duration) -> Option<Result<(), RecvError>> {
        self.block(Instant::now().checked_add(length))
    }

    fn block(&mut self, until: Option<Instant>) -> Option<Result<(), RecvError>> {
        let seen = Wait::<_, _, Changed>::new(&self.watched.changes, self.seen).block(until)?;
        Some(seen.map(|seen| self.seen = seen).map_err(|_| RecvError::Closed))
    }

    /// Whether there is a change that the receiver has not seen.
    pub fn has_changed(&self) -> bool {
        self.seen != self.watched.changes.lock().count
    }

    /// The value. All other threads wait for the lock meanwhile, so do not hold it across an
    /// await.
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref(block::lock(&self.watched.value))
    }

    /// As [`borrow`](Self::borrow). The receiver has then seen the value.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        // The lock of the value keeps the change and its number together.
        let value = block::lock(&self.watched.value);
        self.seen = self.watched.changes.lock().count;
        Ref(value)
    }

    /// Returns a stream, for a task, of copies of the value: one for each change that the receiver
    /// does not miss.
    #[track_caller]
    pub fn stream(&mut self) -> ChangeStream<'_, T> {
        let Self { watched, seen } = self;
        ChangeStream { watched, seen, wait: None, made_at: Location::caller() }
    }
}

impl<T> Clone for Receiver<T> {
    /// Adds a receiver, which has seen the same changes as this one.
    fn clone(&self) -> Self {
        Self { watched: self.watched.clone(), seen: self.seen }
    }
}

/// A stream of the values of a [`Receiver`], as `Result<T, Interrupted>`. It continues after an
/// interruption.
#[must_use = "a stream receives nothing until it is polled"]
pub struct ChangeStream<'a, T> {
    watched: &'a Watched<T>,
    seen: &'a mut u64,
    wait: Option<TaskWait<&'a Shared<Changes>, Changes, Changed>>,
    made_at: &'static Location<'static>,
}

impl<T: Clone> Stream for ChangeStream<'_, T> {
    type Item = Result<T, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { watched, seen, wait, made_at } = &mut *self;
        let begun = wait.get_or_insert_with(|| TaskWait::new(&watched.changes, **seen, made_at));
        let done = ready!(Pin::new(begun).poll(cx));
        *wait = None;
        Poll::Ready(match done {
            Ok(Ok(_)) => {
                // The lock of the value keeps the change and its number together.
                let value = block::lock(&watched.value);
                **seen = watched.changes.lock().count;
                Some(Ok(value.clone()))
            }
            Ok(Err(_)) => None,
            Err(interrupted) => Some(Err(interrupted)),
        })
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Sender", &self.0, f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Receiver", &self.watched, f)
    }
}

impl<T> fmt::Debug for ChangeStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ChangeStream");
        shown.field("waiting", &self.wait.is_some()).finish_non_exhaustive()
    }
}

fn show<T: fmt::Debug>(
    name: &str,
    watched: &Watched<T>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (changes, waiting, is_sender_gone) = {
        let changes = watched.changes.lock();
        (changes.count, changes.waiters.len(), changes.is_sender_gone)
    };
    let mut shown = f.debug_struct(name);
    match watched.value.try_lock() {
        Ok(value) => shown.field("value", &*value),
        Err(_) => shown.field("value", &format_args!("<in use>")),
    };
    shown
        .field("changes", &changes)
        .field("waiting", &waiting)
        .field("sender_gone", &is_sender_gone)
        .finish()
}

//! A channel from many senders to one receiver, between threads and tasks of any kernel.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pikake_traps::Interrupted;

use super::items::{self, Getting, Items, Numbered};
use super::queue::Queue;
use super::wait::TaskWait;
use super::waiters::Shared;
use crate::error::{NotPut, PutError, TryGetError, TryPutError};

/// Creates a channel that holds up to `capacity` items. A sender waits while the channel is full;
/// with capacity zero, it waits for the receiver.
///
/// # Examples
///
/// ```
/// let (sender, mut receiver) = pikake::sync::shared::channel(8);
/// let thread = std::thread::spawn(move || {
///     for number in 0..10 {
///         sender.blocking_send(number)?; // a task would say `sender.send(number).await?`
///     }
///     Ok::<_, pikake::sync::PutError<u32>>(())
/// });
/// let mut sum = 0;
/// while let Some(number) = receiver.blocking_recv() {
///     sum += number;
/// }
/// assert_eq!(sum, 45);
/// # thread.join().unwrap().unwrap();
/// ```
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    with(Queue::bounded(capacity))
}

/// Creates a channel that holds any number of items, so that no sender waits.
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, Receiver<T>) {
    let (sender, receiver) = with(Queue::unbounded());
    (UnboundedSender(sender), receiver)
}

fn with<T>(queue: Queue<T>) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(queue.0);
    let senders = Arc::new(AtomicUsize::new(1));
    (Sender { shared: shared.clone(), senders }, Receiver(shared))
}

/// The side of a channel that sends. See [`channel`](crate::shared::channel).
pub struct Sender<T> {
    shared: Arc<Shared<Items<T>>>,
    senders: Arc<AtomicUsize>,
}

impl<T> Sender<T> {
    /// Sends an item, as a task, waiting for room.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. An interruption returns the item in the error. Dropping
    /// the future drops the item, unless the channel or queue has already taken it in.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the wait was interrupted, or the receiver is gone.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn send(&self, item: T) -> impl Future<Output = Result<(), PutError<T>>> {
        items::put(&self.shared, item, Location::caller())
    }

    /// Sends an item, blocking the thread until there is room.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the receiver is gone.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_send(&self, item: T) -> Result<(), PutError<T>> {
        items::blocking_put(&self.shared, item)
    }

    /// Sends an item, if there is room now and no other caller waits for room.
    ///
    /// # Errors
    ///
    /// [`TryPutError`], with the item: there is no room, or the receiver is gone.
    pub fn try_send(&self, item: T) -> Result<(), TryPutError<T>> {
        self.shared.change(|items| items.try_put(item))
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: self.shared.clone(), senders: self.senders.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // The lock of the queue orders the senders' items before this close.
        if self.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.close();
        }
    }
}

/// The side of an [`unbounded_channel`] that sends, from a task or a thread.
pub struct UnboundedSender<T>(Sender<T>);

impl<T> UnboundedSender<T> {
    /// Sends an item.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the receiver is gone, or has closed the channel.
    pub fn send(&self, item: T) -> Result<(), PutError<T>> {
        self.0.try_send(item).map_err(|error| PutError::new(error.into_item(), NotPut::Closed))
    }
}

impl<T> Clone for UnboundedSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The side of a channel that receives. See [`channel`](crate::shared::channel) and
/// [`unbounded_channel`].
///
/// A receiver that is dropped drops the items that it has not received.
pub struct Receiver<T>(Arc<Shared<Items<T>>>);

impl<T> Receiver<T> {
    /// Receives the next item, as a task, waiting until there is one; `None` once the channel is
    /// closed and empty.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; `recv` can be called again.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn recv(&mut self) -> impl Future<Output = Result<Option<T>, Interrupted>> {
        items::get(&self.0, Location::caller())
    }

    /// Receives the next item, blocking the thread until there is one; `None`
    /// once the channel is closed and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_recv(&mut self) -> Option<T> {
        items::blocking_get(&self.0, None).ok()
    }

    /// Receives the next item, blocking the thread for at most `length` until there is one.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: the time is up, or the channel is closed and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_recv_timeout(&mut self, length: Duration) -> Result<T, TryGetError> {
        items::blocking_get(&self.0, Instant::now().checked_add(length))
    }

    /// Receives the next item, if there is one.
    ///
    /// # Errors
    ///
    /// [`TryGetError`], which tells an empty queue from one that is closed.
    pub fn try_recv(&mut self) -> Result<T, TryGetError> {
        items::try_get(&self.0)
    }

    /// Returns a stream of the items, for a task.
    #[track_caller]
    pub fn stream(&mut self) -> RecvStream<'_, T> {
        RecvStream { shared: &self.0, wait: None, made_at: Location::caller() }
    }

    /// Refuses further items. Items that were sent can still be received.
    pub fn close(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.close_and_clear();
    }
}

/// A wait for the next item.
type Next<'a, T> = TaskWait<&'a Shared<Items<T>>, Items<T>, Getting>;

/// A stream of the items of a [`Receiver`], as `Result<T, Interrupted>`. It continues after an
/// interruption.
#[must_use = "a stream receives nothing until it is polled"]
pub struct RecvStream<'a, T> {
    shared: &'a Shared<Items<T>>,
    wait: Option<Next<'a, T>>,
    made_at: &'static Location<'static>,
}

impl<T> Stream for RecvStream<'_, T> {
    type Item = Result<T, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { shared, wait, made_at } = &mut *self;
        let begun = wait.get_or_insert_with(|| TaskWait::new(*shared, (), made_at));
        let done = ready!(Pin::new(begun).poll(cx));
        *wait = None;
        Poll::Ready(match done {
            Ok(Ok(Numbered(_, item))) => Some(Ok(item)),
            Ok(Err(())) => None,
            Err(interrupted) => Some(Err(interrupted)),
        })
    }
}

impl<T> fmt::Debug for UnboundedSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("UnboundedSender");
        shown.field("senders", &self.0.senders.load(Ordering::Relaxed));
        self.0.shared.show(&mut shown);
        shown.finish()
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sender");
        shown.field("senders", &self.senders.load(Ordering::Relaxed));
        self.shared.show(&mut shown);
        shown.finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Receiver");
        self.0.show(&mut shown);
        shown.finish()
    }
}

impl<T> fmt::Debug for RecvStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream").field("waiting", &self.wait.is_some()).finish_non_exhaustive()
    }
}

//! A channel from many senders to one receiver, on any threads and in tasks of any kernel.

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
use super::line::Shared;
use super::queue::Queue;
use super::wait::Trapped;
use crate::error::{GetError, PutError, TryGetError};

/// A channel that holds so many items; whoever sends more has to wait. With none, a sender waits
/// for the receiver.
///
/// # Examples
///
/// ```
/// let (sender, mut receiver) = pikake_sync::shared::bounded_channel(8);
/// let thread = std::thread::spawn(move || {
///     for number in 0..10 {
///         sender.send_blocking(number)?; // a task would say `sender.send(number).await?`
///     }
///     Ok::<_, pikake_sync::PutError<u32>>(())
/// });
/// let mut sum = 0;
/// while let Some(number) = receiver.recv_blocking() {
///     sum += number;
/// }
/// assert_eq!(sum, 45);
/// # thread.join().unwrap().unwrap();
/// ```
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    with(Queue::bounded(capacity))
}

/// A channel that holds any number of items.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    with(Queue::unbounded())
}

fn with<T>(queue: Queue<T>) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(queue.0);
    let senders = Arc::new(AtomicUsize::new(1));
    (Sender { shared: shared.clone(), senders }, Receiver(shared))
}

/// The side of a channel that sends. See [`bounded_channel`](crate::shared::bounded_channel).
pub struct Sender<T> {
    shared: Arc<Shared<Items<T>>>,
    senders: Arc<AtomicUsize>,
}

impl<T> Sender<T> {
    /// Sends an item, as a task, when there is room for it.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Interrupted, it gives the item back in the error.
    /// Dropped, it leaves the line, and the item is dropped, unless it was received already.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: interrupted, or the receiver is gone.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn send(&self, item: T) -> impl Future<Output = Result<(), PutError<T>>> {
        items::put(&self.shared, item, Location::caller())
    }

    /// Sends an item, blocking the thread until there is room for it.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: the receiver is gone.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn send_blocking(&self, item: T) -> Result<(), PutError<T>> {
        items::put_blocking(&self.shared, item, None)
    }

    /// Sends an item, if there is room for it now and nobody waits for room.
    ///
    /// # Errors
    ///
    /// [`PutError`], with the item: there is no room, or the receiver is gone.
    pub fn try_send(&self, item: T) -> Result<(), PutError<T>> {
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
        // What each of them has sent is ordered by the lock of the queue.
        if self.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.close();
        }
    }
}

/// The side of a channel that receives. See [`bounded_channel`](crate::shared::bounded_channel).
///
/// Dropped, it drops the items that it has not received.
pub struct Receiver<T>(Arc<Shared<Items<T>>>);

impl<T> Receiver<T> {
    /// Receives the next item, as a task, when there is one; `None` when there will be none.
    ///
    /// # Cancellation
    ///
    /// An interruption point while it waits. Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; it can be called again.
    ///
    /// # Panics
    ///
    /// When it has to wait outside a task of a kernel.
    #[track_caller]
    pub fn recv(&mut self) -> impl Future<Output = Result<Option<T>, Interrupted>> {
        let get = items::get(&*self.0, Location::caller());
        async move {
            match get.await {
                Ok(item) => Ok(Some(item)),
                Err(GetError::Closed) => Ok(None),
                Err(GetError::Interrupted(why)) => Err(why),
            }
        }
    }

    /// Receives the next item, blocking the thread until there is one; `None` when there will be
    /// none.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn recv_blocking(&mut self) -> Option<T> {
        items::get_blocking(&self.0, None).ok()
    }

    /// Receives the next item, blocking the thread until there is one, but only so long.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: there was none in time, or there will be none.
    ///
    /// # Panics
    ///
    /// Inside a kernel, whose tasks would all be stopped.
    pub fn recv_blocking_timeout(&mut self, length: Duration) -> Result<T, TryGetError> {
        items::get_blocking(&self.0, Instant::now().checked_add(length))
    }

    /// Receives the next item, if there is one.
    ///
    /// # Errors
    ///
    /// [`TryGetError`]: there is none, and whether there may be one later.
    pub fn try_recv(&mut self) -> Result<T, TryGetError> {
        items::try_get(&self.0)
    }

    /// The items, as a stream for a task.
    #[track_caller]
    pub fn stream(&mut self) -> RecvStream<'_, T> {
        RecvStream { shared: &self.0, wait: None, made_at: Location::caller() }
    }

    /// Lets nobody send any more. What has been sent can still be received.
    pub fn close(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// A wait for the next item.
type Next<'a, T> = Trapped<&'a Shared<Items<T>>, Items<T>, Getting>;

/// The items of a [`Receiver`], as a stream of `Result<T, Interrupted>`; after an interruption it
/// goes on.
#[must_use = "nothing is received until it is polled"]
pub struct RecvStream<'a, T> {
    shared: &'a Shared<Items<T>>,
    wait: Option<Next<'a, T>>,
    made_at: &'static Location<'static>,
}

impl<T> Stream for RecvStream<'_, T> {
    type Item = Result<T, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { shared, wait, made_at } = &mut *self;
        let begun = wait.get_or_insert_with(|| Trapped::new(*shared, (), made_at));
        let done = ready!(Pin::new(begun).poll(cx));
        *wait = None;
        Poll::Ready(match done {
            Ok(Ok(Numbered(_, item))) => Some(Ok(item)),
            Ok(Err(())) => None,
            Err(interrupted) => Some(Err(interrupted)),
        })
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

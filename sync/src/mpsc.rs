//! A channel from many senders to one receiver.
//!
//! The channel is a [`Queue`] with two kinds of handles. It closes with its last sender or its
//! receiver.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use pikake_traps::{About, Interrupted, Queued, WaitQueue};

use crate::error::{NotPut, PutError, TryGetError, TryPutError};
use crate::permits::PermitRequest;
use crate::queue::Queue;
use crate::queue::waits::{ItemRequest, Next};
use crate::store::Fifo;

/// The error of a send, with the item.
pub type SendError<T> = PutError<T>;

/// The error of a send that does not wait, with the item.
pub type TrySendError<T> = TryPutError<T>;

/// The error of a receive that does not wait.
pub type TryRecvError = TryGetError;

/// The errors of the channel, at the path where tokio has them.
pub mod error {
    #[doc(no_inline)]
    pub use super::{SendError, TryRecvError, TrySendError};
}

/// Creates a channel that holds up to `capacity` items. A sender waits while the channel is full;
/// with capacity zero, it waits for the receiver.
///
/// # Examples
///
/// ```
/// use pikake::sync::mpsc;
///
/// # pikake::sim::example(async {
/// let (sender, mut receiver) = mpsc::channel(8);
/// let other = sender.clone();
/// sender.send(1).await?;
/// other.send(2).await?;
/// drop((sender, other));
/// while let Some(number) = receiver.recv().await? {
///     println!("{number}");
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    with(Queue::bounded(capacity))
}

/// Creates a channel that holds any number of items, so that no sender waits.
///
/// # Examples
///
/// ```
/// use pikake::sync::mpsc;
///
/// # pikake::sim::example(async {
/// let (sender, mut receiver) = mpsc::unbounded_channel();
/// sender.send("no await")?;
/// assert_eq!(receiver.recv().await?, Some("no await"));
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn unbounded_channel<T>() -> (UnboundedSender<T>, Receiver<T>) {
    let (sender, receiver) = with(Queue::unbounded());
    (UnboundedSender(sender), receiver)
}

fn with<T>(queue: Queue<T>) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared { queue, senders: Cell::new(1) });
    (Sender(shared.clone()), Receiver { shared, next: None })
}

struct Shared<T> {
    queue: Queue<T>,
    senders: Cell<usize>,
}

/// The side of a channel that sends. See [`channel`].
pub struct Sender<T>(Rc<Shared<T>>);

impl<T> Sender<T> {
    /// Gives the channel a name, which `Debug` of both sides and listings of waits show.
    pub fn named(self, name: &'static str) -> Self {
        self.0.queue.set_name(name);
        self
    }

    /// Sends an item, waiting for room.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. An interruption returns the item in the error. Dropping
    /// the future drops the item, unless the channel or queue has already taken it in.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item: the wait was interrupted, or the receiver is gone.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    #[inline]
    pub fn send(&self, item: T) -> impl Future<Output = Result<(), SendError<T>>> {
        self.0.queue.put(item)
    }

    /// Sends an item, waiting at most `length` for room. The inner error is the item, if there was
    /// no room in time.
    ///
    /// # Cancellation
    ///
    /// As [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    ///
    /// # Panics
    ///
    /// Outside a task of a kernel.
    #[track_caller]
    pub fn send_timeout(
        &self,
        item: T,
        length: Duration,
    ) -> impl Future<Output = Result<Result<(), T>, SendError<T>>> {
        self.0.queue.put_timeout(item, length)
    }

    /// Sends an item, if there is room now and no other caller waits for room.
    ///
    /// # Errors
    ///
    /// [`TrySendError`], with the item: there is no room, or the receiver is gone.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.0.queue.try_put(item)
    }

    /// Whether the channel is closed.
    pub fn is_closed(&self) -> bool {
        self.0.queue.is_closed()
    }

    /// The number of items that were sent and not received.
    pub fn len(&self) -> usize {
        self.0.queue.len()
    }

    /// Whether all sent items have been received.
    pub fn is_empty(&self) -> bool {
        self.0.queue.is_empty()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let left = self.0.senders.get() - 1;
        self.0.senders.set(left);
        if left == 0 {
            self.0.queue.close();
        }
    }
}

/// The side of an [`unbounded_channel`] that sends.
pub struct UnboundedSender<T>(Sender<T>);

impl<T> UnboundedSender<T> {
    /// Gives the channel a name, which `Debug` of both sides and listings of waits show.
    pub fn named(self, name: &'static str) -> Self {
        Self(self.0.named(name))
    }

    /// Sends an item.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item: the receiver is gone, or has closed the channel.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        self.0.try_send(item).map_err(|error| SendError::new(error.into_item(), NotPut::Closed))
    }

    /// Whether the channel is closed.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// The number of items that were sent and not received.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all sent items have been received.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Clone for UnboundedSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for UnboundedSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("UnboundedSender", &self.0.0, f)
    }
}

/// The side of a channel that receives. See [`channel`] and [`unbounded_channel`].
///
/// Also a [`Stream`] of `Result<T, Interrupted>`, which continues after an interruption. A receiver
/// that is dropped drops the items that it has not received.
#[doc(alias = "UnboundedReceiver")]
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    /// The wait of the stream.
    next: Option<Next<SharedGetRequest<T>>>,
}

impl<T> Receiver<T> {
    /// Receives the next item, waiting until there is one; `None` once the channel is closed and
    /// empty.
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
    #[inline]
    pub fn recv(&mut self) -> impl Future<Output = Result<Option<T>, Interrupted>> {
        self.stop_streaming();
        self.shared.queue.next(Location::caller())
    }

    /// Withdraws the wait of the stream.
    #[inline]
    fn stop_streaming(&mut self) {
        if self.next.is_some() {
            self.next = None;
        }
    }

    /// Receives the next item, if there is one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`], which tells an empty channel from one that is closed.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.stop_streaming();
        self.shared.queue.try_get()
    }

    /// Refuses further items. Items that were sent can still be received.
    pub fn close(&mut self) {
        self.shared.queue.close();
    }

    /// The number of items that were sent and not received.
    pub fn len(&self) -> usize {
        self.shared.queue.len()
    }

    /// Whether all sent items have been received.
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }
}

impl<T> Stream for Receiver<T> {
    type Item = Result<T, Interrupted>;

    #[track_caller]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let place = Location::caller();
        let next = || Next::new(SharedGetRequest(this.shared.clone()), place);
        let got = ready!(Pin::new(this.next.get_or_insert_with(next)).poll(cx));
        this.next = None;
        Poll::Ready(got.transpose())
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.next = None;
        let queue = &self.shared.queue;
        queue.close();
        while let Ok(item) = queue.try_get() {
            drop(item);
        }
    }
}

/// A share of the channel, held by the wait of a stream.
struct SharedGetRequest<T>(Rc<Shared<T>>);

impl<T> Clone for SharedGetRequest<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> ItemRequest for SharedGetRequest<T> {
    type Store = Fifo<T>;

    fn item_queue(&self) -> &Queue<T> {
        &self.0.queue
    }
}

impl<T> PermitRequest for SharedGetRequest<T> {}

impl<T> Queued for SharedGetRequest<T> {
    fn queue(&self) -> &WaitQueue {
        self.0.queue.getters()
    }

    fn about(&self) -> About {
        self.0.queue.about()
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Sender", &self.0, f)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Receiver", &self.shared, f)
    }
}

fn show<T>(name: &str, shared: &Shared<T>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut shown = f.debug_struct(name);
    shared.queue.name().show(&mut shown);
    shown
        .field("senders", &shared.senders.get())
        .field("length", &shared.queue.len())
        .field("capacity", &shared.queue.capacity())
        .field("sending", &shared.queue.putting())
        .field("receiving", &(shared.queue.getting() > 0))
        .field("closed", &shared.queue.is_closed())
        .finish()
}

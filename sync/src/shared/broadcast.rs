//! A channel that delivers every item to every receiver, between threads and tasks of any kernel.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pikake_traps::Interrupted;

use super::block;
use super::wait::{TaskWait, Wait};
use super::waiters::{Shared, WaitKind, Waitable, Waiters, Wakers};
pub use crate::broadcast::{RecvError, SendError, TryRecvError};

/// The errors of the channel, at the path where tokio has them.
pub mod error {
    #[doc(no_inline)]
    pub use super::{RecvError, SendError, TryRecvError};
}

/// Creates a channel in which every receiver gets every item that is sent after its creation.
///
/// Senders never wait. The channel keeps the last `capacity` items that some receiver has not
/// received. A receiver that is further behind gets [`RecvError::Lagged`] with the number of missed
/// items, and continues with the oldest item that is kept.
///
/// # Examples
///
/// ```
/// use pikake::sync::shared::broadcast::{self, RecvError};
///
/// let (sender, mut one) = broadcast::channel(16);
/// let mut other = sender.subscribe();
/// let thread = std::thread::spawn(move || sender.send("hello"));
/// // A task would say `one.recv().await?`.
/// assert_eq!(one.blocking_recv(), Ok("hello"));
/// assert_eq!(other.blocking_recv(), Ok("hello"));
/// assert_eq!(other.blocking_recv(), Err(RecvError::Closed));
/// assert_eq!(thread.join().unwrap(), Ok(2));
/// ```
///
/// # Panics
///
/// If the capacity is zero.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a broadcast channel keeps one item at least");
    let shared = Arc::new(Shared::new(Kept {
        items: VecDeque::new(),
        first: 0,
        capacity,
        senders: 1,
        receivers: 1,
        awaited: 0,
        waiters: Waiters::new(),
    }));
    (Sender(shared.clone()), Receiver { shared, next: 0 })
}

/// An item of several receivers. Its lock lets one at a time clone the item, which may not be
/// `Sync`.
type Item<T> = Arc<block::Mutex<T>>;

pub(super) struct Kept<T> {
    /// Each item with the number of receivers that have not received it. An earlier item has no
    /// more of them than a later one.
    items: VecDeque<(Item<T>, usize)>,
    /// The number of the first item, counted from the creation of the channel.
    first: u64,
    capacity: usize,
    senders: usize,
    receivers: usize,
    /// The number of the item for which the waiters wait.
    awaited: u64,
    waiters: Waiters<u64, Received<T>>,
}

/// What a receiver gets.
pub(super) struct Received<T> {
    number: u64,
    /// The item `number`. `None`: that is now the first item, and the receiver has missed some.
    item: Option<Item<T>>,
}

impl<T> Received<T> {
    /// Moves the receiver on, and returns the item or the number of missed items.
    fn collect(self, next: &mut u64) -> Result<T, u64>
    where
        T: Clone,
    {
        let Some(item) = self.item else {
            let missed = self.number - *next;
            *next = self.number;
            return Err(missed);
        };
        *next = self.number + 1;
        Ok(match Arc::try_unwrap(item) {
            Ok(item) => item.into_inner().unwrap_or_else(PoisonError::into_inner),
            Err(item) => block::lock(&item).clone(),
        })
    }
}

impl<T> Kept<T> {
    fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// The item `next`, for a receiver that has not received it; or the number of the first item,
    /// if `next` is older.
    fn receive(&mut self, next: u64) -> Option<Received<T>> {
        let Some(index) = next.checked_sub(self.first) else {
            return Some(Received { number: self.first, item: None });
        };
        let (item, left) = self.items.get_mut(usize::try_from(index).ok()?)?;
        *left -= 1;
        let item = match left {
            0 => self.take_first(),
            _ => Some(item.clone()),
        };
        Some(Received { number: next, item })
    }

    fn take_first(&mut self) -> Option<Item<T>> {
        self.first += 1;
        self.items.pop_front().map(|(item, _)| item)
    }

    /// The items from the number `next` on.
    fn from(&mut self, next: u64) -> impl Iterator<Item = &mut (Item<T>, usize)> {
        let index = next.saturating_sub(self.first);
        self.items.iter_mut().skip(usize::try_from(index).unwrap_or(usize::MAX))
    }

    /// Removes a receiver, and returns the items that were for it alone.
    fn remove_receiver(&mut self, next: u64) -> Vec<Item<T>> {
        self.receivers -= 1;
        self.from(next).for_each(|(_, left)| *left -= 1);
        let received = self.items.iter().take_while(|(_, left)| *left == 0).count();
        (0..received).filter_map(|_| self.take_first()).collect()
    }
}

impl<T> Waitable for Kept<T> {
    fn serve(&mut self, wakers: &mut Wakers) {
        let number = self.awaited;
        if number != self.end() {
            while self.waiters.grant(wakers, || Received { number, item: None }).is_some() {}
            self.awaited = self.end();
        }
        if self.senders == 0 {
            self.waiters.dismiss_all(wakers);
        }
    }
}

pub(super) struct Receiving;

impl<T> WaitKind<Kept<T>> for Receiving {
    /// The number of the next item to receive.
    type Request = u64;
    /// The item is added when the receiver collects the grant: others may come before that.
    type Grant = Received<T>;
    const NAME: &'static str = "item of a broadcast channel of several threads";

    fn waiters(kept: &mut Kept<T>) -> &mut Waiters<u64, Received<T>> {
        &mut kept.waiters
    }

    fn try_now(kept: &mut Kept<T>, next: u64) -> Result<Received<T>, u64> {
        kept.receive(next).ok_or(next)
    }

    fn collected(kept: &mut Kept<T>, received: &mut Received<T>) {
        *received = kept.receive(received.number).expect("a receiver is notified of an item");
    }

    fn give_back(_: &mut Kept<T>, _: Received<T>) {}
}

/// The side of a [`channel`] that sends.
pub struct Sender<T>(Arc<Shared<Kept<T>>>);

impl<T> Sender<T> {
    /// Sends an item to all receivers, and returns their number.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item: there are no receivers. Later there may be some.
    pub fn send(&self, item: T) -> Result<usize, SendError<T>> {
        let (receivers, surplus) = self.0.change(|kept| {
            if kept.receivers == 0 {
                return Err(SendError(item));
            }
            kept.items.push_back((Arc::new(block::Mutex::new(item)), kept.receivers));
            let is_full = kept.items.len() > kept.capacity;
            Ok((kept.receivers, if is_full { kept.take_first() } else { None }))
        })?;
        drop(surplus);
        Ok(receivers)
    }

    /// Adds a receiver for all items that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        let mut kept = self.0.lock();
        kept.receivers += 1;
        Receiver { shared: self.0.clone(), next: kept.end() }
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.lock().receivers
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.change(|kept| kept.senders -= 1);
    }
}

/// The side of a [`channel`] that receives.
pub struct Receiver<T> {
    pub(super) shared: Arc<Shared<Kept<T>>>,
    /// The number of the next item to receive.
    pub(super) next: u64,
}

impl<T: Clone> Receiver<T> {
    /// Receives the next item, as a task, waiting until there is one.
    ///
    /// The inner result is what tokio's `recv` returns: the item, or [`RecvError`] if items were
    /// missed, or if the channel is closed and empty.
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
    pub fn recv(&mut self) -> impl Future<Output = Result<Result<T, RecvError>, Interrupted>> {
        let place = Location::caller();
        async move {
            let wait = TaskWait::<_, _, Receiving>::new(&*self.shared, self.next, place);
            Ok(match wait.await? {
                Ok(received) => received.collect(&mut self.next).map_err(RecvError::Lagged),
                Err(_) => Err(RecvError::Closed),
            })
        }
    }

    /// Receives the next item, blocking the thread until there is one.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: items were missed, or the channel is closed and empty.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_recv(&mut self) -> Result<T, RecvError> {
        self.block(None).map_err(|ended| match ended {
            TryRecvError::Lagged(missed) => RecvError::Lagged(missed),
            TryRecvError::Closed | TryRecvError::Empty => RecvError::Closed,
        })
    }

    /// Receives the next item, blocking the thread for at most `length` until there is one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`]: the time is up, the channel is closed and empty, or items were missed.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_recv_timeout(&mut self, length: Duration) -> Result<T, TryRecvError> {
        self.block(Instant::now().checked_add(length))
    }

    fn block(&mut self, until: Option<Instant>) -> Result<T, TryRecvError> {
        match Wait::<_, _, Receiving>::new(&*self.shared, self.next).block(until) {
            Some(Ok(received)) => received.collect(&mut self.next).map_err(TryRecvError::Lagged),
            Some(Err(_)) => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }

    /// Receives the next item, if there is one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`]: the channel is empty or closed, or items were missed.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let received = {
            let mut kept = self.shared.lock();
            let received = kept.receive(self.next);
            received.ok_or(match kept.senders {
                0 => TryRecvError::Closed,
                _ => TryRecvError::Empty,
            })
        };
        received?.collect(&mut self.next).map_err(TryRecvError::Lagged)
    }
}

impl<T> Receiver<T> {
    /// Adds a receiver at the same position as this one.
    pub fn resubscribe(&self) -> Self {
        let mut kept = self.shared.lock();
        kept.receivers += 1;
        kept.from(self.next).for_each(|(_, left)| *left += 1);
        drop(kept);
        Self { shared: self.shared.clone(), next: self.next }
    }

    /// Returns a stream of the items, for a task.
    #[track_caller]
    pub fn stream(&mut self) -> RecvStream<'_, T> {
        let Self { shared, next } = self;
        RecvStream { shared, next, wait: None, made_at: Location::caller() }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let items = self.shared.change(|kept| kept.remove_receiver(self.next));
        drop(items);
    }
}

/// A wait for the next item.
type Next<'a, T> = TaskWait<&'a Shared<Kept<T>>, Kept<T>, Receiving>;

/// A stream of the items of a [`Receiver`], as `Result<Result<T, RecvError>, Interrupted>`. It
/// continues after an error.
#[must_use = "a stream receives nothing until it is polled"]
pub struct RecvStream<'a, T> {
    shared: &'a Shared<Kept<T>>,
    next: &'a mut u64,
    wait: Option<Next<'a, T>>,
    made_at: &'static Location<'static>,
}

impl<T: Clone> Stream for RecvStream<'_, T> {
    type Item = Result<Result<T, RecvError>, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { shared, next, wait, made_at } = &mut *self;
        let begun = wait.get_or_insert_with(|| TaskWait::new(*shared, **next, made_at));
        let done = ready!(Pin::new(begun).poll(cx));
        *wait = None;
        Poll::Ready(match done {
            Ok(Ok(received)) => Some(Ok(received.collect(next).map_err(RecvError::Lagged))),
            Ok(Err(_)) => None,
            Err(interrupted) => Some(Err(interrupted)),
        })
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

impl<T> fmt::Debug for RecvStream<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvStream").field("waiting", &self.wait.is_some()).finish_non_exhaustive()
    }
}

fn show<T>(name: &str, shared: &Shared<Kept<T>>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kept = shared.lock();
    f.debug_struct(name)
        .field("senders", &kept.senders)
        .field("receivers", &kept.receivers)
        .field("kept", &kept.items.len())
        .field("capacity", &kept.capacity)
        .field("waiting", &kept.waiters.len())
        .finish()
}

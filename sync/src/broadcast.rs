//! A channel that delivers every item to every receiver.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pikake_traps::{About, Interrupted, KernelTrap, Park, Queued, WaitQueue, park_at};

use crate::error::TryGetError;
use crate::name::Name;

pub use crate::error::SendError;

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
/// # pikake::sim::example(async {
/// use pikake::sync::broadcast::{self, RecvError};
///
/// let (sender, mut receiver) = broadcast::channel(2);
/// for number in 1..=3 {
///     sender.send(number).unwrap();
/// }
/// drop(sender);
/// let mut received = Vec::new();
/// loop {
///     match receiver.recv().await? {
///         Ok(number) => received.push(number),
///         Err(RecvError::Lagged(missed)) => println!("missed {missed} numbers"),
///         Err(RecvError::Closed) => break,
///     }
/// }
/// assert_eq!(received, [2, 3]);
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
///
/// # Panics
///
/// If the capacity is zero.
#[track_caller]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a broadcast channel keeps one item at least");
    let shared = Rc::new(Shared {
        kept: RefCell::new(Kept { items: VecDeque::new(), first: 0 }),
        capacity,
        senders: Cell::new(1),
        receivers: Cell::new(1),
        waiters: WaitQueue::new(),
        name: Cell::default(),
    });
    (Sender(shared.clone()), Receiver { shared, next: 0, wait: None })
}

struct Shared<T> {
    kept: RefCell<Kept<T>>,
    capacity: usize,
    senders: Cell<usize>,
    receivers: Cell<usize>,
    waiters: WaitQueue,
    name: Cell<Name>,
}

struct Kept<T> {
    /// Each item with the number of receivers that have not received it. The `Rc` lets a receiver
    /// clone the item, which runs foreign code, without a borrow.
    items: VecDeque<(Rc<T>, usize)>,
    /// The number of the first item, counted from the creation of the channel.
    first: u64,
}

impl<T> Kept<T> {
    fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// The item `number`, for a receiver that has not received it.
    fn receive(&mut self, number: u64) -> Option<Rc<T>> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let (item, left) = self.items.get_mut(index)?;
        *left -= 1;
        Some(item.clone())
    }

    /// Removes the first item, if all receivers have received it.
    fn take_received(&mut self) -> Option<Rc<T>> {
        let (_, left) = self.items.front()?;
        if *left > 0 {
            return None;
        }
        self.first += 1;
        self.items.pop_front().map(|(item, _)| item)
    }
}

impl<T> Shared<T> {
    fn receive(&self, number: u64) -> Option<Rc<T>> {
        let item = self.kept.borrow_mut().receive(number);
        loop {
            // One by one, since dropping an item runs foreign code.
            let received = self.kept.borrow_mut().take_received();
            if received.is_none() {
                return item;
            }
        }
    }
}

impl<T> Queued for Shared<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("broadcast channel{}", self.name.get()))
    }
}

/// The side of a [`channel`] that sends.
pub struct Sender<T>(Rc<Shared<T>>);

impl<T> Sender<T> {
    /// Gives the channel a name, which `Debug` of both sides and listings of waits show.
    pub fn named(self, name: &'static str) -> Self {
        self.0.name.set(Name::new(name));
        self
    }

    /// Sends an item to all receivers, and returns their number.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the item: there are no receivers. Later there may be some.
    pub fn send(&self, item: T) -> Result<usize, SendError<T>> {
        let receivers = self.0.receivers.get();
        if receivers == 0 {
            return Err(SendError(item));
        }
        let mut kept = self.0.kept.borrow_mut();
        kept.items.push_back((Rc::new(item), receivers));
        let too_old = match kept.items.len() > self.0.capacity {
            true => {
                kept.first += 1;
                kept.items.pop_front()
            }
            false => None,
        };
        drop(kept);
        drop(too_old);
        self.0.waiters.wake(usize::MAX);
        Ok(receivers)
    }

    /// Adds a receiver for all items that are sent from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.set(self.0.receivers.get() + 1);
        let next = self.0.kept.borrow().end();
        Receiver { shared: self.0.clone(), next, wait: None }
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.receivers.get()
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
            self.0.waiters.wake(usize::MAX);
        }
    }
}

/// The side of a [`channel`] that receives.
///
/// Also a [`Stream`] of `Result<Result<T, RecvError>, Interrupted>`, which ends when the channel is
/// closed and empty, and continues after an error.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    /// The number of the next item to receive.
    next: u64,
    /// The wait of the stream.
    wait: Option<KernelTrap<Park<Rc<Shared<T>>>>>,
}

impl<T: Clone> Receiver<T> {
    /// Receives the next item, waiting until there is one.
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
        self.wait = None;
        async move {
            loop {
                match self.try_recv() {
                    Ok(item) => return Ok(Ok(item)),
                    Err(TryRecvError::Lagged(missed)) => return Ok(Err(RecvError::Lagged(missed))),
                    Err(TryRecvError::Closed) => return Ok(Err(RecvError::Closed)),
                    Err(TryRecvError::Empty) => park_at(&*self.shared, place).await?,
                }
            }
        }
    }

    /// Receives the next item, if there is one.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`]: the channel is empty or closed, or items were missed.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let first = self.shared.kept.borrow().first;
        if self.next < first {
            let missed = first - self.next;
            self.next = first;
            return Err(TryRecvError::Lagged(missed));
        }
        match self.shared.receive(self.next) {
            Some(item) => {
                self.next += 1;
                Ok(Rc::unwrap_or_clone(item))
            }
            None if self.shared.senders.get() == 0 => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T: Clone> Stream for Receiver<T> {
    type Item = Result<Result<T, RecvError>, Interrupted>;

    #[track_caller]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let place = Location::caller();
        loop {
            let this = &mut *self;
            if let Some(wait) = &mut this.wait {
                let answer = ready!(Pin::new(wait).poll(cx));
                this.wait = None;
                if let Err(interrupted) = answer {
                    return Poll::Ready(Some(Err(interrupted)));
                }
            }
            return Poll::Ready(match this.try_recv() {
                Ok(item) => Some(Ok(Ok(item))),
                Err(TryRecvError::Lagged(missed)) => Some(Ok(Err(RecvError::Lagged(missed)))),
                Err(TryRecvError::Closed) => None,
                Err(TryRecvError::Empty) => {
                    this.wait = Some(park_at(this.shared.clone(), place));
                    continue;
                }
            });
        }
    }
}

impl<T> Receiver<T> {
    /// Adds a receiver at the same position as this one.
    pub fn resubscribe(&self) -> Self {
        let mut kept = self.shared.kept.borrow_mut();
        let first = kept.first;
        for (number, (_, left)) in (first..).zip(&mut kept.items) {
            if number >= self.next {
                *left += 1;
            }
        }
        drop(kept);
        self.shared.receivers.set(self.shared.receivers.get() + 1);
        Self { shared: self.shared.clone(), next: self.next, wait: None }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.wait = None;
        self.shared.receivers.set(self.shared.receivers.get() - 1);
        self.next = self.next.max(self.shared.kept.borrow().first);
        while let Some(item) = self.shared.receive(self.next) {
            drop(item);
            self.next = (self.next + 1).max(self.shared.kept.borrow().first);
        }
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
    shared.name.get().show(&mut shown);
    shown
        .field("senders", &shared.senders.get())
        .field("receivers", &shared.receivers.get())
        .field("kept", &shared.kept.borrow().items.len())
        .field("capacity", &shared.capacity)
        .field("waiting", &shared.waiters.len())
        .finish()
}

/// Why [`Receiver::recv`] received no item. An interruption is no such reason, so code that goes on
/// after missed items cannot go on after an interruption by mistake: without the `?` after the
/// await, a `match` on this error does not compile.
///
/// ```compile_fail,E0308
/// # use pikake::sync::broadcast::{Receiver, RecvError};
/// # async fn example(mut receiver: Receiver<u32>) {
/// match receiver.recv().await {
///     Err(RecvError::Lagged(missed)) => println!("missed {missed}"),
///     _ => {}
/// }
/// # }
/// ```
// Exhaustive, as in tokio: a `match` names both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvError {
    /// The receiver has received all items, and all senders are gone.
    Closed,
    /// The number of missed items, which the channel discarded for later ones. The next call
    /// returns the oldest item that is kept.
    Lagged(u64),
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("nothing more will be sent"),
            Self::Lagged(missed) => {
                write!(f, "the receiver was too slow and missed {missed} items")
            }
        }
    }
}

impl Error for RecvError {}

/// `BrokenPipe` if nothing more will be sent. Otherwise the kind is `Other`.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Closed => Self::new(io::ErrorKind::BrokenPipe, error),
            RecvError::Lagged(_) => Self::other(error),
        }
    }
}

/// Why [`Receiver::try_recv`] returned no item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TryRecvError {
    /// The receiver has received all items so far.
    Empty,
    /// The receiver has received all items, and all senders are gone.
    Closed,
    /// The number of missed items, which the channel discarded for later ones.
    Lagged(u64),
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => TryGetError::Empty.fmt(f),
            Self::Closed => RecvError::Closed.fmt(f),
            Self::Lagged(missed) => RecvError::Lagged(*missed).fmt(f),
        }
    }
}

impl Error for TryRecvError {}

//! A channel for one item.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use pikake_traps::{About, Interrupted, KernelTrap, Park, Queued, WaitQueue, park_at};

use crate::name::Name;

/// The errors of the channel, at the path where tokio has them.
pub mod error {
    #[doc(no_inline)]
    pub use super::{RecvError, TryRecvError};
}

/// A channel for one item.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// let (sender, receiver) = pikake::sync::oneshot::channel();
/// sender.send(42).unwrap();
/// assert_eq!(receiver.await?, Ok(42));
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        item: Cell::new(None),
        is_sender_gone: Cell::new(false),
        is_receiver_gone: Cell::new(false),
        waiters: WaitQueue::new(),
        name: Cell::default(),
    });
    let receiver = Receiver { shared: shared.clone(), wait: None };
    (Sender(shared), receiver)
}

struct Shared<T> {
    item: Cell<Option<T>>,
    is_sender_gone: Cell<bool>,
    is_receiver_gone: Cell<bool>,
    waiters: WaitQueue,
    name: Cell<Name>,
}

impl<T> Queued for Shared<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("oneshot channel{}", self.name.get()))
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

    /// Sends the item. Never suspends.
    ///
    /// # Errors
    ///
    /// The item, if the receiver is gone. A receiver that is dropped later drops the item.
    pub fn send(self, item: T) -> Result<(), T> {
        if self.is_closed() {
            return Err(item);
        }
        self.0.item.set(Some(item));
        Ok(())
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.is_receiver_gone.get()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.is_sender_gone.set(true);
        self.0.waiters.wake(usize::MAX);
    }
}

/// The side of a [`channel`] that receives: a future of the item, or of a [`RecvError`] if the
/// sender was dropped without sending.
///
/// # Cancellation
///
/// An interruption point. After an interruption, `&mut receiver` can be awaited again. The drop of
/// a receiver drops an item that was sent.
///
/// # Errors
///
/// [`Interrupted`].
///
/// # Panics
///
/// If it has to wait outside a task of a kernel.
#[must_use = "nothing is received until it is awaited"]
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    wait: Option<KernelTrap<Park<Rc<Shared<T>>>>>,
}

impl<T> Receiver<T> {
    /// Receives the item, if it has been sent.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`], which tells an empty channel from one that is closed.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.shared.item.take() {
            Some(item) => Ok(item),
            None if self.shared.is_sender_gone.get() => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Unpin for Receiver<T> {}

impl<T> Future for Receiver<T> {
    type Output = Result<Result<T, RecvError>, Interrupted>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let place = Location::caller();
        while this.wait.is_some() || !this.shared.is_sender_gone.get() {
            let wait = || park_at(this.shared.clone(), place);
            match Pin::new(this.wait.get_or_insert_with(wait)).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(answer) => {
                    this.wait = None;
                    answer?;
                }
            }
        }
        Poll::Ready(Ok(this.shared.item.take().ok_or(RecvError)))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.wait = None;
        self.shared.is_receiver_gone.set(true);
        drop(self.shared.item.take());
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Sender");
        self.0.name.get().show(&mut shown);
        shown
            .field("receiving", &!self.0.waiters.is_empty())
            .field("closed", &self.is_closed())
            .finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Receiver");
        self.shared.name.get().show(&mut shown);
        shown
            .field("receiving", &!self.shared.waiters.is_empty())
            .field("sender_gone", &self.shared.is_sender_gone.get())
            .finish()
    }
}

/// The sender was dropped without sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvError;

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sender was dropped without sending")
    }
}

impl Error for RecvError {}

/// The kind is `BrokenPipe`.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, error)
    }
}

/// Why [`Receiver::try_recv`] returned no item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TryRecvError {
    /// The sender has not sent yet.
    Empty,
    /// The item was received, or the sender was dropped without sending.
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the sender has not sent yet",
            Self::Closed => "the item was received, or the sender was dropped without sending",
        })
    }
}

impl Error for TryRecvError {}

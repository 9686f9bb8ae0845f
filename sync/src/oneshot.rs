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

use pikake_traps::{Interrupted, KernelTrap, WaitQueue};

use crate::name::Name;
use crate::signals::{Signal, Signals, signal};

/// A channel for one item.
///
/// # Examples
///
/// ```
/// # pikake_sim::example(async {
/// let (sender, receiver) = pikake_sync::oneshot::channel();
/// sender.send(42).unwrap();
/// assert_eq!(receiver.await?, 42);
/// # Ok::<_, pikake_sync::oneshot::RecvError>(()) }).unwrap();
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        item: Cell::new(None),
        over: Cell::new(false),
        abandoned: Cell::new(false),
        waiters: WaitQueue::new(),
        name: Cell::default(),
    });
    let receiver = Receiver { shared: shared.clone(), wait: None };
    (Sender(shared), receiver)
}

struct Shared<T> {
    item: Cell<Option<T>>,
    /// The sender has sent, or is gone.
    over: Cell<bool>,
    /// The receiver is gone.
    abandoned: Cell<bool>,
    waiters: WaitQueue,
    name: Cell<Name>,
}

impl<T> Signals for Shared<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> String {
        format!("oneshot channel{}", self.name.get())
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
    /// The item, if the receiver is gone. (A receiver that goes without having looked takes what
    /// was sent with it.)
    pub fn send(self, item: T) -> Result<(), T> {
        if self.is_closed() {
            return Err(item);
        }
        self.0.item.set(Some(item));
        Ok(())
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.abandoned.get()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.over.set(true);
        self.0.waiters.wake(usize::MAX);
    }
}

/// The side of a [`channel`] that receives: the future of the item.
///
/// # Cancellation
///
/// An interruption point. After an interruption `&mut receiver` may be awaited again. Dropped, it
/// drops an item that was sent.
///
/// # Panics
///
/// Polled again after it gave the item or said that there is none. When it has to wait outside a
/// task of a kernel.
#[must_use = "nothing is received until it is awaited"]
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    wait: Option<KernelTrap<Signal<Rc<Shared<T>>>>>,
}

impl<T> Receiver<T> {
    /// The item, if it has been sent.
    ///
    /// # Errors
    ///
    /// [`TryRecvError`]: there is none, and whether there may be one later.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        match self.shared.item.take() {
            Some(item) => Ok(item),
            None if self.shared.over.get() => Err(TryRecvError::Closed),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Unpin for Receiver<T> {}

impl<T> Future for Receiver<T> {
    type Output = Result<T, RecvError>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let place = Location::caller();
        while this.wait.is_some() || !this.shared.over.get() {
            let wait = || signal(this.shared.clone(), place);
            match Pin::new(this.wait.get_or_insert_with(wait)).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(answer) => {
                    this.wait = None;
                    answer?;
                }
            }
        }
        Poll::Ready(this.shared.item.take().ok_or(RecvError::Closed))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.wait = None;
        self.shared.abandoned.set(true);
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
            .field("sender_gone", &self.shared.over.get())
            .finish()
    }
}

/// Why nothing was received.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RecvError {
    /// The sender was dropped without having sent anything.
    Closed,
    /// The wait was interrupted; the receiver can be awaited again.
    Interrupted(Interrupted),
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the sender was dropped without having sent anything"),
            Self::Interrupted(why) => write!(f, "waiting for an item was cut short ({why})"),
        }
    }
}

impl Error for RecvError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Closed => None,
            Self::Interrupted(why) => Some(why),
        }
    }
}

impl From<Interrupted> for RecvError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// `UnexpectedEof` if the sender is gone; see the conversion from [`Interrupted`] otherwise.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Closed => Self::new(io::ErrorKind::UnexpectedEof, error),
            RecvError::Interrupted(why) => why.into(),
        }
    }
}

/// Why [`Receiver::try_recv`] received nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TryRecvError {
    /// Nothing has been sent.
    Empty,
    /// Nothing will be sent, or it has been received.
    Closed,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "nothing has been sent",
            Self::Closed => "nothing will be sent, or it has been received",
        })
    }
}

impl Error for TryRecvError {}

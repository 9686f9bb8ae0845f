//! A channel for a value that changes; receivers see its last state.

use std::cell::{Cell, Ref, RefCell};
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

use crate::name::Name;

pub use crate::error::SendError;

/// The errors of the channel, at the path where tokio has them.
pub mod error {
    #[doc(no_inline)]
    pub use super::{RecvError, SendError};
}

/// Creates a channel for a value that changes. Receivers see the last state and skip those that
/// they missed.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// let (sender, mut receiver) = pikake::sync::watch::channel("starting");
/// sender.send_replace("loading");
/// sender.send_replace("running");
/// receiver.changed().await?;
/// assert_eq!(*receiver.borrow(), "running");
/// # Ok::<_, pikake::sync::watch::RecvError>(()) }).unwrap();
/// ```
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        value: RefCell::new(value),
        changes: Cell::new(0),
        is_sender_gone: Cell::new(false),
        receivers: Cell::new(0),
        waiters: WaitQueue::new(),
        name: Cell::default(),
    });
    let receiver = Receiver::new(&shared, 0);
    (Sender(shared), receiver)
}

struct Shared<T> {
    value: RefCell<T>,
    /// How often the value was changed.
    changes: Cell<u64>,
    is_sender_gone: Cell<bool>,
    receivers: Cell<usize>,
    waiters: WaitQueue,
    name: Cell<Name>,
}

impl<T> Queued for Shared<T> {
    fn queue(&self) -> &WaitQueue {
        &self.waiters
    }

    fn about(&self) -> About {
        About::new(format!("watch channel{}", self.name.get()))
    }
}

impl<T> Shared<T> {
    #[track_caller]
    fn borrow(&self) -> Ref<'_, T> {
        match self.value.try_borrow() {
            Ok(value) => value,
            Err(_) => panic!("a watched value was read inside the closure that changes it"),
        }
    }
}

/// The side of a [`channel`] that changes the value.
pub struct Sender<T>(Rc<Shared<T>>);

impl<T> Sender<T> {
    /// Gives the channel a name, which `Debug` of both sides and listings of waits show.
    pub fn named(self, name: &'static str) -> Self {
        self.0.name.set(Name::new(name));
        self
    }

    /// Replaces the value, if there are receivers.
    ///
    /// # Errors
    ///
    /// [`SendError`], with the new value: there are no receivers. The value stays as it is.
    ///
    /// # Panics
    ///
    /// While the value is borrowed.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.receiver_count() == 0 {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    /// Replaces the value, and returns the previous one.
    ///
    /// # Panics
    ///
    /// While the value is borrowed.
    #[track_caller]
    pub fn send_replace(&self, value: T) -> T {
        let mut before = value;
        self.send_modify(|current| std::mem::swap(current, &mut before));
        before
    }

    /// Changes the value in place.
    ///
    /// # Panics
    ///
    /// While the value is borrowed.
    #[track_caller]
    pub fn send_modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = match self.0.value.try_borrow_mut() {
            Ok(mut value) => change(&mut value),
            Err(_) => panic!(
                "a watched value was changed while it was borrowed: let no borrow live across an \
                 await"
            ),
        };
        self.0.changes.set(self.0.changes.get() + 1);
        self.0.waiters.wake(usize::MAX);
        result
    }

    /// The value. Nobody can change it while the borrow lives, so do not hold it across an await.
    ///
    /// # Panics
    ///
    /// Inside a closure that changes it.
    #[track_caller]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.0.borrow()
    }

    /// The number of receivers.
    pub fn receiver_count(&self) -> usize {
        self.0.receivers.get()
    }

    /// Adds a receiver, which counts the current value as seen.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.0, self.0.changes.get())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.is_sender_gone.set(true);
        self.0.waiters.wake(usize::MAX);
    }
}

/// The side of a [`channel`] that sees the changes.
///
/// Also a [`Stream`] of copies of the value, one for each change that the receiver does not miss.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    /// The number of the last change that the receiver has seen.
    seen: u64,
    /// The wait of the stream.
    wait: Option<KernelTrap<Park<Rc<Shared<T>>>>>,
}

impl<T> Receiver<T> {
    fn new(shared: &Rc<Shared<T>>, seen: u64) -> Self {
        shared.receivers.set(shared.receivers.get() + 1);
        Self { shared: shared.clone(), seen, wait: None }
    }

    /// Waits for a change that the receiver has not seen.
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
        self.wait = None;
        async move {
            loop {
                if self.has_changed() {
                    self.seen = self.shared.changes.get();
                    return Ok(());
                }
                if self.shared.is_sender_gone.get() {
                    return Err(RecvError::Closed);
                }
                park_at(&*self.shared, place).await.map_err(RecvError::Interrupted)?;
            }
        }
    }

    /// Whether there is a change that the receiver has not seen.
    pub fn has_changed(&self) -> bool {
        self.seen != self.shared.changes.get()
    }

    /// The value. Nobody can change it while the borrow lives, so do not hold it across an await.
    ///
    /// # Panics
    ///
    /// Inside a closure that changes it.
    #[track_caller]
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// As [`borrow`](Self::borrow). The receiver has then seen the value.
    ///
    /// # Panics
    ///
    /// As [`borrow`](Self::borrow).
    #[track_caller]
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.changes.get();
        self.shared.borrow()
    }
}

/// Why [`Receiver::changed`] saw no change. Both ends are final, so a loop ends by either.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecvError {
    /// The receiver has seen the last change, and the sender is gone.
    Closed,
    /// The wait was interrupted.
    Interrupted(Interrupted),
}

impl RecvError {
    /// The interruption, if the wait was interrupted.
    pub fn interrupted(&self) -> Option<&Interrupted> {
        match self {
            Self::Interrupted(why) => Some(why),
            Self::Closed => None,
        }
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the value will not change any more"),
            Self::Interrupted(why) => write!(f, "waiting for a change was cut short ({why})"),
        }
    }
}

impl Error for RecvError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interrupted(why) => Some(why),
            Self::Closed => None,
        }
    }
}

/// `BrokenPipe` if the sender is gone. Otherwise as the conversion from [`Interrupted`].
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Interrupted(why) => why.into(),
            RecvError::Closed => Self::new(io::ErrorKind::BrokenPipe, error),
        }
    }
}

impl<T> Clone for Receiver<T> {
    /// Adds a receiver, which has seen the same changes as this one.
    fn clone(&self) -> Self {
        Self::new(&self.shared, self.seen)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.set(self.shared.receivers.get() - 1);
    }
}

impl<T: Clone> Stream for Receiver<T> {
    type Item = Result<T, Interrupted>;

    #[track_caller]
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let place = Location::caller();
        let this = &mut *self;
        loop {
            if let Some(wait) = &mut this.wait {
                let answer = ready!(Pin::new(wait).poll(cx));
                this.wait = None;
                if let Err(interrupted) = answer {
                    return Poll::Ready(Some(Err(interrupted)));
                }
            }
            if this.has_changed() {
                this.seen = this.shared.changes.get();
                return Poll::Ready(Some(Ok(this.borrow().clone())));
            }
            if this.shared.is_sender_gone.get() {
                return Poll::Ready(None);
            }
            this.wait = Some(park_at(this.shared.clone(), place));
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Sender", &self.0, f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show("Receiver", &self.shared, f)
    }
}

fn show<T: fmt::Debug>(name: &str, shared: &Shared<T>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut shown = f.debug_struct(name);
    shared.name.get().show(&mut shown);
    match shared.value.try_borrow() {
        Ok(value) => shown.field("value", &&*value),
        Err(_) => shown.field("value", &format_args!("<in use>")),
    };
    shown
        .field("changes", &shared.changes.get())
        .field("waiting", &shared.waiters.len())
        .field("sender_gone", &shared.is_sender_gone.get())
        .finish()
}

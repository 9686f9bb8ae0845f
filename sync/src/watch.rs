//! A channel for a value that changes; receivers see its last state.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pikake_traps::{About, Interrupted, KernelTrap, Park, Queued, WaitQueue, park_at};

use crate::name::Name;

/// Creates a channel for a value that changes. Receivers see the last state and skip those that
/// they missed.
///
/// # Examples
///
/// ```
/// # pikake::sim::example(async {
/// let (sender, mut receiver) = pikake::sync::watch::channel("starting");
/// sender.send("loading");
/// sender.send("running");
/// assert!(receiver.changed().await?);
/// assert_eq!(receiver.get(), "running");
/// # Ok::<_, pikake::Interrupted>(()) }).unwrap();
/// ```
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        value: RefCell::new(value),
        changes: Cell::new(0),
        is_sender_gone: Cell::new(false),
        waiters: WaitQueue::new(),
        name: Cell::default(),
    });
    (Sender(shared.clone()), Receiver { shared, seen: 0, wait: None })
}

struct Shared<T> {
    value: RefCell<T>,
    /// How often the value was changed.
    changes: Cell<u64>,
    is_sender_gone: Cell<bool>,
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
    fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        match self.value.try_borrow() {
            Ok(value) => read(&value),
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

    /// Replaces the value, and returns the previous one.
    ///
    /// # Panics
    ///
    /// Inside a closure that reads the value.
    #[track_caller]
    pub fn send(&self, value: T) -> T {
        let mut before = value;
        self.modify(|current| std::mem::swap(current, &mut before));
        before
    }

    /// Changes the value in place.
    ///
    /// # Panics
    ///
    /// Inside a closure that reads the value.
    #[track_caller]
    pub fn modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = match self.0.value.try_borrow_mut() {
            Ok(mut value) => change(&mut value),
            Err(_) => panic!("a watched value was changed inside a closure that reads it"),
        };
        self.0.changes.set(self.0.changes.get() + 1);
        self.0.waiters.wake(usize::MAX);
        result
    }

    /// Calls `read` with the value.
    ///
    /// # Panics
    ///
    /// Inside a closure that changes it.
    #[track_caller]
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.0.with(read)
    }

    /// Adds a receiver, which counts the current value as seen.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { shared: self.0.clone(), seen: self.0.changes.get(), wait: None }
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
    /// Waits for a change that the receiver has not seen. `false` if there is none and the sender
    /// is gone.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before the value changed.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn changed(&mut self) -> impl Future<Output = Result<bool, Interrupted>> {
        let place = Location::caller();
        self.wait = None;
        async move {
            loop {
                if self.has_changed() {
                    self.seen = self.shared.changes.get();
                    return Ok(true);
                }
                if self.shared.is_sender_gone.get() {
                    return Ok(false);
                }
                park_at(&*self.shared, place).await?;
            }
        }
    }

    /// Whether there is a change that the receiver has not seen.
    pub fn has_changed(&self) -> bool {
        self.seen != self.shared.changes.get()
    }

    /// Calls `read` with the value.
    ///
    /// # Panics
    ///
    /// Inside a closure that changes it.
    #[track_caller]
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.shared.with(read)
    }

    /// A copy of the value.
    ///
    /// # Panics
    ///
    /// Inside a closure that changes it.
    #[track_caller]
    pub fn get(&self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }
}

impl<T> Clone for Receiver<T> {
    /// Adds a receiver, which has seen the same changes as this one.
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seen: self.seen, wait: None }
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
                return Poll::Ready(Some(Ok(this.get())));
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

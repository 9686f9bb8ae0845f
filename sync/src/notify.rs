//! Notifications without a value: one waiter at a time, or all at once.
//!
//! A waiter waits in two queues. A call of `notify_one` is a permit of the first, so a waiter that leaves
//! without its notification returns the permit. A call of `notify_all` begins a new round, and signals the
//! second queue. A waiter returns when its round is over, so a signal that is passed on to a waiter of the new
//! round has no effect.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::task::Poll;

use pikake_traps::{Interrupted, WaitQueue};

use crate::name::Name;
use crate::permits::{PermitRequest, Taking};
use crate::signals::{Signals, signal};

/// Tells waiters that there is something to do.
///
/// A `Notify` has no value: waiters look at state of their own after a notification.
///
/// * [`notify_one`](Self::notify_one) notifies the waiter that came first. Without a waiter the `Notify` keeps the
///   notification for the next [`notified`](Self::notified). It keeps one, however often the call is repeated.
/// * [`notify_all`](Self::notify_all) notifies all current waiters, and keeps nothing.
///
/// # Examples
///
/// A consumer that sleeps while there is no work. The notification that comes before the consumer waits is not
/// lost:
///
/// ```
/// use pikake::sync::Notify;
/// use pikake::{Interrupted, spawn};
/// use std::cell::RefCell;
/// use std::rc::Rc;
///
/// # pikake::sim::example(async {
/// let shared = Rc::new((RefCell::new(Vec::new()), Notify::new()));
/// let consumer = spawn({
///     let shared = shared.clone();
///     async move {
///         let (work, changed) = &*shared;
///         loop {
///             changed.notified().await?;
///             for item in work.take() {
///                 if item == "stop" {
///                     return Ok::<_, Interrupted>(());
///                 }
///             }
///         }
///     }
/// });
/// let (work, changed) = &*shared;
/// for item in ["one", "two", "stop"] {
///     work.borrow_mut().push(item);
///     changed.notify_one();
/// }
/// consumer.await??;
/// # Ok::<_, pikake::TaskError>(())
/// # })
/// # .unwrap();
/// ```
#[derive(Default)]
pub struct Notify {
    /// Has a permit for each notification of `notify_one` that no waiter has collected. At most one is free.
    ones: WaitQueue,
    /// Signals the waiters that a round is over.
    ends_of_rounds: WaitQueue,
    /// The number of calls of `notify_all`.
    round: Cell<u64>,
    name: Name,
}

impl Notify {
    /// Creates a `Notify` without waiters and without a notification.
    pub const fn new() -> Self {
        Self {
            ones: WaitQueue::new(),
            ends_of_rounds: WaitQueue::new(),
            round: Cell::new(0),
            name: Name::NONE,
        }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Notifies the waiter that came first. Without a waiter, the next [`notified`](Self::notified) returns at once.
    pub fn notify_one(&self) {
        self.ones.give(1);
        self.keep_one();
    }

    /// Notifies all calls of [`notified`](Self::notified) that were made before, also those not polled yet.
    ///
    /// No notification is kept. A notification of [`notify_one`](Self::notify_one) that a waiter has not collected
    /// yet goes on to the next waiter, or is kept.
    #[doc(alias = "notify_waiters")]
    pub fn notify_all(&self) {
        self.round.set(self.round.get() + 1);
        self.ends_of_rounds.wake(usize::MAX);
    }

    /// Waits for a notification. Waiters are notified in order of arrival.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A waiter that is interrupted or dropped leaves its place in the queue. A
    /// notification of [`notify_one`](Self::notify_one) that it has not collected goes to the next waiter, or is
    /// kept. The notification wins over an interruption that comes before the waiter runs.
    ///
    /// # Errors
    ///
    /// [`Interrupted`], before the notification.
    ///
    /// # Panics
    ///
    /// If the caller has to wait outside a task of a kernel.
    #[track_caller]
    pub fn notified(&self) -> impl Future<Output = Result<(), Interrupted>> {
        let place = Location::caller();
        let round = self.round.get();
        async move {
            if self.round.get() != round || self.take() {
                return Ok(());
            }
            let mut one = Taking::new(One(self));
            let mut end_of_round = signal(self, place);
            poll_fn(|cx| {
                if self.round.get() != round {
                    return Poll::Ready(Ok(()));
                }
                if let Poll::Ready(notified) = one.poll(cx, place) {
                    return Poll::Ready(notified.map(drop));
                }
                while let Poll::Ready(signalled) = Pin::new(&mut end_of_round).poll(cx) {
                    if let Err(interrupted) = signalled {
                        return Poll::Ready(Err(interrupted));
                    }
                    // A waiter of an earlier round has left its signal.
                    end_of_round = signal(self, place);
                }
                Poll::Pending
            })
            .await
        }
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.ones.len()
    }

    /// Takes a notification that was kept.
    fn take(&self) -> bool {
        self.ones.try_take(1) || {
            self.ones.recover();
            self.keep_one();
            self.ones.try_take(1)
        }
    }

    /// Keeps at most one notification.
    fn keep_one(&self) {
        if self.ones.free() > 1 {
            self.ones.reclaim();
            self.ones.give(1);
        }
    }
}

impl Signals for Notify {
    fn queue(&self) -> &WaitQueue {
        &self.ends_of_rounds
    }

    fn about(&self) -> String {
        format!("notification{}", self.name)
    }
}

/// A request for a notification of `notify_one`.
#[derive(Clone)]
struct One<'a>(&'a Notify);

impl PermitRequest for One<'_> {
    fn queue(&self) -> &WaitQueue {
        &self.0.ones
    }

    fn about(&self) -> String {
        self.0.about()
    }

    fn left(&self) {
        self.queue().recover();
        self.queue().serve();
        self.0.keep_one();
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Notify");
        self.name.show(&mut shown);
        shown
            .field("is_notified", &(self.ones.free() > 0))
            .field("waiting", &self.waiting())
            .finish()
    }
}

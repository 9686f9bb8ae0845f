//! Notifications without a value: one waiter at a time, or all at once.
//!
//! A notification is a permit. A call of `notify_waiters` begins a new round, and gives each waiter
//! of the old one a permit, so that all of them leave the queue. A waiter whose round is over
//! returns, and leaves its permit uncollected. That goes on to the next waiter if `notify_one` had
//! given it, and otherwise is withdrawn.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::task::Poll;

use pikake_traps::{About, Interrupted, Queued, WaitQueue};

use crate::name::Name;
use crate::permits::{PermitRequest, Taking};

/// Tells waiters that there is something to do.
///
/// A `Notify` has no value: waiters look at state of their own after a notification.
///
/// * [`notify_one`](Self::notify_one) notifies the waiter that came first. Without a waiter the
///   `Notify` keeps the notification for the next [`notified`](Self::notified). It keeps one,
///   however often the call is repeated.
/// * [`notify_waiters`](Self::notify_waiters) notifies all current waiters, and keeps nothing.
///
/// # Examples
///
/// A consumer that sleeps while there is no work. The notification that comes before the consumer
/// waits is not lost:
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
    /// Has a permit for each notification that no waiter has collected. At most one is free.
    permits: WaitQueue,
    /// The number of calls of `notify_waiters`.
    round: Cell<u64>,
    /// The waiters that were in the queue, or notified, when their round ended, and that have not
    /// left since. Each has a permit.
    ended: Cell<usize>,
    /// The number of those permits that are from `notify_one`.
    ended_ones: Cell<usize>,
    name: Name,
}

impl Notify {
    /// Creates a `Notify` without waiters and without a notification.
    pub const fn new() -> Self {
        Self {
            permits: WaitQueue::new(),
            round: Cell::new(0),
            ended: Cell::new(0),
            ended_ones: Cell::new(0),
            name: Name::NONE,
        }
    }

    /// Adds a name, which `Debug` and listings of waits show.
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Name::new(name);
        self
    }

    /// Notifies the waiter that came first. Without a waiter, the next [`notified`](Self::notified)
    /// returns at once.
    pub fn notify_one(&self) {
        self.settle();
        self.permits.give(1);
        self.keep_one();
    }

    /// Notifies all calls of [`notified`](Self::notified) that were made before, also those not
    /// polled yet.
    ///
    /// No notification is kept. A notification of [`notify_one`](Self::notify_one) that a waiter
    /// has not collected yet goes on to the next waiter, or is kept.
    pub fn notify_waiters(&self) {
        self.settle();
        self.round.set(self.round.get() + 1);
        let ones = self.permits.granted() - self.ended.get();
        self.ended_ones.set(self.ended_ones.get() + ones);
        self.permits.give(self.permits.len());
        self.ended.set(self.permits.granted());
    }

    /// Waits for a notification. Waiters are notified in order of arrival.
    ///
    /// # Cancellation
    ///
    /// The wait is an interruption point. A waiter that is interrupted or dropped leaves its place
    /// in the queue. A notification of [`notify_one`](Self::notify_one) that it has not collected
    /// goes to the next waiter, or is kept. The notification wins over an interruption that comes
    /// before the waiter runs.
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
            let mut one = Taking::new(One { notify: self, round });
            poll_fn(|cx| match self.round.get() == round {
                true => one.poll(cx, place).map(|notified| notified.map(drop)),
                false => Poll::Ready(Ok(())),
            })
            .await
        }
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.permits.len()
    }

    /// Takes a notification that was kept.
    fn take(&self) -> bool {
        self.permits.try_take(1) || {
            self.settle();
            self.permits.try_take(1)
        }
    }

    /// Keeps at most one notification.
    fn keep_one(&self) {
        if self.permits.free() > 1 {
            self.withdraw(self.permits.free() - 1);
        }
    }

    /// Withdraws free permits.
    fn withdraw(&self, count: usize) {
        let free = self.permits.reclaim();
        self.permits.give(free.saturating_sub(count));
    }

    /// Forgets the waiters of a kernel that has ended, and keeps one of their notifications.
    fn settle(&self) {
        self.permits.recover();
        if self.permits.granted() < self.ended.get() {
            self.withdraw(self.ended.take() - self.ended_ones.take());
        }
        self.keep_one();
    }

    /// Notes that a waiter has left after the end of its round. Its permit is free.
    fn left_ended(&self) {
        let Some(ended) = self.ended.get().checked_sub(1) else { return };
        self.ended.set(ended);
        match self.ended_ones.get().checked_sub(1) {
            Some(ones) => self.ended_ones.set(ones),
            None => self.withdraw(1),
        }
    }
}

/// A request for a notification in a round.
#[derive(Clone)]
struct One<'a> {
    notify: &'a Notify,
    round: u64,
}

impl PermitRequest for One<'_> {}

impl Queued for One<'_> {
    fn queue(&self) -> &WaitQueue {
        &self.notify.permits
    }

    fn about(&self) -> About {
        About::new(format!("notification{}", self.notify.name))
    }

    fn left(&self) {
        self.queue().recover();
        if self.round != self.notify.round.get() {
            self.notify.left_ended();
        }
        self.queue().serve();
        self.notify.settle();
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Notify");
        self.name.show(&mut shown);
        shown
            .field("is_notified", &(self.permits.free() > 0))
            .field("waiting", &self.waiting())
            .finish()
    }
}

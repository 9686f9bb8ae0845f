//! Notifications without a value, for threads and tasks of any kernel.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_traps::Interrupted;

use super::wait::{TaskWait, Wait};
use super::waiters::{Shared, WaitKind, Waitable, Waiters, Wakers};

/// Tells waiters, threads and tasks of any kernel, that there is something to do.
///
/// As with [`sync::Notify`](crate::Notify), waiters look at state of their own after a
/// notification.
///
/// * [`notify_one`](Self::notify_one) notifies the waiter that came first. Without a waiter the
///   `Notify` keeps the notification for the next wait. It keeps one, however often the call is
///   repeated.
/// * [`notify_waiters`](Self::notify_waiters) notifies all current waiters, and keeps nothing.
///
/// # Examples
///
/// ```
/// use pikake::sync::shared::Notify;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// let shared = Arc::new((AtomicU32::new(0), Notify::new()));
/// let thread = std::thread::spawn({
///     let shared = shared.clone();
///     move || {
///         shared.0.store(7, Ordering::Release);
///         shared.1.notify_one(); // not lost, if nobody waits yet
///     }
/// });
/// shared.1.blocking_notified(); // a task would say `notified().await?`
/// assert_eq!(shared.0.load(Ordering::Acquire), 7);
/// # thread.join().unwrap();
/// ```
pub struct Notify(pub(super) Shared<Rounds>);

/// Notifications, and the round that the next `notify_waiters` ends.
#[derive(Debug)]
pub(super) struct Rounds {
    round: u64,
    /// Notifications of `notify_one` that no waiter has. At most one remains.
    pub(super) free: usize,
    /// Notifications of `notify_one` that waiters of this round have not collected.
    pub(super) granted: usize,
    /// The same, of ended rounds. They go on as waiters of ended rounds return.
    pub(super) ended: usize,
    /// The round of the waiters.
    waiters_round: u64,
    /// A waiter is granted the number of its round.
    waiters: Waiters<u64, u64>,
}

impl Rounds {
    fn end_round(&mut self) {
        self.round += 1;
        self.ended += std::mem::take(&mut self.granted);
    }

    /// Notes that a notified waiter has left, and whether its notification goes on.
    fn left(&mut self, round: u64, goes_on: bool) {
        if round == self.round {
            self.granted -= 1;
            self.free += usize::from(goes_on);
        } else if self.ended > 0 {
            self.ended -= 1;
            self.free += 1;
        }
    }
}

impl Waitable for Rounds {
    fn serve(&mut self, wakers: &mut Wakers) {
        let round = self.waiters_round;
        if round != self.round {
            while self.waiters.grant(wakers, || round).is_some() {}
            self.waiters_round = self.round;
        }
        while self.free > 0 && self.waiters.grant(wakers, || self.round).is_some() {
            self.free -= 1;
            self.granted += 1;
        }
        self.free = self.free.min(1);
    }
}

pub(super) struct Notified;

impl WaitKind<Rounds> for Notified {
    /// The round in which the wait was made.
    type Request = u64;
    type Grant = u64;
    const NAME: &'static str = "notification of several threads";

    fn waiters(rounds: &mut Rounds) -> &mut Waiters<u64, u64> {
        &mut rounds.waiters
    }

    fn try_now(rounds: &mut Rounds, made_in: u64) -> Result<u64, u64> {
        if made_in == rounds.round {
            rounds.free = rounds.free.checked_sub(1).ok_or(made_in)?;
        }
        Ok(made_in)
    }

    fn collected(rounds: &mut Rounds, round: &mut u64) {
        rounds.left(*round, false);
    }

    fn give_back(rounds: &mut Rounds, round: u64) {
        rounds.left(round, true);
    }
}

impl Notify {
    /// Creates a `Notify` without waiters and without a notification.
    pub fn new() -> Self {
        Self(Shared::new(Rounds {
            round: 0,
            free: 0,
            granted: 0,
            ended: 0,
            waiters_round: 0,
            waiters: Waiters::new(),
        }))
    }

    /// Notifies the waiter that came first. Without a waiter, the next wait returns at once.
    pub fn notify_one(&self) {
        self.0.change(|rounds| rounds.free += 1);
    }

    /// Notifies all waits that were made before, also those not polled yet.
    ///
    /// No notification is kept. A notification of [`notify_one`](Self::notify_one) that a waiter
    /// has not collected yet goes on to the next waiter, or is kept.
    pub fn notify_waiters(&self) {
        self.0.change(Rounds::end_round);
    }

    /// Waits, as a task, for a notification. Waiters are notified in order of arrival.
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
        let round = self.0.lock().round;
        let wait = TaskWait::<_, _, Notified>::new(&self.0, round, Location::caller());
        async move { wait.await.map(|_| ()) }
    }

    /// Blocks the thread until there is a notification.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_notified(&self) {
        self.block(None);
    }

    /// Blocks the thread until there is a notification, at most `length`. Returns whether there was
    /// one.
    ///
    /// # Panics
    ///
    /// Inside a kernel, since the call would stop all its tasks.
    pub fn blocking_notified_timeout(&self, length: Duration) -> bool {
        self.block(Instant::now().checked_add(length))
    }

    fn block(&self, until: Option<Instant>) -> bool {
        let round = self.0.lock().round;
        Wait::<_, _, Notified>::new(&self.0, round).block(until).is_some()
    }

    /// The number of waiters.
    pub fn waiting(&self) -> usize {
        self.0.lock().waiters.len()
    }
}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_notified, waiting) = {
            let rounds = self.0.lock();
            (rounds.free > 0, rounds.waiters.len())
        };
        let mut shown = f.debug_struct("Notify");
        shown.field("is_notified", &is_notified).field("waiting", &waiting).finish()
    }
}

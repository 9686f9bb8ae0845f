//! The kernels of one process, or of one simulated host, as a value that each of them is built
//! with, and the work that they offer to each other.
//!
//! An offer is in one map, behind one lock. It belongs to the one who removes it: another kernel
//! that is idle, or the task that made it, which begins or withdraws it.
//!
//! No offer is left while a kernel sleeps that could take it: a kernel announces its sleep and then
//! looks for offers; the one that offers adds the offer and then looks for kernels that sleep. All
//! four accesses are sequentially consistent, so at least one side sees the other (`home.rs`). A
//! kernel that was woken and has work of its own wakes another one. A kernel with offers of its own
//! sleeps only while one that it has woken may still take them: for [`TIME_TO_TAKE`] at most, and
//! the slack of its timers.

mod current;
#[cfg(all(test, pikake_shuttle))]
mod tests;

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pikake_time::Ticks;

use crate::home::Home;
use crate::names::KernelId;
use crate::threads::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// A kernel is late when the task that it steps may have waited for this long. Less than people
/// notice, and much longer than work takes to cross to another kernel.
pub const LATE: Duration = Duration::from_millis(1);

/// The time for which a kernel that was late offers work to an idle one although it is on time. A
/// long step is likely to be followed by another one.
pub(crate) const LATE_AGAIN: Duration = Duration::from_millis(10);

/// The time that a kernel that was woken for an offer has to take it, before the kernel that offers
/// begins the work itself. A thread gets up in less, and work that waits has waited for longer.
pub(crate) const TIME_TO_TAKE: Duration = Duration::from_micros(100);

/// The kernels that belong together: those of one process, or of one simulated host.
///
/// Clones share the list of members. A kernel joins when it is built with `Builder::peers`, or when
/// it starts others (`Kernels::start`).
///
/// # Examples
///
/// ```
/// use pikake::Kernel;
/// use pikake::traps::Peers;
///
/// let peers = Peers::new();
/// let one = Kernel::builder().peers(&peers).build()?;
/// let other = Kernel::builder().peers(&peers).build()?;
/// let ids: Vec<_> = peers.handles().iter().map(|kernel| kernel.id()).collect();
/// assert_eq!(ids, [one.handle().id(), other.handle().id()]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Peers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// In the order of their joining.
    members: Mutex<Vec<Arc<Home>>>,
    offers: Mutex<Offers>,
    /// The number of offers. Changed with the offers locked.
    offer_count: AtomicUsize,
}

#[derive(Default)]
struct Offers {
    /// The key of the next offer.
    next: u64,
    map: BTreeMap<u64, Offer>,
}

/// Work that has not begun, and who has offered it.
pub(crate) struct Offer {
    pub(crate) from: KernelId,
    /// Of the task that has offered the work.
    pub(crate) waker: Waker,
    pub(crate) work: Box<dyn Offered>,
}

/// The next offer that a kernel takes.
pub(crate) enum Next {
    /// Its own offer, which stays free until the first step of this task.
    Own(Waker),
    /// Another kernel's, which nobody else has any more.
    Other(Offer),
}

/// The offers that a kernel has made and taken.
#[derive(Default)]
pub(crate) struct OwnOffers {
    /// The kernel leaves its own offers to others until this moment.
    pub(crate) left_until: Cell<Ticks>,
    /// The kernel is likely to be late again until this moment.
    pub(crate) late_until: Cell<Ticks>,
    /// The kernel has made an offer since its owner has learnt of the next deadline.
    pub(crate) is_new: Cell<bool>,
    pub(crate) made: Cell<u64>,
    pub(crate) taken: Cell<u64>,
}

/// Work that has not begun.
pub(crate) trait Offered: Send {
    /// Begins the work, in a task of the current kernel.
    fn begin(self: Box<Self>);

    /// The work, for the task that has offered it.
    fn into_work(self: Box<Self>) -> Box<dyn Any>;
}

impl Peers {
    /// Peers without members.
    pub fn new() -> Self {
        Self::default()
    }

    fn members(&self) -> MutexGuard<'_, Vec<Arc<Home>>> {
        // No code that can panic runs under the lock, so the list behind a poisoned lock is whole.
        self.0.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a kernel, by its home, and forgets those that have ended. For
    /// [`Local::join`](crate::Local::join).
    pub fn add(&self, home: &Arc<Home>) {
        let mut members = self.members();
        members.retain(|home| !home.is_closed());
        members.push(home.clone());
    }

    /// A member that has nothing to do.
    pub fn idle(&self) -> Option<KernelId> {
        self.members().iter().find(|home| is_idle(home)).map(|home| home.id())
    }

    /// Whether there is a member other than `own`.
    pub(crate) fn has_others(&self, own: KernelId) -> bool {
        self.members().iter().any(|home| home.id() != own && !home.is_closed())
    }

    /// Adds an offer, and wakes a member that sleeps. Returns the offer's key, and whether that
    /// member waits for work.
    pub(crate) fn offer(&self, offer: Offer) -> (u64, bool) {
        let key = self.change_offers(|offers| {
            offers.next += 1;
            offers.map.insert(offers.next, offer);
            offers.next
        });
        (key, self.wake_one())
    }

    /// Wakes a member that sleeps: first one that waits for work, and not one that its owner has
    /// left. A kernel that offers does not sleep. Returns whether it is one that waits for work.
    pub(crate) fn wake_one(&self) -> bool {
        let members = self.members();
        let is_idle_woken = members.iter().any(|home| is_idle(home) && home.wake_if_asleep());
        if !is_idle_woken {
            members.iter().any(|home| home.wake_if_asleep());
        }
        is_idle_woken
    }

    /// Takes an offer back. `None`: a kernel has taken it.
    pub(crate) fn withdraw(&self, key: u64) -> Option<Box<dyn Offered>> {
        let offer = self.change_offers(|offers| offers.map.remove(&key));
        offer.map(|offer| offer.work)
    }

    /// Whether an offer is free.
    pub(crate) fn has(&self, key: u64) -> bool {
        self.offers().map.contains_key(&key)
    }

    /// The oldest offer of the kernels that are wanted, for this kernel.
    pub(crate) fn next_for(
        &self,
        own: KernelId,
        is_wanted: impl Fn(KernelId) -> bool,
    ) -> Option<Next> {
        self.change_offers(|offers| {
            let (&key, oldest) = offers.map.iter().find(|(_, offer)| is_wanted(offer.from))?;
            match oldest.from == own {
                true => Some(Next::Own(oldest.waker.clone())),
                false => offers.map.remove(&key).map(Next::Other),
            }
        })
    }

    /// Whether a kernel that is wanted has made an offer.
    pub(crate) fn has_offer_of(&self, is_wanted: impl Fn(KernelId) -> bool) -> bool {
        self.offers().map.values().any(|offer| is_wanted(offer.from))
    }

    pub(crate) fn has_offers(&self) -> bool {
        self.0.offer_count.load(Ordering::SeqCst) > 0
    }

    fn offers(&self) -> MutexGuard<'_, Offers> {
        // No user code runs under the lock, so the map behind a poisoned lock is whole.
        self.0.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_offers<R>(&self, change: impl FnOnce(&mut Offers) -> R) -> R {
        let mut offers = self.offers();
        let result = change(&mut offers);
        self.0.offer_count.store(offers.map.len(), Ordering::SeqCst);
        result
    }
}

fn is_idle(home: &Home) -> bool {
    home.late_from() == Ticks::MAX
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members().iter().map(|home| home.id())).finish()
    }
}

//! The kernels of one process, or of one simulated host, as a value that each of them is built
//! with, and the work that they offer to each other.
//!
//! An offer is in one map, behind one lock. It belongs to the one who removes it: an idle kernel,
//! which takes the oldest one, or the task that made it, which begins or withdraws it.
//!
//! No offer is left while a kernel sleeps that could take it: a kernel announces its sleep and then
//! looks for offers; the one that offers adds the offer and then looks for kernels that sleep. All
//! four accesses are sequentially consistent, so at least one side sees the other (`home.rs`). A
//! kernel that was woken and has work of its own wakes another one.

mod current;
#[cfg(all(test, pikake_shuttle))]
mod tests;

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pikake_time::Ticks;

use crate::home::Home;
use crate::names::KernelId;
use crate::threads::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// A kernel is late when the task that it steps may have waited for this long. Less than people
/// notice, and much longer than work takes to cross to another kernel.
pub const LATE: Duration = Duration::from_millis(1);

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
    map: BTreeMap<u64, Box<dyn Offered>>,
}

/// The offers that a kernel has made and taken.
#[derive(Default)]
pub(crate) struct OfferCounts {
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

    /// Whether a member other than `own` is on time.
    pub(crate) fn has_time(&self, own: KernelId, now: Ticks) -> bool {
        self.members().iter().any(|home| home.id() != own && now < home.late_from())
    }

    /// A member that has nothing to do.
    pub fn idle(&self) -> Option<KernelId> {
        self.members().iter().find(|home| is_idle(home)).map(|home| home.id())
    }

    /// Whether there is a member other than `own`.
    pub(crate) fn has_others(&self, own: KernelId) -> bool {
        self.members().iter().any(|home| home.id() != own && !home.is_closed())
    }

    /// Adds an offer, and wakes a member that sleeps. Returns the offer's key.
    pub(crate) fn offer(&self, work: Box<dyn Offered>) -> u64 {
        let key = self.change_offers(|offers| {
            offers.next += 1;
            offers.map.insert(offers.next, work);
            offers.next
        });
        self.wake_one();
        key
    }

    /// Wakes a member that sleeps: first one that waits for work, and not one that its owner has
    /// left. A kernel that offers does not sleep.
    pub(crate) fn wake_one(&self) {
        let members = self.members();
        let is_woken = members.iter().any(|home| is_idle(home) && home.wake_if_asleep());
        if !is_woken {
            members.iter().any(|home| home.wake_if_asleep());
        }
    }

    /// Takes an offer back. `None`: a kernel has taken it.
    pub(crate) fn withdraw(&self, key: u64) -> Option<Box<dyn Offered>> {
        self.change_offers(|offers| offers.map.remove(&key))
    }

    /// The oldest offer.
    pub(crate) fn take(&self) -> Option<Box<dyn Offered>> {
        let mut take = || self.change_offers(|offers| offers.map.pop_first());
        self.has_offers().then(&mut take)?.map(|(_, work)| work)
    }

    pub(crate) fn has_offers(&self) -> bool {
        self.0.offer_count.load(Ordering::SeqCst) > 0
    }

    fn change_offers<R>(&self, change: impl FnOnce(&mut Offers) -> R) -> R {
        // No user code runs under the lock, so the map behind a poisoned lock is whole.
        let mut offers = self.0.offers.lock().unwrap_or_else(PoisonError::into_inner);
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

//! The figures of a kernel's pools.
//!
//! Pools of one name are shown together, and so are the pools of all keys of a
//! [`Keyed`](crate::Keyed): their number would be that of the keys. A pool that has ended leaves
//! its counters behind, so that they never fall.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use pikake_traps::figures::{Figure, Figures, Times};

use crate::stats::Stats;

/// A pool that can be asked for its figures.
pub(crate) trait HasStats {
    fn stats(&self) -> Stats;
}

/// The figures of all pools of a kernel, by name.
#[derive(Default)]
pub(crate) struct PoolFigures(RefCell<BTreeMap<String, Rc<NamedFigures>>>);

/// The figures of the pools of one name.
#[derive(Default)]
pub(crate) struct NamedFigures {
    pools: RefCell<Vec<Weak<dyn HasStats>>>,
    /// The counters of those that have ended.
    ended: Cell<[u64; COUNTERS.len()]>,
    /// How long callers waited who got an object after a wait.
    pub(crate) waits: Times,
}

type Read = fn(&Stats) -> u64;

/// The states of objects.
const STATES: [(&str, Read); 6] = [
    ("idle", |stats| stats.idle as u64),
    ("leased", |stats| stats.leased as u64),
    ("creating", |stats| stats.creating as u64),
    ("verifying", |stats| stats.verifying as u64),
    ("cleaning", |stats| stats.cleaning as u64),
    ("destroying", |stats| stats.destroying as u64),
];

const COUNTERS: [(&str, &str, Read); 10] = [
    ("pikake_pool_leases", "Objects that were lent.", |stats| stats.lent),
    ("pikake_pool_gave_up", "Callers that gave up before they got an object.", |stats| {
        stats.gave_up
    }),
    ("pikake_pool_created", "Objects that were made.", |stats| stats.created),
    ("pikake_pool_added", "Objects that were added from outside.", |stats| stats.added),
    ("pikake_pool_destroyed", "Objects that were destroyed.", |stats| stats.destroyed),
    ("pikake_pool_detached", "Objects that their holders detached.", |stats| stats.detached),
    ("pikake_pool_dead", "Objects that were found dead without a verification.", |stats| {
        stats.dead
    }),
    ("pikake_pool_create_failures", "Creations that failed.", |stats| stats.create_failures),
    ("pikake_pool_verify_failures", "Verifications that failed.", |stats| stats.verify_failures),
    ("pikake_pool_clean_failures", "Cleanings that failed.", |stats| stats.clean_failures),
];

impl PoolFigures {
    /// Adds a pool.
    pub(crate) fn add(&self, name: &str, pool: Weak<dyn HasStats>) -> Rc<NamedFigures> {
        let mut named = self.0.borrow_mut();
        let figures = named.entry(name.to_owned()).or_default();
        figures.pools.borrow_mut().push(pool);
        figures.clone()
    }
}

impl NamedFigures {
    /// A pool ends, with these figures.
    pub(crate) fn pool_ends(&self, stats: &Stats) {
        let mut ended = self.ended.get();
        ended.iter_mut().zip(&COUNTERS).for_each(|(sum, (.., read))| *sum += read(stats));
        self.ended.set(ended);
        self.pools.borrow_mut().retain(|pool| pool.strong_count() > 0);
    }

    /// The figures of the pools that have not ended.
    fn stats(&self) -> Vec<Stats> {
        let pools = self.pools.borrow();
        pools.iter().filter_map(Weak::upgrade).map(|pool| pool.stats()).collect()
    }
}

impl Figures for PoolFigures {
    fn show(&self, shown: &mut Vec<Figure>) {
        let named = self.0.borrow();
        let all: Vec<_> = named.iter().map(|(name, it)| (name, it, it.stats())).collect();
        let sum = |stats: &[Stats], read: Read| stats.iter().map(read).sum::<u64>();
        for (name, _, stats) in &all {
            for (state, read) in STATES {
                let help = "Objects of pools, by their state.";
                let count = Figure::gauge("pikake_pool_objects", help, sum(stats, read));
                shown.push(count.label("pool", *name).label("state", state));
            }
        }
        for (name, _, stats) in &all {
            let (help, waiting) =
                ("Callers that wait for an object.", |stats: &Stats| stats.waiting as u64);
            let count = Figure::gauge("pikake_pool_waiting_callers", help, sum(stats, waiting));
            shown.push(count.label("pool", *name));
        }
        for (index, (figure, help, read)) in COUNTERS.into_iter().enumerate() {
            for (name, it, stats) in &all {
                let count = it.ended.get()[index] + sum(stats, read);
                shown.push(Figure::counter(figure, help, count).label("pool", *name));
            }
        }
        for (name, it, _) in &all {
            let help = "Time that callers waited who got an object after a wait.";
            let times = Figure::times("pikake_pool_wait_time", help, &it.waits);
            shown.push(times.label("pool", *name));
        }
    }
}

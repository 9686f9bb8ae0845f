//! Figures of the locks of a kernel: how long tasks waited for each one, and how long a task had it
//! meanwhile. For authors of locks.
//!
//! A lock whose caller has to wait calls [`wait_begins`], and [`wait_ends`] when the caller has the
//! lock. A lock that is free calls nothing, so figures cost an uncontended lock nothing. While
//! times are [not measured](crate::figures::are_times_measured), a wait costs one test of a flag.
//!
//! * *A wait* counts when it ends with the lock. A wait that was interrupted or dropped does not.
//! * *A hold* is the time for which a task had the lock while others waited: from the first wait
//!   on, or from the hand-over, to the hand-over to the next one. So a hold that nobody minded does
//!   not count.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use pikake_time::Ticks;

use crate::clock::{elapsed_since, now};
use crate::figures::{Figure, Figures, Times, are_times_measured, of_kernel};
use crate::mark::TaskMark;

/// The locks that have figures of their own. Further ones share a row.
const ROWS: usize = 256;

/// The locks with waiters that are followed at a time. A lock that was dropped with its waiters is
/// among them until there are so many.
const WATCHED: usize = 1_024;

/// A lock in listings: its name, or the place where it was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockName {
    /// A name that the program has given.
    Named(&'static str),
    /// The place of the call that has made the lock.
    MadeAt(&'static Location<'static>),
}

impl LockName {
    /// The name of a lock that is made at the caller.
    #[track_caller]
    pub const fn here() -> Self {
        Self::MadeAt(Location::caller())
    }
}

/// With a leading blank, to follow the kind of the lock.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, " `{name}`"),
            Self::MadeAt(place) => write!(f, " made at {place}"),
        }
    }
}

/// The lock that a wait is for.
#[derive(Clone, Copy, Debug)]
pub struct WaitedLock {
    /// The address of the lock, which is the same during all waits.
    pub address: usize,
    /// The kind, as `mutex`.
    pub kind: &'static str,
    /// The name or place.
    pub name: LockName,
    /// The task that has the lock, and the place of its call; `None` if that is not known, as for
    /// readers.
    pub holder: Option<Holding>,
    /// Whether the task that waits is to have the lock alone.
    pub is_exclusive: bool,
    /// Whether the lock was handed over to a task that has not run since.
    pub is_handed_over: bool,
    /// The number of other waits for the lock.
    pub waiters: usize,
}

/// The moment at which a wait began.
#[derive(Clone, Copy, Debug)]
pub struct WaitBegan(Ticks);

/// A task that has a lock, and the place of the call that took it.
pub type Holding = (TaskMark, &'static Location<'static>);

/// The figures of one lock, or of several alike ones.
#[derive(Debug)]
pub struct LockRow {
    /// The kind, as `mutex`.
    pub kind: &'static str,
    /// The name or place. `None`: this row is that of all further locks.
    pub name: Option<LockName>,
    /// The lengths of the waits.
    pub waits: Times,
    /// The longest wait.
    pub longest_wait: Cell<Duration>,
    /// The lengths of the holds.
    pub holds: Times,
    /// The longest hold.
    pub longest_hold: Cell<Duration>,
    /// The task of the longest hold in words, and the place of its call.
    pub longest_holder: RefCell<Option<(String, &'static Location<'static>)>>,
}

impl LockRow {
    fn new(kind: &'static str, name: Option<LockName>) -> Self {
        Self {
            kind,
            name,
            waits: Times::default(),
            longest_wait: Cell::default(),
            holds: Times::default(),
            longest_hold: Cell::default(),
            longest_holder: RefCell::default(),
        }
    }
}

/// The kind and the name of a row.
type Key = (&'static str, Option<LockName>);

/// A lock with waiters.
struct Watch {
    /// The moment from which on the holder has had the lock while others waited.
    since: Ticks,
    holder: Option<Holding>,
    /// The holder in words, if the task may end before the hold does.
    label: Option<String>,
}

/// The figures of the locks of a kernel.
#[derive(Default)]
struct LockFigures {
    rows: RefCell<BTreeMap<Key, Rc<LockRow>>>,
    watched: RefCell<BTreeMap<usize, Watch>>,
}

impl LockFigures {
    fn row(&self, kind: &'static str, name: LockName) -> Rc<LockRow> {
        let mut rows = self.rows.borrow_mut();
        let is_new = !rows.contains_key(&(kind, Some(name)));
        let key = match is_new && rows.len() >= ROWS {
            true => ("lock", None),
            false => (kind, Some(name)),
        };
        rows.entry(key).or_insert_with(|| Rc::new(LockRow::new(key.0, key.1))).clone()
    }
}

/// A wait for a lock begins: the lock is not free. Returns the moment, if the wait is measured.
///
/// # Panics
///
/// Outside a kernel.
#[inline]
pub fn wait_begins(lock: impl FnOnce() -> Option<WaitedLock>) -> Option<WaitBegan> {
    if !are_times_measured() {
        return None;
    }
    let lock = lock()?;
    let began = now();
    let figures = of_kernel::<LockFigures>();
    let mut watched = figures.watched.borrow_mut();
    if watched.len() >= WATCHED && !watched.contains_key(&lock.address) {
        watched.clear();
    }
    // Permits of a semaphore are held by nobody in particular.
    if lock.is_exclusive || lock.holder.is_some() {
        // A watch without waiters is of waits that were given up, or of another lock.
        if lock.waiters == 0 && !lock.is_handed_over {
            watched.remove(&lock.address);
        }
        watched.entry(lock.address).or_insert_with(|| {
            let label = lock.holder.map(|(task, _)| task.label());
            Watch { since: began, holder: lock.holder, label }
        });
    }
    Some(WaitBegan(began))
}

/// A wait for a lock has ended with the lock, which the current task has from now on.
///
/// # Panics
///
/// Outside a kernel.
#[cold]
pub fn wait_ends(
    lock: &WaitedLock,
    WaitBegan(began): WaitBegan,
    taken_at: &'static Location<'static>,
) {
    let figures = of_kernel::<LockFigures>();
    let row = figures.row(lock.kind, lock.name);
    let waited = elapsed_since(began);
    row.waits.note(waited);
    row.longest_wait.set(row.longest_wait.get().max(waited));
    let mut watched = figures.watched.borrow_mut();
    if let Some(Watch { since, holder, label }) = watched.remove(&lock.address) {
        let held = elapsed_since(since);
        row.holds.note(held);
        if held > row.longest_hold.get() {
            row.longest_hold.set(held);
            let in_words = |(task, place): Holding| (label.unwrap_or_else(|| task.label()), place);
            *row.longest_holder.borrow_mut() = holder.map(in_words);
        }
    }
    if lock.is_exclusive && lock.waiters > 0 {
        let holder = Some((TaskMark::current(), taken_at));
        watched.insert(lock.address, Watch { since: now(), holder, label: None });
    }
}

/// The figures of the locks of the current kernel for which tasks have waited.
///
/// # Panics
///
/// Outside a kernel.
pub fn lock_rows() -> Vec<Rc<LockRow>> {
    of_kernel::<LockFigures>().rows.borrow().values().cloned().collect()
}

impl Figures for LockFigures {
    fn show(&self, shown: &mut Vec<Figure>) {
        for row in self.rows.borrow().values() {
            let name = row.name.map(|name| name.to_string()).unwrap_or_else(|| " (others)".into());
            let lock = format!("{}{name}", row.kind);
            let times = |name, help, times| Figure::times(name, help, times).label("lock", &*lock);
            shown.push(times(
                "pikake_lock_wait",
                "Waits for locks that were not free.",
                &row.waits,
            ));
            let help = "Holds of locks by one task while others waited.";
            shown.push(times("pikake_lock_hold", help, &row.holds));
        }
    }
}

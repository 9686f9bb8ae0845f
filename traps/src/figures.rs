//! Figures that services keep of their work, such as counts of requests, for systems that monitor
//! the process.
//!
//! A service keeps its figures in a type that implements [`Figures`]: one value for each kernel,
//! which [`of_kernel`] returns. Only the kernel's thread counts, so plain [`Cell`]s suffice.
//! [`collect`] reads the figures of all services of a kernel.
//!
//! Lengths of time cost two readings of the clock each, so services measure them only while
//! [`are_times_measured`]: from the first call of [`measure_times`] or [`collect`] in the process.
//! A console of `pikake::console`, and `#[pikake::main]` of a program with that feature, call
//! [`measure_times`] at their begin.
//!
//! # Examples
//!
//! ```
//! use pikake::traps::figures::{self, Figure, Figures, Value};
//! use std::cell::Cell;
//!
//! #[derive(Default)]
//! struct CacheFigures {
//!     hits: Cell<u64>,
//! }
//!
//! impl Figures for CacheFigures {
//!     fn show(&self, shown: &mut Vec<Figure>) {
//!         shown.push(Figure::counter("cache_hits", "Hits of the cache.", self.hits.get()));
//!     }
//! }
//!
//! # pikake::run(async {
//! let figures = figures::of_kernel::<CacheFigures>();
//! figures.hits.set(figures.hits.get() + 1);
//!
//! let shown = figures::collect();
//! assert_eq!((shown[0].name, &shown[0].value), ("cache_hits", &Value::Counter(1)));
//! # });
//! ```

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::door;

/// The figures that a service keeps for one kernel.
pub trait Figures: 'static {
    /// Adds the figures to a list. Two figures of the same name differ in their labels.
    ///
    /// Called on the kernel's thread, inside or between steps.
    fn show(&self, shown: &mut Vec<Figure>);
}

/// A figure at one moment.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Figure {
    /// The name, in the form `service_what`. A counter has no `_total` at the end, and times no
    /// unit.
    pub name: &'static str,
    /// The description, a sentence. Figures of one name have the same one.
    pub help: &'static str,
    /// The names and values of the labels, by which figures of one name differ.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// The value of a [`Figure`].
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A number that goes up and down.
    Gauge(u64),
    /// A number that only goes up.
    Counter(u64),
    /// Lengths of time by their size; see [`Times`].
    Times {
        /// The sum of all.
        sum: Duration,
        /// Element `n` counts the lengths of less than 2^n microseconds, and of at least half of
        /// that.
        counts: Vec<u64>,
    },
}

impl Figure {
    fn new(name: &'static str, help: &'static str, value: Value) -> Self {
        Self { name, help, labels: Vec::new(), value }
    }

    /// A number that goes up and down.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::new(name, help, Value::Gauge(value))
    }

    /// A number that only goes up.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::new(name, help, Value::Counter(value))
    }

    /// Lengths of time.
    pub fn times(name: &'static str, help: &'static str, times: &Times) -> Self {
        Self::new(name, help, Value::Times { sum: times.sum.get(), counts: times.counts() })
    }

    /// Adds a label.
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((name, value.into()));
        self
    }
}

/// The number of elements of [`Times`]. Jobs may take minutes.
const CLASSES: usize = 32;

/// Lengths of time, counted by powers of two of a microsecond. The last class begins at 2^30
/// microseconds, which are 18 minutes.
#[derive(Debug, Default)]
pub struct Times {
    counts: [Cell<u64>; CLASSES],
    sum: Cell<Duration>,
    longest: Cell<Duration>,
}

impl Times {
    /// The sum of all lengths.
    pub fn sum(&self) -> Duration {
        self.sum.get()
    }

    /// Counts a length.
    pub fn note(&self, length: Duration) {
        let class = (u128::BITS - length.as_micros().leading_zeros()) as usize;
        let count = &self.counts[class.min(CLASSES - 1)];
        count.set(count.get() + 1);
        self.sum.set(self.sum.get().saturating_add(length));
        self.longest.set(self.longest.get().max(length));
    }

    /// Adds the lengths that another one has counted.
    pub fn add(&self, other: &Self) {
        for (count, more) in self.counts.iter().zip(&other.counts) {
            count.set(count.get() + more.get());
        }
        self.sum.set(self.sum.get().saturating_add(other.sum.get()));
        self.longest.set(self.longest.get().max(other.longest.get()));
    }

    /// The longest of the lengths; zero if there are none.
    pub fn longest(&self) -> Duration {
        self.longest.get()
    }

    /// The counts, without zeros at the end. Element `n` counts the lengths of less than 2^n
    /// microseconds, and of at least half of that; the last class also all that are longer.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts: Vec<u64> = self.counts.iter().map(Cell::get).collect();
        counts.truncate(counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1));
        counts
    }
}

/// The figures of one service, as a kernel keeps them: twice the same value, since a trait object
/// of one kind does not become one of the other.
#[derive(Clone)]
struct Kept {
    shown: Rc<dyn Figures>,
    own: Rc<dyn Any>,
}

/// The figures of a kernel.
#[derive(Default)]
struct All(RefCell<Vec<Kept>>);

/// The figures of this type of the current kernel, which the first call makes and the kernel keeps
/// to its end.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn of_kernel<T: Figures + Default>() -> Rc<T> {
    let find = |kept: &[Kept]| kept.iter().find_map(|it| it.own.clone().downcast::<T>().ok());
    let all = door::with(|local| local.extension::<All>());
    if let Some(found) = find(&all.0.borrow()) {
        return found;
    }
    let made = Rc::<T>::default();
    all.0.borrow_mut().push(Kept { shown: made.clone(), own: made.clone() });
    made
}

/// Whether the services of the process measure times.
static TIMES_ARE_MEASURED: AtomicBool = AtomicBool::new(false);

/// Has the services of all kernels of the process measure lengths of time from now on.
///
/// # Examples
///
/// ```
/// use pikake::traps::figures;
///
/// figures::measure_times();
/// assert!(figures::are_times_measured());
/// ```
pub fn measure_times() {
    TIMES_ARE_MEASURED.store(true, Ordering::Relaxed);
}

/// Whether services measure lengths of time, which may read the clock twice for each; see
/// [`measure_times`].
#[inline]
pub fn are_times_measured() -> bool {
    // A thread that sees the change late leaves out a few lengths.
    TIMES_ARE_MEASURED.load(Ordering::Relaxed)
}

/// The figures of all services of the current kernel. Calls [`measure_times`].
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn collect() -> Vec<Figure> {
    measure_times();
    let all = door::with(|local| local.extension::<All>()).0.borrow().clone();
    let mut shown = Vec::new();
    for kept in all {
        kept.shown.show(&mut shown);
    }
    shown
}

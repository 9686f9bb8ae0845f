//! Coverage over all runs: `sometimes!` and `always!`.
//!
//! A simulation that never reaches the states it should test finds nothing, without a sign of that.
//! So a program marks the states that it expects. A place is known once it is reached. A list of
//! all places, made by the linker, could not tell which of them a test should reach; so a test
//! lists these by [`Runs::expect`](crate::Runs::expect).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

thread_local! {
    static SEEN: RefCell<BTreeMap<Place, Seen>> = const { RefCell::new(BTreeMap::new()) };
}

type Place = (&'static str, u32, u32);

/// A place with its condition, and how often that held.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// The description of the condition.
    pub what: &'static str,
    /// Whether the condition must always hold, and not only sometimes.
    pub always: bool,
    /// How often the place was reached.
    pub reached: u64,
    /// How often the condition held.
    pub held: u64,
}

/// All places that were reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    places: Vec<(Place, Seen)>,
    /// Expected conditions whose place was never reached.
    unreached: Vec<&'static str>,
}

impl Coverage {
    /// Clears the coverage of this thread.
    pub fn reset() {
        SEEN.with_borrow_mut(BTreeMap::clear);
    }

    /// The coverage of this thread since [`reset`](Self::reset).
    pub fn so_far() -> Self {
        let seen = |seen: &BTreeMap<Place, Seen>| {
            seen.iter().map(|(place, seen)| (*place, seen.clone())).collect()
        };
        Self { places: SEEN.with_borrow(seen), unreached: Vec::new() }
    }

    pub(crate) fn with_expected(mut self, expected: &[&'static str]) -> Self {
        let is_reached = |what: &str| self.places().any(|seen| seen.what == what);
        self.unreached = expected.iter().copied().filter(|what| !is_reached(what)).collect();
        self
    }

    /// The places whose `sometimes!` never held, and the expected conditions that were never
    /// reached.
    pub fn never(&self) -> impl Iterator<Item = String> {
        let never = self.places.iter().filter(|(_, seen)| !seen.always && seen.held == 0);
        let never =
            never.map(|((file, line, _), seen)| format!("`{}` at {file}:{line}", seen.what));
        never.chain(self.unreached.iter().map(|what| format!("`{what}`, which was never reached")))
    }

    /// The expected conditions that held in no run.
    pub(crate) fn missed(&self, expected: &[&'static str]) -> impl Iterator<Item = &'static str> {
        let held = |what: &str| self.places().any(|seen| seen.what == what && seen.held > 0);
        expected.iter().copied().filter(move |what| !held(what))
    }

    /// Every place.
    pub fn places(&self) -> impl Iterator<Item = &Seen> {
        self.places.iter().map(|(_, seen)| seen)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (always, sometimes): (Vec<&Seen>, Vec<&Seen>) =
            self.places().partition(|seen| seen.always);
        let held = sometimes.iter().filter(|seen| seen.held > 0).count();
        let all = sometimes.len() + self.unreached.len();
        write!(f, "sometimes: {held} of {all} seen; always: {} held", always.len())?;
        self.never().try_for_each(|place| write!(f, "\n  never seen: {place}"))
    }
}

/// The function that the macros call.
#[doc(hidden)]
#[track_caller]
pub fn note(holds: bool, always: bool, what: &'static str) {
    let place = Location::caller();
    let place = (place.file(), place.line(), place.column());
    SEEN.with_borrow_mut(|seen| {
        let seen = seen.entry(place).or_insert(Seen { what, always, reached: 0, held: 0 });
        seen.reached += 1;
        seen.held += u64::from(holds);
    });
    assert!(holds || !always, "always: {what}");
}

/// Marks a condition that should hold in some run. See
/// [`Runs::need_coverage`](crate::Runs::need_coverage).
///
/// # Examples
///
/// ```
/// # let queue = [1];
/// pikake::sim::sometimes!(queue.is_empty(), "a worker finds the queue empty");
/// ```
#[macro_export]
macro_rules! sometimes {
    ($holds:expr, $what:literal $(,)?) => {
        $crate::note_coverage($holds, false, $what)
    };
}

/// Asserts a condition that must hold whenever this place is reached, and counts it for the
/// coverage.
///
/// # Examples
///
/// ```
/// # let (sent, received) = (2, 1);
/// pikake::sim::always!(received <= sent, "nothing is received that was not sent");
/// ```
#[macro_export]
macro_rules! always {
    ($holds:expr, $what:literal $(,)?) => {
        $crate::note_coverage($holds, true, $what)
    };
}

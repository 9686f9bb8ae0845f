//! What was seen to happen, over all runs: `sometimes!` and `always!`.
//!
//! A simulation that never gets into the states it is meant to test finds nothing, and nobody
//! notices. So a program says which states it expects to get into. A place is known from when it is
//! first reached. A list that the linker makes of all places would know them before, but not which of
//! them this test is to reach; so who wants to be told of places never reached names them
//! ([`Runs::expect`](crate::Runs::expect)).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

thread_local! {
    static SEEN: RefCell<BTreeMap<Place, Seen>> = const { RefCell::new(BTreeMap::new()) };
}

type Place = (&'static str, u32, u32);

/// A place, and how often what it says was so.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// What it says.
    pub what: &'static str,
    /// Whether it must always be so, and not only sometimes.
    pub always: bool,
    /// How often the place was reached.
    pub reached: u64,
    /// How often it was so.
    pub held: u64,
}

/// All places that were reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    places: Vec<(Place, Seen)>,
    /// What was expected and no place says that was reached.
    unreached: Vec<&'static str>,
}

impl Coverage {
    /// Forgets what was seen on this thread.
    pub fn reset() {
        SEEN.with_borrow_mut(BTreeMap::clear);
    }

    /// What was seen on this thread since [`reset`](Self::reset).
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

    /// The places whose `sometimes!` was never so, and what was expected and never reached.
    pub fn never(&self) -> impl Iterator<Item = String> {
        let never = self.places.iter().filter(|(_, seen)| !seen.always && seen.held == 0);
        let never =
            never.map(|((file, line, _), seen)| format!("`{}` at {file}:{line}", seen.what));
        never.chain(self.unreached.iter().map(|what| format!("`{what}`, which was never reached")))
    }

    /// What of this was not so in any run.
    pub(crate) fn missed(&self, expected: &[&'static str]) -> impl Iterator<Item = &'static str> {
        let is_so = |what: &str| self.places().any(|seen| seen.what == what && seen.held > 0);
        expected.iter().copied().filter(move |what| !is_so(what))
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

/// What the macros expand to calls of.
#[doc(hidden)]
#[track_caller]
pub fn note(is_so: bool, always: bool, what: &'static str) {
    let place = Location::caller();
    let place = (place.file(), place.line(), place.column());
    SEEN.with_borrow_mut(|seen| {
        let seen = seen.entry(place).or_insert(Seen { what, always, reached: 0, held: 0 });
        seen.reached += 1;
        seen.held += u64::from(is_so);
    });
    assert!(is_so || !always, "always: {what}");
}

/// Says that something must be so in some of the runs, or the test tests too little.
///
/// # Examples
///
/// ```
/// # let queue = [1];
/// pikake_sim::sometimes!(queue.is_empty(), "a worker finds the queue empty");
/// ```
#[macro_export]
macro_rules! sometimes {
    ($is_so:expr, $what:literal $(,)?) => {
        $crate::note_coverage($is_so, false, $what)
    };
}

/// Says that something must be so whenever this place is reached; panics if it is not.
///
/// # Examples
///
/// ```
/// # let (sent, received) = (2, 1);
/// pikake_sim::always!(received <= sent, "nothing is received that was not sent");
/// ```
#[macro_export]
macro_rules! always {
    ($is_so:expr, $what:literal $(,)?) => {
        $crate::note_coverage($is_so, true, $what)
    };
}

//! Many runs, one for each seed.

use std::env;

use crate::coverage::Coverage;
use crate::log::Happened;
use crate::report::{Cause, Failure, Report};
use crate::sim::Sim;

/// How many seeds are run if nobody says.
const SEEDS: u64 = 100;

/// Runs a simulation for each of many seeds, until one fails.
///
/// The environment overrides what is set: `PIKAKE_SEED` names the first seed, and alone the only
/// one; `PIKAKE_RUNS` says how many.
///
/// # Examples
///
/// ```
/// use pikake_sim::{Runs, sometimes};
/// use pikake_traps::random;
///
/// let summary = Runs::new("dice").seeds(20).run(|sim| {
///     sim.client("player", || async {
///         sometimes!(random::range(1..7) == 6, "a six is thrown");
///     });
/// });
/// assert_eq!(summary.runs, 20);
/// assert_eq!(summary.coverage.never().count(), 0);
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until `run` is called"]
pub struct Runs {
    test: String,
    seeds: u64,
    checks_determinism: bool,
    needs_coverage: bool,
}

/// What came of many runs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// How many runs there were.
    pub runs: u64,
    /// The last of them.
    pub last: Option<Report>,
    /// What was seen in all of them.
    pub coverage: Coverage,
}

impl Runs {
    /// Runs of the test of this name, as `cargo test` knows it.
    pub fn new(test: impl Into<String>) -> Self {
        Self { test: test.into(), seeds: SEEDS, checks_determinism: false, needs_coverage: false }
    }

    /// How many seeds, from zero on; without this, a hundred.
    pub fn seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Runs each seed twice; if they differ in any event, that is a failure.
    pub fn check_determinism(mut self) -> Self {
        self.checks_determinism = true;
        self
    }

    /// A `sometimes!` that was reached and never so, over all seeds, is a failure.
    pub fn need_coverage(mut self) -> Self {
        self.needs_coverage = true;
        self
    }

    /// Runs `set_up` for each seed, and then what it has set up.
    ///
    /// # Panics
    ///
    /// When a run fails, with all that is known about it.
    #[track_caller]
    pub fn run(self, set_up: impl Fn(&mut Sim)) -> Summary {
        match self.try_run(set_up) {
            Ok(summary) if self.needs_coverage && summary.coverage.never().next().is_some() => {
                panic!("{}: something was never seen\n{}", self.test, summary.coverage)
            }
            Ok(summary) => {
                if summary.coverage.places().next().is_some() {
                    eprintln!("{}: {} runs; {}", self.test, summary.runs, summary.coverage);
                }
                summary
            }
            Err(failure) => panic!("{failure}"),
        }
    }

    /// As [`run`](Self::run), but gives the failure back.
    ///
    /// # Errors
    ///
    /// The first run that failed.
    ///
    /// # Panics
    ///
    /// When a variable of the environment is no number.
    pub fn try_run(&self, set_up: impl Fn(&mut Sim)) -> Result<Summary, Box<Failure>> {
        let (first, runs) = match (number("PIKAKE_SEED"), number("PIKAKE_RUNS")) {
            (None, runs) => (0, runs.unwrap_or(self.seeds)),
            (Some(seed), runs) => (seed, runs.unwrap_or(1)),
        };
        Coverage::reset();
        let mut last = None;
        for seed in (first..).take(usize::try_from(runs).unwrap_or(usize::MAX)) {
            let report = self.once(seed, &set_up).map_err(|mut failure| {
                failure.test = Some(self.test.clone());
                failure
            })?;
            last = Some(report);
        }
        Ok(Summary { runs, last, coverage: Coverage::so_far() })
    }

    fn once(&self, seed: u64, set_up: &impl Fn(&mut Sim)) -> Result<Report, Box<Failure>> {
        let fresh = || {
            let mut sim = Sim::new(seed);
            set_up(&mut sim);
            sim
        };
        if !self.checks_determinism {
            return fresh().run();
        }
        let (first, before, names) = fresh().run_logged(true);
        let (second, after, _) = fresh().run_logged(true);
        match difference(&before, &after, &names) {
            None => first,
            Some(cause) => Err(differing(seed, cause, first.err().or(second.err()))),
        }
    }
}

/// The first event that is not the same.
fn difference(first: &[Happened], second: &[Happened], names: &[String]) -> Option<Cause> {
    let length = first.len().max(second.len());
    let place = (0..length).find(|place| first.get(*place) != second.get(*place))?;
    let show = |events: &[Happened]| match events.get(place) {
        Some(event) => event.shown(names),
        None => "the run had ended".to_owned(),
    };
    Some(Cause::Differs { event: place as u64, first: show(first), second: show(second) })
}

fn differing(seed: u64, cause: Cause, failure: Option<Box<Failure>>) -> Box<Failure> {
    let empty = || Failure {
        cause: cause.clone(),
        seed,
        time: std::time::Duration::ZERO,
        steps: 0,
        plan: crate::plan::FaultPlan::new(),
        events: Vec::new(),
        tasks: String::new(),
        test: None,
    };
    let known = failure.map_or_else(empty, |failure| *failure);
    Box::new(Failure { cause: cause.clone(), ..known })
}

/// Runs a simulation for so many seeds, in a test of the current name.
///
/// # Examples
///
/// ```
/// pikake_sim::runs(10, |sim| {
///     sim.client("idler", || async {});
/// });
/// ```
///
/// # Panics
///
/// When a run fails, with all that is known about it.
#[track_caller]
pub fn runs(seeds: u64, set_up: impl Fn(&mut Sim)) -> Summary {
    let thread = std::thread::current();
    // The harness calls a test's thread by the test's name.
    let test = thread.name().filter(|name| *name != "main").unwrap_or_default();
    Runs::new(test).seeds(seeds).run(set_up)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{variable} is no number: {text:?}")))
}

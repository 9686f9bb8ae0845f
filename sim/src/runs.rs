//! Runs of a simulation, one for each seed.

use std::env;

use crate::coverage::Coverage;
use crate::host::Outcome;
use crate::log::{HostName, LogEvent};
use crate::minimise::minimise;
use crate::plan::FaultPlan;
use crate::report::{Cause, Failure, Report};
use crate::sim::Sim;

/// The default number of seeds.
const SEEDS: u64 = 100;

const SEED: &str = "PIKAKE_SEED";
const FAULTS: &str = "PIKAKE_FAULTS";

/// Runs a simulation for each of many seeds, until one fails.
///
/// The environment overrides the settings: `PIKAKE_SEED` is the first seed, and without
/// `PIKAKE_RUNS` the only one; `PIKAKE_RUNS` is the number of seeds. `PIKAKE_FAULTS` is a
/// [`FaultPlan`] that replaces all planned and drawn faults.
///
/// A failed run with faults is repeated with fewer faults, and the failure with the smallest plan
/// is reported. A fault is left out together with its repair.
///
/// # Examples
///
/// ```
/// use pikake::random;
/// use pikake::sim::{Runs, sometimes};
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
#[must_use = "`Runs` does nothing until `run` is called"]
pub struct Runs {
    test: String,
    seeds: u64,
    checks_determinism: bool,
    needs_coverage: bool,
    expected: Vec<&'static str>,
    minimises: bool,
}

/// The summary of many runs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// The number of runs.
    pub runs: u64,
    /// The report of the last run.
    pub last: Option<Report>,
    /// The coverage of all runs.
    pub coverage: Coverage,
}

impl Runs {
    /// Creates runs under this name. The replay of a failure names the test that ran, if it ran in
    /// one, and else this.
    pub fn new(test: impl Into<String>) -> Self {
        Self {
            test: test.into(),
            seeds: SEEDS,
            checks_determinism: false,
            needs_coverage: false,
            expected: Vec::new(),
            minimises: true,
        }
    }

    /// Sets the number of seeds, which start at zero; 100 by default.
    pub fn seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Runs each seed twice; a difference in any event is a failure.
    pub fn check_determinism(mut self) -> Self {
        self.checks_determinism = true;
        self
    }

    /// Requires that these conditions of `sometimes!` hold in some run; otherwise `run` fails.
    ///
    /// A `sometimes!` is known once it is reached. This list also finds conditions that are never
    /// reached.
    ///
    /// # Examples
    ///
    /// ```should_panic
    /// use pikake::random;
    /// use pikake::sim::{Runs, sometimes};
    ///
    /// Runs::new("dice").seeds(20).expect(["a seven is thrown"]).run(|sim| {
    ///     sim.client("player", || async {
    ///         if random::range(1..7) == 7 {
    ///             sometimes!(true, "a seven is thrown");
    ///         }
    ///     });
    /// });
    /// ```
    pub fn expect(mut self, seen: impl IntoIterator<Item = &'static str>) -> Self {
        self.expected.extend(seen);
        self
    }

    /// Requires that every `sometimes!` that is reached holds in some run; otherwise `run` fails.
    pub fn need_coverage(mut self) -> Self {
        self.needs_coverage = true;
        self
    }

    /// Reports failures with all planned faults, without minimising the plan.
    pub fn keep_all_faults(mut self) -> Self {
        self.minimises = false;
        self
    }

    /// Sets up a simulation for each seed by `set_up`, and runs it.
    ///
    /// # Panics
    ///
    /// If a run fails, with its report.
    #[track_caller]
    pub fn run(self, set_up: impl Fn(&mut Sim)) -> Summary {
        match self.try_run(set_up) {
            Ok(summary) if !self.saw_enough(&summary.coverage) => {
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

    /// As [`run`](Self::run), but returns the failure.
    ///
    /// # Errors
    ///
    /// The first run that failed.
    ///
    /// # Panics
    ///
    /// If a variable of the environment cannot be parsed.
    pub fn try_run(&self, set_up: impl Fn(&mut Sim)) -> Result<Summary, Box<Failure>> {
        let (first, runs) = match (number(SEED), number("PIKAKE_RUNS")) {
            (None, runs) => (0, runs.unwrap_or(self.seeds)),
            (Some(seed), runs) => (seed, runs.unwrap_or(1)),
        };
        let only = faults();
        Coverage::reset();
        let mut last = None;
        for seed in (first..).take(usize::try_from(runs).unwrap_or(usize::MAX)) {
            match self.once(seed, only.as_ref(), &set_up) {
                Ok(report) => last = Some(report),
                Err(failure) => return Err(self.minimised(failure, &set_up)),
            }
        }
        Ok(Summary { runs, last, coverage: Coverage::so_far().with_expected(&self.expected) })
    }

    /// Whether the required coverage was reached. Chosen seeds need none.
    fn saw_enough(&self, coverage: &Coverage) -> bool {
        let is_enough = match self.needs_coverage {
            true => coverage.never().next().is_none(),
            false => coverage.missed(&self.expected).next().is_none(),
        };
        is_enough || env::var_os(SEED).is_some()
    }

    /// The failure with a minimised plan.
    fn minimised(&self, failure: Box<Failure>, set_up: &impl Fn(&mut Sim)) -> Box<Failure> {
        let seed = failure.seed;
        let is_small = failure.plan_is_given || failure.plan.entries().is_empty();
        let is_comparison = matches!(failure.cause, Cause::Differs { .. });
        let mut failure = match self.minimises && !is_small && !is_comparison {
            true => {
                let faults = failure.plan.entries().len();
                let test = &self.test;
                eprintln!(
                    "{test}: seed {seed} fails; it is run again with fewer than {faults} faults"
                );
                minimise(failure, |plan| fresh(seed, Some(&plan), set_up).run())
            }
            false => failure,
        };
        failure.test = Some(running_test().unwrap_or_else(|| self.test.clone()));
        failure
    }

    fn once(
        &self,
        seed: u64,
        only: Option<&FaultPlan>,
        set_up: &impl Fn(&mut Sim),
    ) -> Result<Report, Box<Failure>> {
        let fresh = || fresh(seed, only, set_up);
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

/// The simulation of a seed, set up by the test.
fn fresh(seed: u64, only: Option<&FaultPlan>, set_up: &impl Fn(&mut Sim)) -> Sim {
    let mut sim = Sim::new(seed);
    set_up(&mut sim);
    if let Some(plan) = only {
        sim.only_faults(plan.clone());
    }
    sim
}

/// The first event that differs.
fn difference(first: &[LogEvent], second: &[LogEvent], names: &[HostName]) -> Option<Cause> {
    let length = first.len().max(second.len());
    let index = (0..length).find(|index| first.get(*index) != second.get(*index))?;
    let show = |events: &[LogEvent]| match events.get(index) {
        Some(event) => event.shown(names),
        None => "the run had ended".to_owned(),
    };
    Some(Cause::Differs { event: index as u64, first: show(first), second: show(second) })
}

fn differing(seed: u64, cause: Cause, failure: Option<Box<Failure>>) -> Box<Failure> {
    let empty = || Failure {
        cause: cause.clone(),
        seed,
        time: std::time::Duration::ZERO,
        steps: 0,
        plan: FaultPlan::new(),
        plan_is_given: false,
        left_out: 0,
        events: Vec::new(),
        tasks: String::new(),
        waits: String::new(),
        test: None,
    };
    let known = failure.map_or_else(empty, |failure| *failure);
    Box::new(Failure { cause: cause.clone(), ..known })
}

/// Runs a simulation for a number of seeds, in the current test.
///
/// # Examples
///
/// ```
/// pikake::sim::runs(10, |sim| {
///     sim.client("idler", || async {});
/// });
/// ```
///
/// # Panics
///
/// If a run fails, with its report.
#[track_caller]
pub fn runs(seeds: u64, set_up: impl Fn(&mut Sim)) -> Summary {
    Runs::new(running_test().unwrap_or_default()).seeds(seeds).run(set_up)
}

/// The test that this thread runs: the harness names the thread after the test.
fn running_test() -> Option<String> {
    std::thread::current().name().filter(|name| *name != "main").map(str::to_owned)
}

/// The faults of the environment, which replace planned ones.
fn faults() -> Option<FaultPlan> {
    let text = env::var(FAULTS).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{FAULTS} is no plan of faults: {error}")))
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("{variable} is no number: {text:?}")))
}

/// Runs a future as the main task of one host, in a fresh world for each seed. `#[pikake::sim]`
/// expands to a call of this function.
#[doc(hidden)]
#[track_caller]
pub fn simulate<F>(path: &str, name: &str, seeds: Option<u64>, kernels: usize, body: fn() -> F)
where
    F: Future<Output: Outcome> + 'static,
{
    // Names of tests lack the name of the crate.
    let test = path.split_once("::").map_or(name.to_owned(), |(_, path)| path.to_owned());
    let runs = Runs::new(test);
    let runs = match seeds {
        Some(seeds) => runs.seeds(seeds),
        None => runs,
    };
    runs.run(|sim| {
        sim.client(name, body).kernels(name, kernels);
    });
}

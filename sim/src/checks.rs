//! The checks and limits of a run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::clock::nanos;
use crate::fault::Fault;
use crate::host::{Outcome, text_of};
use crate::report::Cause;
use crate::world::World;

/// The default limit of steps.
const STEP_LIMIT: u64 = 10_000_000;

/// The default virtual time for which a task may go on after it caught an interruption.
pub(crate) const CLEANUP_LIMIT: Duration = Duration::from_secs(30);

/// The default limit of virtual time.
const TIME_LIMIT: Duration = Duration::from_secs(24 * 3_600);

/// A check. Its error describes the violation.
pub(crate) type Check = Box<dyn FnMut() -> Result<(), String>>;

/// A check by a closure, which fails by its result or by a panic.
pub(crate) fn check<O: Outcome>(mut holds: impl FnMut() -> O + 'static) -> Check {
    Box::new(move || match catch_unwind(AssertUnwindSafe(&mut holds)) {
        Ok(outcome) => outcome.outcome(),
        Err(payload) => Err(text_of(&*payload)),
    })
}

/// A condition that must hold some time after all faults are repaired.
pub(crate) struct Liveness {
    pub(crate) what: String,
    pub(crate) heal_at: Duration,
    pub(crate) within: Duration,
    pub(crate) condition: Box<dyn FnMut() -> bool>,
    pub(crate) has_healed: bool,
    pub(crate) has_held: bool,
}

pub(crate) struct Checks {
    pub(crate) invariants: Vec<(String, Check)>,
    pub(crate) liveness: Option<Liveness>,
    pub(crate) step_limit: u64,
    pub(crate) time_limit: Duration,
    /// The virtual time at which the run succeeds, whether its hosts have ended or not.
    pub(crate) stop_after: Option<Duration>,
    /// Whether only the panic of a main task is a failure.
    pub(crate) tolerates_panics: bool,
    /// The virtual time for which a task may go on after it caught an interruption. `None`: an
    /// interruption that is swallowed is no failure.
    pub(crate) cleanup_limit: Option<Duration>,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            invariants: Vec::new(),
            liveness: None,
            step_limit: STEP_LIMIT,
            time_limit: TIME_LIMIT,
            stop_after: None,
            tolerates_panics: false,
            cleanup_limit: Some(CLEANUP_LIMIT),
        }
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.invariants.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Checks").field("invariants", &names).finish_non_exhaustive()
    }
}

impl Checks {
    pub(crate) fn is_liveness_due(&self) -> bool {
        self.liveness.as_ref().is_some_and(|liveness| !liveness.has_held)
    }

    /// The next time at which a check is due, also without an event.
    pub(crate) fn next_moment(&self) -> Option<u64> {
        let liveness = self.liveness.as_ref().filter(|liveness| !liveness.has_held);
        let liveness = liveness.map(|liveness| match liveness.has_healed {
            false => nanos(liveness.heal_at),
            true => nanos(liveness.heal_at + liveness.within),
        });
        [liveness, self.stop_after.map(nanos)].into_iter().flatten().min()
    }
}

impl World {
    /// Makes the checks of each step.
    pub(crate) fn check(&mut self) -> Result<(), Cause> {
        if self.steps.get() > self.checks.step_limit {
            return Err(Cause::StepLimit(self.checks.step_limit));
        }
        for (name, check) in &mut self.checks.invariants {
            if let Err(text) = check() {
                return Err(Cause::Invariant { name: name.clone(), text });
            }
        }
        if self.checks.liveness.is_some() { self.check_liveness() } else { Ok(()) }
    }

    fn check_liveness(&mut self) -> Result<(), Cause> {
        let now = self.now;
        let Some(liveness) = &mut self.checks.liveness else { return Ok(()) };
        if liveness.has_held || now < nanos(liveness.heal_at) {
            return Ok(());
        }
        if !liveness.has_healed {
            liveness.has_healed = true;
            self.forget_faults();
            self.apply(&Fault::HealAll);
        }
        let Some(liveness) = &mut self.checks.liveness else { return Ok(()) };
        if (liveness.condition)() {
            liveness.has_held = true;
        } else if now >= nanos(liveness.heal_at + liveness.within) {
            let (what, within) = (liveness.what.clone(), liveness.within);
            return Err(Cause::Liveness { what, within });
        }
        Ok(())
    }
}

//! Finds the planned faults that a failure needs.
//!
//! A drawn plan has a dozen faults, most of which do not cause the failure. So the seed is run
//! again with fewer faults: without any, without half of them, without a quarter, and finally
//! without each (the order of Zeller's *ddmin*). Faults without which the run still fails, for the
//! same cause, are left out.
//!
//! A fault and its repair are left out together. Otherwise the smaller plan would be worse, as with
//! a partition that never heals.

use crate::fault::{Fault, TimedFault};
use crate::plan::FaultPlan;
use crate::report::{Failure, Report};

/// The largest number of reruns.
const MOST_RUNS: u32 = 200;

/// The number of steps in all reruns after which no other begins.
const MOST_STEPS: u64 = 5_000_000;

/// Returns the failure with the smallest plan found. `again` runs the same seed with another plan.
pub(crate) fn minimise(
    failure: Box<Failure>,
    mut again: impl FnMut(FaultPlan) -> Result<Report, Box<Failure>>,
) -> Box<Failure> {
    let planned = failure.plan.entries().len();
    let mut units = units(failure.plan.entries());
    let mut smallest = failure;
    let (mut runs, mut steps) = (0, 0);
    let mut size = units.len();
    while size > 0 {
        let (mut start, mut has_shrunk) = (0, false);
        while start < units.len() && runs < MOST_RUNS && steps < MOST_STEPS {
            let mut fewer = units.clone();
            fewer.drain(start..(start + size).min(units.len()));
            let outcome = again(plan_of(&fewer));
            runs += 1;
            steps += outcome.as_ref().map_or_else(|failed| failed.steps, |report| report.steps);
            match outcome {
                Err(failed) if failed.cause.is_like(&smallest.cause) => {
                    (smallest, units, has_shrunk) = (failed, fewer, true);
                }
                _ => start += size,
            }
        }
        // A fault that was needed with others may be unneeded without them.
        size = if size == 1 && has_shrunk { 1 } else { size / 2 };
    }
    smallest.left_out = planned - smallest.plan.entries().len();
    smallest
}

/// A fault with its repair.
type Unit = Vec<TimedFault>;

fn plan_of(units: &[Unit]) -> FaultPlan {
    let entries = units.iter().flatten().cloned();
    entries.fold(FaultPlan::new(), |plan, entry| plan.at(entry.at, entry.fault))
}

fn units(entries: &[TimedFault]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for entry in entries {
        let is_open = |unit: &&mut Unit| unit.len() == 1 && repairs(&entry.fault, &unit[0].fault);
        match units.iter_mut().find(is_open) {
            Some(unit) => unit.push(entry.clone()),
            None => units.push(vec![entry.clone()]),
        }
    }
    units
}

/// Whether one entry repairs the other. [`Fault::HealAll`] is a unit of its own.
fn repairs(repair: &Fault, fault: &Fault) -> bool {
    match (repair, fault) {
        (Fault::Heal(healed), Fault::Partition(cut)) => healed == cut,
        (Fault::Resume(host), Fault::Pause(other))
        | (Fault::Restart(host), Fault::PowerOff(other) | Fault::Kill(other))
        | (Fault::Admit(host), Fault::Refuse(other)) => host == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sim;

    const PLAN: &str = "1s pause a; 2s partition a | b; 3s kill b; 4s resume a; 5s heal a | b; \
        6s partition a | b; 7s restart b; 8s heal a | b; 9s refuse a";

    #[test]
    fn fault_and_repair_form_a_unit() {
        let plan: FaultPlan = PLAN.parse().unwrap();
        let shown: Vec<String> = units(plan.entries())
            .iter()
            .map(|unit| plan_of(std::slice::from_ref(unit)).to_string())
            .collect();
        assert_eq!(
            shown,
            [
                "1s pause a; 4s resume a",
                "2s partition a | b; 5s heal a | b",
                "3s kill b; 7s restart b",
                "6s partition a | b; 8s heal a | b",
                "9s refuse a",
            ]
        );
    }

    /// A run that fails if its plan contains all of these words.
    fn needs(
        words: &'static [&str],
        runs: &mut u32,
        plan: FaultPlan,
    ) -> Result<Report, Box<Failure>> {
        *runs += 1;
        let text = plan.to_string();
        let fails = words.iter().all(|word| text.contains(word));
        let mut sim = Sim::new(1);
        sim.host("b", || async {}).host("a", move || async move {
            if fails { Err(format!("needs {words:?}")) } else { Ok(()) }
        });
        sim.stop_after(std::time::Duration::from_secs(1)).only_faults(plan).run()
    }

    #[track_caller]
    fn smallest_is(words: &'static [&str], expected: &str) {
        let mut runs = 0;
        let failure = needs(words, &mut runs, PLAN.parse().unwrap()).unwrap_err();
        let failure = minimise(failure, |plan| needs(words, &mut runs, plan));
        assert_eq!(failure.plan.to_string(), expected);
        assert_eq!(failure.left_out, 9 - failure.plan.entries().len());
        assert!(runs < 20, "{runs} runs");
    }

    #[test]
    fn remaining_faults_are_needed() {
        smallest_is(&[], "");
        smallest_is(&["kill"], "3s kill b; 7s restart b");
        smallest_is(&["pause", "refuse"], "1s pause a; 4s resume a; 9s refuse a");
        smallest_is(&["pause", "2s", "kill", "6s", "refuse"], PLAN);
    }

    #[test]
    fn another_failure_is_not_accepted() {
        let mut runs = 0;
        let failure = needs(&["kill"], &mut runs, PLAN.parse().unwrap()).unwrap_err();
        let kept = minimise(failure, |plan| needs(&[], &mut runs, plan));
        assert_eq!((kept.plan.to_string(), kept.left_out), (PLAN.to_owned(), 0));
    }

    #[test]
    fn minimising_stops_at_the_run_limit() {
        let plan = (0..1_000).fold(FaultPlan::new(), |plan, second| {
            plan.at(std::time::Duration::from_secs(second), Fault::SetClock("a".into(), 1))
        });
        let mut runs = 0;
        let failure = needs(&[], &mut runs, plan).unwrap_err();
        let mut tries = 0;
        minimise(failure, |_| {
            tries += 1;
            needs(&["nothing"], &mut runs, FaultPlan::new())
        });
        assert_eq!(tries, MOST_RUNS);
    }
}

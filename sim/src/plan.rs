//! Plans of faults, written or drawn from the seed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::nanos;
use crate::fault::{Between, Fault, TimedFault};
use crate::latency::ParseError;
use crate::rng::Rng;

/// The faults of a run, with their times.
///
/// # Examples
///
/// ```
/// use pikake::sim::{Between, Fault, FaultPlan};
/// use std::time::Duration;
///
/// let plan = FaultPlan::new()
///     .at(Duration::from_secs(2), Fault::Partition(Between::two_way(["a"], ["b", "c"])))
///     .at(Duration::from_secs(5), Fault::HealAll);
/// assert_eq!(plan.to_string(), "2s partition a | b,c; 5s heal-all");
/// assert_eq!(plan.to_string().parse(), Ok(plan));
/// ```
#[derive(Clone, PartialEq, Default, Debug)]
pub struct FaultPlan {
    entries: Vec<TimedFault>,
}

impl FaultPlan {
    /// Creates a plan without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault at a virtual time.
    #[must_use = "`at` returns the plan with the fault"]
    pub fn at(mut self, at: Duration, fault: Fault) -> Self {
        self.push(TimedFault { at, fault });
        self
    }

    fn push(&mut self, entry: TimedFault) {
        let index = self.entries.partition_point(|other| other.at <= entry.at);
        self.entries.insert(index, entry);
    }

    /// Adds all faults of another plan.
    pub fn extend(&mut self, other: &Self) {
        other.entries.iter().for_each(|entry| self.push(entry.clone()));
    }

    /// The faults, earliest first.
    pub fn entries(&self) -> &[TimedFault] {
        &self.entries
    }

    /// The plan without one of its entries.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    #[must_use = "`without` returns the smaller plan"]
    pub fn without(&self, index: usize) -> Self {
        let mut smaller = self.clone();
        smaller.entries.remove(index);
        smaller
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, entry) in self.entries.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{entry}")?;
        }
        Ok(())
    }
}

impl FromStr for FaultPlan {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut plan = Self::new();
        let lines = text.split([';', '\n']).map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            plan.push(line.parse()?);
        }
        Ok(plan)
    }
}

/// The numbers of faults in a plan that is drawn from the seed.
///
/// Each kind of fault draws from its own stream, so more faults of one kind do not move the others.
/// All faults are repaired within the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FaultMix {
    /// The time within which all faults happen.
    pub within: Duration,
    /// The number of partitions in both directions.
    pub partitions: u32,
    /// The number of partitions in one direction.
    pub one_way: u32,
    /// The number of kills and power losses, each followed by a restart.
    pub crashes: u32,
    /// The number of pauses of a host.
    pub pauses: u32,
    /// The number of resets of all connections between two groups of hosts.
    pub resets: u32,
    /// The number of jumps of a wall clock, forward or back.
    pub clock_jumps: u32,
    /// The number of long steps.
    pub long_steps: u32,
}

impl FaultMix {
    /// A few faults of every kind.
    pub fn new(within: Duration) -> Self {
        Self {
            within,
            partitions: 2,
            one_way: 1,
            crashes: 1,
            pauses: 1,
            resets: 2,
            clock_jumps: 1,
            long_steps: 2,
        }
    }

    /// Only faults of the network; the hosts keep running.
    pub fn network(within: Duration) -> Self {
        Self { crashes: 0, pauses: 0, clock_jumps: 0, long_steps: 0, ..Self::new(within) }
    }

    /// Draws a plan.
    pub fn draw(&self, seed: u64, hosts: &[String]) -> FaultPlan {
        let mut plan = FaultPlan::new();
        if hosts.is_empty() {
            return plan;
        }
        let mut add = |purpose: &str, count: u32, needs: usize, draw: Draw<'_>| {
            let mut rng = Rng::split(seed, "faults", purpose);
            let count = if hosts.len() < needs { 0 } else { count };
            for _ in 0..count {
                let within = nanos(self.within).max(2);
                let from = rng.range(0..within - 1);
                let until = rng.range(from + 1..within);
                draw(&mut rng, &mut plan, Duration::from_nanos(from), Duration::from_nanos(until));
            }
        };
        let pick = |rng: &mut Rng| hosts[rng.index(hosts.len())].clone();
        add("partition", self.partitions, 2, &mut |rng, plan, from, until| {
            let between = halves(rng, hosts, false);
            plan.push(TimedFault { at: from, fault: Fault::Partition(between.clone()) });
            plan.push(TimedFault { at: until, fault: Fault::Heal(between) });
        });
        add("one-way", self.one_way, 2, &mut |rng, plan, from, until| {
            let between = halves(rng, hosts, true);
            plan.push(TimedFault { at: from, fault: Fault::Partition(between.clone()) });
            plan.push(TimedFault { at: until, fault: Fault::Heal(between) });
        });
        add("crash", self.crashes, 1, &mut |rng, plan, from, until| {
            let host = pick(rng);
            let fault = match rng.chance(0.5) {
                true => Fault::Kill(host.clone()),
                false => Fault::PowerOff(host.clone()),
            };
            plan.push(TimedFault { at: from, fault });
            plan.push(TimedFault { at: until, fault: Fault::Restart(host) });
        });
        add("pause", self.pauses, 1, &mut |rng, plan, from, until| {
            let host = pick(rng);
            plan.push(TimedFault { at: from, fault: Fault::Pause(host.clone()) });
            plan.push(TimedFault { at: until, fault: Fault::Resume(host) });
        });
        add("reset", self.resets, 2, &mut |rng, plan, from, _| {
            let between = halves(rng, hosts, false);
            plan.push(TimedFault { at: from, fault: Fault::Reset(between) });
        });
        add("clock", self.clock_jumps, 1, &mut |rng, plan, from, until| {
            let by = i64::try_from(nanos(until - from)).unwrap_or(i64::MAX);
            let by = if rng.chance(0.5) { by } else { -by };
            plan.push(TimedFault { at: from, fault: Fault::SetClock(pick(rng), by) });
        });
        add("long-step", self.long_steps, 1, &mut |rng, plan, from, until| {
            let length = (until - from).min(LONGEST_STEP);
            plan.push(TimedFault { at: from, fault: Fault::LongStep(pick(rng), length) });
        });
        plan
    }
}

/// The longest step of a drawn plan: as long as a machine that swaps may take.
const LONGEST_STEP: Duration = Duration::from_secs(2);

type Draw<'a> = &'a mut dyn FnMut(&mut Rng, &mut FaultPlan, Duration, Duration);

/// Splits the hosts into two groups, neither empty.
fn halves(rng: &mut Rng, hosts: &[String], one_way: bool) -> Between {
    let mut names = hosts.to_vec();
    for last in (1..names.len()).rev() {
        names.swap(last, rng.index(last + 1));
    }
    let other = names.split_off(1 + rng.index(names.len() - 1));
    Between { one: names, other, one_way }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: &str = "0ns partition a,b | c; 1ms partition a > b; 2ms isolate a; \
        3ms heal a | b; 4ms heal-all; 5ms link a > b : latency 1ms..2ms; \
        6ms link a | b : latency 1ms+500µs; 7ms link a | b : loss 0.25; \
        8ms link a | b : duplicate 0.5; 9ms link a | b : reorder 0.125; \
        10ms link a | b : bandwidth 1000; 11ms link a | b : bandwidth unlimited; \
        12ms link a | b : reset 0.5; 13ms link a | b : refuse 0.5; 14ms refuse a; 15ms admit a; \
        16ms reset a | b; 17ms slow-accept a 3ms; 18ms set-clock a -5000; 19ms drift a 200; \
        20ms pause a; 21ms resume a; 22ms power-off a; 23ms kill a; 24ms restart a; \
        25ms long-step a 1.5s; 26ms helpers a 0; 27ms cancel a 3 7";

    #[test]
    fn plan_parses_from_its_text() {
        let plan: FaultPlan = EVERYTHING.parse().unwrap();
        assert_eq!(plan.to_string(), EVERYTHING);
        assert_eq!(plan.entries().len(), 28);
        assert_eq!(plan.without(0).entries().len(), 27);
        for wrong in
            ["partition a | b", "1ms partition a", "1ms pause", "1ms forget a", "1 pause a"]
        {
            assert!(wrong.parse::<FaultPlan>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn more_faults_of_one_kind_keep_the_others() {
        let hosts = ["a", "b", "c"].map(String::from);
        let mix = FaultMix::new(Duration::from_secs(60));
        let (one, other) = (mix.draw(9, &hosts), FaultMix { pauses: 4, ..mix }.draw(9, &hosts));
        assert_eq!(one, mix.draw(9, &hosts));
        let others = |plan: &FaultPlan| -> Vec<TimedFault> {
            let is_other =
                |entry: &&TimedFault| !matches!(entry.fault, Fault::Pause(_) | Fault::Resume(_));
            plan.entries().iter().filter(is_other).cloned().collect()
        };
        assert_eq!(others(&one), others(&other));
        assert!(other.entries().len() > one.entries().len());
    }

    #[test]
    fn network_faults_need_two_hosts() {
        let plan = FaultMix::network(Duration::from_secs(1)).draw(1, &["a".to_owned()]);
        assert_eq!(plan, FaultPlan::new());
    }
}

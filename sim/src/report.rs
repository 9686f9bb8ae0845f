//! The reports of runs.

use std::fmt::{self, Write as _};
use std::time::Duration;

use pikake_traps::{Swallowed, TaskRef};

use crate::clock::shown;
use crate::host::Host;
use crate::log::HostName;
use crate::plan::FaultPlan;
use crate::recorder::label;
use crate::waits::waits_of;
use crate::world::World;

/// The report of a run that succeeded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The virtual time of the end.
    pub time: Duration,
    /// The number of steps of all tasks.
    pub steps: u64,
    /// The number of events.
    pub events: u64,
    /// The hash of all events, which is the same in all runs of a seed.
    pub hash: u64,
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A task panicked.
    Panicked {
        /// The host; on one with several kernels with the number of the kernel, as `server#1`.
        host: String,
        /// The task.
        task: String,
        /// The panic's message, if it is known.
        text: String,
    },
    /// A program returned an error.
    Failed {
        /// The host.
        host: String,
        /// The error.
        text: String,
    },
    /// A task caught an interruption, and went on.
    Swallowed {
        /// The host; on one with several kernels with the number of the kernel, as `server#1`.
        host: String,
        /// The task, with both places.
        swallowed: Box<Swallowed>,
    },
    /// All tasks wait, and no event is due.
    Deadlock,
    /// The tasks made more than this number of steps.
    StepLimit(u64),
    /// The run did not end within this virtual time.
    TimeLimit(Duration),
    /// An invariant does not hold.
    Invariant {
        /// The invariant's name.
        name: String,
        /// The violation.
        text: String,
    },
    /// A condition did not hold in time after all faults were repaired.
    Liveness {
        /// The condition.
        what: String,
        /// The time since the repair.
        within: Duration,
    },
    /// A second run of the same seed differs.
    Differs {
        /// The number of the first event that differs.
        event: u64,
        /// That event in the first run.
        first: String,
        /// That event in the second run.
        second: String,
    },
}

impl Cause {
    /// Whether both are the same failure, perhaps with other times and numbers.
    pub fn is_like(&self, other: &Self) -> bool {
        let alike = |one: &str, other: &str| {
            let letters = |text: &str| text.replace(|char: char| char.is_ascii_digit(), "");
            letters(one) == letters(other)
        };
        // Without the number of the kernel.
        let name = |host: &str| host.split('#').next().map(str::to_owned);
        match (self, other) {
            (
                Self::Panicked { host, task, text },
                Self::Panicked { host: other_host, task: other_task, text: other_text },
            ) => {
                name(host) == name(other_host) && alike(task, other_task) && alike(text, other_text)
            }
            (Self::Failed { host, text }, Self::Failed { host: other_host, text: other_text }) => {
                host == other_host && alike(text, other_text)
            }
            (
                Self::Swallowed { host, swallowed },
                Self::Swallowed { host: other_host, swallowed: other },
            ) => {
                let places = |of: &Swallowed| (of.caught_at, of.awaited_at, of.how);
                name(host) == name(other_host) && places(swallowed) == places(other)
            }
            (Self::Invariant { name, .. }, Self::Invariant { name: other, .. }) => name == other,
            (Self::Liveness { what, .. }, Self::Liveness { what: other, .. }) => what == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked { host, task, text } => {
                write!(f, "on host `{host}`, {task} panicked: {text}")
            }
            Self::Failed { host, text } => write!(f, "the program of host `{host}` failed: {text}"),
            Self::Swallowed { host, swallowed } => write!(f, "on host `{host}`, {swallowed}"),
            Self::Deadlock => f.write_str(
                "deadlock: every task waits, and no timer, packet or fault is due that could wake one",
            ),
            Self::StepLimit(limit) => {
                write!(f, "the tasks made more than {limit} steps: does one of them spin?")
            }
            Self::TimeLimit(limit) => write!(f, "it did not end within {limit:?} of virtual time"),
            Self::Invariant { name, text } => write!(f, "invariant `{name}` does not hold: {text}"),
            Self::Liveness { what, within } => {
                write!(f, "not live: `{what}` did not hold {within:?} after all was well again")
            }
            Self::Differs { event, first, second } => write!(
                f,
                "not deterministic: event {event} differs between two runs of one seed\n  first:  \
                 {first}\n  second: {second}\nSomething reads real time, real randomness or the \
                 order of a `HashMap`."
            ),
        }
    }
}

/// The report of a run that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The cause.
    pub cause: Cause,
    /// The seed.
    pub seed: u64,
    /// The virtual time of the failure.
    pub time: Duration,
    /// The number of steps of all tasks.
    pub steps: u64,
    /// The planned faults.
    pub plan: FaultPlan,
    /// Whether the plan overrides the one that the test makes for this seed.
    pub plan_is_given: bool,
    /// The number of planned faults that were left out, since the failure does not need them.
    pub left_out: usize,
    /// The last events.
    pub events: Vec<String>,
    /// The tasks of each host, with their waits.
    pub tasks: String,
    /// Which tasks wait for which, and the deadlocks among them, if the run came to a stop or was
    /// too long.
    pub waits: String,
    /// The name of the test, if it is known.
    pub test: Option<String>,
}

impl Failure {
    /// The command that replays the failure with the same faults.
    pub fn replay(&self) -> String {
        let test = self.test.as_deref().map(|test| format!(" {test}")).unwrap_or_default();
        format!("PIKAKE_SEED={}{} cargo test{test}", self.seed, self.faults_of_replay())
    }

    /// The variable with the faults. Empty if the seed determines them, or if the name of a host
    /// prevents parsing.
    fn faults_of_replay(&self) -> String {
        let text = self.plan.to_string();
        if !self.plan_is_given || text.parse().as_ref() != Ok(&self.plan) {
            return String::new();
        }
        format!(" PIKAKE_FAULTS='{}'", text.replace('\'', r"'\''"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, seed, time, steps, plan, left_out, events, tasks, waits, .. } = self;
        writeln!(f, "simulation failed: {cause}")?;
        writeln!(f, "seed {seed}, at {time:?} of virtual time, after {steps} steps")?;
        writeln!(f, "replay:  {}", self.replay())?;
        match (plan.entries().len(), *left_out) {
            (0, 0) => writeln!(f, "faults:  none planned")?,
            (0, all) => writeln!(f, "faults:  none; it fails without the {all} planned as well")?,
            (_, 0) => writeln!(f, "faults:  {plan}")?,
            (some, others) => {
                writeln!(
                    f,
                    "faults:  {plan}\n         ({some} of {}; it fails without the others as well)",
                    some + others
                )?;
            }
        }
        writeln!(f, "last events:")?;
        events.iter().try_for_each(|event| writeln!(f, "  {event}"))?;
        write!(f, "tasks:\n{tasks}")?;
        match waits.is_empty() {
            true => Ok(()),
            false => write!(f, "waits:\n{waits}"),
        }
    }
}

impl std::error::Error for Failure {}

impl World {
    pub(crate) fn failure(&self, cause: Cause) -> Failure {
        let names = self.names();
        let mut failure = Failure {
            cause,
            seed: self.seed,
            time: shown(self.now),
            steps: self.steps.get(),
            plan: self.plan.clone(),
            plan_is_given: self.plan_is_given,
            left_out: 0,
            events: self.log.last(&names),
            tasks: self.hosts.iter().map(tree).collect(),
            waits: String::new(),
            test: None,
        };
        // The rest of the report shows the world as it was before its tasks are polled again.
        if matches!(failure.cause, Cause::Deadlock | Cause::TimeLimit(_)) {
            failure.waits = waits_of(self, failure.cause == Cause::Deadlock);
        }
        failure
    }

    pub(crate) fn names(&self) -> Vec<HostName> {
        self.hosts.iter().map(|host| host.name.clone()).collect()
    }

    pub(crate) fn report(&self) -> Report {
        let (hash, events) = self.log.state();
        Report { seed: self.seed, time: shown(self.now), steps: self.steps.get(), events, hash }
    }
}

/// The tasks of a host as a tree, with their waits.
fn tree(host: &Host) -> String {
    let mut text = String::new();
    let state = match host.is_running() {
        true if host.is_paused => "stands still",
        true => "runs",
        false if host.has_exited => "has exited",
        false => "is down",
    };
    // Writing to a string does not fail.
    let _ = writeln!(text, "  host `{}` {state}", host.name.host);
    for one in &host.kernels {
        let Some(kernel) = &one.kernel else { continue };
        let mut depth = 2;
        if host.kernels.len() > 1 {
            let _ = writeln!(text, "    kernel `{}`", host.name.of_kernel(one.outside.key.kernel));
            depth = 3;
        }
        let (tasks, waits) = (kernel.tasks(), kernel.waits());
        let is_root = |task: &&TaskRef| {
            let parent = task.parent();
            !tasks.iter().any(|other| Some(other.id()) == parent)
        };
        for root in tasks.iter().filter(is_root) {
            branch(&mut text, root, &tasks, &waits, depth);
        }
    }
    text
}

fn branch(
    text: &mut String,
    task: &TaskRef,
    tasks: &[TaskRef],
    waits: &[pikake_kernel::Waiting],
    depth: usize,
) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(text, "{indent}{}", label(task));
    for wait in waits.iter().filter(|wait| wait.task.is(task)) {
        let _ = writeln!(text, "{indent}  waits: {} at {}", wait.trap, wait.place);
    }
    for child in tasks.iter().filter(|child| child.parent() == Some(task.id())) {
        branch(text, child, tasks, waits, depth + 1);
    }
}

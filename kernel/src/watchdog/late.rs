//! A kernel that is late while another one of its peers is idle, for the log.
//!
//! The kernels of a process give work to each other, but a future that has begun stays where it is.
//! So one kernel can be late while another one has nothing to do: a handler computes for long, or
//! too many connections are on one kernel. No kernel sees that by itself.
//!
//! A kernel with peers shows from which moment on it is late with its *batch*: the tasks that were
//! ready at a poll of its driver ([`Home::late_from`](pikake_traps::Home::late_from)). It begins
//! another batch, with another moment, when all tasks of the last one have been stepped. So a
//! kernel in which two looks find the same moment has left tasks waiting for the time between
//! these looks, at least.

use std::panic::Location;
use std::time::Duration;

use pikake_time::Ticks;
use pikake_traps::KernelId;

use crate::threads::Instant;

/// A kernel that is late by this is reported, if a peer of it is idle: people notice an answer that
/// is late by a tenth of a second, and most answers need more than one step of a task.
pub(super) const REPORTED_LATENESS: Duration = Duration::from_millis(50);

/// The shortest time between two reports. A load that is uneven for an hour needs no more lines to
/// be found.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// A step that was found in a batch.
#[derive(Clone, Debug)]
pub(super) struct FoundStep {
    pub(super) task: u64,
    /// Empty if the task has none.
    pub(super) name: Box<str>,
    pub(super) spawned_at: &'static Location<'static>,
    /// From the first look at the step on.
    pub(super) took: Duration,
}

/// A batch that at least one look has found.
pub(super) struct Batch {
    pub(super) late_from: Ticks,
    /// The time of the first look that found the batch.
    since: Instant,
    /// The longest step of the batch among those that looks have found.
    longest: Option<FoundStep>,
}

impl Batch {
    pub(super) fn new(late_from: Ticks, since: Instant) -> Self {
        Self { late_from, since, longest: None }
    }

    pub(super) fn add(&mut self, step: FoundStep) {
        if self.longest.as_ref().is_none_or(|longest| longest.took <= step.took) {
            self.longest = Some(step);
        }
    }

    /// The time that tasks of the batch have waited at least, if that is worth a report.
    pub(super) fn lateness(&self, now: Instant) -> Option<Duration> {
        let late = now.saturating_duration_since(self.since);
        (late >= REPORTED_LATENESS).then_some(late)
    }

    pub(super) fn longest(&self) -> Option<&FoundStep> {
        self.longest.as_ref()
    }
}

/// Whether a report is due, by the time of the last one.
pub(super) fn is_report_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= REPORT_EVERY)
}

/// A report on a late kernel.
#[derive(Debug)]
pub(super) struct LateReport {
    pub(super) kernel: KernelId,
    pub(super) late: Duration,
    /// The peer that has nothing to do.
    pub(super) idle: KernelId,
    /// `None` if no look has found the kernel in a step.
    pub(super) longest: Option<FoundStep>,
}

impl LateReport {
    pub(super) fn emit(&self) {
        let Self { kernel, late, idle, longest } = self;
        let longest = longest.as_ref();
        tracing::warn!(
            %kernel,
            ?late,
            idle_kernel = %idle,
            task = longest.map(|step| step.task),
            name = longest.map(|step| &*step.name),
            spawned_at = longest.map(|step| tracing::field::display(step.spawned_at)),
            step_took = longest.map(|step| tracing::field::debug(step.took)),
            "a kernel is late while another one is idle: the longest step was this task's"
        );
    }
}

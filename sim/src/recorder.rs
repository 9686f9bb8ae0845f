//! The observer of a simulated kernel: it logs events, lets steps take time, notes panics, and
//! cancels tasks by the fault plan.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pikake_kernel::Observer;
use pikake_traps::{Exit, Interrupted, TaskId, TaskRef, TrapKind};

use crate::clock::SimClock;
use crate::hang::Pulse;
use crate::log::{EventKind, KernelKey, Log};

/// The state that the world shares with the observer of a kernel.
#[derive(Default, Debug)]
pub(crate) struct Watch {
    /// The virtual time of a step.
    pub(crate) step_cost: Cell<Duration>,
    pub(crate) pulse: Arc<Pulse>,
    /// The largest number of steps of a turn.
    pub(crate) steps_per_turn: u32,
    /// See [`Sim::cleanup_limit`](crate::Sim::cleanup_limit).
    pub(crate) cleanup_limit: Option<Duration>,
    /// Additional virtual time of the next step of the host, which its kernels share.
    pub(crate) long_step: Rc<Cell<Duration>>,
    /// The number of steps of all hosts.
    pub(crate) steps: Rc<Cell<u64>>,
    /// The number of steps that go on, one inside the other.
    depth: Cell<u32>,
    /// The last task that panicked.
    pub(crate) panicked: RefCell<Option<String>>,
    /// The cancels of the plan: the number of a task, and of its trap that waits.
    pub(crate) cancels: RefCell<Vec<(u64, u64)>>,
    /// The number of traps of each task that waited, if the plan has cancels.
    traps: RefCell<BTreeMap<TaskId, u64>>,
}

impl Watch {
    /// The state of a kernel of this host.
    pub(crate) fn new(
        steps: Rc<Cell<u64>>,
        pulse: Arc<Pulse>,
        (step_cost, long_step): (Duration, Rc<Cell<Duration>>),
        steps_per_turn: u32,
        cleanup_limit: Option<Duration>,
    ) -> Self {
        let step_cost = Cell::new(step_cost);
        Self {
            steps,
            pulse,
            step_cost,
            long_step,
            steps_per_turn,
            cleanup_limit,
            ..Self::default()
        }
    }

    /// The host restarts.
    pub(crate) fn restart(&self) {
        self.traps.borrow_mut().clear();
        self.depth.set(0);
    }
}

pub(crate) struct Recorder {
    pub(crate) watch: Rc<Watch>,
    pub(crate) log: Log,
    pub(crate) clock: SimClock,
    pub(crate) key: KernelKey,
}

impl Recorder {
    fn note(&self, kind: EventKind) {
        self.log.note(self.clock.get(), self.key, kind);
    }

    /// Counts a trap that waits. Returns whether the plan cancels the task in it.
    fn counts_to_cancel(&self, task: TaskId) -> bool {
        let cancels = self.watch.cancels.borrow();
        if cancels.is_empty() {
            return false;
        }
        let mut traps = self.watch.traps.borrow_mut();
        let count = traps.entry(task).or_default();
        *count += 1;
        cancels.contains(&(task.0, *count))
    }
}

/// The name of a task in messages.
pub(crate) fn label(task: &TaskRef) -> String {
    match task.name() {
        "" => format!("task {} of {}", task.id().0, task.spawned_at()),
        name => format!("task {} `{name}`", task.id().0),
    }
}

impl Observer for Recorder {
    fn created(&self, task: &TaskRef) {
        let name = task.name();
        let name = (!name.is_empty()).then(|| name.into());
        self.note(EventKind::Created(task.id(), name));
    }

    fn stepping(&self, task: &TaskRef) {
        let Watch { step_cost, long_step, steps, depth, .. } = &*self.watch;
        if depth.replace(depth.get() + 1) == 0 {
            self.watch.pulse.step(task.id().0);
        }
        steps.set(steps.get() + 1);
        self.clock.advance(step_cost.get() + long_step.take());
        self.note(EventKind::Stepping(task.id()));
    }

    fn stepped(&self, _: &TaskRef, _: Duration) {
        self.watch.depth.set(self.watch.depth.get() - 1);
    }

    fn trapped(&self, task: &TaskRef, kind: TrapKind, place: &'static Location<'static>) {
        self.note(EventKind::Trapped(task.id(), kind, place));
        if self.counts_to_cancel(task.id()) {
            task.request_cancel(Interrupted::cancelled("by the fault plan"));
        }
    }

    fn answered(&self, task: &TaskRef, kind: TrapKind, interrupted: bool) {
        self.note(EventKind::Answered(task.id(), kind, interrupted));
    }

    fn exited(&self, task: &TaskRef, exit: Exit) {
        self.note(EventKind::Exited(task.id(), exit));
        if exit == Exit::Panicked {
            *self.watch.panicked.borrow_mut() = Some(label(task));
        }
    }
}

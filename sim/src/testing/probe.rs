//! The observer and the clock of [`testing`](crate::testing). The observer finds the suspensions of
//! the task under test and injects one interruption. The clock gives each suspension an instant of
//! its own, and detects a program that does not end.

use std::cell::{Cell, OnceCell, RefCell};
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_kernel::Observer;
use pikake_time::{Clock, Deadline, ManualClock, Rate, Ticks};
use pikake_traps::{KernelHandle, TaskId, TaskRef, TrapKind, current};

use crate::testing::{Interruption, Kind};

/// The idle real time without a timer after which a program without outside waits counts as hung.
/// Not zero, since a program that uses sockets by mistake may continue.
const HANG_INSIDE: Duration = Duration::from_millis(20);

/// The same for a program with outside waits.
const HANG_OUTSIDE: Duration = Duration::from_secs(10);

/// The number of steps after which a program counts as hung: far more than a program has that is
/// run once per suspension.
const STEPS_LIMIT: u64 = 200_000;

/// The reason of the cancels.
const REASON: &str = "injected";

/// The interruption of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Nothing,
    /// A cancel in the suspension of this number, counted from one.
    CancelWhileWaiting(usize),
    /// A cancel before the step of this number, counted from one.
    CancelGoingOn(usize),
    /// A timeout at this instant.
    Expire(Ticks),
}

/// A suspension of the task under test.
struct Seen {
    trap: TrapKind,
    place: &'static Location<'static>,
    /// The instant at which the wait began.
    at: Ticks,
}

/// The observations of the task under test, and its planned interruption.
pub(crate) struct Probe {
    plan: Plan,
    clock: TestClock,
    task: Cell<Option<TaskId>>,
    seen: RefCell<Vec<Seen>>,
    steps: Cell<usize>,
    /// The instants at which the task began to wait or went on, without duplicates.
    instants: RefCell<Vec<Ticks>>,
    /// The number of the suspension that was interrupted.
    injected: Cell<Option<usize>>,
}

impl Probe {
    pub(crate) fn new(plan: Plan, clock: TestClock) -> Self {
        Self {
            plan,
            clock,
            task: Cell::default(),
            seen: RefCell::default(),
            steps: Cell::default(),
            instants: RefCell::default(),
            injected: Cell::default(),
        }
    }

    /// The number of suspensions of the task under test.
    pub(crate) fn suspensions(&self) -> usize {
        self.seen.borrow().len()
    }

    /// The number of its steps.
    pub(crate) fn steps(&self) -> usize {
        self.steps.get()
    }

    /// The instants at which the task began to wait or went on.
    pub(crate) fn instants(&self) -> Vec<Ticks> {
        self.instants.take()
    }

    /// Whether the task was interrupted.
    pub(crate) fn has_injected(&self) -> bool {
        self.injected.get().is_some()
    }

    fn is_under_test(&self, task: &TaskRef) -> bool {
        self.task.get() == Some(task.id())
    }

    fn note_instant(&self) {
        let mut instants = self.instants.borrow_mut();
        let now = self.clock.now();
        if instants.last() != Some(&now) {
            instants.push(now);
        }
    }

    /// Notes that the interruption took place: now, or at the planned instant of a timeout.
    pub(crate) fn inject(&self) {
        let seen = self.seen.borrow();
        let suspension = match self.plan {
            Plan::Expire(instant) => seen.iter().take_while(|seen| seen.at <= instant).count(),
            _ => seen.len(),
        };
        self.injected.set(Some(suspension.max(1)));
    }

    fn cancel(&self) {
        self.inject();
        current().request_cancel(REASON);
    }

    pub(crate) fn interruption(&self, suspensions: Option<usize>) -> Option<Interruption> {
        let suspension = self.injected.get()?;
        let kind = match self.plan {
            Plan::Nothing => return None,
            Plan::CancelWhileWaiting(_) => Kind::CancelWhileWaiting,
            Plan::CancelGoingOn(_) => Kind::CancelGoingOn,
            Plan::Expire(_) => Kind::Timeout,
        };
        let seen = self.seen.borrow();
        let Seen { trap, place, .. } = *seen.get(suspension - 1)?;
        let suspensions = suspensions.unwrap_or(seen.len());
        Some(Interruption { kind, suspension, suspensions, trap, place })
    }
}

/// The observer's end of a [`Probe`].
pub(crate) struct Watching(pub(crate) Rc<Probe>);

impl Observer for Watching {
    fn created(&self, task: &TaskRef) {
        let Self(probe) = self;
        // The first task of a kernel is the main task.
        probe.task.set(probe.task.get().or(Some(task.id())));
    }

    fn stepping(&self, task: &TaskRef) {
        let Self(probe) = self;
        probe.clock.note_step();
        if probe.is_under_test(task) {
            probe.steps.set(probe.steps.get() + 1);
            if probe.steps.get() > 1 {
                probe.note_instant();
            }
            if matches!(probe.plan, Plan::CancelGoingOn(step) if step == probe.steps.get()) {
                probe.cancel();
            }
        }
    }

    fn trapped(&self, task: &TaskRef, trap: TrapKind, place: &'static Location<'static>) {
        let Self(probe) = self;
        if probe.is_under_test(task) {
            probe.clock.tick();
            probe.note_instant();
            let count = {
                let mut seen = probe.seen.borrow_mut();
                seen.push(Seen { trap, place, at: probe.clock.now() });
                seen.len()
            };
            if matches!(probe.plan, Plan::CancelWhileWaiting(number) if number == count) {
                probe.cancel();
            }
        }
    }
}

/// Virtual time that detects a program that does not end.
#[derive(Clone)]
pub(crate) struct TestClock {
    time: ManualClock,
    /// The real time to wait for outside events before time jumps.
    patience: Duration,
    /// The start of the current idle time.
    quiet: Rc<Cell<Option<Instant>>>,
    steps: Rc<Cell<u64>>,
    stop: Rc<OnceCell<KernelHandle>>,
}

impl TestClock {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            time: ManualClock::new(),
            patience,
            quiet: Rc::default(),
            steps: Rc::default(),
            stop: Rc::default(),
        }
    }

    /// Sets the kernel to stop when its program does not end.
    pub(crate) fn set_kernel(&self, kernel: KernelHandle) {
        self.stop.set(kernel).expect("a clock belongs to one kernel");
    }

    fn tick(&self) {
        self.time.set(self.time.now().saturating_add(1));
    }

    fn note_step(&self) {
        self.quiet.set(None);
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() % STEPS_LIMIT == 0 {
            self.give_up();
        }
    }

    fn give_up(&self) {
        if let Some(kernel) = self.stop.get() {
            // `stop` fails if the kernel has ended already.
            let _ = kernel.stop();
        }
    }

    fn has_outside(&self) -> bool {
        !self.patience.is_zero()
    }

    /// Why the program counts as hung.
    pub(crate) fn why(&self) -> String {
        match self.steps.get() {
            steps if steps >= STEPS_LIMIT => format!("its tasks made {steps} steps"),
            _ if self.has_outside() => format!("nothing has happened for {HANG_OUTSIDE:?}"),
            _ => "no task is ready and no timer is set (if it waits for sockets or threads, use \
                  an `Injector` with `patience`)"
                .into(),
        }
    }
}

impl Clock for TestClock {
    fn now(&self) -> Ticks {
        self.time.now()
    }

    fn rate(&self) -> Rate {
        self.time.rate()
    }

    fn idle(&self, next: Option<Deadline>) -> Option<Duration> {
        let next = next.filter(|next| !next.is_never());
        if next.is_some_and(|next| next.is_due(self.now())) {
            return Some(Duration::ZERO);
        }
        // Spurious wakes end an idle wait early, so the time since its start is measured.
        let since = self.quiet.get().unwrap_or_else(Instant::now);
        self.quiet.set(Some(since));
        let limit = match next {
            Some(_) => self.patience,
            None if self.has_outside() => HANG_OUTSIDE,
            None => HANG_INSIDE,
        };
        let left = limit.saturating_sub(since.elapsed());
        if left.is_zero() {
            match next {
                Some(next) => self.time.set(next.ticks()),
                None => self.give_up(),
            }
        }
        Some(left)
    }
}

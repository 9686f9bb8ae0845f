//! What [`testing`](crate::testing) puts into a kernel: an observer that finds the suspensions of
//! the task under test and injects one interruption, and a clock that gives each of them an
//! instant of its own and notices when a program does not end.

use std::cell::{Cell, OnceCell, RefCell};
use std::panic::Location;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pikake_kernel::Observer;
use pikake_time::{Clock, Deadline, ManualClock, Rate, Ticks};
use pikake_traps::{KernelHandle, TaskId, TaskRef, TrapKind, current};

use crate::testing::{Interruption, Kind};

/// How long nothing happens, and no timer is set, before a program that waits on its own kernel only
/// counts as one that never ends. Not zero, since one that uses sockets by mistake may go on.
const HANG_INSIDE: Duration = Duration::from_millis(20);

/// The same, for a program that waits for the outside.
const HANG_OUTSIDE: Duration = Duration::from_secs(10);

/// Steps of all tasks in one run after which the program counts as one that never ends: far more
/// than a program has that is run once for each of its suspensions.
const STEPS_LIMIT: u64 = 200_000;

/// The reason of the cancels.
const REASON: &str = "injected";

/// What a run is to be interrupted with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Nothing,
    /// When that many traps have been parked, counted from one.
    CancelWhileWaiting(usize),
    /// Before that step, counted from one.
    CancelGoingOn(usize),
    /// At this instant.
    Expire(Ticks),
}

/// A suspension of the task under test.
struct Seen {
    trap: TrapKind,
    place: &'static Location<'static>,
    /// When it had begun to wait.
    at: Ticks,
}

/// What is known of the task under test, and what is to be done to it.
pub(crate) struct Probe {
    plan: Plan,
    clock: TestClock,
    task: Cell<Option<TaskId>>,
    seen: RefCell<Vec<Seen>>,
    steps: Cell<usize>,
    /// When something happened to it, each instant once.
    instants: RefCell<Vec<Ticks>>,
    /// In which suspension it was interrupted.
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

    /// How often the task under test suspended.
    pub(crate) fn suspensions(&self) -> usize {
        self.seen.borrow().len()
    }

    /// How often it was stepped.
    pub(crate) fn steps(&self) -> usize {
        self.steps.get()
    }

    /// When something happened to it.
    pub(crate) fn instants(&self) -> Vec<Ticks> {
        self.instants.take()
    }

    /// Whether it was interrupted.
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

    /// The interruption takes place now, or was told at the instant that was planned.
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

/// Virtual time that notices when a program does not end.
#[derive(Clone)]
pub(crate) struct TestClock {
    time: ManualClock,
    /// How long, in real time, something outside may take before time jumps.
    patience: Duration,
    /// Since when the kernel has found nothing to do, if it has not made a step since.
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

    /// The kernel to stop when its program does not end.
    pub(crate) fn can_stop(&self, kernel: KernelHandle) {
        self.stop.set(kernel).expect("a clock is one kernel's");
    }

    fn tick(&self) {
        self.time.set(self.time.now().saturating_add(1));
    }

    fn note_step(&self) {
        self.quiet.set(None);
        self.steps.set(self.steps.get() + 1);
        if self.steps.get().is_multiple_of(STEPS_LIMIT) {
            self.give_up();
        }
    }

    fn give_up(&self) {
        if let Some(kernel) = self.stop.get() {
            // A kernel that has ended does not end any better.
            let _ = kernel.stop();
        }
    }

    fn has_outside(&self) -> bool {
        !self.patience.is_zero()
    }

    /// Why the program was given up.
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
        // A kernel may be woken for nothing, so only the time that has passed tells.
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

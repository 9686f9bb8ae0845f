//! The machine: the state of a kernel, behind its owner's [`Kernel`](crate::Kernel).
//!
//! No table and no other cell of the machine is borrowed while user code runs (I10). A method takes
//! a borrow, changes the table and ends the borrow. Only then the method drops the waiters that the
//! table has released, and calls wakers ([`Local::call_wakers`]).

mod contract;
mod inspect;
mod pace;
mod recent_max;
mod show;
mod shutdown;
mod steps;
mod turn;

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use pikake_time::{Clock, Deadline, Ticks};
use pikake_traps::{
    About, Interrupted, KernelHandle, Local, LocalHome, Message, SeenScope, SeenWait, Start,
    TaskError, TaskId, TaskRef, TrapHandler, TrapKind, Waiter,
};

use crate::builder::Settings;
use crate::driver::{Driver, Event};
use crate::inspect::{Listed, records};
use crate::observe::Observer;
use crate::pick::Pick;
use crate::places::{Queues, Sockets, Timers};
use crate::recorder::Recorder;
use crate::tasks::Tasks;
use crate::watchdog::{Pulse, Watched, watch};
use pace::Pace;

/// A wait of a task that is outstanding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The task that polled the wait last.
    pub task: TaskRef,
    /// The trap.
    pub trap: TrapKind,
    /// The place where the task awaits the trap.
    pub place: &'static Location<'static>,
    /// The thing that the task waits for, such as a lock or a task. `None` unless the task was
    /// [inspected](TaskRef::inspect) and stepped since.
    pub about: Option<About>,
    /// The scopes around the wait, the innermost first. Empty unless the task was inspected and
    /// stepped since.
    pub scopes: Vec<SeenScope>,
    /// Whether the task polls the wait. See [`SeenWait::is_polled`].
    pub is_polled: bool,
}

pub(crate) struct Machine<D: Driver, C, P> {
    local: Local,
    clock: C,
    /// Whether that is the system's clock.
    is_real_time: bool,
    settings: Settings,
    observers: Vec<Box<dyn Observer>>,
    /// Observers or the recorder see each spawn.
    shows_tasks: Cell<bool>,
    pick: P,
    tasks: RefCell<Tasks>,
    timers: RefCell<Timers>,
    queues: RefCell<Queues>,
    sockets: RefCell<Sockets<D::Socket>>,
    driver: RefCell<D>,
    /// Tasks that the machine drops before the next step, each with its outcome.
    aborted: RefCell<VecDeque<(TaskRef, TaskError)>>,
    /// The main tasks, that of the innermost run last: an owner may run the kernel between two
    /// turns.
    mains: RefCell<Vec<TaskRef>>,
    /// The id of the last main task. A task's end is compared with this id, without a borrow.
    main_id: Cell<TaskId>,
    /// Set when the main task ends, cleared when the turn's steps end for that reason.
    main_has_ended: Cell<bool>,
    /// Set when a step has changed what the machine does beside each step.
    pass_is_over: Cell<bool>,
    phase: Cell<Phase>,
    /// Set by a stop, cleared when the run or turn returns for that reason.
    is_stopped: Cell<bool>,
    /// Set by a task that lets other threads run once before the kernel sleeps.
    yields_thread: Cell<bool>,
    pace: Pace,
    /// The time of the steps inside the one that goes on, in ticks, while steps are timed.
    inner_time: Cell<u64>,
    pulse: Arc<Pulse>,
    watched: Option<Watched>,
    /// The place on the list of the process; none for a kernel that simulates the system.
    listed: Option<Listed>,
    recorder: OnceCell<Recorder>,
    /// The number of messages from other threads so far.
    message_count: Cell<u64>,
    // These vectors are empty between two uses, and kept for their memory.
    events: RefCell<Vec<Event>>,
    released: RefCell<Vec<Waiter>>,
    messages: RefCell<Vec<Message>>,
}

/// The phases of a kernel's life.
///
/// ```text
///          (1)             (2)
///   open ───────▶ closing ───────▶ closed
///     │                               ▲
///     └───────────────────────────────┘ (2)
/// ```
///
/// (1) [`Machine::begin_shutdown`]. (2) [`Machine::drop_all`].
#[derive(Clone, Copy)]
enum Phase {
    Open,
    /// The kernel takes no new task, and waits for the others until this deadline.
    Closing(Deadline),
    /// All tasks have ended.
    Closed,
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Makes a machine. The watchdog of the process, which counts real time, looks at the steps of
    /// a machine that is watched.
    pub(crate) fn new(
        home: LocalHome,
        driver: D,
        clock: C,
        pick: P,
        settings: Settings,
        observers: Vec<Box<dyn Observer>>,
        is_real_time: bool,
    ) -> Self {
        let long_step = settings.long_step();
        let pulse = Pulse::new(home.id(), long_step.unwrap_or(Duration::MAX));
        let watched = (is_real_time && long_step.is_some()).then(|| watch(&pulse));
        let times_steps = watched.is_none() || !observers.is_empty();
        let is_real = driver.system().is_ok();
        if is_real && !observers.is_empty() {
            home.time_wakes();
        }
        let local = Local::new(home, settings.graces(clock.rate()), settings.quotas());
        let handle = || KernelHandle::new(local.home().shared().clone());
        if let Some(peers) = settings.peers() {
            local.join(peers);
        }
        let listed = is_real.then(|| Listed::add(handle(), pulse.clone()));
        let machine = Self {
            sockets: RefCell::new(Sockets::new(local.home().id())),
            local,
            pace: Pace::new(&clock, &settings, times_steps),
            clock,
            is_real_time,
            settings,
            shows_tasks: Cell::new(!observers.is_empty()),
            observers,
            pick,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            queues: RefCell::default(),
            driver: RefCell::new(driver),
            aborted: RefCell::default(),
            mains: RefCell::default(),
            main_id: Cell::default(),
            main_has_ended: Cell::default(),
            pass_is_over: Cell::default(),
            phase: Cell::new(Phase::Open),
            is_stopped: Cell::default(),
            yields_thread: Cell::default(),
            inner_time: Cell::default(),
            pulse,
            watched,
            listed,
            recorder: OnceCell::new(),
            message_count: Cell::default(),
            events: RefCell::default(),
            released: RefCell::default(),
            messages: RefCell::default(),
        };
        if let Some(all_steps) = records() {
            machine.record(all_steps);
        }
        machine
    }

    pub(crate) fn home(&self) -> &LocalHome {
        self.local.home()
    }

    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    pub(crate) fn driver(&self) -> Ref<'_, D> {
        self.driver.borrow()
    }

    pub(crate) fn main_name(&self) -> &str {
        self.settings.main_name()
    }

    /// Whether the kernel stops when a task has swallowed an interruption.
    pub(crate) fn stops_if_swallowed(&self) -> bool {
        self.settings.stops_if_swallowed()
    }

    /// Returns whether a handle has asked for a stop, and clears the request.
    pub(crate) fn take_stop(&self) -> bool {
        self.is_stopped.take()
    }

    pub(crate) fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(crate) fn newest_first(&self) -> Vec<TaskRef> {
        self.tasks.borrow().newest_first()
    }

    pub(crate) fn socket_count(&self) -> usize {
        self.sockets.borrow().len()
    }

    /// The number of waits that have an entry in a table.
    pub(crate) fn wait_count(&self) -> usize {
        self.timers.borrow().moments.len()
            + self.queues.borrow().wait_count()
            + self.sockets.borrow().wait_count()
    }

    pub(crate) fn waits(&self) -> Vec<Waiting> {
        let mut waits = Vec::new();
        let mut show = |task: &TaskRef, seen| {
            let SeenWait { trap, place, about, scopes, is_polled, .. } = seen;
            waits.push(Waiting { task: task.clone(), trap, place, about, scopes, is_polled });
        };
        for task in self.newest_first().iter().filter(|task| !task.is_ready()) {
            task.seen_waits().into_iter().for_each(|seen| show(task, seen));
        }
        self.local.each_sub_wait(show);
        waits
    }

    fn ready_count(&self) -> usize {
        self.local.ready().len() + self.pick.len()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.ready_count() > 0 || !self.aborted.borrow().is_empty() || self.home().has_mail()
    }

    /// Announces that the owner has left the kernel. Present work and each later message then wake
    /// the driver, so a foreign loop that watches the driver sees them.
    pub(crate) fn owner_left(&self) {
        // Nobody knows when the owner comes back. In virtual time the kernel only sleeps.
        if self.is_real_time {
            self.home().set_late_from(Ticks::ZERO);
        } else if !self.has_work() {
            self.home().set_late_from(Ticks::MAX);
        }
        self.home().owner_left();
        // The owner does not know yet until when it may wait.
        if self.local.take_new_offer_mark() || self.has_work() {
            self.home().wake_if_asleep();
        }
    }

    /// Announces that the owner is back.
    pub(crate) fn owner_is_back(&self) {
        self.home().wake_up();
        // The kernel is not late by the time in which nothing was ready.
        match self.ready_count() {
            0 => self.end_absence(),
            _ => self.home().set_late_from(self.pace.late_from()),
        }
    }

    /// The moment of the next timer, of the end of the shutdown's grace, or from which on the
    /// kernel begins work that it has offered.
    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let timer = self.timers.borrow_mut().next();
        let offer = self.local.leaves_offers_until().map(Deadline::at);
        let grace = match self.phase.get() {
            Phase::Closing(until) => Some(until),
            Phase::Open | Phase::Closed => None,
        };
        [timer, offer, grace].into_iter().flatten().min()
    }

    /// Reads the clock.
    #[inline]
    fn read_clock(&self) -> Ticks {
        let now = self.clock.now();
        self.pace.note_reading(now);
        now
    }

    fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    fn observe_all(&self, show: impl Fn(&dyn Observer)) {
        for observer in &self.observers {
            show(&**observer);
        }
    }

    // --- the main task -------------------------------------------------------------------------

    /// Spawns the main task of a run. After a shutdown, drops the task's future and returns
    /// `false`.
    pub(crate) fn begin_main(&self, main: &TaskRef) -> bool {
        let is_taken = self.spawn(main, Start::Later);
        if is_taken {
            self.change_mains(|mains| mains.push(main.clone()));
        } else {
            let why = Interrupted::cancelled("the kernel has been shut down");
            main.abandon(TaskError::Cancelled(why));
        }
        is_taken
    }

    /// Ends a main task at the end of its run, and drops it if it has not ended.
    pub(crate) fn end_main(&self, main: &TaskRef, outcome: TaskError) {
        self.change_mains(|mains| mains.retain(|other| !other.is(main)));
        self.end(main, outcome);
    }

    fn change_mains(&self, change: impl FnOnce(&mut Vec<TaskRef>)) {
        let mut mains = self.mains.borrow_mut();
        change(&mut mains);
        self.main_id.set(mains.last().map_or(TaskId::default(), TaskRef::id));
    }

    fn main(&self) -> Option<TaskRef> {
        self.mains.borrow().last().cloned()
    }

    fn is_main(&self, task: &TaskRef) -> bool {
        self.main_id.get() == task.id()
    }

    /// Whether there is a main task that has ended.
    fn is_main_over(&self) -> bool {
        self.mains.borrow().last().is_some_and(TaskRef::is_ended)
    }
}

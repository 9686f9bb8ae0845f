//! The machine: what a kernel consists of, and its turn.
//!
//! Its state is in tables, each behind a borrow of its own: tasks, timers, queues, sockets. No table is
//! borrowed while user code runs (I10): a method takes a borrow, changes what it must, gives the borrow
//! back, and only then drops what it took out and calls wakers ([`Local::call_wakers`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pikake_time::{Clock, Deadline, Ticks};
use pikake_traps::{
    Graces, Interrupted, Local, LocalHome, Message, Quotas, TaskId, TaskRef, Waiter, quietly,
};

use crate::driver::{Driver, Event};
use crate::kernel::Waiting;
use crate::observe::Observer;
use crate::pick::Pick;
use crate::queues::Queues;
use crate::settings::Settings;
use crate::sockets::Sockets;
use crate::tasks::Tasks;
use crate::timers::Timers;
use crate::watchdog::{Pulse, Watched};

/// The clock is read after so many steps, unless something asks for a reading sooner. A step takes
/// tens of nanoseconds, a reading about as long as a tenth of one.
const STEPS_PER_READING: u64 = 16;

pub(crate) struct Machine<D: Driver, C, P> {
    pub(crate) local: Local,
    pub(crate) clock: C,
    pub(crate) settings: Settings,
    pub(crate) observers: Vec<Box<dyn Observer>>,
    pub(crate) pick: P,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) queues: RefCell<Queues>,
    pub(crate) sockets: RefCell<Sockets<D::Socket>>,
    pub(crate) driver: RefCell<D>,
    /// Tasks to be dropped before the next step, and why.
    pub(crate) aborted: RefCell<VecDeque<(TaskRef, Interrupted)>>,
    /// The main task of the current run.
    main: RefCell<Option<TaskRef>>,
    /// Its number.
    main_id: Cell<TaskId>,
    turns: Turns,
    pub(crate) closing: Cell<bool>,
    /// When the shutdown that has begun stops to wait.
    pub(crate) grace: Cell<Option<Deadline>>,
    pub(crate) pulse: Arc<Pulse>,
    watched: Option<Watched>,
}

/// What turns keep from one to the next.
struct Turns {
    /// The last reading of the clock.
    last_reading: Cell<Ticks>,
    /// How many steps are made before the clock is read; if it is one, the step reads it.
    steps_per_reading: u64,
    /// The number of the last step when the driver was polled last.
    polled_after: Cell<u64>,
    /// When the driver is to be polled again, whatever else there is to do.
    poll_due: Cell<Ticks>,
    poll_every: u64,
    long_step: u64,
    stopped: Cell<bool>,
    /// Other threads are to run once before the kernel sleeps.
    lingers: Cell<bool>,
    /// The main task has ended in the current pass.
    main_ended: Cell<bool>,
    /// Kept for their memory, as are the next two.
    events: RefCell<Vec<Event>>,
    left: RefCell<Vec<Waiter>>,
    mail: RefCell<Vec<Message>>,
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    pub(crate) fn new(
        home: LocalHome,
        driver: D,
        clock: C,
        pick: P,
        settings: Settings,
        observers: Vec<Box<dyn Observer>>,
    ) -> Self {
        let rate = clock.rate();
        let now = clock.now();
        let poll_every = rate.ticks_ceil(settings.poll_every);
        let graces = Graces {
            foreign: rate.ticks_ceil(settings.foreign_grace),
            report: rate.ticks_ceil(settings.slow_cleanup),
        };
        let quotas =
            Quotas { attempts: settings.attempts_per_step, answers: settings.answers_per_step };
        let pulse = Pulse::new(settings.long_step.unwrap_or(Duration::MAX));
        let watched = (settings.is_watched && settings.long_step.is_some())
            .then(|| crate::watchdog::watch(&pulse));
        // Where nobody watches, each step is timed.
        let steps_per_reading = match watched.is_some() && observers.is_empty() {
            true => STEPS_PER_READING,
            false => 1,
        };
        let turns = Turns {
            last_reading: Cell::new(now),
            steps_per_reading,
            polled_after: Cell::new(0),
            poll_due: Cell::new(now.saturating_add(poll_every)),
            poll_every,
            long_step: settings.long_step.map_or(u64::MAX, |length| rate.ticks_ceil(length)),
            stopped: Cell::new(false),
            lingers: Cell::new(false),
            main_ended: Cell::new(false),
            events: RefCell::default(),
            left: RefCell::default(),
            mail: RefCell::default(),
        };
        Self {
            sockets: RefCell::new(Sockets::new(home.id())),
            local: Local::new(home, graces, quotas),
            clock,
            settings,
            observers,
            pick,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            queues: RefCell::default(),
            driver: RefCell::new(driver),
            aborted: RefCell::default(),
            main: RefCell::new(None),
            main_id: Cell::default(),
            turns,
            closing: Cell::new(false),
            grace: Cell::new(None),
            pulse,
            watched,
        }
    }

    pub(crate) fn home(&self) -> &LocalHome {
        self.local.home()
    }

    /// Takes the stop that was asked for, if one was.
    pub(crate) fn take_stop(&self) -> bool {
        self.turns.stopped.replace(false)
    }

    pub(crate) fn linger(&self) {
        self.turns.lingers.set(true);
    }

    fn ready_count(&self) -> usize {
        self.local.ready().len() + self.pick.len()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.ready_count() > 0 || !self.aborted.borrow().is_empty() || self.home().has_mail()
    }

    /// When the next timer is due, or the shutdown's grace over.
    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let timer = self.timers.borrow_mut().next();
        match (timer, self.grace.get()) {
            (Some(timer), Some(grace)) => Some(timer.min(grace)),
            (timer, grace) => timer.or(grace),
        }
    }

    /// How many waits have an entry in a table.
    pub(crate) fn wait_count(&self) -> usize {
        self.timers.borrow().wait_count()
            + self.queues.borrow().wait_count()
            + self.sockets.borrow().wait_count()
    }

    pub(crate) fn waits(&self) -> Vec<Waiting> {
        let mut waits = Vec::new();
        for task in self.tasks.borrow().newest_first() {
            if task.is_ready() {
                continue;
            }
            let seen = task.seen_waits().into_iter();
            waits.extend(seen.map(|(trap, place)| Waiting { task: task.clone(), trap, place }));
        }
        self.local.each_sub_wait(|task, (trap, place)| {
            waits.push(Waiting { task: task.clone(), trap, place });
        });
        waits
    }

    pub(crate) fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(crate) fn observe_all(&self, tell: impl Fn(&dyn Observer)) {
        for observer in &self.observers {
            tell(&**observer);
        }
    }

    // --- the main task -------------------------------------------------------------------------

    /// Asks the main task of the current run to end, if there is one.
    fn interrupt_main(&self, reason: Interrupted) {
        let main = self.main.borrow().clone();
        if let Some(main) = main {
            main.request_cancel(reason);
        }
    }

    /// Whether there is a main task, and it has ended.
    fn is_main_over(&self) -> bool {
        self.main.borrow().as_ref().is_some_and(TaskRef::is_ended)
    }

    pub(crate) fn is_main(&self, task: &TaskRef) -> bool {
        self.main_id.get() == task.id()
    }

    pub(crate) fn main(&self) -> Option<TaskRef> {
        self.main.borrow().clone()
    }

    /// Names the main task of a run, or that it is over.
    pub(crate) fn set_main(&self, main: Option<&TaskRef>) {
        self.main_id.set(main.map_or(TaskId::default(), TaskRef::id));
        let before = self.main.replace(main.cloned());
        drop(before);
    }

    // --- the turn ------------------------------------------------------------------------------

    /// One pass: wake queue, timers, ready tasks, driver. See the crate's front page.
    ///
    /// `limit` bounds how long the driver may block; `done` is asked between steps, and before
    /// the driver is polled.
    pub(crate) fn turn(&self, limit: Option<Duration>, done: impl Fn() -> bool) -> io::Result<()> {
        self.local.attention_was_paid();
        self.local.call_wakers();
        if self.home().has_mail() {
            self.drain_mail();
        }
        let was_idle = self.ready_count() == 0;
        let now = self.read_clock();
        if was_idle {
            // Nobody was kept waiting for a poll, however long ago it was.
            self.put_off_poll();
        }
        if self.timers.borrow().may_be_due(now) {
            self.fire_timers(now)?;
        }
        self.drop_aborted();
        if !self.turns.stopped.get() && !done() {
            self.run_ready(self.steps_at_once().min(self.until_poll().max(1)));
        }
        match done() {
            true => Ok(()),
            false if self.is_main_over() => self.poll_driver(Some(Duration::ZERO)),
            false => self.poll_driver(limit),
        }
    }

    #[inline(never)]
    fn drain_mail(&self) {
        let mut mail = std::mem::take(&mut *self.turns.mail.borrow_mut());
        self.home().take_mail(&mut mail);
        for message in mail.drain(..) {
            match message {
                Message::Wake(wake) => {
                    if let Some(task) = wake.arrive() {
                        self.local.make_ready(&task);
                    }
                }
                Message::Call(call) => quietly("a closure that was sent here", call),
                Message::Interrupt(reason) => self.interrupt_main(reason),
                Message::Stop => {
                    self.turns.stopped.set(true);
                    self.local.call_attention();
                }
                Message::Shutdown => self.begin_shutdown(),
                _ => {}
            }
        }
        *self.turns.mail.borrow_mut() = mail;
    }

    /// Ends the waits that are due; then passes the deadlines that are due, which concern only what has
    /// not happened by then, by a timer or by the driver: event beats timeout.
    #[inline(never)]
    fn fire_timers(&self, now: Ticks) -> io::Result<()> {
        let mut left = std::mem::take(&mut *self.turns.left.borrow_mut());
        {
            let mut timers = self.timers.borrow_mut();
            while let Some(waiter) = timers.next_due_wait(now) {
                self.local.notify(&waiter);
                left.push(waiter);
            }
        }
        self.drop_left(left);
        if self.timers.borrow().may_deadlines_be_due(now) {
            self.wait_for_events(Some(Duration::ZERO))?;
            self.timers.borrow_mut().pass_deadlines(now, &self.local);
            self.local.call_wakers();
        }
        Ok(())
    }

    /// Drops waiters that were notified, with nothing borrowed, and keeps their memory.
    #[inline]
    fn drop_left(&self, mut left: Vec<Waiter>) {
        left.clear();
        *self.turns.left.borrow_mut() = left;
        self.local.call_wakers();
    }

    /// Steps so many of the tasks that are ready, or fewer if something else is to be done first.
    #[inline]
    fn run_ready(&self, steps: u64) {
        for _ in 0..steps {
            let Some(task) = self.pick.pop(self.local.ready()) else { return };
            self.step(task);
            if self.local.needs_attention() && self.ends_pass() {
                return;
            }
        }
    }

    /// Has the pass end.
    pub(crate) fn main_has_ended(&self) {
        self.turns.main_ended.set(true);
        self.local.call_attention();
    }

    /// Drops the tasks that were aborted in a step, before the next one. Tells whether there is to be no next
    /// one in this pass: the main task has ended, or the driver is to be polled.
    #[cold]
    fn ends_pass(&self) -> bool {
        self.local.attention_was_paid();
        self.drop_aborted();
        let is_main_over = self.turns.main_ended.take();
        if is_main_over {
            self.local.call_attention();
        }
        is_main_over || self.is_poll_due()
    }

    /// Whether it is time to poll the driver, by the last reading of the clock.
    pub(crate) fn is_poll_due(&self) -> bool {
        self.turns.last_reading.get() >= self.turns.poll_due.get()
    }

    /// How many steps to make before the clock is read: those of the tasks that are ready now, where
    /// each step reads it.
    #[inline]
    fn steps_at_once(&self) -> u64 {
        match self.turns.steps_per_reading {
            1 => self.ready_count() as u64,
            steps => steps,
        }
    }

    /// Reads the clock.
    #[inline]
    pub(crate) fn read_clock(&self) -> Ticks {
        let now = self.clock.now();
        self.turns.last_reading.set(now);
        now
    }

    /// How long it is since the last reading of the clock, in ticks, by a new one.
    pub(crate) fn time_since_reading(&self) -> u64 {
        let before = self.turns.last_reading.get();
        self.read_clock().since(before)
    }

    pub(crate) fn is_long(&self, took: u64) -> bool {
        took >= self.turns.long_step
    }

    /// How many of the tasks that are ready may be stepped before the driver is polled.
    #[inline]
    fn until_poll(&self) -> u64 {
        let since_poll = self.local.step_number() - self.turns.polled_after.get();
        u64::from(self.settings.poll_every_steps).saturating_sub(since_poll)
    }

    /// Counts the time until the driver is to be polled from the last reading of the clock.
    #[inline]
    fn put_off_poll(&self) {
        let last_reading = self.turns.last_reading.get();
        self.turns.poll_due.set(last_reading.saturating_add(self.turns.poll_every));
    }

    /// How many steps a turn would make and do nothing else: there is no mail, no timer is due,
    /// nothing needs attention, and the driver need not be polled yet. Zero if it is not so.
    #[inline]
    fn undisturbed_steps(&self) -> u64 {
        if self.local.needs_attention() || self.home().has_mail() || self.ready_count() == 0 {
            return 0;
        }
        let now = match self.turns.steps_per_reading {
            1 => self.turns.last_reading.get(),
            _ => self.read_clock(),
        };
        if now >= self.turns.poll_due.get() || self.timers.borrow().may_be_due(now) {
            return 0;
        }
        self.steps_at_once().min(self.until_poll())
    }

    /// Turns until that is done, or the kernel is stopped. Steps between which there is nothing to do
    /// but to step are made one after the other.
    pub(crate) fn run_until(&self, done: impl Fn() -> bool) -> io::Result<()> {
        self.pulse.is_back();
        loop {
            let steps = self.undisturbed_steps();
            if steps > 0 {
                self.run_ready(steps);
            } else if self.turns.stopped.get() || done() {
                break;
            } else {
                self.turn(None, &done)?;
            }
        }
        self.pulse.sleeps();
        Ok(())
    }

    fn poll_driver(&self, limit: Option<Duration>) -> io::Result<()> {
        if self.turns.lingers.replace(false) && limit != Some(Duration::ZERO) && !self.has_work() {
            thread::yield_now();
        }
        if self.has_work() || self.turns.stopped.get() {
            let due = self.until_poll() == 0 || self.is_poll_due();
            return if due { self.wait_for_events(Some(Duration::ZERO)) } else { Ok(()) };
        }
        let next = self.next_deadline();
        let until_next = self.clock.idle(next);
        let limit = match (limit, until_next) {
            (Some(limit), Some(until_next)) => Some(limit.min(until_next)),
            (limit, until_next) => limit.or(until_next),
        };
        if limit == Some(Duration::ZERO) {
            return self.wait_for_events(limit);
        }
        let limit = if self.home().fall_asleep() { limit } else { Some(Duration::ZERO) };
        self.pulse.sleeps();
        let result = self.wait_for_events(limit);
        self.pulse.is_back();
        self.home().wake_up();
        // What was waited does not count as time without a poll.
        self.read_clock();
        self.put_off_poll();
        result
    }

    fn wait_for_events(&self, limit: Option<Duration>) -> io::Result<()> {
        let mut events = std::mem::take(&mut *self.turns.events.borrow_mut());
        events.clear();
        let result = self.driver.borrow_mut().wait(limit, &mut events);
        self.turns.polled_after.set(self.local.step_number());
        self.put_off_poll();
        if !events.is_empty() {
            let mut left = std::mem::take(&mut *self.turns.left.borrow_mut());
            {
                let mut sockets = self.sockets.borrow_mut();
                for event in &events {
                    sockets.note(*event, &self.local, &mut left);
                }
            }
            self.drop_left(left);
        }
        if !self.observers.is_empty() {
            self.observe_all(|observer| observer.polled(events.len()));
        }
        *self.turns.events.borrow_mut() = events;
        result
    }

    /// Whether the clock is read after each step.
    #[inline]
    pub(crate) fn times_steps(&self) -> bool {
        self.turns.steps_per_reading == 1
    }

    /// Whether a watchdog sees to this kernel's steps.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.is_some()
    }
}

//! The machine: executes traps, steps tasks, turns.
//!
//! Its state is in two parts, each behind a borrow of its own: the *book* (tasks, records, scopes,
//! timers, ready queue) and the *net* (sockets). No part is borrowed while user code runs (I10): a
//! method takes a borrow, changes what it must, gives the borrow back, and only then drops what it
//! took out and calls the wakers that the book collected ([`Machine::flush`]).

use std::cell::{Cell, RefCell};
use std::io;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use pikake_time::{Clock, Deadline, Ticks};
use pikake_traps::{LocalHome, Message, TaskRef, TrapKind, quietly};

use crate::book::{Book, Timer};
use crate::cause::Owner;
use crate::cleanup::{Limits, Slow};
use crate::driver::{Driver, Event};
use crate::kernel::Waiting;
use crate::observe::Observer;
use crate::pick::Pick;
use crate::record::{Place, State};
use crate::settings::Settings;
use crate::sockets::{Net, Waiter};

pub(crate) struct Machine<D: Driver, C, P> {
    pub(crate) home: LocalHome,
    pub(crate) clock: C,
    pub(crate) settings: Settings,
    pub(crate) observers: Vec<Box<dyn Observer>>,
    pub(crate) book: RefCell<Book<P>>,
    pub(crate) net: Net<D>,
    /// Waits that may still be answered at once in the current step.
    pub(crate) answers_left: Cell<u32>,
    /// The reading of the clock at the last step's end.
    pub(crate) last_reading: Cell<Ticks>,
    pub(crate) steps_since_poll: Cell<u32>,
    /// Other threads are to run once before the kernel sleeps.
    pub(crate) lingers: Cell<bool>,
    /// When the driver is to be polled again, whatever else there is to do.
    pub(crate) poll_due: Cell<Ticks>,
    pub(crate) poll_every: u64,
    pub(crate) long_step: u64,
    pub(crate) stopped: Cell<bool>,
    pub(crate) closing: Cell<bool>,
    /// When the shutdown that has begun stops to wait.
    pub(crate) grace: Cell<Option<Deadline>>,
    /// The main task of the current run.
    pub(crate) main: RefCell<Option<TaskRef>>,
    /// Kept for their memory, as are the next two.
    pub(crate) events: RefCell<Vec<Event>>,
    pub(crate) waiters: RefCell<Vec<Waiter>>,
    pub(crate) mail: RefCell<Vec<Message>>,
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
        let limits = Limits {
            foreign_grace: rate.ticks_ceil(settings.foreign_grace),
            slow_cleanup: rate.ticks_ceil(settings.slow_cleanup),
        };
        Self {
            net: Net::new(home.clone(), driver),
            home,
            poll_every,
            long_step: match settings.long_step {
                Some(length) => rate.ticks_ceil(length),
                None => u64::MAX,
            },
            clock,
            settings,
            observers,
            book: RefCell::new(Book::new(pick, limits)),
            answers_left: Cell::new(u32::MAX),
            last_reading: Cell::new(now),
            steps_since_poll: Cell::new(0),
            lingers: Cell::new(false),
            poll_due: Cell::new(now.saturating_add(poll_every)),
            stopped: Cell::new(false),
            closing: Cell::new(false),
            grace: Cell::new(None),
            main: RefCell::new(None),
            events: RefCell::default(),
            waiters: RefCell::default(),
            mail: RefCell::default(),
        }
    }

    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the stop that was asked for, if one was.
    pub(crate) fn take_stop(&self) -> bool {
        self.stopped.replace(false)
    }

    pub(crate) fn has_work(&self) -> bool {
        let book = self.book.borrow();
        !book.ready.is_empty()
            || !book.doomed.is_empty()
            || self.home.has_mail()
            || self.net.has_closed()
    }

    /// When the next timer is due, or the shutdown's grace over.
    pub(crate) fn next_deadline(&self) -> Option<Deadline> {
        let timer = self.book.borrow_mut().timers.next().map(Deadline::at);
        match (timer, self.grace.get()) {
            (Some(timer), Some(grace)) => Some(timer.min(grace)),
            (timer, grace) => timer.or(grace),
        }
    }

    pub(crate) fn wait_count(&self) -> usize {
        let book = self.book.borrow();
        book.records.len() + book.light_parks()
    }

    pub(crate) fn waits(&self) -> Vec<Waiting> {
        let book = self.book.borrow();
        let parked =
            book.records.iter().filter(|(_, record)| matches!(record.state, State::Parked(_)));
        let shown = parked.map(|(_, record)| Waiting {
            task: record.task.clone(),
            trap: record.kind,
            place: record.place,
        });
        let lights = book.slots.iter().enumerate().filter(|(_, slot)| slot.is_waiting());
        let light = lights.map(|(task, slot)| Waiting {
            task: book.tasks[task].task.clone(),
            trap: TrapKind::Park,
            place: slot.place,
        });
        shown.chain(light).collect()
    }

    pub(crate) fn task_count(&self) -> usize {
        self.book.borrow().tasks.len()
    }

    pub(crate) fn observe(&self, tell: impl Fn(&dyn Observer)) {
        for observer in &self.observers {
            tell(&**observer);
        }
    }

    /// Calls the wakers that the book has collected. The book must not be borrowed.
    pub(crate) fn flush(&self) {
        loop {
            let wakers = {
                let mut book = self.book.borrow_mut();
                if book.wakers.is_empty() {
                    return;
                }
                std::mem::take(&mut book.wakers)
            };
            wake_all(wakers);
        }
    }

    /// One pass: wake queue, timers, ready tasks, driver. See the crate's front page.
    ///
    /// `limit` bounds how long the driver may block; `done` is asked between steps, and before
    /// the driver is polled.
    pub(crate) fn turn(&self, limit: Option<Duration>, done: impl Fn() -> bool) -> io::Result<()> {
        if self.net.has_closed() {
            self.answer_closed();
        }
        if self.home.has_mail() {
            self.drain_mail();
        }
        let was_idle = self.book.borrow().ready.is_empty();
        let now = self.clock.now();
        self.last_reading.set(now);
        if was_idle {
            // Nobody was kept waiting for a poll, however long ago it was.
            self.put_off_poll();
        }
        let may_be_due = self.book.borrow().timers.may_be_due(now);
        if may_be_due {
            self.fire_timers(now)?;
        }
        if !self.book.borrow().doomed.is_empty() {
            self.drop_doomed();
        }
        let ready = self.book.borrow().ready.len();
        self.run_ready(ready.min(self.until_poll().max(1) as usize), &done);
        match done() {
            true => Ok(()),
            false if self.is_main_over() => self.poll_driver(Some(Duration::ZERO)),
            false => self.poll_driver(limit),
        }
    }

    #[inline(never)]
    fn drain_mail(&self) {
        let mut mail = std::mem::take(&mut *self.mail.borrow_mut());
        self.home.take_mail(&mut mail);
        for message in mail.drain(..) {
            match message {
                Message::Wake(wake) => {
                    if let Some(task) = wake.arrive() {
                        self.book.borrow_mut().make_ready(task);
                    }
                }
                Message::Spawn(spawn) => quietly("a task that was sent here", || spawn.spawn()),
                Message::Drop(package) => quietly("what was dropped elsewhere", || drop(package)),
                Message::Interrupt(reason) => self.interrupt_main(reason),
                Message::Stop => self.stopped.set(true),
                Message::Shutdown => self.begin_shutdown(),
                _ => {}
            }
        }
        *self.mail.borrow_mut() = mail;
    }

    /// Answers the sleeps that are due; then fires the deadlines that are due, of which those do
    /// not hit what has just been answered, by a timer or by the driver: event beats timeout.
    #[inline(never)]
    fn fire_timers(&self, now: Ticks) -> io::Result<()> {
        let mut scopes = Vec::new();
        let mut slow = Vec::new();
        {
            let mut book = self.book.borrow_mut();
            while let Some((_, timer)) = book.timers.pop_due(now) {
                match timer {
                    Timer::Record(record) => book.answer(record, None),
                    Timer::Scope(scope) => {
                        if let Some(found) = book.scope_mut(scope) {
                            found.timer = None;
                            scopes.push(scope);
                        }
                    }
                    Timer::Slow(owner) => slow.extend(book.slow_cleanup(owner)),
                    Timer::Grace(owner) => book.end_grace(owner),
                    Timer::ForeignGrace(owner) => book.end_foreign_grace(owner),
                }
            }
        }
        self.flush();
        slow.iter().for_each(report_slow);
        if scopes.is_empty() {
            return Ok(());
        }
        self.wait_for_events(Some(Duration::ZERO))?;
        {
            let mut book = self.book.borrow_mut();
            for scope in scopes {
                book.expire(scope, now);
            }
        }
        self.flush();
        Ok(())
    }

    /// Steps so many of the tasks that are ready now, or fewer if the driver is to be polled. `false`:
    /// that is done, or the kernel was stopped.
    #[inline]
    fn run_ready(&self, mut steps: usize, done: impl Fn() -> bool) -> bool {
        let mut goes_on = true;
        while steps > 0 {
            if self.stopped.get() || done() {
                goes_on = false;
                break;
            }
            let next = self.book.borrow_mut().next_step();
            match next {
                Some(task) => {
                    self.step(task);
                    steps = if self.is_poll_overdue() { 0 } else { steps - 1 };
                }
                None if self.drop_doomed() => {}
                None => break,
            }
        }
        if !self.book.borrow().doomed.is_empty() {
            self.drop_doomed();
        }
        goes_on
    }

    /// How many of the tasks that are ready may be stepped before the driver is polled.
    #[inline]
    fn until_poll(&self) -> u32 {
        self.settings.poll_every_steps.saturating_sub(self.steps_since_poll.get())
    }

    /// Whether the driver was not polled for long.
    #[inline]
    fn is_poll_overdue(&self) -> bool {
        self.last_reading.get() >= self.poll_due.get()
    }

    /// Counts the time until the driver is to be polled from the last reading of the clock.
    #[inline]
    fn put_off_poll(&self) {
        self.poll_due.set(self.last_reading.get().saturating_add(self.poll_every));
    }

    /// How many steps a turn would make and do nothing else: there is no mail, no timer is due,
    /// nothing was closed, and the driver need not be polled yet. Zero if it is not so.
    #[inline]
    fn undisturbed_steps(&self) -> usize {
        if self.is_poll_overdue() || self.home.has_mail() || self.net.has_closed() {
            return 0;
        }
        let now = self.last_reading.get();
        let book = self.book.borrow();
        match book.timers.may_be_due(now) {
            true => 0,
            false => book.ready.len().min(self.until_poll() as usize),
        }
    }

    /// Turns until that is done, or the kernel is stopped. Passes in which there is nothing to do
    /// but to step tasks are made one after the other.
    pub(crate) fn run_until(&self, done: impl Fn() -> bool) -> io::Result<()> {
        loop {
            let steps = self.undisturbed_steps();
            if steps > 0 {
                if !self.run_ready(steps, &done) {
                    return Ok(());
                }
            } else if self.stopped.get() || done() {
                return Ok(());
            } else {
                self.turn(None, &done)?;
            }
        }
    }

    fn poll_driver(&self, limit: Option<Duration>) -> io::Result<()> {
        if self.net.has_closed() {
            self.answer_closed();
        }
        if self.lingers.replace(false) && limit != Some(Duration::ZERO) && !self.has_work() {
            thread::yield_now();
        }
        if self.has_work() || self.stopped.get() {
            let due = self.until_poll() == 0 || self.is_poll_overdue();
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
        let limit = if self.home.fall_asleep() { limit } else { Some(Duration::ZERO) };
        let result = self.wait_for_events(limit);
        self.home.wake_up();
        // What was waited does not count as time without a poll.
        self.last_reading.set(self.clock.now());
        self.put_off_poll();
        result
    }

    fn wait_for_events(&self, limit: Option<Duration>) -> io::Result<()> {
        let mut events = std::mem::take(&mut *self.events.borrow_mut());
        events.clear();
        let result = self.net.driver.borrow_mut().wait(limit, &mut events);
        self.steps_since_poll.set(0);
        self.put_off_poll();
        if !events.is_empty() {
            let mut waiters = std::mem::take(&mut *self.waiters.borrow_mut());
            for event in &events {
                self.net.note(*event, &mut waiters);
            }
            self.satisfy(waiters.drain(..));
            *self.waiters.borrow_mut() = waiters;
        }
        if !self.observers.is_empty() {
            self.observe(|observer| observer.polled(events.len()));
        }
        *self.events.borrow_mut() = events;
        result
    }

    /// Answers those who waited at a socket that was closed.
    pub(crate) fn answer_closed(&self) {
        let waiters = self.net.take_closed();
        if !waiters.is_empty() {
            self.satisfy(waiters.into_iter());
        }
    }

    /// Answers those of the records that still wait at their socket.
    fn satisfy(&self, waiters: impl Iterator<Item = Waiter>) {
        {
            let mut book = self.book.borrow_mut();
            for Waiter { record, token, write } in waiters {
                let place =
                    Place::Socket { index: token.index, generation: token.generation, write };
                if let Some(entry) = book.records.get(record as usize)
                    && matches!(entry.state, State::Parked(at) if at == place)
                {
                    book.answer(record, None);
                }
            }
        }
        self.flush();
    }
}

fn report_slow(slow: &Slow) {
    let Slow { task, why, sits_in } = slow;
    let (trap, awaited_at) = match sits_in {
        Some((trap, place)) => (trap.name(), place.to_string()),
        None => ("a foreign future", "(not known)".into()),
    };
    tracing::warn!(
        task = task.id().0,
        name = task.name(),
        spawned_at = %task.spawned_at(),
        interruption = %why,
        trap,
        awaited_at,
        "cleaning up after an interruption takes long"
    );
}

/// Calls wakers that are other people's code.
pub(crate) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        quietly("a combinator's waker", || waker.wake());
    }
}

pub(crate) fn task_owner(task: &TaskRef) -> Owner {
    Owner::Task(task.ledger().index.get())
}

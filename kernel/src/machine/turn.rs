//! The turn: one pass of a kernel's loop. The crate's front page has a diagram.

use std::io;
use std::mem;
use std::thread;
use std::time::Duration;

use pikake_time::{Clock, Ticks};
use pikake_traps::{Interrupted, Message, Waiter, catch_and_log};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::machine::show::Showing;
use crate::pick::Pick;

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Turns until `is_done` holds, or until a stop.
    ///
    /// Steps tasks without a turn as long as a turn would do nothing else.
    pub(crate) fn run_until(&self, is_done: &dyn Fn() -> bool) -> io::Result<()> {
        self.while_awake(|| {
            // The time since the run before does not count as the first step's.
            self.read_clock();
            self.end_absence();
            loop {
                let steps = self.steps_without_turn();
                if steps > 0 {
                    self.run_ready(steps);
                } else if self.is_stopped.get() || is_done() {
                    return Ok(());
                } else {
                    self.turn(&|| None, is_done)?;
                }
            }
        })
    }

    /// Makes one turn for an owner that has a loop of its own.
    pub(crate) fn turn_once(&self, limit: Option<Duration>) -> io::Result<()> {
        // The owner asks after each turn whether the main task has ended.
        let limit = || if self.is_main_over() { Some(Duration::ZERO) } else { limit };
        let result = self.while_awake(|| self.turn(&limit, &|| false));
        // The owner learns from `next_deadline` when the kernel begins the work that it offers.
        self.local.take_new_offer_mark();
        result
    }

    /// Notes, in a kernel with peers, that it is not late by the time in which it was not run.
    pub(super) fn end_absence(&self) {
        if self.local.has_peers() {
            self.pace.note_sleep(self.read_clock());
            self.note_batch();
        }
    }

    /// Shows the watchdog that the owner is back for the length of `work`.
    #[inline]
    fn while_awake<R>(&self, work: impl FnOnce() -> R) -> R {
        self.pulse.is_back();
        let result = work();
        self.pulse.sleeps();
        result
    }

    /// Makes one pass: wake queue, timers, ready tasks, driver.
    ///
    /// `limit`, called right before the driver's poll, bounds the time that the driver may block.
    /// Once `is_done` holds, the pass neither begins to step tasks nor polls the driver.
    fn turn(
        &self,
        limit: &dyn Fn() -> Option<Duration>,
        is_done: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        self.local.clear_attention();
        self.local.call_wakers();
        if self.home().has_mail() {
            self.drain_wake_queue();
        }
        let was_idle = self.ready_count() == 0;
        let now = self.read_clock();
        if was_idle {
            // Ready tasks have not delayed the poll, so the time until the next one starts now.
            self.pace.put_off_poll();
        }
        if self.timers.borrow().may_be_due(now) {
            self.fire_timers(now)?;
        }
        self.drop_aborted();
        if !self.is_stopped.get() && !is_done() {
            let steps = self.pace.steps_at_once(|| self.ready_count());
            self.run_ready(steps.min(self.steps_until_poll().max(1)));
        }
        match is_done() {
            true => Ok(()),
            false => self.poll_driver(limit()),
        }
    }

    #[inline(never)]
    fn drain_wake_queue(&self) {
        let mut messages = mem::take(&mut *self.messages.borrow_mut());
        self.home().take_mail(&mut messages);
        self.message_count.set(self.message_count.get() + messages.len() as u64);
        for message in messages.drain(..) {
            match message {
                Message::Wake(wake) => {
                    if let Some(task) = wake.arrive() {
                        self.local.make_ready_by(&task, wake.sent());
                    }
                }
                Message::Call(call) => catch_and_log("a closure from another thread", call),
                Message::Interrupt(reason) => self.interrupt_main(reason),
                Message::Stop => {
                    self.is_stopped.set(true);
                    self.local.call_attention();
                }
                Message::Shutdown => self.begin_shutdown(),
            }
        }
        *self.messages.borrow_mut() = messages;
        self.pass_offers_on();
    }

    /// Wakes another kernel for the offers that this one has no time to take: the wake that this
    /// kernel got may have been for one.
    fn pass_offers_on(&self) {
        if self.local.has_offers() && (self.has_work() || !self.takes_offers()) {
            self.local.pass_offers_on();
        }
    }

    fn interrupt_main(&self, reason: Interrupted) {
        if let Some(main) = self.main() {
            main.request_cancel(reason);
        }
    }

    /// Ends the waits that are due, and then passes the deadlines that are due.
    ///
    /// The driver is polled in between. So a deadline interrupts only waits that neither a timer
    /// nor the driver has ended: the event beats the timeout.
    #[inline(never)]
    fn fire_timers(&self, now: Ticks) -> io::Result<()> {
        let mut released = mem::take(&mut *self.released.borrow_mut());
        {
            let mut timers = self.timers.borrow_mut();
            while let Some((due, waiter)) = timers.moments.next_due(now) {
                self.note_lateness(now, due);
                if let Some(waiter) = self.local.notify_owned(waiter) {
                    released.push(waiter);
                }
            }
        }
        self.drop_released(released);
        if self.timers.borrow().deadlines.may_be_due(now) {
            self.poll_now()?;
            let show = |due| self.note_lateness(now, due);
            self.timers.borrow_mut().deadlines.pass(now, &self.local, show);
            self.local.call_wakers();
        }
        Ok(())
    }

    /// Drops waiters while nothing is borrowed, and keeps the vector.
    #[inline]
    fn drop_released(&self, mut released: Vec<Waiter>) {
        released.clear();
        *self.released.borrow_mut() = released;
        self.local.call_wakers();
    }

    /// Makes this number of steps, or fewer if the pass ends before.
    #[inline]
    fn run_ready(&self, steps: u64) {
        match self.showing() {
            // The loop for each of these cases is compiled on its own.
            Showing::ToWatchdog => self.run_ready_and_show(steps, Showing::ToWatchdog),
            Showing::WaitsToRecorder => self.run_ready_and_show(steps, Showing::WaitsToRecorder),
            showing => self.run_ready_and_show(steps, showing),
        }
    }

    #[inline(always)]
    fn run_ready_and_show(&self, steps: u64, showing: Showing<'_>) {
        for _ in 0..steps {
            let Some(task) = self.pick.pop(self.local.ready()) else { return };
            self.step(task, showing);
            if self.local.needs_attention() && self.handle_attention() {
                return;
            }
        }
    }

    /// Drops the tasks that were aborted in the step before. Returns whether the pass is over: the
    /// main task has ended, a poll of the driver is due, or the machine does something else beside
    /// each step from now on.
    #[cold]
    fn handle_attention(&self) -> bool {
        self.local.clear_attention();
        self.drop_aborted();
        let swallowed = self.local.take_swallowed_mark() && self.settings.stops_if_swallowed();
        if swallowed {
            self.is_stopped.set(true);
        }
        let is_main_over = self.main_has_ended.take() || swallowed;
        if is_main_over {
            // Attention makes `run_until` check whether it is done.
            self.local.call_attention();
        }
        let is_changed = self.pass_is_over.take();
        if is_changed {
            // The first step that is timed begins now.
            self.read_clock();
        }
        is_main_over || is_changed || self.pace.is_poll_due()
    }

    /// The number of steps of a turn that would only make steps; zero if the turn would do more.
    #[inline]
    fn steps_without_turn(&self) -> u64 {
        if self.local.needs_attention() || self.home().has_mail() || self.ready_count() == 0 {
            return 0;
        }
        if !self.pace.times_steps() {
            self.read_clock();
        }
        let now = self.pace.last_reading();
        if self.pace.is_poll_due() || self.timers.borrow().may_be_due(now) {
            return 0;
        }
        self.pace.steps_at_once(|| self.ready_count()).min(self.steps_until_poll())
    }

    #[inline]
    fn steps_until_poll(&self) -> u64 {
        self.pace.steps_until_poll(self.local.step_number())
    }

    fn poll_driver(&self, limit: Option<Duration>) -> io::Result<()> {
        if self.yields_thread.take() && limit != Some(Duration::ZERO) && !self.has_work() {
            thread::yield_now();
        }
        if self.has_work() || self.is_stopped.get() {
            return self.poll_if_due();
        }
        self.pace.end_batch();
        if self.may_take_offer() || self.is_poll_late() {
            self.poll_now()?;
            // Other kernels could do offered work as well, so it comes last.
            if !self.has_work() {
                self.local.take_offer(self.takes_offers());
            } else if self.local.has_offers() {
                self.pass_offers_on();
                self.take_own_offer_if_due(false);
            }
            return Ok(());
        }
        let until_next = self.clock.idle(self.next_deadline());
        let limit = match (limit, until_next) {
            (Some(limit), Some(until_next)) => Some(limit.min(until_next)),
            (limit, until_next) => limit.or(until_next),
        };
        if limit == Some(Duration::ZERO) {
            return self.poll_now();
        }
        if self.local.has_peers() {
            // Before the kernel shows that it sleeps.
            let is_idle = self.takes_offers();
            self.home().set_late_from(if is_idle { Ticks::MAX } else { Ticks::ZERO });
        }
        let may_block = self.home().fall_asleep() && !self.may_take_offer();
        let limit = if may_block { limit } else { Some(Duration::ZERO) };
        self.pulse.sleeps();
        let result = self.wait_for_events(limit);
        self.pulse.is_back();
        self.home().wake_up();
        // The time in the driver does not count as time without a poll.
        let now = self.read_clock();
        self.pace.put_off_poll();
        self.pace.note_sleep(now);
        self.note_batch();
        self.pass_offers_on();
        result
    }

    fn poll_if_due(&self) -> io::Result<()> {
        let is_due = self.steps_until_poll() == 0 || self.pace.is_poll_due();
        if is_due {
            self.poll_now()?;
        }
        if self.local.has_offers() {
            self.take_own_offer_if_due(is_due);
        }
        Ok(())
    }

    /// Others may take what this kernel has offered. In case that none does, a busy kernel begins
    /// an offer at each poll that is due, and otherwise after some passes: polls that find an
    /// event, or that come before a deadline, put the next one off.
    fn take_own_offer_if_due(&self, is_poll_due: bool) {
        if self.pace.is_own_offer_due(is_poll_due) {
            self.local.take_own_offer();
        }
    }

    /// Polls the driver without blocking.
    fn poll_now(&self) -> io::Result<()> {
        self.wait_for_events(Some(Duration::ZERO))?;
        self.note_batch();
        Ok(())
    }

    /// Shows, in a kernel with peers, from when on it is late with the tasks that are ready.
    #[inline]
    fn note_batch(&self) {
        let Some(peers) = self.local.peers() else { return };
        let (now, ready) = (self.read_clock(), self.ready_count() as u64);
        if self.pace.note_batch(now, self.local.step_number(), ready) {
            self.home().set_late_from(self.pace.late_from());
            self.pulse.joins(self.home().shared(), peers);
        }
    }

    /// Whether events may have waited for long, in a kernel with peers. They are looked for before
    /// the kernel blocks, so that the time since when they have waited is known.
    fn is_poll_late(&self) -> bool {
        self.local.has_peers() && self.pace.is_poll_late(self.read_clock())
    }

    fn may_take_offer(&self) -> bool {
        self.local.has_offer(self.takes_offers())
    }

    /// Whether the kernel goes on, and so may begin work of other kernels.
    fn takes_offers(&self) -> bool {
        !self.is_shutting_down() && !self.is_stopped.get() && !self.is_main_over()
    }

    fn wait_for_events(&self, limit: Option<Duration>) -> io::Result<()> {
        let mut events = mem::take(&mut *self.events.borrow_mut());
        let result = self.driver.borrow_mut().wait(limit, &mut events);
        self.pace.note_poll(self.local.step_number());
        if let Some(recorder) = self.recorder.get() {
            recorder.note_rate(self.clock.rate());
        }
        if !events.is_empty() {
            let mut released = mem::take(&mut *self.released.borrow_mut());
            {
                let mut sockets = self.sockets.borrow_mut();
                for event in &events {
                    sockets.note_event(*event, &self.local, &mut released);
                }
            }
            self.drop_released(released);
        }
        self.observe_all(|observer| observer.polled(events.len()));
        events.clear();
        *self.events.borrow_mut() = events;
        result
    }
}

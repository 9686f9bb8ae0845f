//! Shows the steps of a kernel to the watchdog, to the recorder and its profiles, and to observers.
//! Waits, timers and polls of the driver are shown by one line each, where they happen.

use pikake_time::Clock;
use pikake_traps::{Exit, TaskRef};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::recorder::Recorder;

/// How the steps of a pass are shown. The watchdog sees each step.
#[derive(Clone, Copy)]
pub(super) enum Showing<'a> {
    /// To the watchdog alone.
    ToWatchdog,
    /// To the recorder as well.
    ToRecorder(&'a Recorder),
    /// To the recorder as well, unless the task is ready again.
    WaitsToRecorder,
    /// To observers and to the recorder, with the time that the step took.
    Timed,
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Shows a new task to observers and to the recorder.
    #[inline(never)]
    pub(super) fn show_spawn(&self, task: &TaskRef) {
        if let Some(recorder) = self.recorder.get() {
            recorder.spawned(task, self.pace.last_reading());
        }
        if !self.observers.is_empty() {
            task.set_observed();
            self.observe_all(|observer| observer.created(task));
        }
    }

    /// How steps are shown now.
    #[inline]
    pub(super) fn showing(&self) -> Showing<'_> {
        match self.recorder.get() {
            _ if self.pace.times_steps() => Showing::Timed,
            Some(recorder) if recorder.notes_all_steps() => Showing::ToRecorder(recorder),
            Some(_) => Showing::WaitsToRecorder,
            None => Showing::ToWatchdog,
        }
    }

    /// Shows the name of a task that is about to be stepped.
    pub(super) fn show_name(&self, task: &TaskRef) {
        self.pulse.show_name(task.id().0, task.name());
    }

    /// Steps a task, and shows the step. See [`Local::step`](pikake_traps::Local::step).
    #[inline(always)]
    pub(super) fn step_and_show(&self, task: TaskRef, showing: Showing<'_>) -> Option<TaskRef> {
        match showing {
            Showing::ToWatchdog => self.step_in_pulse(task, |_| ()),
            Showing::ToRecorder(recorder) => {
                let at = self.pace.last_reading();
                self.step_in_pulse(task, |task| recorder.stepped(task, at, None))
            }
            Showing::WaitsToRecorder => {
                self.pulse_begins(&task);
                let left = self.local.step_and_show_stop(task, |task| self.show_stop(task));
                self.pulse.step_is_over();
                left
            }
            Showing::Timed => self.step_timed(task, false),
        }
    }

    /// Shows the watchdog that a step begins.
    #[inline(always)]
    fn pulse_begins(&self, task: &TaskRef) {
        self.pulse.step_begins(self.local.step_number(), task.id().0, task.spawned_at());
    }

    /// Shows a step to the recorder that was not timed, and that ends the task or ends in a wait.
    #[inline(never)]
    fn show_stop(&self, task: &TaskRef) {
        if let Some(recorder) = self.recorder.get() {
            recorder.stepped(task, self.pace.last_reading(), None);
        }
    }

    /// Steps a task, shows the step to the watchdog, and then the task to `show`.
    #[inline(always)]
    fn step_in_pulse(&self, task: TaskRef, show: impl FnOnce(&TaskRef)) -> Option<TaskRef> {
        self.pulse_begins(&task);
        let left = self.local.step_and_show(task, show);
        self.pulse.step_is_over();
        left
    }

    /// Steps a task inside the step of another one, and shows the step. The watchdog goes on
    /// looking at the outer step.
    pub(super) fn step_inside_and_show(&self, task: TaskRef) -> Option<TaskRef> {
        match self.showing() {
            Showing::ToWatchdog => self.local.step(task),
            Showing::ToRecorder(recorder) => {
                let at = self.pace.last_reading();
                self.local.step_and_show(task, |task| recorder.stepped(task, at, None))
            }
            Showing::WaitsToRecorder => {
                self.local.step_and_show_stop(task, |task| self.show_stop(task))
            }
            Showing::Timed => self.step_timed(task, true),
        }
    }

    /// Steps a task, takes the time, and shows both to observers and to the recorder. The time of
    /// the steps inside is shown with these, and not with the outer step; a long step is reported
    /// with its whole time.
    #[inline(never)]
    fn step_timed(&self, task: TaskRef, is_inside: bool) -> Option<TaskRef> {
        let is_observed = !self.observers.is_empty();
        if is_observed {
            self.local.report_wakes();
            self.local.before_step(&task, || {
                self.observe_all(|observer| observer.stepping(&task));
            });
        }
        let outer = self.inner_time.take();
        let (before, left, now) = if is_inside {
            (self.clock.now(), self.local.step(task.clone()), self.clock.now())
        } else {
            let left = self.step_in_pulse(task.clone(), |_| ());
            (self.pace.last_reading(), left, self.read_clock())
        };
        let ticks = now.since(before);
        let own = ticks.saturating_sub(self.inner_time.replace(outer + ticks));
        if is_observed {
            self.local.report_wakes();
        }
        if !is_inside {
            self.note_length(&task, ticks);
        }
        if let Some(recorder) = self.recorder.get() {
            recorder.stepped(&task, now, Some(own));
        }
        let took = self.clock.rate().duration_floor(own);
        self.observe_all(|observer| observer.stepped(&task, took));
        left
    }

    /// Notes the length of a step, and warns of a long one.
    fn note_length(&self, task: &TaskRef, ticks: u64) {
        self.pace.note_length(ticks);
        if self.pace.is_poll_due() {
            self.local.call_attention();
        }
        if self.pace.is_long(ticks) && !self.is_watched() {
            tracing::warn!(
                task = task.id().0,
                name = task.name(),
                spawned_at = %task.spawned_at(),
                took = ?self.clock.rate().duration_floor(ticks),
                "a step took long: the kernel's other tasks had to wait"
            );
        }
    }

    /// Shows the end of a task that was dropped between steps.
    pub(super) fn show_drop(&self, task: &TaskRef) {
        if let Some(recorder) = self.recorder.get() {
            recorder.ended(task, Exit::Dropped, self.pace.last_reading(), None);
        }
    }

    /// Shows a task's end to observers.
    #[inline(never)]
    pub(super) fn show_end(&self, task: &TaskRef) {
        let exit = task.exit().unwrap_or(Exit::Dropped);
        self.observe_all(|observer| observer.exited(task, exit));
    }
}

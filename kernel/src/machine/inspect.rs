//! Looking into the machine: pages of tasks, figures, and the recorder.

use std::time::Duration;

use pikake_time::{Clock, Ticks};
use pikake_traps::inspect::{Inspect, KernelFigures, PeerFigures, TaskFigures, TaskPage};
use pikake_traps::{TaskId, TaskRef, WaitQueue};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::recorder::{Recorder, Ring};

impl<D: Driver, C: Clock, P: Pick> Inspect for Machine<D, C, P> {
    fn tasks_from(&self, index: u32, limit: usize) -> TaskPage {
        let (tasks, next) = self.tasks.borrow_mut().page(index, limit);
        TaskPage { tasks, next }
    }

    fn find_task(&self, task: TaskId) -> Option<TaskRef> {
        self.tasks.borrow().find(task)
    }

    fn granted_to(&self, queue: &WaitQueue) -> Option<TaskRef> {
        self.queues.borrow_mut().granted_to(queue)
    }

    fn task_figures(&self, task: &TaskRef) -> Option<TaskFigures> {
        let recorder = self.recorder.get().filter(|_| !task.is_ended())?;
        Some(recorder.figures(task, self.clock.now(), self.clock.rate()))
    }

    fn kernel_figures(&self) -> KernelFigures {
        let threads = self.driver.borrow().threads();
        KernelFigures {
            tasks: self.task_count(),
            ready: self.ready_count(),
            spawned: self.tasks.borrow().spawned(),
            timers: self.timers.borrow().len(),
            waiters: self.queues.borrow().wait_count(),
            sockets: self.socket_count(),
            busy_threads: threads.busy,
            idle_threads: threads.idle,
            queued_closures: threads.waiting,
            steps: self.local.step_number(),
            polls: self.pace.polls(),
            messages: self.message_count.get(),
            longest_step: self.clock.rate().duration_floor(self.pace.longest_step()),
            lateness: self.recorder.get().map(Recorder::lateness).unwrap_or_default(),
            peers: self.local.has_peers().then(|| self.peer_figures()),
        }
    }

    fn kernel_lateness(&self) -> Option<Duration> {
        let late = || self.pace.late(self.read_clock());
        self.local.has_peers().then(|| self.clock.rate().duration_floor(late()))
    }

    fn time_steps(&self, is_wanted: bool) {
        self.pace.want_times(is_wanted);
        self.end_pass();
    }

    fn record_steps(&self) {
        self.record(true);
    }

    fn record_waits(&self) {
        self.record(false);
    }

    fn last_events(&self, task: TaskId) -> Option<String> {
        self.recorder.get().map(|recorder| recorder.last_events(task))
    }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    fn peer_figures(&self) -> PeerFigures {
        let (late, late_max) = self.pace.lateness(self.read_clock());
        let rate = self.clock.rate();
        PeerFigures {
            late: rate.duration_floor(late),
            late_max: rate.duration_floor(late_max),
            offers_made: self.local.offers_made(),
            offers_taken: self.local.offers_taken(),
        }
    }

    /// Records all steps from now on, or those that end in a wait.
    pub(super) fn record(&self, all_steps: bool) {
        let Some(listed) = &self.listed else { return };
        let recorder = self.recorder.get_or_init(|| {
            let ring = Ring::new(self.read_clock(), self.clock.rate());
            listed.show(ring.clone());
            Recorder::new(ring)
        });
        if all_steps {
            recorder.note_all_steps();
        }
        self.shows_tasks.set(true);
        self.end_pass();
    }

    /// Makes the machine begin a new pass after the current step, so that steps are recorded or
    /// timed from then on.
    fn end_pass(&self) {
        self.pass_is_over.set(true);
        self.local.call_attention();
    }

    /// Notes how late a timer has fired, if there is a recorder.
    #[inline]
    pub(super) fn note_lateness(&self, now: Ticks, due: Ticks) {
        if let Some(recorder) = self.recorder.get() {
            recorder.timer_fired(now.since(due), self.clock.rate());
        }
    }
}

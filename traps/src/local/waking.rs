//! What makes tasks ready: wakes, and the notification of waiters.

use std::time::Instant;

use super::Local;
use crate::cell::flags::Flags;
use crate::cell::reference::TaskRef;
use crate::wait::Waiter;
use crate::wakers::Woken;

impl Local {
    /// Makes a new task ready for its first step, unless the kernel makes that step at once. A new
    /// task counts as ready, so wakes do nothing until then.
    #[inline(always)]
    pub fn start(&self, task: &TaskRef) {
        self.ready.push(task.clone());
    }

    /// Lets a new task make its first step when it is woken.
    pub fn start_when_woken(&self, task: &TaskRef) {
        task.flags().clear(Flags::QUEUED);
    }

    /// Makes a task ready, unless it is ready already or has ended (I6).
    #[inline(always)]
    pub fn make_ready(&self, task: &TaskRef) {
        let flags = task.flags();
        if flags.has(Flags::QUEUED | Flags::ENDED | Flags::WATCHED) {
            return self.make_watched_ready(task);
        }
        self.ready.push(task.clone());
    }

    /// [Makes a task ready](Self::make_ready) for a wake of another thread.
    /// [`RemoteWake::sent`](crate::RemoteWake::sent) is the moment of the wake.
    #[inline]
    pub fn make_ready_by(&self, task: &TaskRef, sent: Option<Instant>) {
        match sent {
            None => self.make_ready(task),
            Some(_) => self.make_watched_ready_by(task, sent),
        }
    }

    #[inline(never)]
    pub(super) fn make_watched_ready(&self, task: &TaskRef) {
        self.make_watched_ready_by(task, None);
    }

    fn make_watched_ready_by(&self, task: &TaskRef, sent: Option<Instant>) {
        let flags = task.flags();
        if flags.has(Flags::WATCHED) {
            if let Some(step) = self.step.of(task) {
                step.count_wake();
            }
        }
        if !flags.has(Flags::QUEUED | Flags::ENDED) {
            // Neither a spawn nor a look is a wake.
            if flags.has(Flags::OBSERVED) && task.was_stepped() && !task.is_looked_at() {
                let at = self.kernel().now();
                self.wakers.woken.borrow_mut().push(Woken { task: task.clone(), at, sent });
                self.call_attention();
            }
            self.ready.push(task.clone());
        }
    }

    /// Makes the current task ready when its step is over.
    #[inline(always)]
    pub(crate) fn make_ready_after_step(&self, task: &TaskRef) {
        task.flags().set(Flags::AGAIN);
    }

    /// Makes a waiter's task ready, or keeps the waker of the waiter's sub-wait for
    /// [`call_wakers`](Self::call_wakers). Runs no user code.
    #[inline(always)]
    pub fn notify(&self, waiter: &Waiter) {
        if waiter.sub_wait().is_none() {
            self.make_ready(waiter.task());
        } else {
            self.notify_sub_wait(waiter);
        }
    }

    /// [Notifies](Self::notify) a waiter whose entry is gone. Drop a returned waiter where user
    /// code may run.
    #[inline(always)]
    pub fn notify_owned(&self, waiter: Waiter) -> Option<Waiter> {
        let flags = waiter.task().flags();
        if waiter.sub_wait().is_none() && !flags.has(Flags::QUEUED | Flags::ENDED | Flags::WATCHED)
        {
            self.ready.push(waiter.into_task());
            None
        } else {
            self.notify(&waiter);
            Some(waiter)
        }
    }

    #[inline(never)]
    fn notify_sub_wait(&self, waiter: &Waiter) {
        match self.sub_waits.take_waker(waiter.sub_wait()) {
            Some(waker) => self.wakers.add([waker]),
            // The sub-wait's waker was called already, or its last poll had the task's own waker.
            None => self.make_ready(waiter.task()),
        }
    }

    /// Calls the wakers that were collected. Call this after [`notify`](Self::notify), as soon as
    /// nothing of the kernel is borrowed.
    #[inline]
    pub fn call_wakers(&self) {
        if self.needs_attention() {
            self.call_collected_wakers();
        }
    }

    #[cold]
    pub(super) fn call_collected_wakers(&self) {
        self.report_wakes();
        self.wakers.call();
    }

    /// Reports wakes of observed tasks to the kernel
    /// ([`TrapHandler::woken`](crate::TrapHandler::woken)). The kernel calls this right before and
    /// right after each step that observers see, and [`call_wakers`](Self::call_wakers) does. Tasks
    /// that have ended since are left out.
    #[inline(never)]
    pub fn report_wakes(&self) {
        let woken = self.wakers.woken.take();
        for Woken { task, at, sent } in woken.into_iter().filter(|woken| !woken.task.is_ended()) {
            let kernel = self.kernel();
            let here = || kernel.rate().duration_floor(kernel.now().since(at));
            kernel.woken(&task, sent.map_or_else(here, |sent| sent.elapsed()));
        }
    }

    /// Notes that rare work is due, for example a task to drop. For the kernel.
    pub fn call_attention(&self) {
        self.wakers.attention.set(true);
    }

    /// Whether rare work may be due: wakers to call, or work for which the kernel
    /// [called attention](Self::call_attention).
    #[inline(always)]
    pub fn needs_attention(&self) -> bool {
        self.wakers.attention.get()
    }

    /// Notes that the kernel has done the work for which it had called attention.
    pub fn clear_attention(&self) {
        self.wakers.clear_attention();
    }
}

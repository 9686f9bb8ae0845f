//! The contract with the traps: what a program asks of the kernel, passed on to the place that it
//! concerns.

#![deny(clippy::wildcard_enum_match_arm)]

use std::io;
use std::time::{Duration, SystemTime};

use pikake_time::{Clock, Rate, Ticks};
use pikake_traps::inspect::Inspect;
use pikake_traps::{
    Addresses, Attempt, BlockingCall, Closed, Local, OpenSocket, Opened, Outside, Parked, Reply,
    SocketId, Start, TaskError, TaskRef, TrapHandler, TrapKind, WaitEvent, WaitKey, WaitPlace,
    WaitQueue, Waiter,
};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::places::{Attempted, ends};

impl<D: Driver, C: Clock, P: Pick> TrapHandler for Machine<D, C, P> {
    #[inline]
    fn local(&self) -> &Local {
        &self.local
    }

    #[inline]
    fn now(&self) -> Ticks {
        self.clock.now()
    }

    #[inline]
    fn rate(&self) -> Rate {
        self.clock.rate()
    }

    fn is_real_time(&self) -> bool {
        self.is_real_time
    }

    fn offers_early(&self) -> bool {
        self.pick.offers_early()
    }

    fn park(&self, place: WaitPlace<'_>, waiter: &Waiter) -> Parked {
        match place {
            WaitPlace::Queue(queue, permits) => {
                self.park_in_queue(queue, permits.unwrap_or(0), waiter)
            }
            WaitPlace::Moment(at) => self.timers.borrow_mut().moments.park(at, waiter.clone()),
            WaitPlace::Deadline(at, _) => {
                self.timers.borrow_mut().deadlines.park(at, waiter.clone())
            }
            WaitPlace::End(task) => {
                let (mut tasks, mut queues) = (self.tasks.borrow_mut(), self.queues.borrow_mut());
                ends::park(&mut tasks, &mut queues, task, waiter.clone())
            }
            WaitPlace::Socket(socket, mut attempt, outcome) => {
                self.attempt_or_wait(socket, &mut attempt, Some((waiter, None))).parked(outcome)
            }
        }
    }

    fn collect(&self, place: WaitPlace<'_>, key: WaitKey, waiter: &Waiter) -> Parked {
        let (parked, released) = match place {
            WaitPlace::Queue(..) | WaitPlace::End(_) => {
                self.queues.borrow_mut().collect(key, waiter)
            }
            WaitPlace::Moment(_) => self.timers.borrow_mut().moments.collect(key, waiter),
            WaitPlace::Deadline(_, passed) => {
                self.timers.borrow_mut().deadlines.collect(key, waiter, passed)
            }
            WaitPlace::Socket(socket, mut attempt, outcome) => {
                let waiter = Some((waiter, Some(key)));
                return self.attempt_or_wait(socket, &mut attempt, waiter).parked(outcome);
            }
        };
        drop(released);
        parked
    }

    fn leave(&self, place: WaitPlace<'_>, key: WaitKey) -> bool {
        let mut was_notified = false;
        let released = match place {
            WaitPlace::Queue(queue, _) => {
                let mut list = queue.waiters();
                let (waiter, is_notified) = self.queues.borrow_mut().leave(key, &mut list);
                queue.waiters_removed(usize::from(!is_notified), list);
                was_notified = is_notified;
                Some(waiter)
            }
            WaitPlace::Moment(_) => self.timers.borrow_mut().moments.leave(key),
            WaitPlace::Deadline(_, passed) => self.timers.borrow_mut().deadlines.leave(key, passed),
            WaitPlace::End(task) => {
                let (mut tasks, mut queues) = (self.tasks.borrow_mut(), self.queues.borrow_mut());
                Some(ends::leave(&mut tasks, &mut queues, task, key))
            }
            WaitPlace::Socket(socket, attempt, _) => {
                let mut sockets = self.sockets.borrow_mut();
                attempt.direction().and_then(|direction| sockets.leave(socket, direction, key))
            }
        };
        drop(released);
        was_notified
    }

    fn notify(&self, queue: &WaitQueue, count: usize) -> usize {
        let mut list = queue.waiters();
        let grant = |permits| queue.grant(permits);
        let mut queues = self.queues.borrow_mut();
        let notified = queues.notify(&mut list, count, queue, grant, &self.local);
        queue.waiters_removed(notified, list);
        notified
    }

    fn forget(&self, queue: &WaitQueue) {
        let forgotten = self.queues.borrow_mut().take_all(queue.waiters());
        drop(forgotten);
    }

    fn open(&self, what: OpenSocket<'_>) -> io::Result<Opened<SocketId>> {
        self.sockets.borrow_mut().open(what, &mut *self.driver.borrow_mut())
    }

    fn attempt(&self, socket: SocketId, mut attempt: Attempt<'_>) -> Option<io::Result<usize>> {
        match self.attempt_or_wait(socket, &mut attempt, None) {
            Attempted::Done(done) => Some(done),
            Attempted::Waits(_) | Attempted::NotNow => None,
        }
    }

    #[inline]
    fn spawn(&self, task: &TaskRef, start: Start) -> bool {
        if self.is_shutting_down() {
            return false;
        }
        self.tasks.borrow_mut().add(task);
        if self.shows_tasks.get() {
            self.show_spawn(task);
        }
        match start {
            Start::AtOnce if self.begins_at_once() => self.step_inside(task),
            Start::AtOnce | Start::Later => self.local.start(task),
            Start::WhenWoken => self.local.start_when_woken(task),
        }
        true
    }

    fn abort(&self, task: &TaskRef, outcome: TaskError) {
        if !task.is_ended() {
            self.aborted.borrow_mut().push_back((task.clone(), outcome));
            self.local.call_attention();
        }
    }

    fn observe(&self, task: &TaskRef, kind: TrapKind, event: WaitEvent) {
        self.observe_all(|observer| match event {
            WaitEvent::Begins(place) => observer.trapped(task, kind, place),
            WaitEvent::Over { interrupted } => observer.answered(task, kind, interrupted),
        });
    }

    fn woken(&self, task: &TaskRef, ago: Duration) {
        self.observe_all(|observer| observer.woken(task, ago));
    }

    fn outside(&self) -> &dyn Outside {
        self
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    #[inline]
    fn park_in_queue(&self, queue: &WaitQueue, permits: usize, waiter: &Waiter) -> Parked {
        let mut list = queue.waiters();
        let parked = self.queues.borrow_mut().park(&mut list, waiter.clone(), permits);
        queue.waiters_added(1, list);
        parked
    }

    #[inline(always)]
    fn attempt_or_wait(
        &self,
        socket: SocketId,
        attempt: &mut Attempt<'_>,
        waiter: Option<(&Waiter, Option<WaitKey>)>,
    ) -> Attempted {
        if let Attempt::Close = attempt {
            return self.close(socket);
        }
        let mut released = None;
        let attempted = {
            let driver = &mut *self.driver.borrow_mut();
            let mut sockets = self.sockets.borrow_mut();
            sockets.attempt(socket, attempt, waiter, driver, &self.local, &mut released)
        };
        drop(released);
        attempted
    }

    #[cold]
    fn close(&self, socket: SocketId) -> Attempted {
        let closed = {
            let driver = &mut *self.driver.borrow_mut();
            self.sockets.borrow_mut().close(socket, driver, &self.local)
        };
        Attempted::Done(closed.map(|_| 0).ok_or_else(|| Closed.into()))
    }
}

impl<D: Driver, C: Clock, P: Pick> Outside for Machine<D, C, P> {
    fn wall_time(&self) -> SystemTime {
        self.driver.borrow().wall_time()
    }

    fn random(&self, to: &mut [u8]) {
        self.driver.borrow_mut().random(to);
    }

    fn start_thread(&self, name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let started = self.driver.borrow_mut().start_thread(name, life);
        started.map_err(|(error, refused)| {
            drop(refused);
            error
        })
    }

    fn system(&self) -> io::Result<()> {
        self.driver.borrow().system()
    }

    fn is_closing(&self) -> bool {
        self.is_shutting_down()
    }

    fn yield_thread_before_sleep(&self) {
        self.yields_thread.set(true);
    }

    fn blocking(&self, call: BlockingCall) {
        let accepted = self.driver.borrow_mut().blocking(call);
        drop_refused(accepted);
    }

    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>) {
        let accepted = self.driver.borrow_mut().lookup(host, port, reply);
        drop_refused(accepted);
    }
}

/// Drops a call that the driver refused because it has no thread. The drop notifies the call's
/// waiter.
fn drop_refused(accepted: Result<(), BlockingCall>) {
    if let Err(call) = accepted {
        tracing::error!("no helper thread could be started");
        drop(call);
    }
}

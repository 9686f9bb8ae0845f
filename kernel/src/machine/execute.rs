//! The execution of traps.

use std::io;
use std::time::{Duration, SystemTime};

use pikake_time::{Clock, Deadline, Rate, Ticks, TimerKey};
use pikake_traps::inspect::Inspect;
use pikake_traps::{
    Addresses, Attempt, Begun, BlockingCall, Closed, Collected, Disarmed, Interrupted, Local,
    OpenSocket, Opened, Outcome, Outside, Reply, SocketId, TaskId, TaskRef, TrapHandler, TrapKind,
    Until, Wait, WaitEvent, WaitKey, WaitQueue, Waiter, WaiterList,
};

use crate::driver::Driver;
use crate::machine::Machine;
use crate::pick::Pick;
use crate::tables::{Attempted, Wanted};

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

    fn begin(&self, mut wait: Wait<'_>, waiter: &Waiter) -> Begun {
        match &mut wait {
            Wait::Park(queue) => self.begin_park(queue, waiter),
            Wait::Take(queue, count) => self.begin_take(queue, *count, waiter),
            Wait::Join(joined) => self.begin_join(joined, waiter),
            Wait::Sleep(until) => self.begin_sleep(*until, waiter),
            Wait::Elapse(until) => self.begin_elapse(*until, waiter),
            Wait::Attempt(socket, attempt, outcome) => {
                self.begin_attempt(*socket, attempt, outcome, waiter)
            }
            _ => Begun::Never,
        }
    }

    fn collect(&self, mut wait: Wait<'_>, key: WaitKey, waiter: &Waiter) -> Collected {
        match &mut wait {
            Wait::Park(_) | Wait::Join(_) => self.collect_signal(key, waiter),
            Wait::Take(queue, count) => self.collect_permits(queue, *count, key, waiter),
            Wait::Attempt(socket, attempt, outcome) => {
                self.attempt_again(*socket, attempt, outcome, key, waiter)
            }
            _ => self.collect_timer(key, waiter),
        }
    }

    fn withdraw(&self, wait: Wait<'_>, key: WaitKey) {
        let released = match wait {
            Wait::Park(queue) => {
                let (waiter, was_notified) = self.remove_waiter(queue, key);
                if was_notified {
                    self.notify(queue, 1);
                }
                Some(waiter)
            }
            Wait::Take(queue, count) => {
                let (waiter, was_granted) = self.remove_waiter(queue, key);
                if was_granted {
                    queue.returned(count);
                }
                Some(waiter)
            }
            Wait::Join(joined) => {
                let mut tasks = self.tasks.borrow_mut();
                let mut none = WaiterList::EMPTY;
                let joiners = tasks.joiners(joined).unwrap_or(&mut none);
                Some(self.queues.borrow_mut().remove(key, joiners).0)
            }
            Wait::Attempt(socket, attempt, _) => {
                let mut sockets = self.sockets.borrow_mut();
                attempt.direction().and_then(|direction| sockets.withdraw(socket, direction, key))
            }
            _ => self.timers.borrow_mut().remove_wait(key),
        };
        drop(released);
        self.local.call_wakers();
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

    fn notify(&self, queue: &WaitQueue, count: usize) -> usize {
        let mut list = queue.waiters();
        let notified = self.queues.borrow_mut().notify(&mut list, count, &self.local);
        queue.waiters_removed(notified, list);
        notified
    }

    fn serve(&self, queue: &WaitQueue) {
        self.queues.borrow_mut().serve(queue, &self.local);
    }

    fn granted_to(&self, queue: &WaitQueue) -> Option<TaskRef> {
        self.queues.borrow_mut().granted_to(queue)
    }

    fn due(&self, key: WaitKey) -> Option<Deadline> {
        self.timers.borrow().due(key)
    }

    fn forget_waiters(&self, queue: &WaitQueue) {
        let forgotten = self.queues.borrow_mut().take_all(queue.waiters());
        drop(forgotten);
    }

    fn arm(&self, deadline: Deadline, waiter: Waiter) -> TimerKey {
        self.timers.borrow_mut().arm(deadline, waiter)
    }

    fn has_passed(&self, timer: TimerKey) -> bool {
        self.timers.borrow().has_passed(timer)
    }

    fn disarm(&self, timer: TimerKey) -> Option<Disarmed> {
        self.timers.borrow_mut().disarm(timer)
    }

    #[inline]
    fn spawn(&self, task: &TaskRef) -> bool {
        if self.is_shutting_down() {
            return false;
        }
        self.tasks.borrow_mut().add(task);
        if self.shows_tasks.get() {
            self.announce(task);
        }
        self.local.make_ready(task);
        true
    }

    fn abort(&self, task: &TaskRef, reason: Interrupted) {
        if !task.is_ended() {
            self.aborted.borrow_mut().push_back((task.clone(), reason));
            self.local.call_attention();
        }
    }

    fn find_task(&self, task: TaskId) -> Option<TaskRef> {
        self.tasks.borrow().find(task)
    }

    fn open(&self, what: OpenSocket<'_>) -> io::Result<Opened<SocketId>> {
        self.sockets.borrow_mut().open(what, &mut *self.driver.borrow_mut())
    }

    fn attempt(&self, socket: SocketId, mut attempt: Attempt<'_>) -> Option<io::Result<usize>> {
        match self.attempt_or_wait(socket, &mut attempt, None) {
            Attempted::Done(done) => Some(done),
            _ => None,
        }
    }

    fn outside(&self) -> &dyn Outside {
        self
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// The moment of a wait; `None` if that moment has come.
    #[inline]
    fn moment(&self, until: Until) -> Option<Deadline> {
        match until {
            Until::After(length) if length.is_zero() => None,
            Until::After(length) => Some(self.clock.after(length)),
            Until::At(deadline) => (!deadline.is_due(self.clock.now())).then_some(deadline),
        }
    }

    #[inline]
    fn begin_timer(&self, at: Deadline, waiter: &Waiter) -> Begun {
        if at.is_never() {
            return Begun::Never;
        }
        Begun::Entry(self.timers.borrow_mut().wait(at.ticks(), waiter.clone()))
    }

    #[inline(never)]
    fn begin_sleep(&self, until: Until, waiter: &Waiter) -> Begun {
        match self.moment(until) {
            Some(at) => self.begin_timer(at, waiter),
            None => Begun::NextStep,
        }
    }

    #[inline(never)]
    fn begin_elapse(&self, until: Until, waiter: &Waiter) -> Begun {
        match self.moment(until) {
            Some(at) => self.begin_timer(at, waiter),
            None if self.local.take_answer() => Begun::Answered,
            None => Begun::NextStep,
        }
    }

    #[inline(never)]
    fn collect_timer(&self, key: WaitKey, waiter: &Waiter) -> Collected {
        let (collected, released) = self.timers.borrow_mut().rebind(key, waiter);
        drop(released);
        collected
    }

    #[inline(never)]
    fn begin_join(&self, joined: &TaskRef, waiter: &Waiter) -> Begun {
        assert!(
            joined.kernel() == self.home().id(),
            "a task was joined in another kernel than its own"
        );
        match self.tasks.borrow_mut().joiners(joined) {
            Some(joiners) => {
                Begun::Entry(self.queues.borrow_mut().park(joiners, waiter.clone(), Wanted::Signal))
            }
            None => Begun::Never,
        }
    }

    #[inline(never)]
    fn begin_park(&self, queue: &WaitQueue, waiter: &Waiter) -> Begun {
        Begun::Entry(self.park(queue, waiter, Wanted::Signal))
    }

    #[inline(never)]
    fn begin_take(&self, queue: &WaitQueue, count: usize, waiter: &Waiter) -> Begun {
        queue.join_kernel(self.home().id());
        let is_taken = queue.try_take(count);
        if is_taken && self.local.take_answer() {
            return Begun::Answered;
        }
        let key = self.park(queue, waiter, Wanted::Permits(count));
        if is_taken {
            // The task's budget of answers is spent, so the permits are granted for the next step.
            queue.give(count);
        }
        Begun::Entry(key)
    }

    #[inline(always)]
    fn park(&self, queue: &WaitQueue, waiter: &Waiter, wanted: Wanted) -> WaitKey {
        queue.join_kernel(self.home().id());
        let mut list = queue.waiters();
        let mut queues = self.queues.borrow_mut();
        queues.assert_same_kind(list, wanted);
        let key = queues.park(&mut list, waiter.clone(), wanted);
        queue.waiters_added(1, list);
        key
    }

    #[inline(never)]
    fn collect_permits(
        &self,
        queue: &WaitQueue,
        count: usize,
        key: WaitKey,
        waiter: &Waiter,
    ) -> Collected {
        let collected = self.rebind(key, waiter);
        if collected == Collected::Answered {
            queue.collected(count);
        }
        collected
    }

    #[inline(never)]
    fn collect_signal(&self, key: WaitKey, waiter: &Waiter) -> Collected {
        self.rebind(key, waiter)
    }

    #[inline(always)]
    fn rebind(&self, key: WaitKey, waiter: &Waiter) -> Collected {
        let (collected, released) = self.queues.borrow_mut().rebind(key, waiter);
        drop(released);
        collected
    }

    /// Removes a waiter from a queue. Returns whether the waiter was notified.
    fn remove_waiter(&self, queue: &WaitQueue, key: WaitKey) -> (Waiter, bool) {
        let mut list = queue.waiters();
        let (waiter, was_notified) = self.queues.borrow_mut().remove(key, &mut list);
        queue.waiters_removed(usize::from(!was_notified), list);
        (waiter, was_notified)
    }

    #[inline(never)]
    fn begin_attempt(
        &self,
        socket: SocketId,
        attempt: &mut Attempt<'_>,
        outcome: &mut Outcome,
        waiter: &Waiter,
    ) -> Begun {
        match self.attempt_or_wait(socket, attempt, Some((waiter, None))) {
            Attempted::Done(done) => {
                outcome.set(done);
                Begun::Answered
            }
            Attempted::Waits(key) => Begun::Entry(key),
            Attempted::NotNow => Begun::NextStep,
        }
    }

    #[inline(never)]
    fn attempt_again(
        &self,
        socket: SocketId,
        attempt: &mut Attempt<'_>,
        outcome: &mut Outcome,
        key: WaitKey,
        waiter: &Waiter,
    ) -> Collected {
        match self.attempt_or_wait(socket, attempt, Some((waiter, Some(key)))) {
            Attempted::Done(done) => {
                outcome.set(done);
                Collected::Answered
            }
            Attempted::Waits(key) => Collected::Entry(key),
            Attempted::NotNow => Collected::NextStep,
        }
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

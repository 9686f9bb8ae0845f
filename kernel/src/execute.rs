//! The traps, executed.
//!
//! Each method takes a borrow of the book, changes what it must, and gives the borrow back before it
//! drops what it took out or calls a waker (I10).

use std::io;
use std::panic::Location;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use pikake_time::{Clock, Rate, Ticks};
use pikake_traps::{
    Addresses, Direction, Executed, Interrupted, Light, LightYield, LocalHome, Polled, RecordKey,
    Refusal, Reply, ScopeEnd, ScopeId, ScopeKind, SocketId, Sockets, TaskId, TaskRef, TrapHandler,
    TrapKind, Until, Wait, WaitQueue, outside_a_task,
};

use crate::book::NONE;
use crate::cause::Owner;
use crate::driver::{Driver, Job};
use crate::light_park::{Dropped, slot_of};
use crate::machine::{Machine, task_owner};
use crate::pick::Pick;
use crate::record::{Place, State};
use crate::scope::Closed;
use crate::sockets::Readiness;

/// What is to be done about a trap that is executed.
enum Verdict {
    /// It can be answered, and need not suspend unless the task has had its share for this step.
    Answer,
    /// It waits for the next step.
    NextStep,
    Timer(Ticks),
    Queue(u32),
    Socket(SocketId, Direction),
    /// Only something that the kernel does not see can end it.
    Nowhere,
}

impl<D: Driver, C: Clock, P: Pick> TrapHandler for Machine<D, C, P> {
    fn home(&self) -> &LocalHome {
        &self.home
    }

    fn execute(
        &self,
        wait: Wait<'_>,
        place: &'static Location<'static>,
        cx: &mut Context<'_>,
    ) -> Executed {
        let kind = wait.kind();
        let Some(task) = self.current() else { outside_a_task(kind, place) };
        let verdict = match wait {
            Wait::Yield => Verdict::NextStep,
            Wait::Elapse(Until::After(Duration::ZERO)) => Verdict::Answer,
            Wait::Sleep(Until::After(Duration::ZERO)) => Verdict::NextStep,
            Wait::Sleep(Until::After(length)) | Wait::Elapse(Until::After(length)) => {
                Verdict::Timer(self.clock.after(length).ticks())
            }
            Wait::Sleep(Until::At(deadline)) if deadline.is_due(self.clock.now()) => {
                Verdict::NextStep
            }
            Wait::Elapse(Until::At(deadline)) if deadline.is_due(self.clock.now()) => {
                Verdict::Answer
            }
            Wait::Sleep(Until::At(deadline)) | Wait::Elapse(Until::At(deadline)) => {
                Verdict::Timer(deadline.ticks())
            }
            Wait::Ready { socket, direction, refusal } => {
                let refused = match self.net.readiness(socket, direction) {
                    Readiness::Closed => Some(Some(Refusal::Closed)),
                    Readiness::NotReady(other) if self.waits_at(other, socket, direction) => {
                        Some(Some(Refusal::Busy))
                    }
                    Readiness::Ready => Some(None),
                    Readiness::NotReady(_) => None,
                };
                match refused {
                    None => Verdict::Socket(socket, direction),
                    Some(refused) if self.has_share() => {
                        refusal.set(refused);
                        Verdict::Answer
                    }
                    Some(_) => Verdict::NextStep,
                }
            }
            Wait::Park(queue) => Verdict::Queue(self.queue_index(queue)),
            Wait::Join(joined) => {
                assert!(
                    joined.kernel() == self.home.id(),
                    "a task (at {place}) was joined in another kernel than its own"
                );
                match joined.is_ended() {
                    true => Verdict::Answer,
                    false => Verdict::Queue(self.queue_index(joined.joiners())),
                }
            }
            Wait::Foreign(_) => Verdict::Nowhere,
            _ => unreachable!("every trap that there is, is executed"),
        };
        if matches!(verdict, Verdict::Answer) && self.take_share() {
            return Executed::Answered(Ok(()));
        }
        let waker = waker_unless_own(&task, cx);
        let has_observers = !self.observers.is_empty();
        let observed = has_observers.then(|| task.clone());
        let record = {
            let mut book = self.book.borrow_mut();
            let is_deaf = kind == TrapKind::Elapse;
            if !is_deaf && let Some(interrupted) = book.would_suspend(&task) {
                drop(book);
                drop(waker);
                return Executed::Answered(Err(interrupted));
            }
            let record = book.park(task, kind, waker, place);
            if is_deaf {
                book.make_deaf(record);
            }
            match verdict {
                Verdict::Answer | Verdict::NextStep => book.put_next_step(record),
                Verdict::Nowhere => book.put(record, Place::Nowhere),
                Verdict::Timer(until) => book.put_timer(record, until),
                Verdict::Queue(queue) => {
                    book.put_queue(record, queue);
                    book.add_slot();
                }
                Verdict::Socket(socket, direction) => {
                    book.put(record, socket_place(socket, direction));
                    self.net.set_waiter(socket, direction, record);
                }
            }
            record
        };
        if let Some(task) = observed {
            self.observe(|observer| observer.trapped(&task, kind, place));
        }
        Executed::Parked(RecordKey(record))
    }

    fn park(
        &self,
        queue: &WaitQueue,
        place: &'static Location<'static>,
        cx: &Context<'_>,
    ) -> Option<RecordKey> {
        // What else is to be done for the first wait, that of a record does.
        let queue = queue.index_in(self.home.id())?;
        self.book.borrow_mut().park_lightly(queue, cx.waker(), place).map(RecordKey)
    }

    fn poll_again(&self, record: RecordKey, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        let RecordKey(record) = record;
        match slot_of(record) {
            Some(slot) => self.poll_light(slot, cx),
            None => self.poll_record(record, cx),
        }
    }

    fn withdraw(&self, record: RecordKey) {
        let RecordKey(record) = record;
        let mut book = self.book.borrow_mut();
        let dropped = match slot_of(record) {
            Some(slot) => book.drop_light(slot),
            None => Dropped::Record(record),
        };
        let (woken_from, entry) = match dropped {
            Dropped::Waiting => return,
            Dropped::Woken(queue) => (Some(queue), None),
            Dropped::Record(record) => {
                let woken_from = match &book.record(record).state {
                    State::Done(queue) => *queue,
                    State::Parked(_) | State::Interrupted(..) => None,
                };
                book.forget_told(record);
                book.take_out(record);
                (woken_from, Some(book.remove_record(record)))
            }
        };
        if let Some(queue) = woken_from.and_then(|queue| book.queue_index(queue)) {
            book.wake_queue(queue, 1);
        }
        drop(book);
        drop(entry);
        self.flush();
        self.home.nudge();
    }

    fn spawn(&self, task: &TaskRef) -> bool {
        if self.closing.get() {
            return false;
        }
        self.book.borrow_mut().add_task(task);
        self.allow_light_yields(task);
        if !self.observers.is_empty() {
            self.observe(|observer| observer.created(task));
        }
        true
    }

    #[inline]
    fn current(&self) -> Option<TaskRef> {
        let book = self.book.borrow();
        Some(book.tasks.get(book.stepping? as usize)?.task.clone())
    }

    fn linger(&self) {
        self.lingers.set(true);
    }

    fn find_task(&self, task: TaskId) -> Option<TaskRef> {
        let book = self.book.borrow();
        let mut all = book.tasks.iter().map(|(_, entry)| &entry.task);
        all.find(|known| known.id() == task).cloned()
    }

    fn wake(&self, task: TaskRef) {
        self.book.borrow_mut().make_ready(task);
    }

    #[inline]
    fn begin_light_yield(&self) -> bool {
        self.book.borrow_mut().begin_light_yield()
    }

    fn end_light_yield(&self, light: LightYield) -> Option<RecordKey> {
        self.book.borrow_mut().end_light_yield(light)
    }

    fn let_light_yield_pass(&self) {
        self.book.borrow_mut().release_branch();
        self.flush();
    }

    fn cancel(&self, task: &TaskRef, reason: Interrupted) {
        if task.is_ended() {
            return;
        }
        if task.ledger().step.get() == 0 {
            return self.abort(task, reason);
        }
        self.book.borrow_mut().fire(task_owner(task), reason, self.clock.now());
        self.flush();
        self.home.nudge();
    }

    fn abort(&self, task: &TaskRef, reason: Interrupted) {
        if !task.is_ended() {
            self.book.borrow_mut().doomed.push_back((task.clone(), reason));
            self.home.nudge();
        }
    }

    fn wake_queue(&self, queue: &WaitQueue, count: usize) -> usize {
        let Some(queue) = queue.index_in(self.home.id()) else {
            return 0;
        };
        if !self.book.borrow_mut().wake_only(queue, count) {
            return self.wake_many(queue, count);
        }
        self.home.nudge();
        1
    }

    fn queue_len(&self, queue: &WaitQueue) -> usize {
        let queue = queue.index_in(self.home.id());
        queue.map_or(0, |queue| self.book.borrow().queue_length(queue))
    }

    fn forget_queue(&self, index: u32) {
        self.book.borrow_mut().remove_queue(index);
    }

    fn open_scope(&self, kind: ScopeKind, cx: &mut Context<'_>) -> (ScopeId, Option<ScopeId>) {
        let (deadline, grace) = match kind {
            ScopeKind::Deadline { until: Until::After(length), grace } => {
                (Some(self.clock.after(length)), grace)
            }
            ScopeKind::Deadline { until: Until::At(deadline), grace } => (Some(deadline), grace),
            ScopeKind::Shield => (None, None),
            _ => unreachable!("every kind of scope that there is, can be opened"),
        };
        let grace = grace.map(|grace| self.clock.rate().ticks_ceil(grace));
        let Some(task) = self.current() else { outside_a_scope() };
        let waker = waker_unless_own(&task, cx);
        self.book.borrow_mut().open_scope(task, deadline, grace, waker)
    }

    fn enter_scope(&self, scope: ScopeId, cx: &mut Context<'_>) -> Option<ScopeId> {
        let mut book = self.book.borrow_mut();
        let back_to = book.scope;
        if book.enter_as_before(scope, cx.waker()) {
            return back_to;
        }
        drop(book);
        let Some(task) = self.current() else { outside_a_scope() };
        let waker = waker_unless_own(&task, cx);
        let before = self.book.borrow_mut().enter(scope, &task, waker);
        drop(before);
        back_to
    }

    fn leave_scope(&self, scope: ScopeId, back_to: Option<ScopeId>, pending: bool) -> Polled {
        let mut book = self.book.borrow_mut();
        let (is_woken, is_troubled) = book.leave(scope, back_to);
        if !pending {
            return Polled::Keep;
        }
        if is_troubled {
            let now = self.last_reading.get();
            if book.is_to_be_dropped(Owner::Scope(scope), is_woken, now) {
                return Polled::Drop;
            }
            drop(book);
            self.flush();
        } else {
            book.arm(scope);
        }
        Polled::Keep
    }

    fn close_scope(&self, scope: ScopeId, completed: bool) -> ScopeEnd {
        let mut book = self.book.borrow_mut();
        let closed = book.close_scope(scope, completed);
        drop(book);
        let Some(Closed { deadline, interrupted, left }) = closed else {
            return ScopeEnd::default();
        };
        drop(left);
        if interrupted.is_some() {
            self.flush();
        }
        let late = match deadline.is_never() {
            true => 0,
            false => self.now().since(deadline.ticks()),
        };
        let late = if late == 0 { Duration::ZERO } else { self.rate().duration_floor(late) };
        ScopeEnd { interrupted: interrupted.unwrap_or(false), late }
    }

    #[inline]
    fn finish_scope(&self, scope: ScopeId, back_to: Option<ScopeId>) -> ScopeEnd {
        self.book.borrow_mut().leave(scope, back_to);
        self.close_scope(scope, true)
    }

    fn check_interrupt(&self) -> Option<Interrupted> {
        let task = self.current()?;
        self.book.borrow_mut().would_suspend(&task)
    }

    fn pending_interrupt(&self) -> Option<Interrupted> {
        let task = self.current()?;
        self.book.borrow_mut().peek(&task)
    }

    fn now(&self) -> Ticks {
        self.clock.now()
    }

    fn rate(&self) -> Rate {
        self.clock.rate()
    }

    fn wall_time(&self) -> SystemTime {
        self.net.driver.borrow().wall_time()
    }

    fn random(&self, to: &mut [u8]) {
        self.net.driver.borrow_mut().random(to);
    }

    fn start_thread(&self, name: &str, life: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        // A driver that refuses gives it back: it is the caller's code, and dropped with all free.
        let refused = self.net.driver.borrow_mut().start_thread(name, life);
        refused.map_err(|(error, life)| {
            drop(life);
            error
        })
    }

    fn sockets(&self) -> &dyn Sockets {
        &self.net
    }

    fn system(&self) -> io::Result<()> {
        self.net.driver.borrow().system()
    }

    fn blocking(&self, job: Job) {
        let refused = self.net.driver.borrow_mut().blocking(job);
        give_up(refused);
    }

    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>) {
        let refused = self.net.driver.borrow_mut().lookup(host, port, reply);
        give_up(refused);
    }
}

/// The poll's waker, if it is not the task's own.
#[inline]
fn waker_unless_own(task: &TaskRef, cx: &Context<'_>) -> Option<Waker> {
    if task.owns(cx.waker()) { None } else { Some(cx.waker().clone()) }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// Lets a task wait without records where that can be, unless somebody wants to see them.
    #[inline]
    pub(crate) fn allow_light_yields(&self, task: &TaskRef) {
        if self.observers.is_empty() {
            task.ledger().light.set(Light::Free);
        }
    }

    #[inline(never)]
    fn wake_many(&self, queue: u32, count: usize) -> usize {
        let woken = self.book.borrow_mut().wake_queue(queue, count);
        self.flush();
        self.home.nudge();
        woken
    }

    /// Whether a wait may still be answered without suspending in this step.
    fn has_share(&self) -> bool {
        self.answers_left.get() > 0 && self.net.attempts_left.get() > 0
    }

    fn take_share(&self) -> bool {
        let has_share = self.has_share();
        if has_share {
            self.answers_left.set(self.answers_left.get() - 1);
        }
        has_share
    }

    /// Whether that record waits at that socket.
    #[inline]
    fn waits_at(&self, record: u32, socket: SocketId, direction: Direction) -> bool {
        if record == NONE {
            return false;
        }
        let book = self.book.borrow();
        let entry = book.records.get(record as usize);
        let place = socket_place(socket, direction);
        entry.is_some_and(|entry| matches!(entry.state, State::Parked(at) if at == place))
    }

    /// The number under which a wait queue is known here; it gets one if it has none.
    #[inline]
    fn queue_index(&self, queue: &WaitQueue) -> u32 {
        let kernel = self.home.id();
        if let Some(index) = queue.index_in(kernel) {
            return index;
        }
        queue.bind(kernel, || self.book.borrow_mut().add_queue())
    }
}

/// Drops a job that no thread could be started for; its waiter is told that it will not be done.
fn give_up(outcome: Result<(), Job>) {
    if let Err(job) = outcome {
        tracing::error!("no helper thread could be started");
        drop(job);
    }
}

#[cold]
fn outside_a_scope() -> ! {
    panic!("a scope was polled inside a kernel but outside a task: spawn a task and await it there")
}

fn socket_place(socket: SocketId, direction: Direction) -> Place {
    Place::Socket {
        index: socket.index,
        generation: socket.generation,
        write: direction == Direction::Write,
    }
}

//! The traps, executed.
//!
//! Each method takes a borrow of the book, changes what it must, and gives the borrow back before it
//! drops what it took out or calls a waker (I10).

use std::panic::Location;
use std::task::{Context, Poll, Waker};

use pikake_time::{Clock, Rate, Ticks};
use pikake_traps::{
    Addresses, Direction, Executed, Interrupted, LocalHome, RecordKey, Refusal, Reply, ScopeEnd,
    ScopeId, SocketId, Sockets, TaskRef, TrapHandler, TrapKind, Until, Verdict, Wait, WaitQueue,
    outside_a_task,
};

use crate::book::{NONE, Place, State, Timer};
use crate::cause::Owner;
use crate::driver::{Driver, Job};
use crate::machine::{Machine, task_owner};
use crate::pick::Pick;
use crate::sockets::Readiness;

/// What a trap is parked on, once it is clear that it suspends.
enum Parking {
    Place(Place),
    Timer(Ticks),
    Queue(u32),
    Socket(SocketId, Direction),
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
        let task = self.current_task(kind, place);
        let parking = match wait {
            Wait::Yield => None,
            Wait::Sleep(until) => {
                let deadline = match until {
                    Until::After(length) => self.clock.after(length),
                    Until::At(deadline) => deadline,
                };
                let is_due = match until {
                    Until::After(length) => length.is_zero(),
                    Until::At(deadline) => deadline.is_due(self.clock.now()),
                };
                (!is_due).then(|| Parking::Timer(deadline.ticks()))
            }
            Wait::Ready { socket, direction, refusal } => {
                match self.net.readiness(socket, direction) {
                    Readiness::Closed => {
                        refusal.set(Some(Refusal::Closed));
                        return Executed::Answered(Ok(()));
                    }
                    Readiness::Ready => match self.answer_at_once() {
                        true => return Executed::Answered(Ok(())),
                        false => None,
                    },
                    Readiness::NotReady(other) => {
                        if self.waits_at(other, socket, direction) {
                            refusal.set(Some(Refusal::Busy));
                            return Executed::Answered(Ok(()));
                        }
                        Some(Parking::Socket(socket, direction))
                    }
                }
            }
            Wait::Park(queue) => Some(Parking::Queue(self.queue_index(queue))),
            Wait::Join(joined) => {
                if joined.kernel() != self.home.id() {
                    panic!("a task (at {place}) was joined in another kernel than its own");
                }
                match joined.is_ended() {
                    true if self.answer_at_once() => return Executed::Answered(Ok(())),
                    true => None,
                    false => Some(Parking::Queue(self.queue_index(joined.joiners()))),
                }
            }
            Wait::Foreign(_) => Some(Parking::Place(Place::Nowhere)),
            _ => unreachable!("every trap that there is, is executed"),
        };
        let waker = self.foreign_waker(cx);
        let record = {
            let mut book = self.book.borrow_mut();
            if let Some(interrupted) = book.would_suspend(&task) {
                drop(book);
                return Executed::Answered(Err(interrupted));
            }
            let record = book.park(&task, kind, waker, place);
            match parking {
                None => book.put_next_step(record),
                Some(Parking::Place(at)) => book.put(record, at),
                Some(Parking::Timer(until)) => book.put_timer(record, until),
                Some(Parking::Queue(queue)) => book.put_queue(record, queue, false),
                Some(Parking::Socket(socket, direction)) => {
                    let (index, generation) = (socket.index, socket.generation);
                    let write = direction == Direction::Write;
                    book.put(record, Place::Socket { index, generation, write });
                    self.net.set_waiter(socket, direction, record);
                }
            }
            record
        };
        if !self.observers.is_empty() {
            self.observe(|observer| observer.trapped(&task, kind, place));
        }
        Executed::Parked(RecordKey(record))
    }

    fn poll_again(&self, record: RecordKey, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        let RecordKey(record) = record;
        let (kind, place) = {
            let book = self.book.borrow();
            let entry = book.record(record);
            (entry.kind, entry.place)
        };
        let task = self.current_task(kind, place);
        let mut book = self.book.borrow_mut();
        if !book.branch.is_empty() {
            book.release_branch();
        }
        book.bring_home(record, &task);
        let entry = book.record(record);
        let result = match &entry.state {
            State::Done(_) => Ok(()),
            State::Interrupted(interrupted, _) => Err(interrupted.clone()),
            State::Parked(Place::NextStep(parked)) if *parked < book.step => Ok(()),
            State::Parked(at) => {
                let next_step = matches!(at, Place::NextStep(_));
                drop(book);
                let waker = self.foreign_waker(cx);
                let mut book = self.book.borrow_mut();
                let before = book.rebind(record, &task, waker);
                if next_step {
                    book.put_next_step(record);
                }
                drop(book);
                drop(before);
                self.flush();
                return Poll::Pending;
            }
        };
        book.collect(record, result.as_ref().err());
        let entry = book.remove_record(record);
        drop(book);
        drop(entry);
        self.flush();
        if !self.observers.is_empty() {
            self.observe(|observer| observer.answered(&task, kind, result.is_err()));
        }
        Poll::Ready(result)
    }

    fn withdraw(&self, record: RecordKey) {
        let RecordKey(record) = record;
        let mut book = self.book.borrow_mut();
        book.leave_scopes(record);
        book.take_out(record);
        let entry = book.remove_record(record);
        if let State::Done(Some(queue)) = entry.state
            && let Some(queue) = book.queue_index(queue)
        {
            book.wake_queue(queue, 1);
        }
        drop(book);
        drop(entry);
        self.flush();
    }

    fn spawn(&self, task: &TaskRef) -> bool {
        if self.closing.get() {
            return false;
        }
        self.book.borrow_mut().add_task(task);
        if !self.observers.is_empty() {
            self.observe(|observer| observer.created(task));
        }
        true
    }

    fn current(&self) -> Option<TaskRef> {
        self.current.borrow().clone()
    }

    fn wake(&self, task: &TaskRef) {
        self.book.borrow_mut().make_ready(task);
    }

    fn cancel(&self, task: &TaskRef, reason: Interrupted) {
        if task.is_ended() {
            return;
        }
        if !task.ledger().started.get() {
            return self.abort(task, reason);
        }
        self.book.borrow_mut().fire(task_owner(task), reason);
        self.flush();
    }

    fn abort(&self, task: &TaskRef, reason: Interrupted) {
        if !task.is_ended() {
            self.book.borrow_mut().doomed.push_back((task.clone(), reason));
        }
    }

    fn wake_queue(&self, queue: &WaitQueue, count: usize) -> usize {
        let Some(queue) = queue.index_in(self.home.id()) else {
            return 0;
        };
        let woken = self.book.borrow_mut().wake_queue(queue, count);
        self.flush();
        woken
    }

    fn queue_len(&self, queue: &WaitQueue) -> usize {
        let queue = queue.index_in(self.home.id());
        queue.map_or(0, |queue| self.book.borrow().queue_length(queue))
    }

    fn forget_queue(&self, index: u32) {
        self.book.borrow_mut().remove_queue(index);
    }

    fn open_scope(&self, until: Until) -> ScopeId {
        let deadline = match until {
            Until::After(length) => self.clock.after(length),
            Until::At(deadline) => deadline,
        };
        let task = self.current_task(TrapKind::Sleep, Location::caller());
        self.book.borrow_mut().open_scope(&task, deadline)
    }

    fn enter_scope(&self, scope: ScopeId, cx: &mut Context<'_>) -> Option<ScopeId> {
        let waker = self.foreign_waker(cx);
        let task = self.current_task(TrapKind::Sleep, Location::caller());
        let mut book = self.book.borrow_mut();
        let back_to = book.scope;
        let before = book.rebind_scope(scope, &task, waker);
        book.scope = Some(scope);
        drop(book);
        drop(before);
        back_to
    }

    fn leave_scope(&self, scope: ScopeId, back_to: Option<ScopeId>, pending: bool) -> Verdict {
        let mut book = self.book.borrow_mut();
        book.scope = back_to;
        if !pending {
            return Verdict::Keep;
        }
        if book.waits_in_vain(Owner::Scope(scope)) {
            return Verdict::Drop;
        }
        if let Some(deadline) = book.unarmed(scope) {
            let timer = book.timers.insert(deadline, Timer::Scope(scope));
            if let Some(found) = book.scope_mut(scope) {
                found.timer = Some(timer);
            }
        }
        Verdict::Keep
    }

    fn close_scope(&self, scope: ScopeId) -> ScopeEnd {
        let mut book = self.book.borrow_mut();
        let closed = book.close_scope(scope);
        drop(book);
        self.flush();
        ScopeEnd { interrupted: closed.is_some_and(|(_, collected)| collected) }
    }

    fn now(&self) -> Ticks {
        self.clock.now()
    }

    fn rate(&self) -> Rate {
        self.clock.rate()
    }

    fn sockets(&self) -> &dyn Sockets {
        &self.net
    }

    fn blocking(&self, job: Job) {
        let refused = self.net.driver.borrow_mut().blocking(job);
        drop(refused);
    }

    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>) {
        let refused = self.net.driver.borrow_mut().lookup(host, port, reply);
        drop(refused);
    }
}

impl<D: Driver, C: Clock, P: Pick> Machine<D, C, P> {
    /// The poll's waker, if it is not the current task's own.
    fn foreign_waker(&self, cx: &Context<'_>) -> Option<Waker> {
        let own = match &*self.current.borrow() {
            Some(task) => task.owns(cx.waker()),
            None => true,
        };
        (!own).then(|| cx.waker().clone())
    }

    #[track_caller]
    fn current_task(&self, kind: TrapKind, place: &'static Location<'static>) -> TaskRef {
        match &*self.current.borrow() {
            Some(task) => task.clone(),
            None => outside_a_task(kind, place),
        }
    }

    /// Whether a wait may be answered without suspending: the step has not had its share yet.
    fn answer_at_once(&self) -> bool {
        let left = self.answers_left.get();
        if left == 0 || self.net.attempts_left.get() == 0 {
            return false;
        }
        self.answers_left.set(left - 1);
        true
    }

    /// Whether that record waits at that socket.
    fn waits_at(&self, record: u32, socket: SocketId, direction: Direction) -> bool {
        let place = Place::Socket {
            index: socket.index,
            generation: socket.generation,
            write: direction == Direction::Write,
        };
        let book = self.book.borrow();
        let entry = (record != NONE).then(|| book.records.get(record as usize)).flatten();
        entry.is_some_and(|entry| matches!(entry.state, State::Parked(at) if at == place))
    }

    /// The number under which a wait queue is known here; it gets one if it has none.
    fn queue_index(&self, queue: &WaitQueue) -> u32 {
        let kernel = self.home.id();
        if let Some(index) = queue.index_in(kernel) {
            return index;
        }
        let index = self.book.borrow_mut().add_queue();
        queue.bind(kernel, index);
        index
    }
}

//! A kernel that is meant to be obviously right, and is meant for nothing else.
//!
//! It is the specification of the traps (`traps/TRAPS.md`) written down as a program, on virtual
//! time: here the traps and the loop, in `books.rs` who is told of what. It has no sockets and no
//! quotas, and calls closures that block there and then.

use std::cell::RefCell;
use std::net::ToSocketAddrs;
use std::panic::Location;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pikake::kernel::SHUTDOWN_GRACE;
use pikake::time::{Rate, Ticks};
use pikake::traps::{
    Addresses, Executed, Home, Interrupted, Job, LocalHome, Message, Polled, RecordKey, Refusal,
    Reply, ScopeEnd, ScopeId, ScopeKind, Sockets, TaskError, TaskId, TaskRef, TrapHandler, Wait,
    WaitQueue, borrowing, door, outside_a_task, quietly,
};

use crate::books::{Answer, Cause, Event, Owner, Place, RATE, Record, Scope, State};
use crate::no_sockets::NoSockets;

/// More turns than a case makes that comes to an end.
const MOST_TURNS: u32 = 100_000;

/// A kernel of this thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reference {
    kernel: Rc<Naive>,
    _listed: door::Registration,
}

impl Reference {
    pub(crate) fn new() -> Self {
        let kernel = Rc::new(Naive { home: Home::open(|| {}), state: RefCell::default() });
        Self { _listed: door::register(kernel.clone()), kernel }
    }

    fn inside<R>(&self, work: impl FnOnce(&Naive) -> R) -> R {
        let kernel: Rc<dyn TrapHandler> = self.kernel.clone();
        door::enter(&kernel, || work(&self.kernel)).expect("not inside a kernel")
    }

    /// Runs a future as the main task; time jumps to the next timer when nothing can be done.
    pub(crate) fn run<F: Future>(&self, future: F) -> Result<F::Output, TaskError> {
        let name = Some("main".into());
        borrowing(future, &self.kernel.home, name, Location::caller(), |main| {
            self.inside(|kernel| {
                kernel.spawn(main);
                while !main.is_ended() {
                    if !kernel.turn() {
                        let next = kernel.with(|state| state.next_moment());
                        let next = next.expect("somebody waits for what can still happen");
                        kernel.with(|state| state.now = state.now.max(next));
                    }
                }
            });
        })
    }

    /// Asks every task to end, newest first; drops those that have not when the grace is over.
    pub(crate) fn shutdown(&self) {
        self.inside(|kernel| {
            kernel.with(|state| state.is_closing = true);
            for task in kernel.newest_first() {
                kernel.cancel(&task, Interrupted::cancelled("the kernel is being shut down"));
            }
            let limit = kernel.now().get() + RATE.ticks_ceil(SHUTDOWN_GRACE);
            while kernel.turn() || !kernel.newest_first().is_empty() {
                if kernel.with(|state| state.ready.is_empty()) {
                    let next = kernel.with(|state| state.next_moment()).unwrap_or(limit);
                    kernel.with(|state| state.now = state.now.max(next.min(limit)));
                }
                if kernel.now().get() >= limit {
                    break;
                }
            }
            for task in kernel.newest_first() {
                kernel.abort(&task, Interrupted::cancelled("the grace is over"));
            }
            kernel.bury();
            drop(kernel.home.close());
        });
    }

    /// Lets time pass during a step.
    pub(crate) fn advance(&self, length: Duration) {
        self.kernel.with(|state| state.now = state.now.saturating_add(RATE.ticks_ceil(length)));
    }

    pub(crate) fn tasks_and_scopes_left(&self) -> (usize, usize) {
        self.kernel.with(|state| (state.tasks.len(), state.scopes.len()))
    }
}

/// The kernel, behind the door.
#[derive(Debug)]
struct Naive {
    home: LocalHome,
    state: RefCell<State>,
}

impl Naive {
    fn newest_first(&self) -> Vec<TaskRef> {
        self.with(|state| state.tasks.values().rev().map(|(task, _)| task.clone()).collect())
    }

    /// Works on the state; then, with it free, runs the user code that is to be run (I10).
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.borrow_mut();
        let result = work(&mut state);
        let (calls, trash) = (std::mem::take(&mut state.calls), std::mem::take(&mut state.trash));
        drop(state);
        calls.into_iter().for_each(|waker| quietly("a waker", || waker.wake()));
        trash.into_iter().for_each(|thing| quietly("a destructor", || drop(thing)));
        result
    }

    fn waker_of(&self, cx: &Context<'_>) -> Option<Waker> {
        let is_own = self.current().is_some_and(|task| task.owns(cx.waker()));
        (!is_own).then(|| cx.waker().clone())
    }

    fn queue(&self, queue: &WaitQueue) -> Event {
        let id = self.home.id();
        let known = queue.index_in(id);
        Event::WakeOf(known.unwrap_or_else(|| queue.bind(id, || self.with(State::number))))
    }

    /// Wakes who waited for a task's end, and forgets it.
    fn end(&self, task: &TaskRef) {
        self.wake_queue(task.joiners(), usize::MAX);
        self.with(|state| {
            state.due.clear();
            state.here = None;
            let ended = state.tasks.remove(&task.id());
            state.trash.push(Box::new(ended));
            state.causes.remove(&Owner::Task(task.id()));
            state.settle();
        });
    }

    /// Drops the tasks that are not to be stepped any more.
    fn bury(&self) {
        while let Some((id, why)) = self.with(|state| state.doomed.pop_front()) {
            let Some((task, _)) = self.with(|state| state.tasks.get(&id).cloned()) else {
                continue;
            };
            self.with(|state| state.here = Some(Place { task: id, scope: None }));
            task.abandon(TaskError::Cancelled(why));
            self.end(&task);
        }
    }

    fn step(&self, id: TaskId) {
        let task = self.with(|state| {
            let (task, was_stepped) = state.tasks.get_mut(&id)?;
            *was_stepped = true;
            let task = task.clone();
            state.records.values_mut().for_each(|record| record.is_fresh = false);
            for key in state.next_steps(id) {
                state.records.get_mut(&key)?.answer = Some(Answer::Done);
            }
            (state.here, state.wakes) = (Some(Place { task: id, scope: None }), 0);
            Some(task)
        });
        let Some(task) = task else {
            return;
        };
        if task.poll() {
            return self.end(&task);
        }
        self.with(|state| {
            state.calls.append(&mut state.after_step);
            state.due.clear();
            state.settle();
            if state.cannot_be_told(Owner::Task(id), 0) {
                let why = state.causes[&Owner::Task(id)].why.clone();
                state.doomed.push_front((id, why));
            }
            state.here = None;
        });
        self.with(|state| state.again.take().map(|task| state.make_ready(task)));
    }

    /// One pass of the loop; `false`: there was nothing to do.
    fn turn(&self) -> bool {
        let turns = self.with(|state| {
            state.turns += 1;
            state.turns
        });
        assert!(turns < MOST_TURNS, "the tasks wake each other for ever");
        let mut mail = Vec::new();
        self.home.take_mail(&mut mail);
        for message in mail {
            match message {
                Message::Wake(wake) => drop(wake.arrive().map(|task| self.wake(task))),
                Message::Spawn(spawn) => spawn.spawn(),
                _ => {}
            }
        }
        self.with(State::fire_sleeps); // what happens beats what times out
        self.with(State::fire_deadlines);
        self.bury();
        let count = self.with(|state| state.ready.len());
        for _ in 0..count {
            if let Some(id) = self.with(|state| state.ready.pop_front()) {
                self.step(id);
                self.bury();
            }
        }
        count > 0
    }
}

impl TrapHandler for Naive {
    fn home(&self) -> &LocalHome {
        &self.home
    }

    fn execute(
        &self,
        wait: Wait<'_>,
        at: &'static Location<'static>,
        cx: &mut Context<'_>,
    ) -> Executed {
        let Some(here) = self.with(|state| state.here) else { outside_a_task(wait.kind(), at) };
        let is_deaf = matches!(wait, Wait::Elapse(_));
        let event = match wait {
            Wait::Yield => Event::NextStep,
            Wait::Sleep(until) => match self.with(|state| (state.moment(until), state.now)) {
                (at, now) if at <= now => Event::NextStep,
                (at, _) => Event::Moment(at),
            },
            Wait::Elapse(until) => match self.with(|state| (state.moment(until), state.now)) {
                (at, now) if at <= now => return Executed::Answered(Ok(())),
                (at, _) => Event::Moment(at),
            },
            Wait::Park(queue) => self.queue(queue),
            Wait::Join(task) if task.is_ended() => return Executed::Answered(Ok(())),
            Wait::Join(task) => self.queue(task.joiners()),
            Wait::Ready { refusal, .. } => {
                refusal.set(Some(Refusal::Closed));
                return Executed::Answered(Ok(()));
            }
            _ => Event::Nothing,
        };
        let waker = self.waker_of(cx);
        self.with(|state| {
            if !is_deaf && let Some(owner) = state.due_here() {
                state.trash.push(Box::new(waker));
                return Executed::Answered(Err(state.collect(owner)));
            }
            let key = state.number();
            let (answer, is_fresh, owed) = (None, false, Vec::new());
            let (place, came, was_set) = (here, key, key);
            let record =
                Record { place, came, waker, event, is_deaf, answer, is_fresh, was_set, owed };
            state.records.insert(key, record);
            state.rouse_for_next_step(key);
            state.settle();
            Executed::Parked(RecordKey(key))
        })
    }

    fn poll_again(&self, key: RecordKey, cx: &mut Context<'_>) -> Poll<Result<(), Interrupted>> {
        let waker = self.waker_of(cx);
        self.with(|state| {
            let is_deaf = state.records[&key.0].is_deaf;
            if !is_deaf {
                state.due.clear();
            }
            let here = state.here.expect("polled inside a task");
            state.bring(key.0, here);
            let record = state.records.get_mut(&key.0).expect("a record");
            let before = std::mem::replace(&mut record.waker, waker);
            state.trash.push(Box::new(before));
            state.settle();
            if !is_deaf
                && state.records[&key.0].answer.is_none()
                && let Some(owner) = state.due_here()
            {
                let record = state.records.get_mut(&key.0).expect("a record");
                record.answer = Some(Answer::Told(owner)); // polled to where it is pending
            }
            let Some(answer) = state.records[&key.0].answer else {
                state.rouse_for_next_step(key.0);
                return Poll::Pending;
            };
            let mut record = state.records.remove(&key.0).expect("a record");
            state.due.append(&mut record.owed);
            state.trash.push(Box::new(record.waker));
            Poll::Ready(match answer {
                Answer::Done => Ok(()),
                Answer::Told(owner) => Err(state.collect(owner)),
            })
        })
    }

    fn withdraw(&self, key: RecordKey) {
        self.with(|state| {
            if let Some(Answer::Told(_)) = state.records[&key.0].answer {
                state.wait_on(key.0); // its task looks at what happens instead
            }
            let record = state.records.remove(&key.0).expect("a record");
            if let (Event::WakeOf(queue), Some(Answer::Done)) = (record.event, record.answer) {
                state.wake_queue(queue, 1);
            }
            state.trash.push(Box::new(record.waker));
            state.settle();
        });
    }

    fn spawn(&self, task: &TaskRef) -> bool {
        self.with(|state| {
            let id = TaskId(state.number().into());
            task.set_id(id);
            if !state.is_closing {
                state.tasks.insert(id, (task.clone(), false));
                state.make_ready(id);
            }
            !state.is_closing
        })
    }

    fn current(&self) -> Option<TaskRef> {
        self.with(|state| state.tasks.get(&state.here?.task).map(|(task, _)| task.clone()))
    }

    fn find_task(&self, task: TaskId) -> Option<TaskRef> {
        self.with(|state| state.tasks.get(&task).map(|(task, _)| task.clone()))
    }

    fn wake(&self, task: TaskRef) {
        self.with(|state| state.make_ready(task.id()));
    }

    fn cancel(&self, task: &TaskRef, reason: Interrupted) {
        let (id, owner) = (task.id(), Owner::Task(task.id()));
        self.with(|state| match state.tasks.get(&id) {
            Some((_, false)) => state.doomed.push_back((id, reason)),
            Some((_, true)) if !state.causes.contains_key(&owner) => {
                state.causes.insert(owner, Cause::new(reason));
                state.settle();
            }
            _ => {}
        });
    }

    fn abort(&self, task: &TaskRef, reason: Interrupted) {
        self.with(|state| state.doomed.push_back((task.id(), reason)));
    }

    fn wake_queue(&self, queue: &WaitQueue, count: usize) -> usize {
        let number = queue.index_in(self.home.id());
        number.map_or(0, |number| self.with(|state| state.wake_queue(number, count)))
    }

    fn queue_len(&self, queue: &WaitQueue) -> usize {
        let Some(number) = queue.index_in(self.home.id()) else {
            return 0;
        };
        let waits =
            |r: &&Record| matches!((r.event, r.answer), (Event::WakeOf(q), None) if q == number);
        self.with(|state| state.records.values().filter(waits).count())
    }

    fn forget_queue(&self, _: u32) {}

    fn open_scope(&self, kind: ScopeKind, cx: &mut Context<'_>) -> (ScopeId, Option<ScopeId>) {
        let id = self.with(|state| {
            let place = state.here.expect("opened inside a task");
            let (deadline, grace) = match kind {
                ScopeKind::Deadline { until, grace } => (state.moment(until), grace),
                _ => (u64::MAX, None),
            };
            let ends = |grace| deadline.saturating_add(RATE.ticks_ceil(grace));
            let scope = Scope {
                place,
                waker: None,
                is_shield: kind == ScopeKind::Shield,
                deadline,
                grace_ends: grace.map_or(u64::MAX, ends),
                is_doomed: false,
                held: Vec::new(),
                wakes: 0,
            };
            let id = u64::from(state.number());
            state.scopes.insert(id, scope);
            ScopeId(id)
        });
        (id, self.enter_scope(id, cx))
    }

    fn enter_scope(&self, id: ScopeId, cx: &mut Context<'_>) -> Option<ScopeId> {
        let waker = self.waker_of(cx);
        self.with(|state| {
            let here = state.here.expect("entered inside a task");
            let scope = state.scopes.get_mut(&id.0).expect("a scope");
            (scope.place, scope.wakes) = (here, state.wakes);
            let before = std::mem::replace(&mut scope.waker, waker);
            state.trash.push(Box::new(before));
            state.here = Some(Place { scope: Some(id.0), ..here });
            state.settle();
            here.scope.map(ScopeId)
        })
    }

    fn leave_scope(&self, id: ScopeId, back_to: Option<ScopeId>, pending: bool) -> Polled {
        self.with(|state| {
            let here = state.here.expect("left inside a task");
            state.here = Some(Place { scope: back_to.map(|scope| scope.0), ..here });
            let (wakes, is_doomed) = (state.scopes[&id.0].wakes, state.scopes[&id.0].is_doomed);
            let is_lost = is_doomed || (pending && state.cannot_be_told(Owner::Scope(id.0), wakes));
            if pending && is_lost { Polled::Drop } else { Polled::Keep }
        })
    }

    fn close_scope(&self, id: ScopeId, completed: bool) -> ScopeEnd {
        self.with(|state| {
            let left = state.let_go(id.0);
            let mut scope = state.scopes.remove(&id.0).expect("a scope");
            let inner = state.scopes.values_mut().map(|scope| &mut scope.place);
            inner.filter(|place| place.scope == Some(id.0)).for_each(|place| place.scope = None);
            if completed {
                state.due.append(&mut scope.held);
            }
            state.trash.push(Box::new(scope.waker));
            let cause = state.causes.remove(&Owner::Scope(id.0));
            state.settle();
            for (key, task) in left {
                state.bring(key, Place { task, scope: None });
            }
            let late = RATE.duration_floor(state.now.saturating_sub(scope.deadline));
            ScopeEnd { interrupted: cause.is_some_and(|cause| cause.is_collected), late }
        })
    }

    fn check_interrupt(&self) -> Option<Interrupted> {
        self.with(|state| state.due_here().map(|owner| state.collect(owner)))
    }

    fn pending_interrupt(&self) -> Option<Interrupted> {
        self.with(|state| state.due_here().map(|owner| state.causes[&owner].why.clone()))
    }

    fn now(&self) -> Ticks {
        Ticks::new(self.with(|state| state.now))
    }

    fn rate(&self) -> Rate {
        RATE
    }

    fn sockets(&self) -> &dyn Sockets {
        &NoSockets
    }

    fn blocking(&self, mut job: Job) {
        job.run();
    }

    fn lookup(&self, host: &str, port: u16, reply: Reply<Addresses>) {
        reply.send((host, port).to_socket_addrs().map(Iterator::collect));
    }
}

//! The kernel's book-keeping: tasks, wait records, wait queues, timers, the ready queue.
//!
//! Everything here is plain data and runs no user code (I10). Where a change must call a waker
//! that is not a task's own, the waker goes into [`Book::wakers`], and the machine calls it when
//! the book is closed again.
//!
//! A record is in the list of its scope (so that an interruption finds it), and in one *place*: a timer,
//! a wait queue, a socket, or none. The place of a record that waits on a socket is known to the
//! record alone; the socket remembers the record's number and asks whether it is still there.

use std::collections::VecDeque;
use std::panic::Location;
use std::task::Waker;

use pikake_time::{Ticks, TimerHeap, TimerKey};
use pikake_traps::{Flag, Interrupted, Light, ScopeId, TaskId, TaskRef, TrapKind};
use slab::Slab;

use crate::cause::{Cause, Holder, Owner};
use crate::cleanup::Limits;
use crate::light::Made;
use crate::light_park::Slot;
use crate::pick::Pick;
use crate::queues::{Queue, QueueRef};
use crate::scope::{Depth, Scope};

/// No record, no queue: the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// Converts a slab's key. The upper half of the numbers is for others.
#[inline]
pub(crate) fn key(index: usize) -> u32 {
    match i32::try_from(index) {
        Ok(key) => key.cast_unsigned(),
        Err(_) => panic!("fewer than 2^31 of a kind"),
    }
}

/// A task of this kernel that has not ended.
pub(crate) struct TaskEntry {
    pub(crate) task: TaskRef,
    /// The request to end, once there was one.
    pub(crate) cause: Option<Box<Cause>>,
}

/// Where a parked record waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// For the task's next step; the number is that of the task's step it parked in.
    NextStep(u32),
    /// In the timer heap.
    Timer(Ticks, TimerKey),
    /// In a wait queue, between two other records.
    Queue { queue: QueueRef, previous: u32, next: u32 },
    /// At a socket.
    Socket { index: u32, generation: u32, write: bool },
    /// Nowhere: only an interruption answers it.
    Nowhere,
}

/// What became of a record.
#[derive(Debug)]
pub(crate) enum State {
    /// It waits.
    Parked(Place),
    /// It got what it waited for; if that came from a wait queue, from this one.
    Done(Option<QueueRef>),
    /// It was interrupted while it waited there (the place is not valid any more).
    Interrupted(Box<Interrupted>, Place),
}

/// Whose causes somebody was told of, and has not collected. Hardly ever any.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "a record is the smaller for it, and it hardly ever is")]
pub(crate) struct Told(Option<Box<Vec<Owner>>>);

impl Told {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn push(&mut self, owner: Owner) {
        self.0.get_or_insert_default().push(owner);
    }

    pub(crate) fn take(&mut self) -> Vec<Owner> {
        self.0.take().map_or_else(Vec::new, |told| *told)
    }

    pub(crate) fn set(&mut self, told: Vec<Owner>) {
        self.0 = (!told.is_empty()).then(|| Box::new(told));
    }
}

/// One outstanding wait.
pub(crate) struct Record {
    pub(crate) task: TaskRef,
    /// Neighbours in the list of its scope, or of its task if it is in none.
    previous: u32,
    next: u32,
    /// In such a list; not so once the task has ended.
    linked: bool,
    /// Whose causes this record was told of, and has not collected.
    pub(crate) told: Told,
    pub(crate) kind: TrapKind,
    pub(crate) scope: Option<ScopeId>,
    pub(crate) state: State,
    /// The waker of the last poll, if it was not the task's own.
    pub(crate) waker: Option<Waker>,
    /// The step in which, or after which, it got its answer.
    pub(crate) answered_in: u64,
    pub(crate) place: &'static Location<'static>,
}

/// What a timer is for.
#[derive(Debug)]
pub(crate) enum Timer {
    /// A record's sleep.
    Record(u32),
    /// A scope's deadline.
    Scope(ScopeId),
    /// Cleanup takes long.
    Slow(Owner),
    /// An owner's own grace.
    Grace(Owner),
    /// The foreign grace of an owner.
    ForeignGrace(Owner),
}

pub(crate) struct Book<P> {
    pub(crate) tasks: Slab<TaskEntry>,
    pub(crate) records: Slab<Record>,
    pub(crate) queues: Slab<Queue>,
    /// The light parks of the tasks with these numbers.
    pub(crate) slots: Vec<Slot>,
    pub(crate) scopes: Slab<Scope>,
    pub(crate) timers: TimerHeap<Timer>,
    pub(crate) ready: P,
    /// To be called when the book is closed.
    pub(crate) wakers: Vec<Waker>,
    /// To be called when the current step is over.
    pub(crate) after_step: Vec<Waker>,
    /// Of light yields.
    pub(crate) made: Made,
    /// Tasks to be dropped before the next step, and why.
    pub(crate) doomed: VecDeque<(TaskRef, Interrupted)>,
    /// What the current branch of the current step was told of and has not collected.
    pub(crate) branch: Vec<Owner>,
    /// The number of the current or last step.
    pub(crate) step: u64,
    /// The task that is being stepped.
    pub(crate) stepping: Option<u32>,
    pub(crate) scope: Option<ScopeId>,
    pub(crate) next_scope: u32,
    pub(crate) limits: Limits,
    last_task: u64,
    pub(crate) last_queue: u32,
}

/// Notes that a task was woken. Tells whether it is to be put into the ready queue.
#[inline]
fn becomes_ready(task: &TaskRef) -> bool {
    if task.is_ended() {
        return false;
    }
    task.ledger().set(Flag::Woken);
    !task.ledger().set(Flag::Queued)
}

impl<P: Pick> Book<P> {
    pub(crate) fn new(ready: P, limits: Limits) -> Self {
        Self {
            tasks: Slab::new(),
            records: Slab::new(),
            queues: Slab::new(),
            slots: Vec::new(),
            scopes: Slab::new(),
            timers: TimerHeap::new(),
            ready,
            wakers: Vec::new(),
            after_step: Vec::new(),
            made: Made::new(),
            doomed: VecDeque::new(),
            branch: Vec::new(),
            step: 0,
            stepping: None,
            scope: None,
            next_scope: 0,
            limits,
            last_task: 0,
            last_queue: 0,
        }
    }

    // --- tasks ---------------------------------------------------------------------------------

    /// Takes a new task in and makes it ready.
    pub(crate) fn add_task(&mut self, task: &TaskRef) {
        self.last_task += 1;
        task.set_id(TaskId(self.last_task));
        let entry = self.tasks.vacant_entry();
        let ledger = task.ledger();
        ledger.index.set(key(entry.key()));
        ledger.records.set(NONE);
        ledger.scopes.set(NONE);
        entry.insert(TaskEntry { task: task.clone(), cause: None });
        self.make_ready(task.clone());
    }

    /// Forgets a task that has ended, and takes what outlives it out of its lists. Drop what comes
    /// back with the book closed.
    pub(crate) fn remove_task(&mut self, task: &TaskRef) -> Option<TaskEntry> {
        let ledger = task.ledger();
        ledger.light.set(Light::Off);
        if self.has_slot_taken(ledger.index.get()) {
            self.make_record_of(ledger.index.get());
        }
        if ledger.records.get() != NONE || ledger.scopes.get() != NONE {
            self.cut_all_off(task);
        }
        if ledger.is(Flag::Troubled) {
            self.end_cause(Owner::Task(ledger.index.get()));
        }
        self.tasks.try_remove(ledger.index.get() as usize)
    }

    /// Takes the waits and scopes that outlive their task out of its lists.
    fn cut_all_off(&mut self, task: &TaskRef) {
        let owner = Owner::Task(task.ledger().index.get());
        for left in self.inside(owner, Depth::BeyondShields) {
            match left {
                Holder::Record(record) => {
                    self.forget_told(record);
                    self.unlink(record);
                    self.record_mut(record).scope = None;
                }
                Holder::Scope(scope) => self.cut_off(scope),
            }
        }
    }

    /// Makes a task ready, unless it is already or has ended (I6).
    #[inline]
    pub(crate) fn make_ready(&mut self, task: TaskRef) {
        if becomes_ready(&task) {
            self.ready.push(task);
        }
    }

    // --- records -------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn record(&self, record: u32) -> &Record {
        &self.records[record as usize]
    }

    #[inline]
    pub(crate) fn record_mut(&mut self, record: u32) -> &mut Record {
        &mut self.records[record as usize]
    }

    /// Makes a record for a wait of the current task, in the current scope.
    #[inline]
    pub(crate) fn park(
        &mut self,
        task: TaskRef,
        kind: TrapKind,
        waker: Option<Waker>,
        place: &'static Location<'static>,
    ) -> u32 {
        let scope = self.scope;
        let record = key(self.records.vacant_key());
        let next = self.replace_list_head(&task, scope, record);
        if next != NONE {
            self.record_mut(next).previous = record;
        }
        self.records.insert(Record {
            task,
            previous: NONE,
            next,
            linked: true,
            told: Told::default(),
            kind,
            scope,
            state: State::Parked(Place::Nowhere),
            waker,
            answered_in: 0,
            place,
        });
        record
    }

    /// The head of the list for the waits of a task in a scope.
    fn list_head(&self, task: &TaskRef, scope: Option<ScopeId>) -> u32 {
        match scope.and_then(|scope| self.scope(scope)) {
            Some(scope) => scope.records,
            None => task.ledger().records.get(),
        }
    }

    #[inline]
    fn replace_list_head(&mut self, task: &TaskRef, scope: Option<ScopeId>, head: u32) -> u32 {
        match scope.and_then(|scope| self.scope_mut(scope)) {
            Some(scope) => std::mem::replace(&mut scope.records, head),
            None => task.ledger().records.replace(head),
        }
    }

    /// Puts a record into the list of its scope, or of its task if it is in none.
    pub(crate) fn link(&mut self, record: u32) {
        let (task, scope) = (self.record(record).task.clone(), self.record(record).scope);
        let head = self.replace_list_head(&task, scope, record);
        let entry = self.record_mut(record);
        entry.linked = true;
        entry.previous = NONE;
        entry.next = head;
        if head != NONE {
            self.record_mut(head).previous = record;
        }
    }

    /// Takes a record out of everybody's sight who delivers interruptions.
    pub(crate) fn make_deaf(&mut self, record: u32) {
        self.unlink(record);
        self.record_mut(record).scope = None;
    }

    /// Takes a record out of the list it is in. Tells whether it was in one.
    pub(crate) fn unlink(&mut self, record: u32) -> bool {
        let entry = self.record_mut(record);
        let linked = std::mem::replace(&mut entry.linked, false);
        if linked {
            let (previous, next) = (entry.previous, entry.next);
            let (task, scope) = (entry.task.clone(), entry.scope);
            self.close_up_records(&task, scope, previous, next);
        }
        linked
    }

    /// Joins the two neighbours of a record that is gone from its list.
    #[inline]
    fn close_up_records(
        &mut self,
        task: &TaskRef,
        scope: Option<ScopeId>,
        previous: u32,
        next: u32,
    ) {
        if previous == NONE {
            self.replace_list_head(task, scope, next);
        } else {
            self.record_mut(previous).next = next;
        }
        if next != NONE {
            self.record_mut(next).previous = previous;
        }
    }

    /// The records of a task in a scope (in none: `None`), the newest first.
    pub(crate) fn records_in(
        &self,
        task: &TaskRef,
        scope: Option<ScopeId>,
    ) -> impl Iterator<Item = u32> {
        let first = self.list_head(task, scope);
        std::iter::successors((first != NONE).then_some(first), |record| {
            let next = self.record(*record).next;
            (next != NONE).then_some(next)
        })
    }

    /// Parks a record in a place.
    pub(crate) fn put(&mut self, record: u32, place: Place) {
        self.record_mut(record).state = State::Parked(place);
    }

    /// Whether a record waited for its task's next step, and that has begun. It is told of nothing.
    #[inline]
    pub(crate) fn has_passed(&self, record: u32) -> bool {
        let record = self.record(record);
        matches!(record.state, State::Parked(Place::NextStep(parked))
            if record.task.ledger().step.get() != parked)
    }

    /// Whether a record still waits. One that waits for its task's next step has its answer when
    /// that step begins.
    #[inline]
    pub(crate) fn is_parked(&self, record: u32) -> bool {
        let record = self.record(record);
        match record.state {
            State::Parked(Place::NextStep(parked)) => record.task.ledger().step.get() == parked,
            State::Parked(_) => true,
            State::Done(_) | State::Interrupted(..) => false,
        }
    }

    /// Parks a record until its task is stepped again, which is seen to.
    pub(crate) fn put_next_step(&mut self, record: u32) {
        let step = self.record(record).task.ledger().step.get();
        self.put(record, Place::NextStep(step));
        match self.record_mut(record).waker.take() {
            Some(waker) => self.after_step.push(waker),
            None => {
                let ledger = self.record(record).task.ledger();
                if !ledger.is(Flag::Again) {
                    ledger.lights.set(0);
                }
                ledger.ask_again();
            }
        }
    }

    /// Parks a record until a moment.
    #[inline]
    pub(crate) fn put_timer(&mut self, record: u32, until: Ticks) {
        if until == Ticks::MAX {
            self.put(record, Place::Nowhere);
            return;
        }
        let timer = self.timers.insert(until, Timer::Record(record));
        self.put(record, Place::Timer(until, timer));
    }

    /// Takes the task to step next out of the ready queue, and begins its step. `None`: there is
    /// none, or others are to be dropped first.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Option<TaskRef> {
        if !self.doomed.is_empty() {
            return None;
        }
        let task = self.ready.pop()?;
        self.step += 1;
        self.scope = None;
        let ledger = task.ledger();
        self.stepping = Some(ledger.index.get());
        ledger.clear(Flag::Queued);
        ledger.clear(Flag::Woken);
        ledger.step.set(ledger.step.get().wrapping_add(1).max(1));
        Some(task)
    }

    /// Ends a step, unless there is something left to do first, which is told.
    #[inline]
    pub(crate) fn end_step(&mut self) -> bool {
        let is_over =
            self.branch.is_empty() && self.after_step.is_empty() && self.wakers.is_empty();
        if is_over {
            self.stepping = None;
        }
        is_over
    }

    /// Takes a parked record out of its place and tells where that was.
    #[inline]
    pub(crate) fn take_out(&mut self, record: u32) -> Option<Place> {
        let State::Parked(place) = self.record(record).state else {
            return None;
        };
        match place {
            Place::Timer(_, timer) => {
                self.timers.remove(timer);
            }
            Place::Queue { queue, previous, next } => {
                self.leave_queue(record, queue, previous, next);
            }
            Place::NextStep(_) | Place::Socket { .. } | Place::Nowhere => {}
        }
        Some(place)
    }

    /// Gives a record that is out of its place what it waits for, from that queue if it was in one.
    #[inline]
    pub(crate) fn answer(&mut self, record: u32, queue: Option<QueueRef>) {
        self.record_mut(record).state = State::Done(queue);
        self.rouse(record);
    }

    /// Has the future of a record that got its answer polled again.
    #[inline]
    pub(crate) fn rouse(&mut self, record: u32) {
        let entry = &mut self.records[record as usize];
        entry.answered_in = self.step;
        if let Some(waker) = entry.waker.take() {
            self.wakers.push(waker);
        } else if becomes_ready(&entry.task) {
            self.ready.push(entry.task.clone());
        }
    }

    /// Makes the task with that number ready.
    #[inline(always)]
    pub(crate) fn rouse_task(&mut self, task: u32) {
        let task = &self.tasks[task as usize].task;
        if becomes_ready(task) {
            self.ready.push(task.clone());
        }
    }

    /// Ends a record whose answer was collected, or whose future was dropped. Drop what comes back
    /// with the book closed.
    #[inline]
    pub(crate) fn remove_record(&mut self, record: u32) -> (TaskRef, Option<Waker>) {
        let Record { task, scope, linked, previous, next, waker, .. } =
            self.records.remove(record as usize);
        if linked {
            self.close_up_records(&task, scope, previous, next);
        }
        (task, waker)
    }
}

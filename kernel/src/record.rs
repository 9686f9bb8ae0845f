//! A record: one outstanding wait, the place it waits in, and the list it is found in.
//!
//! Apart from the book (`book.rs`), which keeps what is there; here is what happens to one record from
//! its park to its end.

use std::panic::Location;
use std::task::Waker;

use pikake_time::{Ticks, TimerKey};
use pikake_traps::{Flag, Interrupted, ScopeId, TaskRef, TrapKind};

use crate::book::{Book, NONE, Timer, becomes_ready, key};
use crate::cause::Owner;
use crate::pick::Pick;
use crate::queues::QueueRef;

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

impl<P: Pick> Book<P> {
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

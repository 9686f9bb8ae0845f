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
use std::task::Waker;

use pikake_time::TimerHeap;
use pikake_traps::{Flag, Interrupted, Light, ScopeId, TaskId, TaskRef};
use slab::Slab;

use crate::cause::{Cause, Holder, Owner};
use crate::cleanup::Limits;
use crate::light::Made;
use crate::light_park::Slot;
use crate::pick::Pick;
use crate::queues::Queue;
use crate::record::Record;
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
pub(crate) fn becomes_ready(task: &TaskRef) -> bool {
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

    /// Makes the task with that number ready.
    #[inline(always)]
    pub(crate) fn rouse_task(&mut self, task: u32) {
        let task = &self.tasks[task as usize].task;
        if becomes_ready(task) {
            self.ready.push(task.clone());
        }
    }
}

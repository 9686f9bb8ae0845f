//! Who is told of an interruption: scopes, causes, and the rules of delivery.
//!
//! A *cause* is one request to end or one deadline that passed. It has an *owner*: the task, or the
//! scope whose deadline it was. It concerns everything that waits inside its owner.
//!
//! ```text
//!            (1) fire                    (3) collect: some poll returned it
//!   no cause ────────▶ held by waits ─────────────────────────────▶ collected
//!                  │      ▲     │                                      ▲
//!                  │   (2)│     │(4) all holders were dropped          │
//!                  │      │     ▼                                      │
//!                  └───▶ pending ──────────────────────────────────────┘
//!                              (5) the next wait that would suspend gets it
//! ```
//!
//! (1) [`Book::fire`], then [`Book::deliver`]: every outstanding wait inside the owner is *charged*
//! and becomes a holder. One that is parked is interrupted now. One that has its answer already
//! keeps it: what has happened is never taken back. (2) is `deliver` again. (3) [`Book::collect`].
//! If the wait had its answer before, the charge goes over to its *branch*: the first new wait
//! that would suspend, before another record is polled in the same step
//! ([`Book::would_suspend`]). (4) [`Book::leave_scopes`]: a record is dropped, or moves out of the
//! scope; [`Book::release_branch`]: the branch did not wait again. (5) `would_suspend`.
//!
//! A cause ends with its owner. Until then it is never lost: it is held, pending, or collected.
//! Everything here is the slow path; a task without a cause pays for it two comparisons a wait.

use std::task::Waker;

use pikake_time::{Deadline, Ticks, TimerKey};
use pikake_traps::{Interrupted, ScopeId, TaskRef};

use crate::book::{Book, Place, State, key};
use crate::pick::Pick;

/// Whose a cause is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The task with this number in the book.
    Task(u32),
    /// A scope.
    Scope(ScopeId),
}

/// Who was told of a cause and has not collected it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// This record.
    Record(u32),
    /// The branch that is running.
    Branch,
}

/// A request to end, or a deadline that passed.
#[derive(Debug)]
pub(crate) struct Cause {
    what: Interrupted,
    holders: Vec<Holder>,
    /// Some poll has returned it.
    collected: bool,
    /// Counted in the task's ledger as pending.
    pending: bool,
}

/// A region of a task with a deadline.
#[derive(Debug)]
pub(crate) struct Scope {
    id: ScopeId,
    parent: Option<ScopeId>,
    task: TaskRef,
    pub(crate) deadline: Deadline,
    pub(crate) timer: Option<TimerKey>,
    /// The waker of the last poll, if it was not the task's own.
    waker: Option<Waker>,
    cause: Option<Box<Cause>>,
}

/// The lower half of a scope's id is its number in the book, the upper half a serial number.
const SCOPE_SERIAL_SHIFT: u32 = 32;

fn index_of(scope: ScopeId) -> usize {
    (scope.0 as u32) as usize
}

impl<P: Pick> Book<P> {
    // --- scopes --------------------------------------------------------------------------------

    /// Opens a scope of a task, inside the current one.
    pub(crate) fn open_scope(&mut self, task: &TaskRef, deadline: Deadline) -> ScopeId {
        self.next_scope = self.next_scope.wrapping_add(1);
        let entry = self.scopes.vacant_entry();
        let serial = u64::from(self.next_scope) << SCOPE_SERIAL_SHIFT;
        let id = ScopeId(serial | u64::from(key(entry.key())));
        entry.insert(Scope {
            id,
            parent: self.scope,
            task: task.clone(),
            deadline,
            timer: None,
            waker: None,
            cause: None,
        });
        id
    }

    /// The moment for which a timer is still to be set.
    pub(crate) fn unarmed(&self, scope: ScopeId) -> Option<Ticks> {
        let found = self.scope(scope)?;
        let unarmed = found.timer.is_none() && found.cause.is_none() && !found.deadline.is_never();
        unarmed.then(|| found.deadline.ticks())
    }

    pub(crate) fn scope(&self, scope: ScopeId) -> Option<&Scope> {
        self.scopes.get(index_of(scope)).filter(|found| found.id == scope)
    }

    pub(crate) fn scope_mut(&mut self, scope: ScopeId) -> Option<&mut Scope> {
        self.scopes.get_mut(index_of(scope)).filter(|found| found.id == scope)
    }

    /// Binds a scope to the task, surrounding scope and waker of a new poll.
    ///
    /// What it was bound to before comes back; drop it with the book closed.
    pub(crate) fn rebind_scope(
        &mut self,
        scope: ScopeId,
        task: &TaskRef,
        waker: Option<Waker>,
    ) -> (Option<Waker>, Option<TaskRef>) {
        let parent = self.scope;
        let Some(found) = self.scope_mut(scope) else {
            return (waker, None);
        };
        found.parent = parent;
        let waker_before = std::mem::replace(&mut found.waker, waker);
        if found.task.is(task) {
            return (waker_before, None);
        }
        let task_before = std::mem::replace(&mut found.task, task.clone());
        if found.cause.as_ref().is_some_and(|cause| cause.pending) {
            add(&task_before.ledger().pending, -1);
            add(&task.ledger().pending, 1);
        }
        (waker_before, Some(task_before))
    }

    /// Ends a scope, with its timer and its cause. Drop what comes back with the book closed.
    pub(crate) fn close_scope(&mut self, scope: ScopeId) -> Option<(Scope, bool)> {
        let found = self.scope(scope)?;
        // Records that outlive the scope belong to none from now on.
        let task = found.task.clone();
        for record in self.records_oldest_first(&task) {
            if self.record(record).scope == Some(scope) {
                self.leave_scopes(record);
                self.record_mut(record).scope = None;
            }
        }
        let owner = Owner::Scope(scope);
        self.branch.retain(|held| *held != owner);
        if let Some(timer) = self.scope_mut(scope)?.timer.take() {
            self.timers.remove(timer);
        }
        let collected = match &mut self.scope_mut(scope)?.cause {
            Some(cause) => {
                if std::mem::take(&mut cause.pending) {
                    add(&task.ledger().pending, -1);
                }
                cause.collected
            }
            None => false,
        };
        Some((self.scopes.remove(index_of(scope)), collected))
    }

    /// The scope and all around it, innermost first. A scope that has ended ends the list.
    fn around(&self, scope: Option<ScopeId>) -> impl Iterator<Item = ScopeId> {
        std::iter::successors(scope, |scope| self.scope(*scope).and_then(|found| found.parent))
            .take_while(|scope| self.scope(*scope).is_some())
    }

    /// All that may own a cause for a wait of the task in that scope, outermost first.
    fn owners(&self, task: &TaskRef, scope: Option<ScopeId>) -> Vec<Owner> {
        let mut owners: Vec<Owner> = self.around(scope).map(Owner::Scope).collect();
        owners.push(Owner::Task(task.ledger().index.get()));
        owners.reverse();
        owners
    }

    fn concerns(&self, owner: Owner, scope: Option<ScopeId>) -> bool {
        match owner {
            Owner::Task(_) => true,
            Owner::Scope(owner) => self.around(scope).any(|scope| scope == owner),
        }
    }

    fn cause_mut(&mut self, owner: Owner) -> Option<&mut Cause> {
        match owner {
            Owner::Task(task) => self.tasks.get_mut(task as usize)?.cause.as_deref_mut(),
            Owner::Scope(scope) => self.scope_mut(scope)?.cause.as_deref_mut(),
        }
    }

    fn task_of(&self, owner: Owner) -> Option<TaskRef> {
        match owner {
            Owner::Task(task) => Some(self.tasks.get(task as usize)?.task.clone()),
            Owner::Scope(scope) => Some(self.scope(scope)?.task.clone()),
        }
    }

    // --- causes --------------------------------------------------------------------------------

    /// Brings a cause into being, unless its owner has one already.
    pub(crate) fn fire(&mut self, owner: Owner, what: Interrupted) {
        let slot = match owner {
            Owner::Task(task) => match self.tasks.get_mut(task as usize) {
                Some(entry) => &mut entry.cause,
                None => return,
            },
            Owner::Scope(scope) => match self.scope_mut(scope) {
                Some(scope) => &mut scope.cause,
                None => return,
            },
        };
        if slot.is_some() {
            return;
        }
        let cause = Cause { what, holders: Vec::new(), collected: false, pending: false };
        *slot = Some(Box::new(cause));
        self.deliver(owner);
    }

    /// Fires a scope's deadline, after those of the scopes around it that are due no later, so
    /// that of equal deadlines the outermost owns the interruption.
    pub(crate) fn expire(&mut self, scope: ScopeId) {
        let Some(found) = self.scope(scope) else {
            return;
        };
        let deadline = found.deadline;
        let mut due: Vec<ScopeId> = self
            .around(Some(scope))
            .filter(|outer| self.scope(*outer).is_some_and(|outer| outer.deadline <= deadline))
            .collect();
        due.reverse();
        for scope in due {
            if let Some(timer) = self.scope_mut(scope).and_then(|scope| scope.timer.take()) {
                self.timers.remove(timer);
            }
            self.fire(Owner::Scope(scope), Interrupted::timed_out(scope));
        }
    }

    /// Tells every outstanding wait inside the owner; if there is none, leaves the cause pending
    /// and has the owner polled.
    fn deliver(&mut self, owner: Owner) {
        let Some(task) = self.task_of(owner) else {
            return;
        };
        let Some(what) = self.cause_mut(owner).map(|cause| cause.what.clone()) else {
            return;
        };
        for record in self.records_oldest_first(&task) {
            if !self.concerns(owner, self.record(record).scope) {
                continue;
            }
            self.record_mut(record).charged = true;
            if let Some(cause) = self.cause_mut(owner) {
                cause.holders.push(Holder::Record(record));
            }
            if let Some(place) = self.take_out(record) {
                self.record_mut(record).state = State::Interrupted(what.clone(), place);
                self.rouse(record);
            }
        }
        self.settle(owner);
        if self.cause_mut(owner).is_some_and(|cause| cause.pending) {
            let waker = match owner {
                Owner::Scope(scope) => self.scope_mut(scope).and_then(|scope| scope.waker.take()),
                Owner::Task(_) => None,
            };
            match waker {
                Some(waker) => self.wakers.push(waker),
                None => self.make_ready(&task),
            }
        }
    }

    /// Counts a cause as pending if nobody holds it and nobody has collected it.
    fn settle(&mut self, owner: Owner) {
        let Some(task) = self.task_of(owner) else {
            return;
        };
        let Some(cause) = self.cause_mut(owner) else {
            return;
        };
        let pending = cause.holders.is_empty() && !cause.collected;
        let before = std::mem::replace(&mut cause.pending, pending);
        match (before, pending) {
            (false, true) => add(&task.ledger().pending, 1),
            (true, false) => add(&task.ledger().pending, -1),
            _ => {}
        }
    }

    /// Takes a holder from a cause. Tells whether it was one.
    fn let_go(&mut self, owner: Owner, holder: Holder) -> bool {
        let Some(cause) = self.cause_mut(owner) else {
            return false;
        };
        let before = cause.holders.len();
        cause.holders.retain(|held| *held != holder);
        cause.holders.len() < before
    }

    /// After a holder is gone: a cause that nobody holds or has collected is delivered anew.
    fn deliver_again(&mut self, owner: Owner) {
        let lost = self
            .cause_mut(owner)
            .is_some_and(|c| c.holders.is_empty() && !c.collected && !c.pending);
        if lost {
            self.deliver(owner);
        }
    }

    /// A charged record is about to be collected with this outcome: what it returns counts as
    /// collected, the rest goes over to the branch.
    pub(crate) fn collect(&mut self, record: u32, returned: Option<&Interrupted>) {
        let entry = self.record_mut(record);
        if !std::mem::replace(&mut entry.charged, false) {
            return;
        }
        let (task, scope) = (entry.task.clone(), entry.scope);
        for owner in self.owners(&task, scope) {
            if !self.let_go(owner, Holder::Record(record)) {
                continue;
            }
            let Some(cause) = self.cause_mut(owner) else {
                continue;
            };
            if returned == Some(&cause.what) {
                cause.collected = true;
            } else {
                cause.holders.push(Holder::Branch);
                self.branch.push(owner);
            }
            self.settle(owner);
        }
    }

    /// A record is dropped, or leaves the scopes it is in: it was told for nothing, and if it was
    /// interrupted, it goes back to waiting where it did.
    pub(crate) fn leave_scopes(&mut self, record: u32) {
        let entry = self.record_mut(record);
        if !std::mem::replace(&mut entry.charged, false) {
            return;
        }
        let (task, scope) = (entry.task.clone(), entry.scope);
        if let State::Interrupted(_, place) = entry.state {
            self.park_again(record, place);
        }
        let told: Vec<Owner> = self
            .owners(&task, scope)
            .into_iter()
            .filter(|owner| self.let_go(*owner, Holder::Record(record)))
            .collect();
        // Out of the scope before the cause looks for somebody else to tell.
        self.record_mut(record).scope = None;
        let linked = self.unlink(record);
        for owner in told {
            self.deliver_again(owner);
        }
        if linked {
            self.link(record);
        }
    }

    /// A record is polled by the task, in the current scope. If it was interrupted by an owner that
    /// this is not inside of, the interruption is not for this poll.
    pub(crate) fn bring_home(&mut self, record: u32, task: &TaskRef) {
        let entry = self.record(record);
        let State::Interrupted(interrupted, _) = &entry.state else {
            return;
        };
        let is_concerned = entry.task.is(task)
            && match interrupted.owner() {
                Some(scope) => self.concerns(Owner::Scope(scope), self.scope),
                None => true,
            };
        if !is_concerned {
            self.leave_scopes(record);
        }
    }

    fn park_again(&mut self, record: u32, place: Place) {
        match place {
            Place::Timer(until, _) => self.put_timer(record, until),
            Place::Queue { queue, .. } => match self.queue_index(queue) {
                Some(queue) => self.put_queue(record, queue, true),
                None => self.put(record, Place::Nowhere),
            },
            Place::NextStep(_) | Place::Socket { .. } | Place::Nowhere => self.put(record, place),
        }
    }

    /// The branch that was running polls another record, or its step is over: what it was told of
    /// and has not collected is delivered anew.
    pub(crate) fn release_branch(&mut self) {
        for owner in std::mem::take(&mut self.branch) {
            self.let_go(owner, Holder::Branch);
            self.deliver_again(owner);
        }
    }

    /// Asks before a new wait of the task is parked in the current scope: the interruption it has
    /// to return instead, outermost first.
    pub(crate) fn would_suspend(&mut self, task: &TaskRef) -> Option<Interrupted> {
        if self.branch.is_empty() && task.ledger().pending.get() == 0 {
            return None;
        }
        let owners = self.owners(task, self.scope);
        for owner in &owners {
            if let Some(place) = self.branch.iter().position(|held| held == owner) {
                self.branch.remove(place);
                self.let_go(*owner, Holder::Branch);
                return self.hand_over(*owner);
            }
        }
        for owner in owners {
            if self.cause_mut(owner).is_some_and(|cause| cause.pending) {
                return self.hand_over(owner);
            }
        }
        None
    }

    fn hand_over(&mut self, owner: Owner) -> Option<Interrupted> {
        let cause = self.cause_mut(owner)?;
        cause.collected = true;
        let what = cause.what.clone();
        self.settle(owner);
        Some(what)
    }

    /// Whether the owner was due to be interrupted, and waits on nothing the kernel knows of: it
    /// was polled, returned pending, was not woken meanwhile, and has no record that waits.
    ///
    /// A record that had its answer before this step and was not asked for it in the poll that has
    /// just ended does not count: its future is not being polled by anybody.
    pub(crate) fn waits_in_vain(&mut self, owner: Owner) -> bool {
        if self.cause_mut(owner).is_none_or(|cause| cause.collected) {
            return false;
        }
        let Some(task) = self.task_of(owner) else {
            return false;
        };
        if task.ledger().queued.get() {
            return false;
        }
        !self.records_of(&task).any(|record| {
            let record = self.record(record);
            let waits = matches!(record.state, State::Parked(_)) || record.answered_in == self.step;
            waits && self.concerns(owner, record.scope)
        })
    }

    /// What was asked of the task, if it was asked to end.
    pub(crate) fn reason_of(&mut self, task: &TaskRef) -> Option<Interrupted> {
        let owner = Owner::Task(task.ledger().index.get());
        self.cause_mut(owner).map(|cause| cause.what.clone())
    }
}

fn add(count: &std::cell::Cell<u32>, by: i32) {
    let after = count.get().checked_add_signed(by);
    debug_assert!(after.is_some(), "every cause that was counted is uncounted once (I7)");
    count.set(after.unwrap_or(0));
}

//! Who is told of an interruption: causes and the rules of delivery.
//!
//! A *cause* is one request to end or one deadline that passed. It has an *owner*: the task, or the
//! scope whose deadline it was. It concerns everything that waits inside its owner, up to shields.
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
//! (1) [`Book::fire`], then [`Book::deliver`]: every outstanding wait inside the owner is *told*
//! and holds the cause. One that is parked is interrupted now. One that has its answer already
//! keeps it: what has happened is never taken back. A shield is told in the place of what is
//! inside. (2) is `deliver` again. (3) [`Book::collect`]. If the wait had its answer before, or
//! when the shield ends, the holding goes over to the *branch*: the first new wait that would
//! suspend, before another record is polled in the same step ([`Book::would_suspend`]).
//! (4) [`Book::forget_told`]: a record is dropped, or moves out of the scope;
//! [`Book::release_branch`]: the branch did not wait again. (5) `would_suspend`.
//!
//! A cause ends with its owner. Until then it is never lost: it is held, pending, or collected.
//! Everything here is the slow path; a task without a cause pays for it two comparisons a wait.

use pikake_time::Ticks;
use pikake_traps::{Flag, Interrupted, ScopeId, TaskRef, TrapKind};

use crate::book::{Book, NONE, key};
use crate::cleanup::Cleanup;
use crate::pick::Pick;
use crate::record::{Place, State};
use crate::scope::Depth;

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
pub(crate) enum Holder {
    /// This record.
    Record(u32),
    /// This shield, for what is inside.
    Scope(ScopeId),
}

/// A request to end, or a deadline that passed.
#[derive(Debug)]
pub(crate) struct Cause {
    what: Interrupted,
    /// How many hold it; they know that they do.
    holders: u32,
    /// Some poll has returned it.
    collected: bool,
    /// Counted in the task's ledger as pending.
    pending: bool,
    pub(crate) cleanup: Cleanup,
}

impl Cause {
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
    }

    pub(crate) fn is_collected(&self) -> bool {
        self.collected
    }

    pub(crate) fn what(&self) -> &Interrupted {
        &self.what
    }
}

impl<P: Pick> Book<P> {
    /// All that may own a cause for a wait of the task in that scope, outermost first: those inside
    /// the innermost shield.
    fn owners(&self, task: &TaskRef, scope: Option<ScopeId>) -> Vec<Owner> {
        let mut owners = Vec::new();
        let mut shielded = false;
        for scope in self.around(scope) {
            shielded = scope.is_shield;
            if shielded {
                break;
            }
            owners.push(Owner::Scope(scope.id));
        }
        if !shielded {
            owners.push(Owner::Task(task.ledger().index.get()));
        }
        owners.reverse();
        owners
    }

    pub(crate) fn cause_mut(&mut self, owner: Owner) -> Option<&mut Cause> {
        match owner {
            Owner::Task(task) => self.tasks.get_mut(task as usize)?.cause.as_deref_mut(),
            Owner::Scope(scope) => self.scope_mut(scope)?.cause.as_deref_mut(),
        }
    }

    /// Has a task looked at closely from now on.
    pub(crate) fn trouble(&mut self, task: &TaskRef) {
        task.ledger().set(Flag::Troubled);
        self.make_records(task);
        self.make_record_of(task.ledger().index.get());
    }

    /// Whether no cause can concern the task any more: it has none, no scope is left, and no light
    /// yield was made a record that it does not know of.
    pub(crate) fn is_untroubled(&mut self, task: &TaskRef) -> bool {
        let ledger = task.ledger();
        ledger.scopes.get() == NONE
            && self.cause_mut(Owner::Task(ledger.index.get())).is_none()
            && !self.has_made(task)
    }

    pub(crate) fn task_of(&self, owner: Owner) -> Option<TaskRef> {
        match owner {
            Owner::Task(task) => Some(self.tasks.get(task as usize)?.task.clone()),
            Owner::Scope(scope) => Some(self.scope(scope)?.task.clone()),
        }
    }

    /// Brings a cause into being, unless its owner has one already.
    pub(crate) fn fire(&mut self, owner: Owner, what: Interrupted, now: Ticks) {
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
        *slot = Some(Box::new(Cause {
            what,
            holders: 0,
            collected: false,
            pending: false,
            cleanup: Cleanup::default(),
        }));
        self.watch_cleanup(owner, now);
        if let Some(task) = self.task_of(owner) {
            self.trouble(&task);
        }
        self.deliver(owner);
    }

    /// Fires a scope's deadline, after those of the scopes around it that are due no later, so
    /// that of equal deadlines the outermost owns the interruption.
    pub(crate) fn expire(&mut self, scope: ScopeId, now: Ticks) {
        let Some(found) = self.scope(scope) else { return };
        let deadline = found.deadline;
        let mut due: Vec<ScopeId> = self
            .around(Some(scope))
            .filter(|outer| outer.deadline <= deadline)
            .map(|outer| outer.id)
            .collect();
        due.reverse();
        for scope in due {
            if let Some(timer) = self.scope_mut(scope).and_then(|scope| scope.timer.take()) {
                self.timers.remove(timer);
            }
            self.fire(Owner::Scope(scope), Interrupted::timed_out(scope), now);
        }
    }

    /// Tells every outstanding wait inside the owner; if there is none, leaves the cause pending.
    /// Sees to it that the owner is polled, to find out whether it can be told at all.
    fn deliver(&mut self, owner: Owner) {
        let Some(what) = self.cause_mut(owner).map(|cause| cause.what.clone()) else { return };
        let mut told = self.inside(owner, Depth::UpToShields);
        told.retain(|holder| match holder {
            Holder::Record(record) => !self.has_passed(*record),
            Holder::Scope(_) => true,
        });
        if let Some(cause) = self.cause_mut(owner) {
            cause.holders += key(told.len());
        }
        let mut is_polled = false;
        for holder in told {
            match holder {
                Holder::Record(record) => {
                    self.record_mut(record).told.push(owner);
                    if let Some(place) = self.take_out(record) {
                        self.record_mut(record).state =
                            State::Interrupted(Box::new(what.clone()), place);
                        self.rouse(record);
                        is_polled = true;
                    }
                }
                Holder::Scope(shield) => {
                    is_polled = true;
                    if let Some(shield) = self.scope_mut(shield) {
                        shield.told.push(owner);
                    }
                }
            }
        }
        self.settle(owner);
        let is_pending = self.cause_mut(owner).is_some_and(|cause| cause.pending);
        if is_pending || (!is_polled && !self.is_being_polled(owner)) {
            self.have_polled(owner);
        }
    }

    fn is_being_polled(&self, owner: Owner) -> bool {
        match owner {
            Owner::Task(task) => self.stepping == Some(task),
            Owner::Scope(scope) => self.around(self.scope).any(|around| around.id == scope),
        }
    }

    /// Has an owner polled again.
    pub(crate) fn have_polled(&mut self, owner: Owner) {
        let waker = match owner {
            Owner::Scope(scope) => self.scope_mut(scope).and_then(|scope| scope.waker.take()),
            Owner::Task(_) => None,
        };
        match waker {
            Some(waker) => self.wakers.push(waker),
            None => {
                if let Some(task) = self.task_of(owner) {
                    self.make_ready(task);
                }
            }
        }
    }

    /// Counts a cause as pending if nobody holds it and nobody has collected it.
    fn settle(&mut self, owner: Owner) {
        let Some(task) = self.task_of(owner) else { return };
        let Some(cause) = self.cause_mut(owner) else { return };
        let pending = cause.holders == 0 && !cause.collected;
        let before = std::mem::replace(&mut cause.pending, pending);
        match (before, pending) {
            (false, true) => add(&task, 1),
            (true, false) => add(&task, -1),
            _ => {}
        }
    }

    /// Ends the cause of an owner that ends. Tells whether it was collected.
    pub(crate) fn end_cause(&mut self, owner: Owner) -> bool {
        let Some(task) = self.task_of(owner) else { return false };
        let Some(cause) = self.cause_mut(owner) else { return false };
        let collected = cause.collected;
        let cleanup = std::mem::take(&mut cause.cleanup);
        if std::mem::take(&mut cause.pending) {
            add(&task, -1);
        }
        self.stop_watching(cleanup);
        collected
    }

    /// A holder is gone without having collected. A cause that nobody holds then and nobody has
    /// collected is delivered anew.
    fn release(&mut self, owner: Owner) {
        let Some(cause) = self.cause_mut(owner) else { return };
        cause.holders -= 1;
        if cause.holders == 0 && !cause.collected && !cause.pending {
            self.deliver(owner);
        }
    }

    /// What a record or a shield was told of does not concern it any more.
    pub(crate) fn untell(&mut self, told: Vec<Owner>) {
        for owner in told {
            self.release(owner);
        }
    }

    /// What a holder was told of goes over to the branch, which goes on.
    pub(crate) fn pass_to_branch(&mut self, told: Vec<Owner>) {
        // The number of holders stays the same: the branch takes the place of the one that ends.
        self.branch.extend(told);
    }

    /// A record is about to be collected with this outcome: what it returns counts as collected,
    /// the rest of what it was told goes over to the branch.
    pub(crate) fn collect(&mut self, record: u32, returned: Option<&Interrupted>) {
        for owner in self.record_mut(record).told.take() {
            let Some(cause) = self.cause_mut(owner) else { continue };
            if returned == Some(&cause.what) {
                cause.collected = true;
                cause.holders -= 1;
                self.settle(owner);
            } else {
                self.branch.push(owner);
            }
        }
    }

    /// A record is dropped, or leaves the scopes it is in: it was told for nothing. If it was
    /// interrupted, it waits again, or is asked to look again.
    pub(crate) fn forget_told(&mut self, record: u32) {
        let entry = self.record_mut(record);
        if entry.told.is_empty() {
            return;
        }
        let told = entry.told.take();
        if let State::Interrupted(_, place) = entry.state {
            match place {
                Place::Timer(until, _) => self.put_timer(record, until),
                // What it waited for may have happened while it was not there to see it.
                _ => {
                    self.answer(record, None);
                }
            }
        }
        self.untell_elsewhere(record, told);
    }

    /// What a record was told of concerns it no more: somebody else is to be told.
    fn untell_elsewhere(&mut self, record: u32, told: Vec<Owner>) {
        let linked = self.unlink(record);
        self.untell(told);
        if linked {
            self.link(record);
        }
    }

    /// A record is polled by the task, in the current scope, and moves there. What it was told of by
    /// an owner that this is not inside of is not for this poll.
    ///
    /// The task it was bound to before comes back; drop it with the book closed.
    pub(crate) fn bring_home(&mut self, record: u32, task: &TaskRef) -> Option<TaskRef> {
        if !self.record(record).told.is_empty() {
            self.retell(record, task);
        }
        let entry = self.record(record);
        let is_deaf = entry.kind == TrapKind::Elapse;
        let scope = if is_deaf { None } else { self.scope };
        if entry.task.is(task) && entry.scope == scope {
            return None;
        }
        self.unlink(record);
        let entry = self.record_mut(record);
        let task_before = std::mem::replace(&mut entry.task, task.clone());
        entry.scope = scope;
        if !is_deaf {
            self.link(record);
        }
        Some(task_before)
    }

    fn retell(&mut self, record: u32, task: &TaskRef) {
        let entry = self.record(record);
        let mut owners = self.owners(task, self.scope);
        if !entry.task.is(task) {
            // It was told as one of another task; of the two, only scopes can be the same.
            owners.retain(|owner| matches!(owner, Owner::Scope(_)));
        }
        match &entry.state {
            State::Interrupted(interrupted, _) => {
                let owner = match interrupted.owner() {
                    Some(scope) => Owner::Scope(scope),
                    None => Owner::Task(task.ledger().index.get()),
                };
                if !owners.contains(&owner) {
                    self.forget_told(record);
                }
            }
            State::Done(_) | State::Parked(_) => {
                let told = self.record_mut(record).told.take();
                let (kept, lost): (Vec<_>, Vec<_>) =
                    told.into_iter().partition(|owner| owners.contains(owner));
                self.record_mut(record).told.set(kept);
                self.untell_elsewhere(record, lost);
            }
        }
    }

    /// The branch that was running polls another record, or its step is over: what it was told of
    /// and has not collected is delivered anew.
    pub(crate) fn release_branch(&mut self) {
        for owner in std::mem::take(&mut self.branch) {
            self.release(owner);
        }
    }

    /// Asks before a wait of the task that was not told of anything is parked in the current scope:
    /// the interruption it has to return instead, outermost first.
    #[inline]
    pub(crate) fn would_suspend(&mut self, task: &TaskRef) -> Option<Interrupted> {
        if self.branch.is_empty() && task.ledger().pending.get() == 0 {
            return None;
        }
        self.is_due(task)
    }

    #[cold]
    fn is_due(&mut self, task: &TaskRef) -> Option<Interrupted> {
        let owners = self.owners(task, self.scope);
        for owner in &owners {
            // Two shields that end in one branch were told of the same.
            let before = self.branch.len();
            self.branch.retain(|told| told != owner);
            let told = before - self.branch.len();
            let Some(cause) = self.cause_mut(*owner) else { continue };
            if told > 0 || cause.pending {
                cause.holders -= key(told);
                return self.hand_over(*owner);
            }
        }
        None
    }

    /// What [`would_suspend`](Self::would_suspend) would give, left where it is.
    pub(crate) fn peek(&mut self, task: &TaskRef) -> Option<Interrupted> {
        let owners = self.owners(task, self.scope);
        let owner = owners.into_iter().find(|owner| {
            self.branch.contains(owner) || self.cause_mut(*owner).is_some_and(|cause| cause.pending)
        })?;
        self.cause_mut(owner).map(|cause| cause.what.clone())
    }

    fn hand_over(&mut self, owner: Owner) -> Option<Interrupted> {
        let cause = self.cause_mut(owner)?;
        cause.collected = true;
        let what = cause.what.clone();
        self.settle(owner);
        Some(what)
    }

    /// What was asked of the task, if it was asked to end.
    pub(crate) fn reason_of(&mut self, task: &TaskRef) -> Option<Interrupted> {
        let owner = Owner::Task(task.ledger().index.get());
        self.cause_mut(owner).map(|cause| cause.what.clone())
    }
}

fn add(task: &TaskRef, by: i32) {
    let count = &task.ledger().pending;
    let after = count.get().checked_add_signed(by);
    debug_assert!(after.is_some(), "every cause that was counted is uncounted once (I7)");
    count.set(after.unwrap_or(0));
}

/// A scope with a pending cause moves from one task to another.
pub(crate) fn move_pending(from: &TaskRef, to: &TaskRef) {
    add(from, -1);
    add(to, 1);
}

//! The tree of a task's scopes.
//!
//! A scope is inside another one of the same task, or inside none. Each knows the records that
//! wait directly in it and the scopes directly in it, so what is inside a scope is found without a
//! look at anything else. The task itself is the root: its ledger has the heads of both lists.
//!
//! A scope either has a deadline or is a *shield*: it keeps the causes of those around it away from
//! what is inside, and is told of them in its place.

use std::task::Waker;

use pikake_time::{Deadline, TimerKey};
use pikake_traps::{Flag, ScopeId, TaskRef};

use crate::book::{Book, NONE, Timer, key};
use crate::cause::{Cause, Holder, Owner};
use crate::pick::Pick;
use crate::record::Told;

/// A region of a task.
pub(crate) struct Scope {
    pub(crate) id: ScopeId,
    pub(crate) task: TaskRef,
    pub(crate) parent: Option<ScopeId>,
    /// Neighbours in the list of its parent, or of its task if it has none.
    previous: u32,
    next: u32,
    /// In such a list; not so once the task has ended.
    linked: bool,
    /// The first of the scopes directly inside.
    children: u32,
    /// The first of the records directly inside.
    pub(crate) records: u32,
    pub(crate) deadline: Deadline,
    pub(crate) timer: Option<TimerKey>,
    /// How long the body may go on after the deadline, in ticks.
    pub(crate) grace: Option<u64>,
    pub(crate) is_shield: bool,
    /// Of a shield: whose causes it was told of in the place of what is inside.
    pub(crate) told: Told,
    /// The waker of the last poll, if it was not the task's own.
    pub(crate) waker: Option<Waker>,
    pub(crate) cause: Option<Box<Cause>>,
    /// The task's step in which its light yields were in this scope.
    pub(crate) lights_in: u32,
    /// Whether the task had been woken when the poll of this scope began.
    woken_before: bool,
}

/// What is left of a scope that has ended.
pub(crate) struct Closed {
    pub(crate) deadline: Deadline,
    /// Whether its cause was collected; `None` if it had none, and nobody was in it.
    pub(crate) interrupted: Option<bool>,
    /// To be dropped with the book closed.
    pub(crate) left: (TaskRef, Option<Waker>),
}

/// The lower half of a scope's id is its number in the book, the upper half a serial number.
const SERIAL_SHIFT: u32 = 32;

pub(crate) fn index_of(scope: ScopeId) -> usize {
    (scope.0 as u32) as usize
}

/// How deep to look into a scope.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Everything; the shields and the other scopes themselves, too.
    BeyondShields,
    /// Only what a cause of the scope concerns: not what is inside a shield, but the shield itself.
    UpToShields,
}

impl<P: Pick> Book<P> {
    #[inline]
    pub(crate) fn scope(&self, scope: ScopeId) -> Option<&Scope> {
        self.scopes.get(index_of(scope)).filter(|found| found.id == scope)
    }

    #[inline]
    pub(crate) fn scope_mut(&mut self, scope: ScopeId) -> Option<&mut Scope> {
        self.scopes.get_mut(index_of(scope)).filter(|found| found.id == scope)
    }

    /// Opens a scope of a task, inside the current one, which comes back, and makes it current: with
    /// a deadline, or (`None`) a shield.
    pub(crate) fn open_scope(
        &mut self,
        task: TaskRef,
        deadline: Option<Deadline>,
        grace: Option<u64>,
        waker: Option<Waker>,
    ) -> (ScopeId, Option<ScopeId>) {
        self.next_scope = self.next_scope.wrapping_add(1);
        let serial = u64::from(self.next_scope) << SERIAL_SHIFT;
        let number = key(self.scopes.vacant_key());
        let id = ScopeId(serial | u64::from(number));
        let parent = self.scope.replace(id);
        let next = self.set_children_head(&task, parent, number);
        if next != NONE {
            self.scopes[next as usize].previous = number;
        }
        let woken_before = task.ledger().clear(Flag::Woken);
        self.scopes.insert(Scope {
            id,
            task,
            parent,
            previous: NONE,
            next,
            linked: true,
            children: NONE,
            records: NONE,
            deadline: deadline.unwrap_or(Deadline::NEVER),
            timer: None,
            grace,
            is_shield: deadline.is_none(),
            told: Told::default(),
            waker,
            cause: None,
            lights_in: 0,
            woken_before,
        });
        (id, parent)
    }

    #[inline]
    fn set_children_head(&mut self, task: &TaskRef, parent: Option<ScopeId>, head: u32) -> u32 {
        match parent.and_then(|parent| self.scope_mut(parent)) {
            Some(parent) => std::mem::replace(&mut parent.children, head),
            None => task.ledger().scopes.replace(head),
        }
    }

    /// Puts a scope into the list of its parent.
    fn hang(&mut self, scope: ScopeId) {
        let Some(found) = self.scope(scope) else { return };
        let (task, parent) = (found.task.clone(), found.parent);
        let number = key(index_of(scope));
        let head = self.set_children_head(&task, parent, number);
        if head != NONE {
            self.scopes[head as usize].previous = number;
        }
        if let Some(found) = self.scope_mut(scope) {
            found.linked = true;
            found.previous = NONE;
            found.next = head;
        }
    }

    /// Takes a scope out of the list of its parent.
    fn unhang(&mut self, scope: ScopeId) {
        let Some(found) = self.scope_mut(scope) else { return };
        if std::mem::replace(&mut found.linked, false) {
            let (previous, next) = (found.previous, found.next);
            let (task, parent) = (found.task.clone(), found.parent);
            self.close_up_scopes(&task, parent, previous, next);
        }
    }

    /// Joins the two neighbours of a scope that is gone from its parent's list.
    #[inline]
    fn close_up_scopes(
        &mut self,
        task: &TaskRef,
        parent: Option<ScopeId>,
        previous: u32,
        next: u32,
    ) {
        if previous == NONE {
            self.set_children_head(task, parent, next);
        } else {
            self.scopes[previous as usize].next = next;
        }
        if next != NONE {
            self.scopes[next as usize].previous = previous;
        }
    }

    /// Takes a scope that outlives its task, or the scope it was in, out of there. What it was told
    /// of there concerns it no more.
    pub(crate) fn cut_off(&mut self, scope: ScopeId) {
        self.unhang(scope);
        if let Some(found) = self.scope_mut(scope) {
            found.parent = None;
            let told = found.told.take();
            self.untell(told);
        }
    }

    /// Makes a scope current that is polled as it was before: in the same task and surrounding
    /// scope, with the task's own waker. `false`: it is not so.
    #[inline]
    pub(crate) fn enter_as_before(&mut self, scope: ScopeId, waker: &Waker) -> bool {
        let (parent, stepping) = (self.scope, self.stepping);
        let Some(found) = self.scope_mut(scope) else { return false };
        let is_as_before = found.waker.is_none()
            && found.parent == parent
            && found.linked
            && found.task.owns(waker)
            && stepping == Some(found.task.ledger().index.get());
        if is_as_before {
            found.woken_before = found.task.ledger().clear(Flag::Woken);
            self.scope = Some(scope);
        }
        is_as_before
    }

    /// Binds a scope to the task, surrounding scope and waker of a new poll, and makes it current.
    ///
    /// What it was bound to before comes back; drop it with the book closed.
    pub(crate) fn enter(
        &mut self,
        scope: ScopeId,
        task: &TaskRef,
        waker: Option<Waker>,
    ) -> (Option<Waker>, Option<TaskRef>) {
        let parent = self.scope.replace(scope);
        let Some(found) = self.scope_mut(scope) else { return (waker, None) };
        let waker_before = std::mem::replace(&mut found.waker, waker);
        found.woken_before = task.ledger().clear(Flag::Woken);
        let is_moved = found.parent != parent || !found.task.is(task) || !found.linked;
        if !is_moved {
            return (waker_before, None);
        }
        let is_pending = found.cause.as_ref().is_some_and(|cause| cause.is_pending());
        let has_cause = found.cause.is_some();
        if found.lights_in != 0 {
            let task_before = found.task.clone();
            self.trouble(&task_before);
        }
        if has_cause {
            self.trouble(task);
        }
        self.cut_off(scope);
        let Some(found) = self.scope_mut(scope) else { return (waker_before, None) };
        found.parent = parent;
        // Steps are counted by each task for itself.
        found.lights_in = 0;
        let task_before = std::mem::replace(&mut found.task, task.clone());
        if is_pending {
            crate::cause::move_pending(&task_before, task);
        }
        self.hang(scope);
        (waker_before, Some(task_before))
    }

    /// Goes back to the scope around after a poll. Tells whether the task was woken in it, and
    /// whether the scope has a cause.
    #[inline]
    pub(crate) fn leave(&mut self, scope: ScopeId, back_to: Option<ScopeId>) -> (bool, bool) {
        self.scope = back_to;
        let Some(found) = self.scope(scope) else { return (false, false) };
        let ledger = found.task.ledger();
        let is_woken = ledger.is(Flag::Woken);
        if found.woken_before {
            ledger.set(Flag::Woken);
        }
        (is_woken, found.cause.is_some())
    }

    /// Sets the timer of a scope that goes on, unless that was done before.
    #[inline]
    pub(crate) fn arm(&mut self, scope: ScopeId) {
        let Some(found) = self.scope(scope) else { return };
        if found.timer.is_none() && !found.deadline.is_never() {
            let timer = self.timers.insert(found.deadline.ticks(), Timer::Scope(scope));
            if let Some(found) = self.scope_mut(scope) {
                found.timer = Some(timer);
            }
        }
    }

    /// Ends a scope, with its timer and its cause. `completed`: its body has returned, and its
    /// branch goes on; otherwise it was dropped.
    pub(crate) fn close_scope(&mut self, scope: ScopeId, completed: bool) -> Option<Closed> {
        let found = self.scope(scope)?;
        let is_plain = found.cause.is_none()
            && found.told.is_empty()
            && found.records == NONE
            && found.children == NONE;
        let interrupted = match is_plain {
            true => None,
            false => Some(self.end_scope(scope, completed)?),
        };
        let Scope { task, parent, linked, previous, next, waker, deadline, timer, .. } =
            self.scopes.remove(index_of(scope));
        if linked {
            self.close_up_scopes(&task, parent, previous, next);
        }
        if let Some(timer) = timer {
            self.timers.remove(timer);
        }
        Some(Closed { deadline, interrupted, left: (task, waker) })
    }

    /// Takes everything out of a scope that ends. Tells whether its cause was collected.
    fn end_scope(&mut self, scope: ScopeId, completed: bool) -> Option<bool> {
        let task = self.scope(scope)?.task.clone();
        // Records and scopes that outlive this one are inside none from now on.
        let records: Vec<u32> = self.records_in(&task, Some(scope)).collect();
        for record in records.into_iter().rev() {
            self.forget_told(record);
            self.unlink(record);
            self.record_mut(record).scope = None;
            if !task.is_ended() {
                self.link(record);
            }
        }
        while let Some(child) = self.scope(scope).map(|found| found.children)
            && child != NONE
        {
            let child = self.scopes[child as usize].id;
            self.cut_off(child);
            if !task.is_ended() {
                self.hang(child);
            }
        }
        self.unhang(scope);
        let owner = Owner::Scope(scope);
        self.branch.retain(|told| *told != owner);
        let found = self.scope_mut(scope)?;
        let told = found.told.take();
        let collected = self.end_cause(owner);
        if completed {
            self.pass_to_branch(told);
        } else {
            self.untell(told);
        }
        Some(collected)
    }

    /// The scope and all around it, innermost first.
    pub(crate) fn around(&self, scope: Option<ScopeId>) -> impl Iterator<Item = &Scope> {
        let first = scope.and_then(|scope| self.scope(scope));
        std::iter::successors(first, |scope| scope.parent.and_then(|parent| self.scope(parent)))
    }

    /// What is inside an owner: scope by scope from the outside in, and in each the records in the
    /// order in which they came there.
    pub(crate) fn inside(&self, owner: Owner, depth: Depth) -> Vec<Holder> {
        let mut found = Vec::new();
        let (task, scope) = match owner {
            Owner::Task(task) => match self.tasks.get(task as usize) {
                Some(entry) => (&entry.task, None),
                None => return found,
            },
            Owner::Scope(scope) => match self.scope(scope) {
                Some(entry) => (&entry.task, Some(scope)),
                None => return found,
            },
        };
        let mut open = vec![scope];
        while let Some(scope) = open.pop() {
            let start = found.len();
            found.extend(self.records_in(task, scope).map(Holder::Record));
            found[start..].reverse();
            let mut child = match scope.and_then(|scope| self.scope(scope)) {
                Some(scope) => scope.children,
                None => task.ledger().scopes.get(),
            };
            while child != NONE {
                let entry = &self.scopes[child as usize];
                let stops = entry.is_shield && depth == Depth::UpToShields;
                if stops || depth == Depth::BeyondShields {
                    found.push(Holder::Scope(entry.id));
                }
                if !stops {
                    open.push(Some(entry.id));
                }
                child = entry.next;
            }
        }
        found
    }

    /// Whether something inside an owner may still tell it of its cause: a record that waits, or a
    /// shield.
    ///
    /// A record that had its answer before this step and was not asked for it in the poll that has
    /// just ended does not count: its future is not being polled by anybody.
    pub(crate) fn is_waiting(&self, owner: Owner) -> bool {
        self.inside(owner, Depth::UpToShields).into_iter().any(|holder| match holder {
            Holder::Record(record) => {
                self.is_parked(record) || self.record(record).answered_in == self.step
            }
            Holder::Scope(_) => true,
        })
    }
}

//! Sub-waits: what is polled with another waker than its task's own.
//!
//! A combinator such as `FuturesUnordered` polls a child only if it called the waker that it gave that
//! child. So whoever wants such a child polled must have that waker. A *sub-wait* is a wait or a scope
//! that was polled last with a combinator's waker; here each has a node with that waker. Nodes are
//! linked under the node of the scope around them, so that a cause finds those that it concerns. A scope that is
//! polled with the task's own waker has a node only if there are sub-waits in it, and no waker. Plain code, `join!` and `select!` have no sub-waits.
//!
//! ```text
//!   task ──▶ scope ──▶ sub-wait ──▶ …        first child, then from sibling to sibling,
//!              │          │                  the newest first
//!              │          ▼
//!              ▼       scope, polled with a combinator's waker ──▶ sub-wait
//!            sub-wait
//! ```
//!
//! The node of a wait or a scope is its future's, which frees it. When a scope ends, what was under it is
//! under what is around the scope.
//!
//! Each list counts the waits and shields under it, at any depth: those that wait, and those whose waker was
//! called since their last poll. Nobody may poll the latter any more, as when the combinator that had them
//! is left alone.

use std::cell::RefCell;
use std::panic::Location;
use std::task::Waker;

use slab::Slab;

use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::{Count, List, SubWait};
use crate::names::{SeenWait, TrapKind};

/// What a node stands for.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Wait(TrapKind, &'static Location<'static>),
    Deadline,
    Shield,
}

/// Under what a node is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    Task,
    Scope(SubWait),
}

struct Node {
    task: TaskRef,
    waker: Option<Waker>,
    /// It was polled last with a combinator's waker.
    is_sub_wait: bool,
    what: What,
    /// What the wait waits for, if its last poll was in an inspected step.
    about: Option<Box<str>>,
    under: Under,
    previous: SubWait,
    next: SubWait,
    inside: List,
}

impl Node {
    /// Whether a cause around it concerns it, or what is in it.
    fn is_told(&self) -> bool {
        !matches!(self.what, What::Shield | What::Wait(TrapKind::Elapse, _))
    }

    /// What it counts for by itself.
    fn own_count(&self) -> Count {
        match self.what {
            // A cause never makes it ready: nobody need poll it.
            What::Wait(TrapKind::Elapse, _) | What::Deadline => Count::default(),
            What::Wait(..) | What::Shield if self.is_sub_wait => match self.waker {
                Some(_) => Count::WAITING,
                None => Count::CALLED,
            },
            _ => Count::default(),
        }
    }

    /// What it counts for with all that is under it.
    fn whole_count(&self) -> Count {
        self.own_count().add(self.inside.count())
    }
}

/// The sub-waits of a kernel.
#[derive(Default)]
pub(crate) struct SubWaits(RefCell<Slab<Node>>);

impl SubWaits {
    /// Sees to it that there is a node, under that, with that waker. `None` leaves the waker out.
    pub(crate) fn bind(
        &self,
        node: SubWait,
        under: Under,
        task: &TaskRef,
        waker: Option<&Waker>,
        what: What,
    ) -> SubWait {
        let is_known = waker.is_none_or(|waker| {
            let nodes = self.0.borrow();
            let known = nodes.get(node.index()).and_then(|node| node.waker.as_ref());
            known.is_some_and(|known| known.will_wake(waker))
        });
        // Other people's code, and called with nothing borrowed.
        let fresh = if is_known { None } else { waker.cloned() };
        let mut nodes = self.0.borrow_mut();
        if node.is_none() {
            let node = SubWait::new(nodes.vacant_key());
            nodes.insert(Node {
                task: task.clone(),
                waker: fresh,
                is_sub_wait: waker.is_some(),
                what,
                about: None,
                under,
                previous: SubWait::NONE,
                next: SubWait::NONE,
                inside: List::default(),
            });
            link(&mut nodes, node);
            return node;
        }
        let is_moved = nodes[node.index()].under != under || !nodes[node.index()].task.is(task);
        if is_moved {
            unlink(&mut nodes, node);
        }
        let found = &mut nodes[node.index()];
        let count_before = found.own_count();
        found.what = what;
        found.about = None;
        found.is_sub_wait = waker.is_some();
        let waker_before = match waker {
            None => found.waker.take(),
            Some(_) => fresh.and_then(|fresh| found.waker.replace(fresh)),
        };
        let mut task_before = None;
        if is_moved {
            found.under = under;
            task_before = Some(std::mem::replace(&mut found.task, task.clone()));
            link(&mut nodes, node);
        } else {
            recount(&mut nodes, node, count_before);
        }
        drop(nodes);
        drop((waker_before, task_before));
        node
    }

    /// Notes what a wait waits for. For listings.
    pub(crate) fn set_about(&self, node: SubWait, about: Option<Box<str>>) {
        self.0.borrow_mut()[node.index()].about = about;
    }

    /// Frees a node. What is under it is under what it was under from now on.
    pub(crate) fn free(&self, node: SubWait) {
        let mut nodes = self.0.borrow_mut();
        let around = nodes[node.index()].under;
        let mut inside = Vec::new();
        push_siblings(&nodes, nodes[node.index()].inside.first(), &mut inside);
        while let Some(oldest) = inside.pop() {
            unlink(&mut nodes, oldest);
            nodes[oldest.index()].under = around;
            link(&mut nodes, oldest);
        }
        unlink(&mut nodes, node);
        let Node { task, waker, .. } = nodes.remove(node.index());
        drop(nodes);
        drop((task, waker));
    }

    /// The waker of a node, to be called.
    pub(crate) fn take_waker(&self, node: SubWait) -> Option<Waker> {
        let mut nodes = self.0.borrow_mut();
        nodes.get(node.index())?;
        take_waker(&mut nodes, node)
    }

    /// How many waits and shields are under a scope's node.
    pub(crate) fn count_inside(&self, node: SubWait) -> Count {
        self.0.borrow().get(node.index()).map_or_else(Count::default, |node| node.inside.count())
    }

    /// Takes the wakers of all that a cause of a scope (`None`: of the task) concerns: what is under it
    /// at any depth, but for shields, what is in them, and waits that are never interrupted. Those outside come first, of siblings the oldest.
    pub(crate) fn take_wakers(&self, task: &TaskRef, scope: Option<SubWait>) -> Vec<Waker> {
        self.take_wakers_if(task, scope, Node::is_told)
    }

    /// Takes the wakers of all that is under a task, at any depth.
    pub(crate) fn take_all_wakers(&self, task: &TaskRef) -> Vec<Waker> {
        self.take_wakers_if(task, None, |_| true)
    }

    /// Takes the wakers of what is under a scope or task, but for what is not concerned and what is in that.
    fn take_wakers_if(
        &self,
        task: &TaskRef,
        scope: Option<SubWait>,
        is_concerned: impl Fn(&Node) -> bool,
    ) -> Vec<Waker> {
        let mut nodes = self.0.borrow_mut();
        let inside = match scope {
            None => task.sub_waits(),
            Some(scope) => nodes.get(scope.index()).map_or_else(List::default, |node| node.inside),
        };
        let mut wakers = Vec::new();
        let mut left = Vec::new();
        push_siblings(&nodes, inside.first(), &mut left);
        while let Some(node) = left.pop() {
            if !is_concerned(&nodes[node.index()]) {
                continue;
            }
            wakers.extend(take_waker(&mut nodes, node));
            push_siblings(&nodes, nodes[node.index()].inside.first(), &mut left);
        }
        wakers
    }

    /// Shows every sub-wait that is a wait.
    pub(crate) fn each(&self, mut show: impl FnMut(&TaskRef, SeenWait)) {
        for (_, node) in &*self.0.borrow() {
            if let What::Wait(trap, place) = node.what
                && !node.task.is_ended()
            {
                show(&node.task, SeenWait { trap, place, about: node.about.clone() });
            }
        }
    }
}

/// Pushes a node and its siblings, so that the last one pushed is the oldest.
fn push_siblings(nodes: &Slab<Node>, first: SubWait, left: &mut Vec<SubWait>) {
    let mut at = first;
    while let Some(node) = nodes.get(at.index()) {
        left.push(at);
        at = node.next;
    }
}

fn list_of(nodes: &Slab<Node>, task: &TaskRef, under: Under) -> List {
    match under {
        Under::Task => task.sub_waits(),
        Under::Scope(scope) => nodes[scope.index()].inside,
    }
}

fn set_list(nodes: &mut Slab<Node>, task: &TaskRef, under: Under, list: List) {
    match under {
        Under::Task => task.set_sub_waits(list),
        Under::Scope(scope) => nodes[scope.index()].inside = list,
    }
}

/// Changes what a node counts for in all lists that it is under.
fn change_count(nodes: &mut Slab<Node>, node: SubWait, change: impl Fn(Count) -> Count) {
    let mut at = node;
    loop {
        let Node { under, ref task, .. } = nodes[at.index()];
        let task = task.clone();
        let list = list_of(nodes, &task, under);
        set_list(nodes, &task, under, list.with_count(change(list.count())));
        match under {
            Under::Task => return,
            Under::Scope(scope) => at = scope,
        }
    }
}

/// A node counts for something else by itself than before.
fn recount(nodes: &mut Slab<Node>, node: SubWait, before: Count) {
    let now = nodes[node.index()].own_count();
    if now != before {
        change_count(nodes, node, |count| count.add(now).subtract(before));
    }
}

fn take_waker(nodes: &mut Slab<Node>, node: SubWait) -> Option<Waker> {
    let found = &mut nodes[node.index()];
    let before = found.own_count();
    let waker = found.waker.take();
    recount(nodes, node, before);
    waker
}

fn link(nodes: &mut Slab<Node>, node: SubWait) {
    let Node { under, ref task, .. } = nodes[node.index()];
    let task = task.clone();
    let list = list_of(nodes, &task, under);
    let next = list.first();
    set_list(nodes, &task, under, list.with_first(node));
    let found = &mut nodes[node.index()];
    (found.previous, found.next) = (SubWait::NONE, next);
    let whole = found.whole_count();
    if let Some(next) = nodes.get_mut(next.index()) {
        next.previous = node;
    }
    change_count(nodes, node, |count| count.add(whole));
}

fn unlink(nodes: &mut Slab<Node>, node: SubWait) {
    let Node { under, ref task, previous, next, .. } = nodes[node.index()];
    let task = task.clone();
    let whole = nodes[node.index()].whole_count();
    change_count(nodes, node, |count| count.subtract(whole));
    match nodes.get_mut(previous.index()) {
        Some(previous) => previous.next = next,
        None => {
            let list = list_of(nodes, &task, under);
            set_list(nodes, &task, under, list.with_first(next));
        }
    }
    if let Some(next) = nodes.get_mut(next.index()) {
        next.previous = previous;
    }
}

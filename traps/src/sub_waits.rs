//! Sub-waits: waits and scopes that were polled with another waker than their task's own.
//!
//! A combinator such as `FuturesUnordered` polls a child only after a call of the child's own
//! waker. So a kernel needs that waker to get the child polled. A *sub-wait* is a wait or a scope
//! whose last poll had a combinator's waker. Each has a node with that waker. Nodes are linked
//! under the node of the scope around them, so that a cause finds the sub-waits inside its owner. A
//! scope that is polled with the task's own waker has a node, without a waker, only if there are
//! sub-waits inside. Plain code, `join!` and `select!` have no sub-waits.
//!
//! ```text
//!   task ──▶ scope ──▶ sub-wait ──▶ …        first child, then from sibling to sibling,
//!              │          │                  the newest first
//!              │          ▼
//!              ▼       scope, polled with a combinator's waker ──▶ sub-wait
//!            sub-wait
//! ```
//!
//! The future of a wait or a scope owns its node, and frees it. When a scope ends, the nodes below
//! move under the next scope around, or under the task.
//!
//! Each list counts the waits and shields below, at any depth: those that wait, and those whose
//! waker was called since their last poll. The latter may never be polled again, if the program no
//! longer polls their combinator.

use std::cell::RefCell;
use std::panic::Location;
use std::task::Waker;

use slab::Slab;

use crate::cell::reference::TaskRef;
use crate::cell::sub_wait::{Count, List, SubWait};
use crate::kind::{PlacedTrap, TrapKind};
use crate::seen::SeenWait;

/// The wait or scope that a node belongs to.
#[derive(Clone, Copy)]
pub(crate) enum NodeKind {
    Wait(TrapKind, &'static Location<'static>),
    Deadline,
    Shield,
}

/// The list that a node is linked into: that of its task, or of a scope.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    Task,
    Scope(SubWait),
}

struct Node {
    task: TaskRef,
    waker: Option<Waker>,
    /// The last poll had a combinator's waker.
    is_sub_wait: bool,
    kind: NodeKind,
    /// The details of the wait, if its last poll was in an inspected step. Of a scope with a
    /// deadline: that it had no wait inside.
    seen: Option<Box<SeenWait>>,
    under: Under,
    previous: SubWait,
    next: SubWait,
    inside: List,
}

impl Node {
    /// Whether causes around the node can interrupt the waits of the node and below.
    fn is_interruptible(&self) -> bool {
        match self.kind {
            NodeKind::Wait(kind, _) => kind.is_interruptible(),
            NodeKind::Deadline => true,
            NodeKind::Shield => false,
        }
    }

    /// The wait as listings show it; `None` for a scope, unless its deadline alone ends what is
    /// inside.
    fn seen_wait(&self) -> Option<SeenWait> {
        let mut seen = match (&self.seen, self.kind) {
            (Some(seen), _) => SeenWait::clone(seen),
            (None, NodeKind::Wait(trap, place)) => SeenWait::plain(trap, place),
            (None, NodeKind::Deadline | NodeKind::Shield) => return None,
        };
        // The waker is called once, and a ready task is about to poll.
        seen.is_polled = self.waker.is_some() || self.task.is_ready();
        Some(seen)
    }

    /// The node's own part of the counts above.
    fn own_count(&self) -> Count {
        match self.kind {
            // The rules of interruption do not count these.
            NodeKind::Wait(kind, _) if !kind.is_interruptible() => Count::default(),
            NodeKind::Deadline => Count::default(),
            NodeKind::Wait(..) | NodeKind::Shield if self.is_sub_wait => match self.waker {
                Some(_) => Count::WAITING,
                None => Count::CALLED,
            },
            NodeKind::Wait(..) | NodeKind::Shield => Count::default(),
        }
    }

    /// The part of the node and of all nodes below in the counts above.
    fn whole_count(&self) -> Count {
        self.own_count().add(self.inside.count())
    }
}

/// The sub-waits of a kernel.
#[derive(Default)]
pub(crate) struct SubWaits(RefCell<Slab<Node>>);

impl SubWaits {
    /// Makes a node, or changes one, and returns it. `waker` is `None` for the task's own waker.
    pub(crate) fn bind(
        &self,
        node: SubWait,
        under: Under,
        task: &TaskRef,
        waker: Option<&Waker>,
        kind: NodeKind,
    ) -> SubWait {
        let is_known = waker.is_none_or(|waker| {
            let nodes = self.0.borrow();
            let known = nodes.get(node.index()).and_then(|node| node.waker.as_ref());
            known.is_some_and(|known| known.will_wake(waker))
        });
        // The clone is user code, and called with nothing borrowed.
        let fresh = if is_known { None } else { waker.cloned() };
        let mut nodes = self.0.borrow_mut();
        if node.is_none() {
            let node = SubWait::new(nodes.vacant_key());
            nodes.insert(Node {
                task: task.clone(),
                waker: fresh,
                is_sub_wait: waker.is_some(),
                kind,
                seen: None,
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
        found.kind = kind;
        let seen_before = found.seen.take();
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
        drop((waker_before, task_before, seen_before));
        node
    }

    /// Notes the details of a wait. For listings.
    pub(crate) fn set_seen(&self, node: SubWait, seen: SeenWait) {
        self.0.borrow_mut()[node.index()].seen = Some(Box::new(seen));
    }

    /// Frees a node, and moves the nodes below one level up.
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

    /// Takes the waker of a node, for a call.
    pub(crate) fn take_waker(&self, node: SubWait) -> Option<Waker> {
        let mut nodes = self.0.borrow_mut();
        nodes.get(node.index())?;
        take_waker(&mut nodes, node)
    }

    /// The number of waits and shields under a scope's node.
    pub(crate) fn count_inside(&self, node: SubWait) -> Count {
        self.0.borrow().get(node.index()).map_or_else(Count::default, |node| node.inside.count())
    }

    /// Takes the wakers of the sub-waits that a cause of a scope (`None`: of the task) can
    /// interrupt, at any depth. Shields, the nodes below shields, and waits that are never
    /// interrupted are left out. The outer ones come first, of siblings the oldest.
    pub(crate) fn take_wakers(&self, task: &TaskRef, scope: Option<SubWait>) -> Vec<Waker> {
        self.take_wakers_if(task, scope, Node::is_interruptible)
    }

    /// Takes the wakers of all sub-waits of a task, at any depth.
    pub(crate) fn take_all_wakers(&self, task: &TaskRef) -> Vec<Waker> {
        self.take_wakers_if(task, None, |_| true)
    }

    /// Takes the wakers under a scope or task, without those of excluded nodes and the nodes below
    /// them.
    fn take_wakers_if(
        &self,
        task: &TaskRef,
        scope: Option<SubWait>,
        is_included: impl Fn(&Node) -> bool,
    ) -> Vec<Waker> {
        let mut nodes = self.0.borrow_mut();
        let mut wakers = Vec::new();
        let mut left = inside_of(&nodes, task, scope);
        while let Some(node) = left.pop() {
            if !is_included(&nodes[node.index()]) {
                continue;
            }
            wakers.extend(take_waker(&mut nodes, node));
            push_siblings(&nodes, nodes[node.index()].inside.first(), &mut left);
        }
        wakers
    }

    /// A wait that a cause of a scope (`None`: of the task) can interrupt, if one is there.
    pub(crate) fn first_wait(&self, task: &TaskRef, scope: Option<SubWait>) -> Option<PlacedTrap> {
        let nodes = self.0.borrow();
        let mut left = inside_of(&nodes, task, scope);
        while let Some(node) = left.pop().map(|node| &nodes[node.index()]) {
            match node.kind {
                NodeKind::Wait(kind, place) if kind.is_interruptible() => {
                    return Some((kind, place));
                }
                NodeKind::Deadline => push_siblings(&nodes, node.inside.first(), &mut left),
                NodeKind::Wait(..) | NodeKind::Shield => {}
            }
        }
        None
    }

    /// Shows every sub-wait that is a wait.
    pub(crate) fn each(&self, mut show: impl FnMut(&TaskRef, SeenWait)) {
        for (_, node) in &*self.0.borrow() {
            if let Some(seen) = node.seen_wait().filter(|_| !node.task.is_ended()) {
                show(&node.task, seen);
            }
        }
    }

    /// Adds the sub-waits of a task that are waits, the outer ones first, of siblings the oldest.
    pub(crate) fn push_waits_of(&self, task: &TaskRef, waits: &mut Vec<SeenWait>) {
        let nodes = self.0.borrow();
        let mut left = Vec::new();
        push_siblings(&nodes, task.sub_waits().first(), &mut left);
        while let Some(node) = left.pop() {
            let node = &nodes[node.index()];
            waits.extend(node.seen_wait());
            push_siblings(&nodes, node.inside.first(), &mut left);
        }
    }
}

/// The nodes right under a scope, or under a task, the oldest last.
fn inside_of(nodes: &Slab<Node>, task: &TaskRef, scope: Option<SubWait>) -> Vec<SubWait> {
    let inside = match scope {
        None => task.sub_waits(),
        Some(scope) => nodes.get(scope.index()).map_or_else(List::default, |node| node.inside),
    };
    let mut nodes_inside = Vec::new();
    push_siblings(nodes, inside.first(), &mut nodes_inside);
    nodes_inside
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

/// Changes the counts of all lists above a node.
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

/// Updates the counts above a node after a change of the node's own part.
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

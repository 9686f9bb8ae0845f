//! Who waits for whom: deadlocks, and waits that no future polls.
//!
//! The graph is made of tasks with their waits, as [`TaskRef::inspect`] and [`TaskRef::waits`] find
//! them. Each wait that a task polls has an edge to each of its owners, the tasks that can end it.
//!
//! # The rule
//!
//! A task *may go on* if
//!
//! * it is ready, or runs, or a clone of its waker exists, as foreign futures keep one;
//! * or it has gone on during its inspection, so what others have told of it before may no longer
//!   be true;
//! * or it polls no wait that is known, so it waits for a foreign future;
//! * or one of the waits that it polls may end: a moment ends the wait
//!   ([`SeenWait::ends_by_time`]), such as the deadline of a scope in which the task waits for a
//!   foreign future; or its owners are not known, or one of them is not in the list; or one of its
//!   owners may go on.
//!
//! All other tasks are *stuck*: only a cancel helps. A select over several waits is thus stuck if
//! all of them lead to stuck tasks. Branches of a task that wait side by side are not told apart.
//! So a task with a stuck branch and a branch that sleeps may go on.
//!
//! The owners of a stuck task's waits are stuck as well, so a walk from task to owner ends in a
//! cycle. Each cycle of several tasks is a *deadlock*. A stuck task that waits for itself alone
//! waits for another of its futures, which is *not polled*, or the same future waits for what it
//! has. A task was granted a permit and is not ready: its wait for the permit is *not polled*
//! either, since a granted permit makes the task ready, and the poll would take the permit.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use pikake_traps::{SeenWait, TaskId, TaskRef};

/// A task of a [`WaitGraph`]. `K` names a task among all tasks of the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphTask<K> {
    /// The task.
    pub key: K,
    /// The name of the task; empty if it has none.
    pub name: String,
    /// Whether the task is ready, or runs. Its waits then do not count.
    pub is_ready: bool,
    /// Whether a clone of the task's waker exists, so that an unknown future may wake the task.
    pub has_wakers: bool,
    /// Whether the task has gone on since its inspection began, by [`TaskRef::has_moved`].
    pub has_moved: bool,
    /// The waits of the task.
    pub waits: Vec<GraphWait<K>>,
}

/// A wait of a [`GraphTask`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphWait<K> {
    /// The name of the trap.
    pub trap: String,
    /// The place of the await.
    pub place: String,
    /// The thing that the wait is for.
    pub about: Option<String>,
    /// The tasks that can end the wait. Empty if they are not known.
    pub owners: Vec<K>,
    /// Whether the owner was granted the thing, and has not taken it.
    pub is_granted: bool,
    /// Whether the task polls the wait.
    pub is_polled: bool,
    /// Whether a moment ends the wait.
    pub ends_by_time: bool,
}

impl<K> GraphTask<K> {
    /// A task as it is now, with the waits that its last inspection has found. `key_of` names the
    /// tasks of its kernel.
    pub fn of(task: &TaskRef, key_of: impl Fn(TaskId) -> K) -> Self {
        Self {
            key: key_of(task.id()),
            name: task.name().to_owned(),
            is_ready: task.is_ready(),
            has_wakers: task.has_wakers(),
            has_moved: task.has_moved(),
            waits: task.waits().iter().map(|wait| GraphWait::of(wait, &key_of)).collect(),
        }
    }
}

impl<K> GraphWait<K> {
    /// A wait of a task of the kernel whose tasks `key_of` names.
    pub fn of(wait: &SeenWait, key_of: impl Fn(TaskId) -> K) -> Self {
        let about = wait.about.as_ref();
        let owners = about.map_or(&[][..], |about| about.owners());
        Self {
            trap: wait.trap.name().to_owned(),
            place: wait.place.to_string(),
            about: about.map(|about| about.text().to_owned()),
            owners: owners.iter().map(|owner| key_of(*owner)).collect(),
            is_granted: about.is_some_and(|about| about.is_granted()),
            is_polled: wait.is_polled,
            ends_by_time: wait.ends_by_time(),
        }
    }
}

/// Who waits for whom, among some tasks. See the [module](self).
///
/// # Examples
///
/// ```
/// use pikake::kernel::wait_graph::{GraphTask, GraphWait, WaitGraph};
///
/// let task = |key: u32, owner: u32| GraphTask {
///     key,
///     name: String::new(),
///     is_ready: false,
///     has_wakers: false,
///     has_moved: false,
///     waits: vec![GraphWait {
///         trap: "park".into(),
///         place: "src/bank.rs:30:22".into(),
///         about: Some(format!("mutex, held by task {owner}")),
///         owners: vec![owner],
///         is_granted: false,
///         is_polled: true,
///         ends_by_time: false,
///     }],
/// };
/// let tasks = [task(1, 2), task(2, 1), task(3, 1)];
/// let graph = WaitGraph::new(&tasks);
/// assert_eq!(graph.deadlocks(), [[1, 2]]);
/// assert_eq!(graph.stuck(), [1, 2, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct WaitGraph<'a, K> {
    tasks: &'a [GraphTask<K>],
    edges: Vec<Edge<'a, K>>,
    stuck: Vec<K>,
    deadlocks: Vec<Vec<K>>,
    unpolled: Vec<Unpolled<'a, K>>,
}

/// A task waits for another one, or for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Edge<'a, K> {
    /// The task that waits.
    pub from: &'a GraphTask<K>,
    /// Its wait.
    pub wait: &'a GraphWait<K>,
    /// The task that can end the wait.
    pub to: &'a K,
}

/// A task does not poll the future that could end a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Unpolled<'a, K> {
    /// The task that does not poll its future.
    pub task: &'a K,
    /// The task that waits for that, which may be the same.
    pub from: &'a GraphTask<K>,
    /// The wait.
    pub wait: &'a GraphWait<K>,
}

impl<'a, K: Ord + Clone> WaitGraph<'a, K> {
    /// The graph of some tasks. Owners that are not among the tasks may go on.
    pub fn new(tasks: &'a [GraphTask<K>]) -> Self {
        let index: BTreeMap<&K, usize> =
            tasks.iter().enumerate().map(|(at, task)| (&task.key, at)).collect();
        let mut edges = Vec::new();
        let mut waiting_for = vec![Vec::new(); tasks.len()];
        for (at, task) in tasks.iter().enumerate() {
            for wait in task.polled_waits() {
                for owner in &wait.owners {
                    edges.push(Edge { from: task, wait, to: owner });
                    if let Some(owner) = index.get(owner) {
                        waiting_for[*owner].push(at);
                    }
                }
            }
        }
        let is_stuck = find_stuck(tasks, &index, &waiting_for);
        let (deadlocks, is_alone) = find_cycles(tasks, &index, &is_stuck);
        let is_unpolled = |edge: &Edge<'a, K>| {
            let owner = index.get(edge.to);
            let is_idle = owner.is_some_and(|at| !tasks[*at].is_ready && !tasks[*at].has_moved);
            let waits_for_itself =
                || edge.from.key == *edge.to && owner.is_some_and(|at| is_alone[*at]);
            if edge.wait.is_granted { is_idle } else { waits_for_itself() }
        };
        let unpolled = edges.iter().filter(|edge| is_unpolled(edge));
        let unpolled = unpolled
            .map(|edge| Unpolled { task: edge.to, from: edge.from, wait: edge.wait })
            .collect();
        let stuck = tasks.iter().zip(&is_stuck).filter(|(_, is_stuck)| **is_stuck);
        let mut stuck: Vec<K> = stuck.map(|(task, _)| task.key.clone()).collect();
        stuck.sort_unstable();
        Self { tasks, edges, stuck, deadlocks, unpolled }
    }

    /// Each edge leads from a task that waits to a task that can end the wait.
    pub fn edges(&self) -> &[Edge<'a, K>] {
        &self.edges
    }

    /// The tasks that cannot go on, in the order of their keys: those of the deadlocks, those that
    /// wait for themselves, and those that wait for nothing but stuck tasks.
    pub fn stuck(&self) -> &[K] {
        &self.stuck
    }

    /// The tasks of each cycle of stuck tasks, from the one with the least key to the owner of one
    /// of its waits, and so on.
    pub fn deadlocks(&self) -> &[Vec<K>] {
        &self.deadlocks
    }

    /// The waits that only a future which is not polled can end.
    pub fn unpolled(&self) -> &[Unpolled<'a, K>] {
        &self.unpolled
    }
}

impl<K> GraphTask<K> {
    /// The waits by which the task may become ready.
    fn polled_waits(&self) -> impl Iterator<Item = &GraphWait<K>> {
        self.waits.iter().filter(|wait| wait.is_polled && !self.is_ready)
    }
}

/// Whether each task is stuck. `waiting_for` has, for each task, those that it can make go on.
fn find_stuck<K: Ord>(
    tasks: &[GraphTask<K>],
    index: &BTreeMap<&K, usize>,
    waiting_for: &[Vec<usize>],
) -> Vec<bool> {
    let may_end = |wait: &GraphWait<K>| {
        let mut owners = wait.owners.iter();
        wait.ends_by_time || wait.owners.is_empty() || owners.any(|key| !index.contains_key(key))
    };
    let goes_on = |task: &GraphTask<K>| {
        let is_free = task.is_ready || task.has_wakers || task.has_moved;
        is_free || task.polled_waits().next().is_none() || task.polled_waits().any(may_end)
    };
    let mut is_stuck: Vec<bool> = tasks.iter().map(|task| !goes_on(task)).collect();
    let mut left: Vec<usize> = (0..tasks.len()).filter(|at| !is_stuck[*at]).collect();
    while let Some(owner) = left.pop() {
        for waiter in &waiting_for[owner] {
            if std::mem::take(&mut is_stuck[*waiter]) {
                left.push(*waiter);
            }
        }
    }
    is_stuck
}

/// The cycles of several stuck tasks, and whether each task is stuck and waits for itself alone.
///
/// From each task one edge is followed, that to the least owner but the task itself. So each task
/// is in one cycle at most, and leads to one.
fn find_cycles<K: Ord + Clone>(
    tasks: &[GraphTask<K>],
    index: &BTreeMap<&K, usize>,
    is_stuck: &[bool],
) -> (Vec<Vec<K>>, Vec<bool>) {
    /// The task was not reached.
    const NEW: usize = 0;
    let next_of = |at: usize| {
        let owners = tasks[at].polled_waits().flat_map(|wait| &wait.owners);
        let next = owners.filter(|key| **key != tasks[at].key).min();
        next.map_or(at, |key| index[key])
    };
    let (mut cycles, mut is_alone) = (Vec::new(), vec![false; tasks.len()]);
    let mut walks = vec![NEW; tasks.len()];
    for (walk, start) in index.values().copied().filter(|at| is_stuck[*at]).enumerate() {
        let walk = walk + 1;
        let mut at = start;
        while walks[at] == NEW {
            walks[at] = walk;
            at = next_of(at);
        }
        if walks[at] != walk {
            continue;
        }
        // The walk has come back to one of its own tasks.
        let mut cycle = vec![at];
        cycle.extend(
            std::iter::successors(Some(next_of(at)), |at| Some(next_of(*at)))
                .take_while(|next| *next != at),
        );
        match *cycle {
            [one] => is_alone[one] = true,
            _ => {
                let mut keys: Vec<K> = cycle.iter().map(|at| tasks[*at].key.clone()).collect();
                let least = (0..keys.len()).min_by_key(|at| &keys[*at]).unwrap_or(0);
                keys.rotate_left(least);
                cycles.push(keys);
            }
        }
    }
    cycles.sort_unstable();
    (cycles, is_alone)
}

/// `task 3`, with the name.
struct Label<'a, K>(&'a GraphTask<K>);

impl<K: Display> Display for Label<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(GraphTask { key, name, .. }) = self;
        write!(f, "task {key}")?;
        if name.is_empty() { Ok(()) } else { write!(f, " `{name}`") }
    }
}

/// The place of a wait, and the thing that it is for.
impl<K> Display for GraphWait<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            Some(about) => write!(f, "waits at {} for {about}", self.place),
            None => write!(f, "waits at {} ({})", self.place, self.trap),
        }
    }
}

/// The deadlocks, the tasks that are stuck because of them, the waits that no future polls, and the
/// other waits with known owners. A line for each wait.
impl<K: Ord + Clone + Display> Display for WaitGraph<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index: BTreeMap<&K, &GraphTask<K>> =
            self.tasks.iter().map(|task| (&task.key, task)).collect();
        let show = |f: &mut fmt::Formatter<'_>, keys: &mut dyn Iterator<Item = &K>| {
            for task in keys.filter_map(|key| index.get(key)) {
                for wait in task.polled_waits() {
                    writeln!(f, "  {} {wait}", Label(task))?;
                }
            }
            Ok(())
        };
        for cycle in &self.deadlocks {
            let count = cycle.len();
            writeln!(f, "deadlock: {count} tasks wait for each other, and none of them can go on")?;
            show(f, &mut cycle.iter())?;
        }
        let mut shown: Vec<&K> = self.deadlocks.iter().flatten().collect();
        for Unpolled { task, from, wait } in &self.unpolled {
            let owner = index
                .get(task)
                .map_or_else(|| format!("task {task}"), |task| Label(task).to_string());
            match wait.is_granted {
                true => writeln!(
                    f,
                    "unpolled: {owner} does not poll the future that was granted what {} waits for, so the \
                     future does not take it and does not pass it on",
                    Label(from)
                )?,
                false => writeln!(
                    f,
                    "unpolled: {owner} waits for itself: the future that could end the wait is not polled, or \
                     is the one that waits"
                )?,
            }
            writeln!(f, "  {} {wait}", Label(from))?;
            shown.push(&from.key);
        }
        shown.sort_unstable();
        let is_new = |key: &&K| shown.binary_search(key).is_err();
        let blocked: Vec<&K> = self.stuck.iter().filter(is_new).collect();
        if !blocked.is_empty() {
            let what = match blocked.len() {
                1 => "1 task that waits".to_owned(),
                count => format!("{count} tasks that wait"),
            };
            writeln!(f, "behind them: {what} for nothing but tasks that cannot go on")?;
            show(f, &mut blocked.iter().copied())?;
        }
        let is_free =
            |key: &K| self.stuck.binary_search(key).is_err() && shown.binary_search(&key).is_err();
        let mut others: Vec<&K> =
            self.edges.iter().map(|edge| &edge.from.key).filter(|key| is_free(key)).collect();
        others.sort_unstable();
        others.dedup();
        if !others.is_empty() {
            writeln!(f, "waits for tasks that may go on:")?;
            show(f, &mut others.into_iter())?;
        }
        Ok(())
    }
}

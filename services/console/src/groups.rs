//! Lists of many tasks: a selection of them, and alike ones in one line.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::{State, Task};

/// The order of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// By number: the oldest first.
    #[default]
    Id,
    /// By name.
    Name,
    /// The one with the longest time since its last step first.
    Since,
    /// The one with the most steps first.
    Steps,
    /// The one with the most time in steps first.
    Busy,
    /// The one with the longest step first.
    Longest,
    /// The one with the largest future first.
    Bytes,
}

/// Sorts tasks.
pub fn sort(tasks: &mut [Task], by: Sort) {
    match by {
        Sort::Id => tasks.sort_by_key(|task| task.id),
        Sort::Name => tasks.sort_by(|a, b| a.name.cmp(&b.name).then(a.id.cmp(&b.id))),
        Sort::Since => tasks.sort_by_key(|task| (Reverse(task.since), task.id)),
        Sort::Steps => tasks.sort_by_key(|task| (Reverse(task.steps), task.id)),
        Sort::Busy => tasks.sort_by_key(|task| (Reverse(task.busy), task.id)),
        Sort::Longest => tasks.sort_by_key(|task| (Reverse(task.longest), task.id)),
        Sort::Bytes => tasks.sort_by_key(|task| (Reverse(task.bytes), task.id)),
    }
}

/// Tasks that were spawned at one place.
#[derive(Debug)]
pub struct Group<'a> {
    /// The tasks, in the order of the list.
    pub tasks: Vec<&'a Task>,
}

impl<'a> Group<'a> {
    /// The begin that the names of the tasks share, up to a blank. Empty if there is none.
    pub fn name(&self) -> &'a str {
        let Some((first, rest)) = self.tasks.split_first() else { return "" };
        let mut name = first.name.as_str();
        for task in rest {
            if task.name == name {
                continue;
            }
            while !(name.is_empty() || task.name == name || is_begin(name, &task.name)) {
                name = name.rsplit_once(' ').map_or("", |(begin, _)| begin);
            }
        }
        name
    }

    /// The number of tasks in a state.
    pub fn count(&self, state: State) -> usize {
        self.tasks.iter().filter(|task| task.state == state).count()
    }

    /// The trap and the place that most of the tasks wait for, and their number.
    pub fn commonest_wait(&self) -> Option<(&'a str, &'a str, usize)> {
        let mut counts = BTreeMap::new();
        for wait in self.tasks.iter().filter_map(|task| task.waits.first()) {
            *counts.entry((wait.trap.as_str(), wait.place.as_str())).or_insert(0) += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|((trap, place), count)| (trap, place, count))
    }
}

/// Whether a name is that of another one without its last words.
fn is_begin(name: &str, of: &str) -> bool {
    of.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '))
}

/// The tasks by the kernel and the place of spawn, the largest group first.
pub fn by_place(tasks: &[Task]) -> Vec<Group<'_>> {
    groups_by(tasks, |task| (task.id.kernel, task.spawned_at.as_str()))
}

/// The tasks that do the same: spawned at one place, in one state, in the same wait. In the order
/// of their first ones.
pub fn alike(tasks: &[Task]) -> Vec<Group<'_>> {
    let mut groups = groups_by(tasks, |task| {
        let wait = task.waits.first().map(|wait| (wait.trap.as_str(), wait.place.as_str()));
        (task.id.kernel, task.spawned_at.as_str(), task.state, wait, task.waits.len())
    });
    let order: BTreeMap<_, _> = tasks.iter().enumerate().map(|(at, task)| (task.id, at)).collect();
    groups.sort_by_key(|group| order[&group.tasks[0].id]);
    groups
}

fn groups_by<'a, K: Ord>(tasks: &'a [Task], key: impl Fn(&'a Task) -> K) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<K, Vec<&Task>> = BTreeMap::new();
    for task in tasks {
        groups.entry(key(task)).or_default().push(task);
    }
    let mut groups: Vec<Group<'_>> = groups.into_values().map(|tasks| Group { tasks }).collect();
    groups.sort_by_key(|group| Reverse(group.tasks.len()));
    groups
}

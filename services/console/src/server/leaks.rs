//! Leaks of tasks: groups of alike tasks that only grow, and tasks that wait for what only ended
//! tasks could give.
//!
//! The console counts the tasks of each place of spawn at its looks now and then. A group grows if
//! its last counts never fell, and rose at most of the looks. That is a suspicion and no proof: a
//! server that gets more and more clients looks so as well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::Location;
use std::time::{Duration, Instant};

use pikake_kernel::inspect::KernelView;
use pikake_kernel::wait_graph::GraphTask;
use pikake_traps::{SeenWait, TaskId, sleep};

use super::Server;
use super::answers::{Sink, Trouble, failed, ping};
use crate::groups_of_kernel::{Group, Groups, count};
use crate::model::{Ended, Growing, TaskKey};
use crate::observed::{Silent, list_with_waits, look_at, nanoseconds, shown as text_of};
use crate::protocol::Part;

/// The looks that a group must have grown over, and the most that are kept.
const LOOKS: usize = 5;
const KEPT: usize = 12;

/// The most looks for a client: a group may begin after the first one.
const MOST_LOOKS: usize = 2 * LOOKS;

/// The least number of tasks of a group that is reported.
const TASKS: u64 = 10;

/// The most groups that are followed: a program has few places that spawn.
const GROUPS: usize = 1_000;

/// The pause between the looks for a client, if there are too few counts of a group.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The counts of the groups of a kernel at the last looks.
#[derive(Default)]
pub(super) struct Counts {
    groups: BTreeMap<&'static Location<'static>, OfGroup>,
}

struct OfGroup {
    last: Group,
    counts: VecDeque<(Instant, u64)>,
}

impl Counts {
    /// Notes the counts of one look.
    pub(super) fn note(&mut self, groups: Groups) {
        let now = Instant::now();
        self.groups.retain(|place, _| groups.contains_key(place));
        for (place, group) in groups {
            if self.groups.len() >= GROUPS && !self.groups.contains_key(place) {
                continue;
            }
            let new = || OfGroup { last: group.clone(), counts: VecDeque::new() };
            let of_group = self.groups.entry(place).or_insert_with(new);
            of_group.counts.push_back((now, group.count));
            of_group.last = group;
            if of_group.counts.len() > KEPT {
                of_group.counts.pop_front();
            }
        }
    }

    /// Whether there are enough counts of each group.
    fn are_enough(&self) -> bool {
        !self.groups.is_empty() && self.groups.values().all(|it| it.counts.len() >= LOOKS)
    }

    /// The groups that only grow: the place, the group, the growth, and the time of that.
    fn growing(&self) -> Vec<(&'static Location<'static>, Group, u64, Duration)> {
        let growing = self.groups.iter().filter_map(|(place, of_group)| {
            let (grown, over) = growth(&of_group.counts)?;
            Some((*place, of_group.last.clone(), grown, over))
        });
        growing.collect()
    }
}

/// By how much, and over which time, the counts of a group have grown; `None` if they have not, or
/// are too few.
fn growth(counts: &VecDeque<(Instant, u64)>) -> Option<(u64, Duration)> {
    let (&(began, first), &(ended, last)) = (counts.front()?, counts.back()?);
    let steps = || counts.iter().zip(counts.iter().skip(1));
    let never_fell = steps().all(|((_, before), (_, after))| before <= after);
    let rose = steps().filter(|((_, before), (_, after))| before < after).count();
    let is_growing = counts.len() >= LOOKS && never_fell && rose * 4 >= (counts.len() - 1) * 3;
    (is_growing && last >= TASKS).then(|| (last - first, ended - began))
}

/// Tells of leaks, once there are enough looks.
pub(super) async fn leaks(server: &Server, to: &impl Sink) -> Result<(), Trouble> {
    for _ in 0..MOST_LOOKS {
        let are_enough = |kernel: &KernelView| {
            server.looks.with_counts(kernel.id().number(), Counts::are_enough)
        };
        if server.kernels().iter().all(are_enough) {
            break;
        }
        for (kernel, shown) in ping(server).await {
            if shown.stale.is_some() {
                continue;
            }
            if let Ok((_, groups)) = count(&kernel).await {
                server.looks.note(shown.id, groups);
            }
        }
        sleep(LOOK_AGAIN).await.map_err(failed)?;
    }
    for (kernel, shown) in ping(server).await {
        let answers = shown.stale.is_none();
        let id = shown.id;
        to.part(Part::Kernel(shown)).await?;
        if !answers {
            continue;
        }
        let mut growing = Vec::new();
        for (place, group, grown, over) in server.looks.with_counts(id, Counts::growing) {
            let seen = look_at(&server.pings, &kernel, group.first).await;
            let wait = seen.ok().flatten().and_then(|task| task.to_model(id).waits.pop());
            growing.push(Growing {
                first: TaskKey { kernel: id, task: group.first.0 },
                name: text_of(&group.name),
                spawned_at: place.to_string(),
                count: group.count,
                grown,
                over: nanoseconds(over),
                wait,
            });
        }
        growing.sort_by(|a, b| b.grown.cmp(&a.grown).then_with(|| a.spawned_at.cmp(&b.spawned_at)));
        to.part(Part::Growing(growing)).await?;
        if let Ok(waits) = waits_for_ended(id, &kernel).await {
            to.part(Part::WaitsForEnded(waits)).await?;
        }
    }
    Ok(())
}

/// The tasks whose wait only ended tasks could end.
async fn waits_for_ended(id: u32, kernel: &KernelView) -> Result<Vec<Ended>, Silent> {
    let mut tasks = Vec::new();
    let mut next = Some(0);
    while let Some(index) = next {
        let page = list_with_waits(kernel, index).await?;
        tasks.extend(page.tasks);
        next = page.next;
    }
    let graph: Vec<GraphTask<TaskKey>> = tasks.iter().map(|task| task.to_graph(id)).collect();
    let present: BTreeSet<TaskKey> = graph.iter().map(|task| task.key).collect();
    let mut found = Vec::new();
    for (task, seen) in graph.iter().zip(&tasks) {
        let is_over = |wait: &SeenWait| {
            let owners = wait.about.as_ref().map_or(&[][..], |about| about.owners());
            let key = |owner: &TaskId| TaskKey { kernel: id, task: owner.0 };
            !wait.ends_by_time()
                && !owners.is_empty()
                && !owners.iter().map(key).any(|owner| present.contains(&owner))
        };
        let waits = seen.waits();
        let may_move = task.is_ready || task.has_wakers || task.has_moved;
        if may_move || waits.is_empty() || !waits.iter().all(is_over) {
            continue;
        }
        let model = seen.to_model(id);
        if let Some(wait) = model.waits.into_iter().next() {
            found.push(Ended {
                task: task.key,
                name: model.name,
                spawned_at: model.spawned_at,
                wait,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[u64]) -> VecDeque<(Instant, u64)> {
        let began = Instant::now();
        let at = |second: usize| began + Duration::from_secs(second as u64);
        counts.iter().enumerate().map(|(second, count)| (at(second), *count)).collect()
    }

    #[test]
    fn only_groups_that_never_shrink_grow() {
        let growth = |list: &[u64]| growth(&counts(list));
        assert_eq!(growth(&[10, 20, 30, 40, 50]), Some((40, Duration::from_secs(4))));
        assert_eq!(growth(&[10, 20, 20, 40, 50]), Some((40, Duration::from_secs(4))));
        for not in [
            &[10, 20, 30, 40][..], // too few looks
            &[10, 20, 30, 29, 50], // some have ended
            &[10, 20, 20, 20, 20], // no more come
            &[1, 2, 3, 4, 5],      // few tasks
            &[50, 50, 50, 50, 50],
        ] {
            assert_eq!(growth(not), None, "{not:?}");
        }
    }
}

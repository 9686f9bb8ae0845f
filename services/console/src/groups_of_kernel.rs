//! The tasks of a kernel by place of spawn.

use std::collections::BTreeMap;
use std::panic::Location;

use pikake_kernel::inspect::{KernelView, TaskPage, tasks_from};
use pikake_traps::TaskId;

use crate::observed::{SEARCHED_PAGE, Silent, ask};

/// The tasks of one place of spawn at one look.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) count: u64,
    /// The name of the first one.
    pub(crate) name: Box<str>,
    pub(crate) first: TaskId,
}

/// The tasks of a kernel by place of spawn.
pub(crate) type Groups = BTreeMap<&'static Location<'static>, Group>;

/// Counts the tasks of a kernel by place of spawn. Returns their number as well.
pub(crate) async fn count(kernel: &KernelView) -> Result<(usize, Groups), Silent> {
    let (mut all, mut groups) = (0, Groups::new());
    let mut next = Some(0);
    while let Some(index) = next {
        let add = move || {
            let TaskPage { tasks, next } = tasks_from(index, SEARCHED_PAGE);
            all += tasks.len();
            for task in &tasks {
                let new = || Group { count: 0, name: task.name().into(), first: task.id() };
                let group = groups.entry(task.spawned_at()).or_insert_with(new);
                group.count += 1;
                if task.id() < group.first {
                    (group.first, group.name) = (task.id(), task.name().into());
                }
            }
            (all, groups, next)
        };
        (all, groups, next) = ask(kernel, add).await?;
    }
    Ok((all, groups))
}

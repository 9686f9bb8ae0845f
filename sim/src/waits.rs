//! Which tasks of a world that has failed wait for which.
//!
//! A task tells what it waits for only while it is polled. So each task is polled once more, after
//! the end of the run: time stands still, the log does not note the steps, and the kernels catch
//! panics of the tasks.

use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::host::Host;
use crate::world::World;
use pikake_kernel::wait_graph::{GraphTask, WaitGraph};

/// The number of turns for each task that may take further steps, as combinators do.
const TURNS_PER_TASK: usize = 8;

/// Names a task of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    host: usize,
    task: u64,
    name: &'a str,
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of host `{}`", self.task, self.name)
    }
}

/// The waits of a world that has failed, in words. `is_over`: no event is due, so no waker can be
/// called.
pub(crate) fn waits_of(world: &World, is_over: bool) -> String {
    // What a panic has left is only read.
    let inspected = || world.hosts.iter().for_each(inspect);
    world.log.while_paused(|| drop(catch_unwind(AssertUnwindSafe(inspected))));
    let mut tasks = Vec::new();
    for (host, found) in world.hosts.iter().enumerate() {
        let name = found.name.as_str();
        for task in found.kernel.iter().flat_map(|kernel| kernel.tasks()) {
            let mut task = GraphTask::of(&task, |task| Key { host, task: task.0, name });
            task.has_wakers &= !is_over;
            tasks.push(task);
        }
    }
    let mut text = String::new();
    for line in WaitGraph::new(&tasks).to_string().lines() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// Polls the tasks of a host once more, so that they tell what they wait for.
fn inspect(host: &Host) {
    let Some(kernel) = host.kernel.as_ref().filter(|_| !host.is_paused) else { return };
    host.watch.step_cost.take();
    host.watch.long_step.take();
    kernel.inspect();
    let mut turns = kernel.task_count() * TURNS_PER_TASK;
    while turns > 0 && host.turn().is_some_and(|turn| turn.is_ready) {
        turns -= 1;
    }
}

//! Which tasks of a world that has failed wait for which.
//!
//! A task tells what it waits for only while it is polled. So each task is polled once more, after
//! the end of the run: time stands still, the log does not note the steps, and the kernels catch
//! panics of the tasks.

use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::host::{Host, HostKernel};
use crate::log::KernelKey;
use crate::world::World;
use pikake_kernel::wait_graph::{GraphTask, WaitGraph};

/// The number of turns for each task that may take further steps, as combinators do.
const TURNS_PER_TASK: usize = 8;

/// Names a task of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    kernel: KernelKey,
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
    let kernels = || world.hosts.iter().flat_map(|host| &host.kernels);
    let name = |one: &HostKernel| {
        let KernelKey { host, kernel } = one.outside.key;
        world.hosts[host].name.of_kernel(kernel)
    };
    let names: Vec<String> = kernels().map(name).collect();
    let mut tasks = Vec::new();
    for (one, name) in kernels().zip(&names) {
        let kernel = one.outside.key;
        for task in one.kernel.iter().flat_map(|kernel| kernel.tasks()) {
            let mut task = GraphTask::of(&task, |task| Key { kernel, task: task.0, name });
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
    host.long_step.take();
    for one in host.kernels.iter().filter(|_| !host.is_paused) {
        let Some(kernel) = &one.kernel else { continue };
        one.watch.step_cost.take();
        kernel.inspect();
        let mut turns = kernel.task_count() * TURNS_PER_TASK;
        while turns > 0 && one.turn().is_some_and(|turn| turn.is_ready) {
            turns -= 1;
        }
    }
}

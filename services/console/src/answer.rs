//! The parts of one answer, sorted by kind.

use serde::Serialize;

use crate::model::{
    Blocked, Ended, Event, Graph, Growing, Kernel, KernelStats, Lock, ProcessStats, ProfileRow,
    Samples, Task, TaskName,
};
use crate::protocol::Part;

/// The parts of one answer. What the request did not ask for is empty.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Answer {
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// The tasks of all kernels.
    pub tasks: Vec<Task>,
    /// Who waits for whom.
    pub graph: Option<Graph>,
    /// The figures of the process.
    pub process: Option<ProcessStats>,
    /// Groups of tasks that only grow.
    pub growing: Vec<Growing>,
    /// Tasks that wait for what only ended tasks could give.
    pub waits_for_ended: Vec<Ended>,
    /// The figures of the locks of all kernels.
    pub locks: Vec<Lock>,
    /// The figures of each kernel.
    pub stats: Vec<KernelStats>,
    /// Whether a task that was asked to end has ended, and what became of it in words.
    pub ended: Option<(bool, String)>,
    /// The events of all kernels, the oldest first.
    pub events: Vec<Event>,
    /// What the tasks in these events are called.
    pub names: Vec<TaskName>,
    /// Events that are not there: the number of the kernel, and how many.
    pub lost: Vec<(u32, u64)>,
    /// The rows of the profile.
    pub profile: Vec<ProfileRow>,
    /// Stacks by samples.
    pub samples: Option<Samples>,
    /// The kernels that are in one step for too long.
    pub blocked: Vec<Blocked>,
}

impl Answer {
    /// Sorts the parts of an answer by kind.
    ///
    /// # Errors
    ///
    /// The reason in [`Part::Failed`], if the request failed.
    pub fn of(parts: impl IntoIterator<Item = Part>) -> Result<Self, String> {
        let mut answer = Self::default();
        for part in parts {
            match part {
                Part::Kernel(kernel) => answer.kernels.push(kernel),
                Part::Tasks(tasks) => answer.tasks.extend(tasks),
                // A part that does not fit into a frame comes in several.
                Part::Graph(graph) => match &mut answer.graph {
                    Some(before) => {
                        before.edges.extend(graph.edges);
                        before.deadlocks.extend(graph.deadlocks);
                        before.left_out.extend(graph.left_out);
                        before.unpolled.extend(graph.unpolled);
                    }
                    none => *none = Some(graph),
                },
                Part::Growing(groups) => answer.growing.extend(groups),
                Part::WaitsForEnded(waits) => answer.waits_for_ended.extend(waits),
                Part::Locks(locks) => answer.locks.extend(locks),
                Part::Process(process) => answer.process = Some(process),
                Part::Stats(stats) => answer.stats.push(stats),
                Part::Ended(is_over, how) => answer.ended = Some((is_over, how)),
                Part::Events(events) => answer.events.extend(events),
                Part::Names(names) => answer.names.extend(names),
                Part::Lost(kernel, count) => answer.lost.push((kernel, count)),
                Part::Profile(rows) => answer.profile.extend(rows),
                Part::Samples(samples) => match &mut answer.samples {
                    Some(before) => {
                        before.stacks.extend(samples.stacks);
                        before.blocked.extend(samples.blocked);
                        before.modules.extend(samples.modules);
                    }
                    none => *none = Some(samples),
                },
                Part::Blocked(blocked) => answer.blocked.push(blocked),
                Part::Done => {}
                Part::Failed(why) => return Err(why),
            }
        }
        // Each kernel sends its events in order.
        answer.events.sort_by_key(|event| event.at);
        Ok(answer)
    }
}

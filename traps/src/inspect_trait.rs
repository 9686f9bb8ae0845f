//! The trait `Inspect` of kernels that can be looked into, and its results. See `inspect.rs`.

use std::time::Duration;

use crate::cell::reference::TaskRef;
use crate::names::TaskId;
use crate::queue::WaitQueue;

/// A kernel that can be looked into. All methods are called on the kernel's own thread, inside or
/// between steps.
pub trait Inspect {
    /// Some tasks that have not ended, from an index of the kernel's table on. See
    /// [`tasks_from`](crate::inspect::tasks_from).
    fn tasks_from(&self, index: u32, limit: usize) -> TaskPage;

    /// The task with this number, if it has not ended. A kernel with many tasks may know only those
    /// that [`tasks_from`](Self::tasks_from) has shown.
    fn find_task(&self, task: TaskId) -> Option<TaskRef>;

    /// The task of a waiter that was [granted](WaitQueue::grant) permits of a queue and has not
    /// collected them.
    fn granted_to(&self, queue: &WaitQueue) -> Option<TaskRef>;

    /// The figures of a task. See [`task_figures`](crate::inspect::task_figures).
    fn task_figures(&self, task: &TaskRef) -> Option<TaskFigures>;

    /// The figures of the kernel.
    fn kernel_figures(&self) -> KernelFigures;

    /// How late the kernel is. See [`kernel_lateness`](crate::inspect::kernel_lateness).
    fn kernel_lateness(&self) -> Option<Duration>;

    /// Begins or ends one request to time each step. See
    /// [`time_steps`](crate::inspect::time_steps).
    fn time_steps(&self, is_wanted: bool);

    /// Begins to record steps, for the rest of the kernel's life. A second call does nothing.
    fn record_steps(&self);

    /// Makes the kernel record for the rest of its life, but for steps after which the task is
    /// ready again. A kernel that records all steps goes on to do so.
    fn record_waits(&self);

    /// The last events of a task in words, for the report of its crash; `None` if steps are not
    /// recorded.
    fn last_events(&self, task: TaskId) -> Option<String>;
}

/// Some tasks of a kernel, in the order of the kernel's table.
#[derive(Debug, Default)]
pub struct TaskPage {
    /// The tasks.
    pub tasks: Vec<TaskRef>,
    /// The index where the next page begins; `None` after the last page.
    pub next: Option<u32>,
}

/// What a task has done since the kernel records steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TaskFigures {
    /// The number of the task's steps, without those of [inspections](TaskRef::inspect) in which
    /// the task did not go on.
    pub steps: u64,
    /// The time of all steps that were timed.
    pub busy: Duration,
    /// The longest step that was timed.
    pub longest: Duration,
    /// The time since the end of the last step that counts. For a task without steps: since its
    /// spawn, or since the kernel records steps. Unless steps are timed, the kernel has read its
    /// clock a few steps before that.
    pub since: Duration,
}

/// The figures of a kernel beside its [`Peers`](crate::Peers).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerFigures {
    /// How late the kernel is: the tasks that are ready may have waited for this long. Zero in a
    /// kernel that was asleep.
    pub late: Duration,
    /// The most that the kernel was late in the last minute, or in up to two.
    pub late_max: Duration,
    /// The number of times that the kernel offered work to its peers.
    pub offers_made: u64,
    /// The number of its peers' offers that the kernel has taken.
    pub offers_taken: u64,
}

/// The figures of a kernel.
#[doc(alias = "RuntimeMetrics")]
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelFigures {
    /// The number of tasks that have not ended.
    pub tasks: usize,
    /// The number of ready tasks.
    pub ready: usize,
    /// The number of tasks that were spawned.
    pub spawned: u64,
    /// The number of sleeps and deadlines in the heap.
    pub timers: usize,
    /// The number of waiters in queues.
    pub waiters: usize,
    /// The number of open sockets.
    pub sockets: usize,
    /// The number of helper threads that run a closure.
    pub busy_threads: usize,
    /// The number of helper threads that have nothing to do.
    pub idle_threads: usize,
    /// The number of closures that wait for a helper thread.
    pub queued_closures: usize,
    /// The number of steps.
    pub steps: u64,
    /// The number of polls of the driver.
    pub polls: u64,
    /// The number of wakes, calls and other messages from other threads.
    pub messages: u64,
    /// The longest step that was timed.
    pub longest_step: Duration,
    /// How late *timers* fired since the kernel records steps. Element `n` counts the timers that
    /// were late by less than 2^n microseconds, and by at least half of that; the last element also
    /// those that were later.
    pub lateness: Vec<u64>,
    /// How late *tasks* are stepped, and the offers; `None` in a kernel without peers.
    pub peers: Option<PeerFigures>,
}

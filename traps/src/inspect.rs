//! Looking into a kernel: pages of its tasks, figures of its tasks and of itself, and the times of
//! steps.
//!
//! A kernel that can be looked into implements [`Inspect`]. The functions of this module ask the
//! kernel that the thread is inside of. Another thread sends them in a closure
//! ([`KernelHandle::call_there`](crate::KernelHandle::call_there)).

use std::time::Duration;

use crate::cell::reference::TaskRef;
use crate::door;
use crate::names::TaskId;

/// A kernel that can be looked into. All methods are called on the kernel's own thread, inside or
/// between steps.
pub trait Inspect {
    /// Some tasks that have not ended, from an index of the kernel's table on. See [`tasks_from`].
    fn tasks_from(&self, index: u32, limit: usize) -> TaskPage;

    /// The figures of a task. See [`task_figures`].
    fn task_figures(&self, task: &TaskRef) -> Option<TaskFigures>;

    /// The figures of the kernel.
    fn kernel_figures(&self) -> KernelFigures;

    /// Begins or ends one request to time each step. See [`time_steps`].
    fn time_steps(&self, is_wanted: bool);

    /// Begins to record steps, for the rest of the kernel's life. A second call does nothing.
    fn record_steps(&self);

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

/// The figures of a kernel.
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
    /// How late timers fired since the kernel records steps. Element `n` counts the timers that
    /// were late by less than 2^n microseconds, and by at least half of that; the last element also
    /// those that were later.
    pub lateness: Vec<u64>,
}

/// Calls `work` with the current kernel, if it can be looked into.
#[track_caller]
fn with<R>(work: impl FnOnce(&dyn Inspect) -> R) -> Option<R> {
    door::with(|local| local.kernel().inspect().map(work))
}

/// Some tasks of the current kernel, from an index of the kernel's table on: at most `limit` tasks.
/// A page may have fewer tasks, or none, before the last one.
///
/// The first page begins at zero, and each other page at [`TaskPage::next`] of the page before. The
/// kernel may step tasks between two pages. All pages together have each task that lived meanwhile,
/// once. They may also have tasks that were spawned meanwhile.
///
/// # Examples
///
/// ```
/// use pikake::kernel::inspect::tasks_from;
/// use pikake::spawn;
///
/// # pikake::run(async {
/// for _ in 0..5 {
///     spawn(std::future::pending::<()>()).detach();
/// }
/// let mut count = 0;
/// let mut next = Some(0);
/// while let Some(index) = next {
///     let page = tasks_from(index, 2);
///     count += page.tasks.len();
///     next = page.next;
///     pikake::yield_now().await.unwrap();
/// }
/// assert_eq!(count, 6, "the five tasks and the main task");
/// # });
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn tasks_from(index: u32, limit: usize) -> TaskPage {
    with(|kernel| kernel.tasks_from(index, limit)).unwrap_or_default()
}

/// What a task of the current kernel has done since the kernel records steps. `None` if the kernel
/// does not record steps, or if the task has ended.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn task_figures(task: &TaskRef) -> Option<TaskFigures> {
    with(|kernel| kernel.task_figures(task))?
}

/// The figures of the current kernel.
///
/// # Examples
///
/// ```
/// use pikake::kernel::inspect::kernel_figures;
/// use pikake::{sleep, spawn, yield_now};
/// use std::time::Duration;
///
/// # pikake::run(async {
/// spawn(sleep(Duration::from_secs(3600))).detach();
/// yield_now().await.unwrap();
/// let figures = kernel_figures();
/// assert_eq!((figures.tasks, figures.timers), (2, 1));
/// # });
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn kernel_figures() -> KernelFigures {
    with(|kernel| kernel.kernel_figures()).unwrap_or_default()
}

/// Makes the current kernel time each step, or takes one such request back. The kernel times steps
/// while there are requests.
///
/// A kernel that times steps reads its clock after each one. A kernel times all steps if it has an
/// observer, or if no watchdog looks at it.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn time_steps(is_wanted: bool) {
    with(|kernel| kernel.time_steps(is_wanted));
}

/// Makes the current kernel record its steps, for the rest of its life.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn record_current_kernel() {
    with(|kernel| kernel.record_steps());
}

//! Looking into a kernel: pages of its tasks, figures of its tasks and of itself, and the times of
//! steps.
//!
//! A kernel that can be looked into implements [`Inspect`]. The functions of this module ask the
//! kernel that the thread is inside of. Another thread sends them in a closure
//! ([`KernelHandle::call_there`](crate::KernelHandle::call_there)).

use std::time::Duration;

use crate::cell::reference::TaskRef;
use crate::door;
pub use crate::inspect_trait::{Inspect, KernelFigures, PeerFigures, TaskFigures, TaskPage};

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

/// How late the current kernel is: for how long the tasks that are ready may have waited, as
/// [`PeerFigures::late`]. Costs one reading of the clock. `None` in a kernel without
/// [`Peers`](crate::Peers), which notes no such times: a call of
/// [`Peers::current_or_new`](crate::Peers::current_or_new) makes the kernel note them from then on.
///
/// # Examples
///
/// ```
/// use pikake::sleep;
/// use pikake::traps::Peers;
/// use pikake::traps::inspect::kernel_lateness;
/// use std::time::Duration;
///
/// # pikake::run(async {
/// assert_eq!(kernel_lateness(), None);
/// Peers::current_or_new();
/// let moment = Duration::from_millis(5);
/// sleep(moment).await?;
/// std::thread::sleep(moment); // in place of a computation
/// assert!(kernel_lateness() >= Some(moment));
/// # Ok::<(), pikake::Interrupted>(()) }).unwrap();
/// ```
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn kernel_lateness() -> Option<Duration> {
    with(|kernel| kernel.kernel_lateness())?
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

/// As [`record_current_kernel`], but for steps after which the task is ready again. A kernel that
/// records all steps goes on to do so.
///
/// # Panics
///
/// Outside a kernel.
#[track_caller]
pub fn record_waits_of_current_kernel() {
    with(|kernel| kernel.record_waits());
}

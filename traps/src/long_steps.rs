//! Long steps, which the watchdog of the process's kernels finds while they last.
//!
//! A watcher hears of each one, on the watchdog's own thread. So it can say why, while the kernel
//! can not.

use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::names::{KernelId, TaskId};

/// A step that has lasted for longer than its kernel's limit, for a watcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LongStep {
    /// The kernel.
    pub kernel: KernelId,
    /// The number of the step. No two steps of a kernel have the same number.
    pub number: u64,
    /// The task.
    pub task: TaskId,
    /// The first 48 bytes of the task's name; empty if it has none.
    pub name: Box<str>,
    /// The place where the task was spawned.
    pub spawned_at: &'static Location<'static>,
    /// The length of the step so far, and perhaps a quarter of the kernel's limit more.
    pub took: Duration,
    /// How far the step is.
    pub stage: LongStepStage,
}

/// How far a [`LongStep`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LongStepStage {
    /// The step has reached the limit. Each long step is shown so once.
    Found,
    /// The step still lasts. Shown at each later look of the watchdog, some 50 milliseconds apart.
    Lasts,
    /// The step is over.
    Over,
}

/// Sees long steps. The text that it returns of one that was [found](LongStepStage::Found) becomes
/// part of the log's line; that of another stage is left out.
pub type LongStepWatcher = fn(&LongStep) -> Option<String>;

static WATCHERS: Mutex<Vec<LongStepWatcher>> = Mutex::new(Vec::new());

/// Has the watchdog call a function for each long step, from now on and for the rest of the
/// process's life.
///
/// The watchdog's thread calls it while no lock is held, and looks at no kernel meanwhile. A panic
/// is logged.
///
/// # Examples
///
/// ```
/// use pikake::traps::{LongStepStage, watch_long_steps};
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::thread;
/// use std::time::Duration;
///
/// static LONG: AtomicU64 = AtomicU64::new(0);
///
/// watch_long_steps(|step| {
///     if step.stage == LongStepStage::Over {
///         LONG.fetch_add(1, Ordering::SeqCst);
///     }
///     None
/// });
/// pikake::run(async {
///     while LONG.load(Ordering::SeqCst) == 0 {
///         thread::sleep(Duration::from_millis(300)); // blocks the kernel
///         pikake::yield_now().await.unwrap();
///     }
/// });
/// ```
pub fn watch_long_steps(watcher: LongStepWatcher) {
    WATCHERS.lock().unwrap_or_else(PoisonError::into_inner).push(watcher);
}

/// Shows a long step to all watchers, and returns their texts. For the watchdog.
pub fn show_long_step(step: &LongStep) -> Vec<String> {
    let watchers = WATCHERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    watchers.iter().filter_map(|watcher| watcher(step)).collect()
}

//! Observers, which see a kernel's events and change nothing.
//!
//! A kernel without observers pays one test of a flag for each of these calls. The kernel calls
//! observers on its own thread while none of its state is borrowed. So an observer may call traps
//! that do not suspend. A panic of an observer unwinds through the kernel's `run` or `turn`; inside
//! the poll of a task, as at its waits and the steps that it makes inside its own, it is that
//! task's.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pikake_traps::{Exit, TaskRef, TrapKind};

/// Sees a kernel's events. The provided methods do nothing.
pub trait Observer {
    /// A task was spawned.
    fn created(&self, task: &TaskRef) {
        let _ = task;
    }

    /// A wake has made a task ready, this long ago.
    ///
    /// A call of the task's waker on another thread counts from that call on, also if the kernel
    /// was in a long step meanwhile; in a kernel that simulates the system, from the kernel's next
    /// turn on. A wake in the task's own step is reported before [`stepped`](Self::stepped), and
    /// each other wake before [`stepping`](Self::stepping). Such a report may come as late as after
    /// the step in which the wake happened. Further wakes before the step are not reported, and
    /// neither is a spawn. A listing that has the task polled once more is no wake.
    fn woken(&self, task: &TaskRef, ago: Duration) {
        let _ = (task, ago);
    }

    /// A task is about to be stepped.
    fn stepping(&self, task: &TaskRef) {
        let _ = task;
    }

    /// A task was stepped, which took this time.
    ///
    /// The step of a task that [begins at once](pikake_traps::Builder::eager) lies inside the step
    /// that spawns the task: it is shown after [`created`](Self::created), and before the end of
    /// the step around. Its time is not part of that of the step around.
    fn stepped(&self, task: &TaskRef, took: Duration) {
        let _ = (task, took);
    }

    /// A wait of a task begins. `place` is the place of the await.
    fn trapped(&self, task: &TaskRef, kind: TrapKind, place: &'static Location<'static>) {
        let _ = (task, kind, place);
    }

    /// A wait of a task ended: it was satisfied, or interrupted.
    fn answered(&self, task: &TaskRef, kind: TrapKind, interrupted: bool) {
        let _ = (task, kind, interrupted);
    }

    /// A task has ended.
    fn exited(&self, task: &TaskRef, exit: Exit) {
        let _ = (task, exit);
    }

    /// The driver was polled and reported this number of events.
    fn polled(&self, events: usize) {
        let _ = events;
    }
}

/// Makes an observer for a kernel that is being built, on the kernel's thread. `None`: the kernel
/// gets none.
type Maker = Arc<dyn Fn() -> Option<Box<dyn Observer>> + Send + Sync>;

fn makers() -> MutexGuard<'static, Vec<Maker>> {
    static MAKERS: Mutex<Vec<Maker>> = Mutex::new(Vec::new());
    MAKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives each kernel that is built from now on an observer, on whatever thread.
///
/// `make` is called on the thread of each new kernel; with `None` that kernel gets no observer. A
/// program calls this function before its kernels are built. A [`Builder`](crate::Builder) with an
/// observer of its own has both.
///
/// # Examples
///
/// ```
/// use pikake::kernel::{Observer, observe_new_kernels};
/// use pikake::traps::TaskRef;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// static TASKS: AtomicUsize = AtomicUsize::new(0);
///
/// /// Counts the tasks of all kernels.
/// struct Counter;
///
/// impl Observer for Counter {
///     fn created(&self, _: &TaskRef) {
///         TASKS.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// observe_new_kernels(|| Some(Box::new(Counter)));
/// pikake::run(async {});
/// assert_eq!(TASKS.load(Ordering::Relaxed), 1, "the main task");
/// ```
pub fn observe_new_kernels(make: impl Fn() -> Option<Box<dyn Observer>> + Send + Sync + 'static) {
    makers().push(Arc::new(make));
}

/// The observers for a kernel that is being built.
pub(crate) fn observers_of_new_kernel() -> Vec<Box<dyn Observer>> {
    // The makers are called without the lock, since they may build kernels.
    let makers = makers().clone();
    makers.iter().filter_map(|make| make()).collect()
}

/// Reports everything as `tracing` events at trace level.
///
/// A kernel that is built while that level is on has a tracer. Other kernels pay nothing for
/// tracing.
#[derive(Debug)]
pub struct Tracer;

impl Tracer {
    /// The target of its events.
    pub const TARGET: &str = module_path!();

    pub(crate) fn is_wanted() -> bool {
        tracing::enabled!(tracing::Level::TRACE)
    }
}

impl Observer for Tracer {
    fn created(&self, task: &TaskRef) {
        let (id, name, at) = (task.id().0, task.name(), task.spawned_at());
        tracing::trace!(task = id, name, spawned_at = %at, "created");
    }

    fn woken(&self, task: &TaskRef, ago: Duration) {
        tracing::trace!(task = task.id().0, name = task.name(), ?ago, "woken");
    }

    fn stepping(&self, task: &TaskRef) {
        tracing::trace!(task = task.id().0, name = task.name(), "stepping");
    }

    fn stepped(&self, task: &TaskRef, took: Duration) {
        tracing::trace!(task = task.id().0, name = task.name(), ?took, "stepped");
    }

    fn trapped(&self, task: &TaskRef, kind: TrapKind, place: &'static Location<'static>) {
        let (id, name) = (task.id().0, task.name());
        tracing::trace!(task = id, name, trap = %kind, at = %place, "trapped");
    }

    fn answered(&self, task: &TaskRef, kind: TrapKind, interrupted: bool) {
        let (id, name) = (task.id().0, task.name());
        tracing::trace!(task = id, name, trap = %kind, interrupted, "answered");
    }

    fn exited(&self, task: &TaskRef, exit: Exit) {
        tracing::trace!(task = task.id().0, name = task.name(), ?exit, "exited");
    }

    fn polled(&self, events: usize) {
        tracing::trace!(events, "polled");
    }
}

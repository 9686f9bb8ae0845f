//! The holder of a lock: its task, and the call that took the lock.
//!
//! Taking a lock stores three words. `Debug` looks the task up.
//!
//! A task that waits for a lock of its own may be right: another branch of a `join!` holds the
//! lock, and releases it. So the wait is neither an error nor a panic, and a warning comes in two
//! steps. A task that nothing else can make ready is reported at once: none of its branches has
//! another wait, and no foreign future has its waker. Any other task is reported if the wait lasts
//! long. A guard that was moved to another task cannot be told from one that the task still has.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use pikake_traps::locks::Holding;
use pikake_traps::{
    About, Builder, Interrupted, SeenWait, TaskMark, TaskRef, WaitQueue, current, sleep, yield_now,
};

/// How long a task waits for a lock of its own before a warning, if another branch may release the
/// lock. That seldom takes this long.
const OWN_LOCK_REPORT: Duration = Duration::from_secs(1);

/// The task that took a lock last. The lock knows whether the task still holds it.
#[derive(Default)]
pub(crate) struct Holder {
    task: Cell<TaskMark>,
    /// The call that took the lock. `None` if the lock was handed over and its new holder has not
    /// run since.
    place: Cell<Option<&'static Location<'static>>>,
}

impl Holder {
    pub(crate) const fn new() -> Self {
        Self { task: Cell::new(TaskMark::NONE), place: Cell::new(None) }
    }

    /// Stores the current task, if there is one.
    #[inline]
    pub(crate) fn set(&self, place: &'static Location<'static>) {
        self.place.set(Some(place));
        self.task.set(TaskMark::current());
    }

    /// The task and the call that have the lock, unless it was handed over and its new holder has
    /// not run since.
    pub(crate) fn holding(&self) -> Option<Holding> {
        Some((self.task.get(), self.place.get()?))
    }

    /// Whether the current task took the lock last, and the lock was not handed over since.
    pub(crate) fn is_current_task(&self) -> bool {
        let task = self.task.get();
        self.place.get().is_some() && !task.is_none() && task == TaskMark::current()
    }

    /// The description of a lock for listings. `verb` is how the holder has the lock, and `queue`
    /// has the lock's permit.
    pub(crate) fn about(&self, lock: &str, verb: &str, queue: &WaitQueue) -> About {
        if self.place.get().is_some() {
            let about = About::new(format!("{lock}, {verb} by {self:?}"));
            return about.owned_by(self.task.get().id_here());
        }
        match queue.granted_to() {
            Some(task) => {
                About::new(format!("{lock}, granted to {}, which has not taken it", task.label()))
                    .granted_to(task.id())
            }
            None => About::new(format!("{lock}, {HANDED_OVER}")),
        }
    }

    /// Notes a hand-over to a waiter that has not run since.
    #[inline]
    pub(crate) fn clear(&self) {
        self.place.set(None);
    }
}

/// How `Debug` shows a holder that has not run since it got the lock.
pub(crate) const HANDED_OVER: &str = "handed over, not running yet";

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = self.place.get() else {
            return f.write_str(HANDED_OVER);
        };
        let mark = self.task.get();
        match mark.is_none() {
            true => f.write_str("a caller outside tasks")?,
            false => f.write_str(&mark.label())?,
        }
        write!(f, " since {place}")
    }
}

/// Warns if the current task, which begins to wait for a lock of its own, cannot go on, or waits
/// for long.
#[cold]
pub(crate) fn report_own_lock(lock: String, awaited_at: &'static Location<'static>) {
    // The caller has found that the current task holds the lock.
    let task = current().task_ref().clone();
    let report = async move {
        let waits_for_nothing_else = waits_only_at(&task, &lock, awaited_at).await?;
        if waits_for_nothing_else {
            tracing::warn!(
                task = task.id().0,
                waits_at = %awaited_at,
                "a task waits for a {lock}, and for nothing else: unless another task has the guard, only a \
                 cancel or a deadline can end the wait. Drop the first guard before the second call",
            );
            return Ok(());
        }
        sleep(OWN_LOCK_REPORT).await?;
        if !task.is_ended() && task.last_wait().is_some_and(|(_, place)| place == awaited_at) {
            tracing::warn!(
                task = task.id().0,
                waits_at = %awaited_at,
                "a task waits for a {lock}: unless another branch of the task releases the lock, the task \
                 waits forever",
            );
        }
        Ok::<_, Interrupted>(())
    };
    Builder::new().name("report of a wait for an own lock").spawn(report).detach();
}

/// Whether a task waits for a lock, and nothing else can make the task ready.
async fn waits_only_at(
    task: &TaskRef,
    lock: &str,
    awaited_at: &'static Location<'static>,
) -> Result<bool, Interrupted> {
    // In its next step the task polls all branches, and the kernel keeps the waits.
    task.inspect();
    while task.is_ready() {
        yield_now().await?;
    }
    let waits = task.seen_waits();
    let [SeenWait { place, about: Some(about), .. }] = &*waits else {
        return Ok(false);
    };
    Ok(*place == awaited_at && about.text() == lock && !task.has_wakers())
}

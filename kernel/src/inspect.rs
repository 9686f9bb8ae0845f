//! Looking into the kernels of the process: which there are, what they do, and what their tasks
//! wait for.
//!
//! | from | use |
//! | --- | --- |
//! | any thread, also while a kernel is stuck in a step | [`kernels`], and [`KernelView`] |
//! | a kernel's own thread | [`tasks_from`], [`task_figures`], [`kernel_figures`], [`time_steps`] |
//!
//! Another thread sends a closure to the kernel's own thread, with
//! [`KernelHandle::call_there`](pikake_traps::KernelHandle::call_there). The kernel calls the
//! closure between two steps, and steps no task meanwhile.
//!
//! After [`record_steps`] each kernel keeps a flight recorder: its last 4,095 events, the figures
//! of its tasks, and how late its timers fire. Without a recorder a step costs nothing more.
//!
//! Kernels on a driver that simulates the system are not listed, and have no recorder.
//!
//! # Examples
//!
//! ```
//! use pikake::kernel::inspect::{kernels, record_steps, tasks_from};
//! use std::sync::mpsc;
//!
//! record_steps();
//! # pikake::run(async {
//! pikake::spawn(std::future::pending::<()>()).detach();
//! // As a thread of its own does.
//! let (sender, names) = mpsc::channel();
//! for kernel in kernels() {
//!     let sender = sender.clone();
//!     let _ = kernel.handle().call_there(Box::new(move || {
//!         for task in tasks_from(0, 1_000).tasks {
//!             let _ = sender.send(task.name().to_owned());
//!         }
//!     }));
//! }
//! pikake::sleep(std::time::Duration::from_millis(1)).await.unwrap();
//! assert!(names.try_iter().any(|name| name == "main"));
//! # });
//! ```

use std::process;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Instant;

use pikake_traps::inspect::{record_current_kernel, record_waits_of_current_kernel};
use pikake_traps::{KernelHandle, KernelId};

pub use pikake_traps::inspect::{
    KernelFigures, PeerFigures, TaskFigures, TaskPage, kernel_figures, task_figures, tasks_from,
    time_steps,
};

pub use crate::profile::StepRow;
use crate::recorder::Ring;
pub use crate::recorder::{Event, EventPage, StepProfile, What};
pub use crate::watchdog::CurrentStep;
use crate::watchdog::Pulse;

/// The kernels of the process that were built and not dropped, the oldest first.
static KERNELS: Mutex<Vec<KernelView>> = Mutex::new(Vec::new());

/// The events that kernels record which are built from now on.
static RECORDS: AtomicU8 = AtomicU8::new(NOTHING);
const NOTHING: u8 = 0;
const WAITS: u8 = 1;
const STEPS: u8 = 2;

fn list() -> MutexGuard<'static, Vec<KernelView>> {
    // No code that can panic runs under the lock, so the list behind a poisoned lock is whole.
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernels of the process that have not ended, the oldest first. A process that was forked does
/// not list the kernels of its parent.
pub fn kernels() -> Vec<KernelView> {
    kernels_of(process::id())
}

/// The kernels that a process has built and that have not ended.
fn kernels_of(process: u32) -> Vec<KernelView> {
    let mut kernels = list().clone();
    kernels.retain(|kernel| kernel.0.process == process && !kernel.handle().is_closed());
    kernels
}

/// Makes every kernel of the process keep a flight recorder, for the rest of its life: those that
/// are built from now on, and those that run already from their next turn on.
pub fn record_steps() {
    record(STEPS, record_current_kernel);
}

/// As [`record_steps`], but for steps after which the task is ready again, as after a yield: a step
/// then costs hardly more than without a recorder. The figures of the tasks count no such steps
/// either. After a call of [`record_steps`], all steps are recorded.
///
/// # Examples
///
/// ```
/// use pikake::kernel::inspect::{What, kernels, record_waits};
/// use pikake::{sleep, yield_now};
/// use std::time::Duration;
///
/// record_waits();
/// # pikake::run(async {
/// yield_now().await.unwrap();
/// sleep(Duration::from_millis(1)).await.unwrap();
/// let events = kernels()[0].events(usize::MAX);
/// assert!(matches!(events[0].what, What::Spawned { .. }));
/// let What::Stepped { wait: Some((trap, _)), .. } = events[1].what else { panic!() };
/// assert_eq!((trap.name(), events.len()), ("sleep", 2));
/// # });
/// ```
pub fn record_waits() {
    record(WAITS, record_waits_of_current_kernel);
}

fn record(what: u8, there: fn()) {
    RECORDS.fetch_max(what, Ordering::Relaxed);
    for kernel in kernels() {
        // A kernel that has ended by now needs no recorder.
        let _ = kernel.handle().call_there(Box::new(there));
    }
}

/// Whether a kernel that was just built, and listed, records, and if so, whether it records all
/// steps.
pub(crate) fn records() -> Option<bool> {
    // The lock of the list orders this after the store: either `record` finds the kernel, or the
    // kernel finds the value.
    match RECORDS.load(Ordering::Relaxed) {
        NOTHING => None,
        what => Some(what == STEPS),
    }
}

/// A kernel of the process, for other threads.
#[derive(Clone)]
pub struct KernelView(Arc<Seen>);

/// The part of a kernel that other threads look at.
struct Seen {
    handle: KernelHandle,
    thread: Thread,
    tid: Option<u32>,
    /// The number of the process that has built the kernel. A forked process has a copy of the
    /// list, and none of the threads.
    process: u32,
    pulse: Arc<Pulse>,
    ring: OnceLock<Arc<Ring>>,
}

impl KernelView {
    /// The id of the kernel.
    pub fn id(&self) -> KernelId {
        self.handle().id()
    }

    /// A handle, which sends closures to the kernel.
    pub fn handle(&self) -> &KernelHandle {
        &self.0.handle
    }

    /// The name of the kernel's thread; empty if it has none.
    pub fn thread_name(&self) -> String {
        self.0.thread.name().unwrap_or_default().to_owned()
    }

    /// The number of the kernel's thread in the system, as debuggers and `/proc` show it. `None`
    /// except on Linux.
    pub fn tid(&self) -> Option<u32> {
        self.0.tid
    }

    /// The step that the kernel is in; `None` between two steps.
    ///
    /// The answer is that of one moment: a kernel that is not stuck may be in another step by now.
    pub fn current_step(&self) -> Option<CurrentStep> {
        self.0.pulse.current_step()
    }

    /// Whether the kernel blocks in its driver, or is not being run.
    pub fn is_asleep(&self) -> bool {
        self.0.pulse.is_asleep()
    }

    /// The last events of the flight recorder, at most `limit`, the oldest first; none if there is
    /// no recorder.
    ///
    /// The kernel goes on meanwhile, and does not wait. Events that it overwrites are left out.
    pub fn events(&self, limit: usize) -> Vec<Event> {
        self.0.ring.get().map(|ring| ring.read(limit)).unwrap_or_default()
    }

    /// The events of the flight recorder from a number on, the oldest first; none if there is no
    /// recorder. Events are numbered from zero on.
    ///
    /// A reader of all events begins each page at [`EventPage::next`] of the page before.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::kernel::inspect::{kernels, record_steps};
    /// use pikake::yield_now;
    ///
    /// record_steps();
    /// # pikake::run(async {
    /// let kernel = &kernels()[0];
    /// let earlier = kernel.events_from(0);
    /// yield_now().await.unwrap();
    /// let later = kernel.events_from(earlier.next);
    /// assert_eq!((later.events.len(), later.lost), (1, 0));
    /// # });
    /// ```
    pub fn events_from(&self, number: u64) -> EventPage {
        self.0.ring.get().map(|ring| ring.read_from(number)).unwrap_or_default()
    }

    /// The number of events that the kernel has recorded; zero if there is no recorder.
    pub fn event_count(&self) -> u64 {
        self.0.ring.get().map(|ring| ring.count()).unwrap_or_default()
    }

    /// Begins a profile, which has the steps that the kernel [times](time_steps) from now on;
    /// `None` if the kernel does not record steps.
    ///
    /// # Examples
    ///
    /// ```
    /// use pikake::kernel::inspect::{kernels, record_steps, time_steps};
    /// use pikake::{spawn, yield_now};
    ///
    /// record_steps();
    /// # pikake::run(async {
    /// time_steps(true);
    /// let profile = kernels()[0].profile().unwrap();
    /// for _ in 0..10 {
    ///     spawn(async { yield_now().await.unwrap() }).await.unwrap();
    /// }
    /// let rows = profile.finish();
    /// assert!(rows.iter().any(|row| row.spawned == 10 && row.steps == 20));
    /// time_steps(false);
    /// # });
    /// ```
    pub fn profile(&self) -> Option<StepProfile> {
        self.0.ring.get().map(|ring| StepProfile::begin(ring.clone()))
    }

    /// The moment when the kernel began to record steps, from which [`Event::at`] counts; `None` if
    /// it does not.
    pub fn recorded_since(&self) -> Option<Instant> {
        self.0.ring.get().map(|ring| ring.began_at())
    }
}

impl std::fmt::Debug for KernelView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelView")
            .field("id", &self.id())
            .field("thread", &self.thread_name())
            .field("asleep", &self.is_asleep())
            .finish_non_exhaustive()
    }
}

/// The place of a kernel on the list, which the drop takes back.
pub(crate) struct Listed(KernelView);

impl Listed {
    /// Lists a kernel of this thread.
    pub(crate) fn add(handle: KernelHandle, pulse: Arc<Pulse>) -> Self {
        let (thread, tid) = (thread::current(), system_tid());
        let (process, ring) = (process::id(), OnceLock::new());
        let view = KernelView(Arc::new(Seen { handle, thread, tid, process, pulse, ring }));
        list().push(view.clone());
        Self(view)
    }

    /// Shows the events of the kernel's recorder.
    pub(crate) fn show(&self, ring: Arc<Ring>) {
        let is_first = self.0.0.ring.set(ring).is_ok();
        debug_assert!(is_first, "a kernel has one recorder");
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        list().retain(|other| !Arc::ptr_eq(&other.0, &self.0.0));
    }
}

#[cfg(target_os = "linux")]
fn system_tid() -> Option<u32> {
    rustix::thread::gettid().as_raw_nonzero().get().try_into().ok()
}

#[cfg(not(target_os = "linux"))]
fn system_tid() -> Option<u32> {
    None
}

#[cfg(all(test, not(pikake_shuttle)))]
mod tests {
    use std::process;

    use crate::Kernel;
    use crate::inspect::kernels_of;

    #[test]
    fn kernels_of_another_process_are_not_listed() {
        let kernel = Kernel::builder().build().unwrap();
        let is_listed =
            |process| kernels_of(process).iter().any(|view| view.id() == kernel.handle().id());
        assert!(is_listed(process::id()));
        assert!(!is_listed(process::id() + 1));
    }
}

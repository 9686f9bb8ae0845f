//! Signals that a kernel does not take, since the kernel is in a long step. The log says so.
//!
//! The handler notes the number of SIGINT and SIGTERM before it wakes the kernel. The kernel takes
//! the note back when it receives the signal. The watchdog's thread reads the notes at each look at
//! a long step.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};

use pikake_traps::{KernelId, LongStep, LongStepStage, watch_long_steps};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::{signal_name, unregister};

/// Whether a second SIGINT or SIGTERM ends the process: `interrupt.rs` says so.
pub(crate) static SECOND_ENDS_PROCESS: AtomicBool = AtomicBool::new(false);

/// The value for no signal: none has this number.
const NONE: usize = 0;

static LISTENERS: Mutex<Vec<Weak<Untaken>>> = Mutex::new(Vec::new());

fn listeners() -> MutexGuard<'static, Vec<Weak<Untaken>>> {
    // Each statement leaves the list whole.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The signal that has arrived for a listener, and that its kernel has not taken.
pub(crate) struct Untaken {
    signal: Arc<AtomicUsize>,
    is_told: AtomicBool,
    /// Unknown until a kernel listens.
    kernel: OnceLock<KernelId>,
    actions: Vec<SigId>,
}

impl Untaken {
    /// Notes the signals from now on. Must be called before the handler that wakes the kernel is
    /// installed: handlers run in this order.
    pub(crate) fn note(signals: &[i32]) -> io::Result<Arc<Self>> {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| watch_long_steps(see));
        let signal = Arc::new(AtomicUsize::new(NONE));
        let (is_told, kernel, actions) = (AtomicBool::new(false), OnceLock::new(), Vec::new());
        let mut new = Self { signal, is_told, kernel, actions };
        for number in signals.iter().filter(|signal| [SIGINT, SIGTERM].contains(signal)) {
            let value = number.unsigned_abs() as usize;
            new.actions.push(flag::register_usize(*number, new.signal.clone(), value)?);
        }
        let new = Arc::new(new);
        listeners().push(Arc::downgrade(&new));
        Ok(new)
    }

    /// This kernel listens.
    pub(crate) fn set_kernel(&self, kernel: KernelId) {
        let _ = self.kernel.set(kernel);
    }

    /// The kernel takes its signals now.
    pub(crate) fn take(&self) {
        self.signal.store(NONE, Ordering::SeqCst);
        self.is_told.store(false, Ordering::SeqCst);
    }

    /// The signal that is not taken, once.
    fn tell(&self) -> Option<i32> {
        let signal = i32::try_from(self.signal.load(Ordering::SeqCst)).ok()?;
        let is_new = signal != 0 && !self.is_told.swap(true, Ordering::SeqCst);
        is_new.then_some(signal)
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            unregister(action);
        }
        listeners().retain(|listener| listener.strong_count() > 0);
    }
}

/// Sees a long step, and tells of a signal that its kernel cannot take.
fn see(step: &LongStep) -> Option<String> {
    if step.stage == LongStepStage::Over {
        return None;
    }
    let all: Vec<Arc<Untaken>> = listeners().iter().filter_map(Weak::upgrade).collect();
    let of_kernel = all.iter().filter(|listener| listener.kernel.get() == Some(&step.kernel));
    for signal in of_kernel.filter_map(|listener| listener.tell()) {
        let name = signal_name(signal).unwrap_or_default();
        let next = match SECOND_ENDS_PROCESS.load(Ordering::SeqCst) {
            true => "a second SIGINT or SIGTERM ends the process at once",
            false => "only SIGKILL ends the process before that",
        };
        tracing::warn!(
            kernel = %step.kernel,
            task = %step.task,
            name = Some(&*step.name).filter(|name| !name.is_empty()),
            spawned_at = %step.spawned_at,
            took = ?step.took,
            "{name} waits for the end of a long step; {next}"
        );
    }
    None
}

//! Signals that ask the process to end, as interruptions of a main task.
//!
//! A signal handler may do next to nothing, and it is the process's, not a kernel's. So there is
//! one for all kernels, installed when the first one asks for it:
//!
//! ```text
//!   SIGINT,      ┌───────────── handler ─────────────┐         thread "pikake-signals"
//!   SIGTERM ────▶│ as usual? ──yes──▶ default action │
//!                │    │ no                           │
//!                │    └──▶ as usual := true, note it ├───────▶ interrupts the main task
//!                └───────────────────────────────────┘         of every kernel on the list
//! ```
//!
//! The default action is the end of the process. *As usual* is true while no kernel is on the list,
//! and from the first signal on: whatever the program does with that one, the second ends it.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use pikake_kernel::Kernel;
use pikake_traps::{KernelHandle, TaskError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};

const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// What [`TAKEN`] is before any signal: no signal has this number.
const NONE: i32 = 0;

/// The next signal has its default action.
static AS_USUAL: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// The signal that was turned into an interruption last.
static TAKEN: AtomicI32 = AtomicI32::new(NONE);

static LISTENERS: Mutex<Listeners> =
    Mutex::new(Listeners { are_installed: false, kernels: Vec::new() });

/// The kernels whose main tasks are interrupted.
struct Listeners {
    /// The handlers are installed, for good.
    are_installed: bool,
    kernels: Vec<KernelHandle>,
}

fn listeners() -> MutexGuard<'static, Listeners> {
    // Whole after each statement, so a panic elsewhere on the thread leaves nothing half done.
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listeners {
    fn install(&mut self) -> io::Result<()> {
        if self.are_installed {
            return Ok(());
        }
        // In the order in which they act on a signal.
        for signal in SIGNALS {
            flag::register_conditional_default(signal, AS_USUAL.clone())?;
            flag::register(signal, AS_USUAL.clone())?;
        }
        let mut signals = Signals::new(SIGNALS)?;
        thread::Builder::new()
            .name("pikake-signals".into())
            .spawn(move || signals.forever().for_each(interrupt_all))?;
        self.are_installed = true;
        Ok(())
    }
}

fn interrupt_all(signal: i32) {
    TAKEN.store(signal, Ordering::SeqCst);
    for kernel in &listeners().kernels {
        // A kernel that has ended refuses: it has no main task to interrupt.
        let _ = kernel.interrupt(signal_name(signal).unwrap_or_default());
    }
}

/// Turns the first SIGINT or SIGTERM into an interruption of a kernel's main task.
///
/// The await that the main task sits in returns [`Interrupted`](crate::Interrupted) with the reason
/// `SIGINT` or `SIGTERM`, as when somebody had [cancelled](crate::Task::request_cancel) the task.
/// So it may say goodbye, and when it has ended its kernel is shut down as always, with everybody
/// else's goodbyes. A second signal, of either kind, ends the process as usual. Where several
/// kernels ask for this, one signal interrupts all their main tasks.
///
/// It holds until what it gives is dropped; then signals have their default action again, unless
/// another kernel has asked. `#[pikake::main(signals)]` does all of this for a `main`.
///
/// Signals are the process's: this installs handlers for the two, for good, and starts a thread
/// that waits for them. A handler that was there before is called as well.
///
/// # Examples
///
/// ```
/// use pikake::{Kernel, interrupt_on_signals};
///
/// let kernel = Kernel::new()?;
/// let on_signals = interrupt_on_signals(&kernel.handle())?;
/// kernel.run(async {
///     // Serve; an `Interrupted` with the reason `SIGTERM` comes when it is time to stop.
/// });
/// kernel.shutdown();
/// drop(on_signals);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// The system's, when the handlers cannot be installed or no thread can be started.
pub fn interrupt_on_signals(kernel: &KernelHandle) -> io::Result<OnSignals> {
    let mut listeners = listeners();
    listeners.install()?;
    if listeners.kernels.is_empty() {
        TAKEN.store(NONE, Ordering::SeqCst);
        AS_USUAL.store(false, Ordering::SeqCst);
    }
    listeners.kernels.push(kernel.clone());
    Ok(OnSignals { kernel: kernel.clone() })
}

/// Signals interrupt a main task for as long as this lives. Given by [`interrupt_on_signals`].
#[must_use = "dropping it at once gives the signals their default action back at once"]
pub struct OnSignals {
    kernel: KernelHandle,
}

impl Drop for OnSignals {
    fn drop(&mut self) {
        let mut listeners = listeners();
        let place = listeners.kernels.iter().position(|kernel| kernel.id() == self.kernel.id());
        drop(place.map(|place| listeners.kernels.swap_remove(place)));
        if listeners.kernels.is_empty() {
            AS_USUAL.store(true, Ordering::SeqCst);
        }
    }
}

impl fmt::Debug for OnSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnSignals").field("kernel", &self.kernel.id()).finish()
    }
}

/// Runs a future as a kernel's main task, which a signal interrupts, and shuts the kernel down.
#[track_caller]
pub(crate) fn run_until_signal<F: Future>(kernel: &Kernel, future: F) -> F::Output {
    let _on_signals = interrupt_on_signals(&kernel.handle())
        .unwrap_or_else(|error| panic!("signals cannot be handled: {error}"));
    let outcome = kernel.try_run(future);
    if let Err(TaskError::Panicked(panic)) = outcome {
        std::panic::resume_unwind(panic.into_payload());
    }
    kernel.shutdown();
    outcome.unwrap_or_else(|error| {
        let signal = TAKEN.load(Ordering::SeqCst);
        if error.is_cancelled() && signal != NONE {
            // Nobody could tell the main task, so it has no exit code: what ended it shows.
            drop(emulate_default_handler(signal));
        }
        panic!("the main task gave no value: {error}")
    })
}

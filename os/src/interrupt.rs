//! SIGINT and SIGTERM as interruptions of a main task.
//!
//! Each kernel has a task that listens and interrupts the main task. The handler itself acts on the
//! second signal, since the program may be stuck:
//!
//! ```text
//!   SIGINT,      ┌──────────── handler ────────────┐
//!   SIGTERM ────▶│ second? ──yes──▶ default action │         a task in every kernel
//!                │    │ no                         │         on the list
//!                │    └──▶ second := true          ├───────▶ interrupts the main task
//!                └─────────────────────────────────┘
//! ```
//!
//! The default action ends the process. *Second* is set by the first signal, and stays set until no
//! kernel is on the list. So the second signal ends the process, whatever the program does with the
//! first.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pikake_traps::{KernelHandle, KernelId, sleep};
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::backend::Handle;
use signal_hook::low_level::{emulate_default_handler, signal_name, unregister};

use crate::default_action::Listening;
use crate::signals::Delivered;
use crate::untaken::SECOND_ENDS_PROCESS;

const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// The value for no signal: none has this number.
const NONE: i32 = 0;

static SECOND: Mutex<Second> =
    Mutex::new(Second { kernels: 0, actions: Vec::new(), is_second: None });

/// The actions of the second signal, while kernels are on the list.
struct Second {
    kernels: usize,
    actions: Vec<SigId>,
    /// Set by the first signal.
    is_second: Option<Arc<AtomicBool>>,
}

fn second() -> MutexGuard<'static, Second> {
    // A panic while it is locked can only come from an allocation that failed.
    SECOND.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Second {
    fn add_kernel(&mut self) -> io::Result<()> {
        if self.kernels == 0 {
            let is_second = Arc::new(AtomicBool::new(false));
            // The handlers run in the order of their registration.
            for signal in SIGNALS {
                let action = flag::register_conditional_default(signal, is_second.clone())?;
                self.actions.push(action);
                self.actions.push(flag::register(signal, is_second.clone())?);
            }
            self.is_second = Some(is_second);
        }
        self.kernels += 1;
        SECOND_ENDS_PROCESS.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the first signal was counted, so the next one ends the process.
    fn has_first(&self) -> bool {
        self.is_second.as_ref().is_some_and(|flag| flag.load(Ordering::SeqCst))
    }

    fn remove_kernel(&mut self) {
        self.kernels -= 1;
        if self.kernels == 0 {
            SECOND_ENDS_PROCESS.store(false, Ordering::SeqCst);
            for action in self.actions.drain(..) {
                unregister(action);
            }
        }
    }
}

/// Turns the first SIGINT or SIGTERM into an interruption of a kernel's main task.
///
/// The current await of the main task returns [`Interrupted`](pikake_traps::Interrupted) with the
/// reason `SIGINT` or `SIGTERM`, like a [cancel](pikake_traps::Task::request_cancel) of the task.
/// So the main task can clean up. After its end the kernel shuts down as usual, so other tasks can
/// clean up too. A second signal, of either kind, ends the process, even if
/// [`Signals`](crate::signal::Signals) listens to it. A kernel that is in one step for long takes
/// no signal; the log then says so, and what a second one does. One signal interrupts the main
/// tasks of all kernels that called this.
///
/// The guard that is returned restores the signals' default action on drop, unless other kernels or
/// listeners remain. `#[pikake::main(signals)]` does all this for a `main`.
///
/// The kernel gets an additional task, and a signal wakes the kernel.
///
/// # Examples
///
/// ```
/// use pikake::{Kernel, interrupt_on_signals};
///
/// let kernel = Kernel::new()?;
/// let on_signals = interrupt_on_signals(&kernel.handle())?;
/// kernel.run(async {
///     // Serve until an await returns `Interrupted` with the reason `SIGTERM`.
/// });
/// kernel.shutdown();
/// drop(on_signals);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// The system's error, if the handlers cannot be installed or the process is out of descriptors.
pub fn interrupt_on_signals(kernel: &KernelHandle) -> io::Result<OnSignals> {
    let mut delivered = Delivered::new(&SIGNALS)?;
    delivered.set_kernel(kernel.id());
    let (stop, listening) = (delivered.handle(), delivered.take_listening());
    second().add_kernel()?;
    let taken = Arc::new(AtomicI32::new(NONE));
    let on_signals = OnSignals { kernel: kernel.id(), stop, taken: taken.clone(), listening };
    let to_interrupt = kernel.clone();
    // A kernel that has ended has no main task to interrupt.
    let _ = kernel.spawn(move || interrupt_on(delivered, to_interrupt, taken));
    Ok(on_signals)
}

async fn interrupt_on(delivered: Delivered, kernel: KernelHandle, taken: Arc<AtomicI32>) {
    let mut signals = match delivered.adopt() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "signals cannot interrupt the main task");
            return;
        }
    };
    // Until `OnSignals` is dropped, or the kernel shuts down.
    while let Ok(signal) = signals.next().await {
        taken.store(signal, Ordering::SeqCst);
        wait_until_counted().await;
        let _ = kernel.interrupt(signal_name(signal).unwrap_or_default());
    }
}

/// Waits until the handler of the signal has ended, if it runs on another thread: it counts the
/// signal last. Otherwise the next signal could arrive before the first is counted.
async fn wait_until_counted() {
    // A signal during the installation of the handlers is not counted, so the wait is bounded.
    for _ in 0..100 {
        if second().has_first() || sleep(Duration::from_millis(1)).await.is_err() {
            return;
        }
    }
}

/// Signals interrupt a main task until this is dropped. Returned by [`interrupt_on_signals`].
#[must_use = "dropping the guard restores the signals' default action at once"]
pub struct OnSignals {
    kernel: KernelId,
    stop: Handle,
    taken: Arc<AtomicI32>,
    listening: Option<Listening>,
}

impl OnSignals {
    /// The number of the last signal that interrupted the main task.
    pub fn taken(&self) -> Option<i32> {
        Some(self.taken.load(Ordering::SeqCst)).filter(|signal| *signal != NONE)
    }

    /// Ends the process by the last signal that interrupted the main task, as if it were not
    /// handled, so the parent process sees that signal. Returns if there was none.
    pub fn end_process(&self) {
        if let Some(signal) = self.taken() {
            // Returns only for signals that do not end the process.
            let _ = emulate_default_handler(signal);
        }
    }
}

impl Drop for OnSignals {
    fn drop(&mut self) {
        // First, so no signal is both undelivered and without its default action.
        drop(self.listening.take());
        self.stop.close();
        second().remove_kernel();
    }
}

impl fmt::Debug for OnSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnSignals").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

//! Signals that ask the process to end, as interruptions of a main task.
//!
//! Each kernel has a task that listens and interrupts the main task. What the second signal does is
//! for the handler itself to do, since the program may be stuck:
//!
//! ```text
//!   SIGINT,      ┌──────────── handler ────────────┐
//!   SIGTERM ────▶│ second? ──yes──▶ default action │         a task in every kernel
//!                │    │ no                         │         on the list
//!                │    └──▶ second := true          ├───────▶ interrupts the main task
//!                └─────────────────────────────────┘
//! ```
//!
//! The default action is the end of the process. *Second* holds from the first signal on until no
//! kernel is on the list any more: whatever the program does with that one, the next one ends it.

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
use crate::signals::Heard;

const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// What stands for no signal: none has this number.
const NONE: i32 = 0;

static SECOND: Mutex<Second> =
    Mutex::new(Second { kernels: 0, actions: Vec::new(), is_second: None });

/// That a second signal ends the process, while kernels are on the list.
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
            // In the order in which they act on a signal.
            for signal in SIGNALS {
                let action = flag::register_conditional_default(signal, is_second.clone())?;
                self.actions.push(action);
                self.actions.push(flag::register(signal, is_second.clone())?);
            }
            self.is_second = Some(is_second);
        }
        self.kernels += 1;
        Ok(())
    }

    /// Whether a signal was counted, and the next one ends the process.
    fn has_one(&self) -> bool {
        self.is_second.as_ref().is_some_and(|flag| flag.load(Ordering::SeqCst))
    }

    fn take_kernel(&mut self) {
        self.kernels -= 1;
        if self.kernels == 0 {
            for action in self.actions.drain(..) {
                unregister(action);
            }
        }
    }
}

/// Turns the first SIGINT or SIGTERM into an interruption of a kernel's main task.
///
/// The await that the main task sits in returns [`Interrupted`](pikake_traps::Interrupted) with the
/// reason `SIGINT` or `SIGTERM`, as when somebody had
/// [cancelled](pikake_traps::Task::request_cancel) the task. So it may say goodbye, and when it has
/// ended its kernel is shut down as always, with everybody else's goodbyes. A second signal, of
/// either kind, ends the process as usual, also one that is [listened to](crate::signal::Signals)
/// besides. Where several kernels ask for this, one signal interrupts all their main tasks.
///
/// It holds until what it gives is dropped; then signals have their default action again, unless
/// another kernel has asked or somebody listens. `#[pikake::main(signals)]` does all of this for a
/// `main`.
///
/// The kernel has one more task for it, and is woken by a signal however long it would have slept.
///
/// # Examples
///
/// ```
/// use pikake_kernel::Kernel;
/// use pikake_os::signal::interrupt_on_signals;
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
/// The system's, when the handlers cannot be installed or the process is out of descriptors.
pub fn interrupt_on_signals(kernel: &KernelHandle) -> io::Result<OnSignals> {
    let mut heard = Heard::new(&SIGNALS)?;
    let (stop, listening) = (heard.handle(), heard.take_listening());
    second().add_kernel()?;
    let taken = Arc::new(AtomicI32::new(NONE));
    let on_signals = OnSignals { kernel: kernel.id(), stop, taken: taken.clone(), listening };
    let (to_interrupt, place) = (kernel.clone(), taken);
    // A kernel that has ended has no main task to interrupt.
    let _ = kernel.spawn(move || interrupt_on(heard, to_interrupt, place));
    Ok(on_signals)
}

async fn interrupt_on(heard: Heard, kernel: KernelHandle, taken: Arc<AtomicI32>) {
    let mut signals = match heard.adopt() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "signals cannot interrupt the main task");
            return;
        }
    };
    // Until nobody wants it any more, or the kernel is shut down.
    while let Ok(signal) = signals.next().await {
        taken.store(signal, Ordering::SeqCst);
        wait_until_counted().await;
        let _ = kernel.interrupt(signal_name(signal).unwrap_or_default());
    }
}

/// Waits until the handler of the signal has done all it does, if it is at work in another thread: it
/// counts the signal last. Were the main task told before, the next signal might come before that.
async fn wait_until_counted() {
    // One that came while the handlers were being installed is not counted.
    for _ in 0..100 {
        if second().has_one() || sleep(Duration::from_millis(1)).await.is_err() {
            return;
        }
    }
}

/// Signals interrupt a main task for as long as this lives. Given by [`interrupt_on_signals`].
#[must_use = "dropping it at once gives the signals their default action back at once"]
pub struct OnSignals {
    kernel: KernelId,
    stop: Handle,
    taken: Arc<AtomicI32>,
    listening: Option<Listening>,
}

impl OnSignals {
    /// The number of the signal that interrupted the main task last, if one did.
    pub fn taken(&self) -> Option<i32> {
        Some(self.taken.load(Ordering::SeqCst)).filter(|signal| *signal != NONE)
    }

    /// Ends the process by the signal that interrupted the main task last, as if nobody had asked
    /// for it, so that whoever waits for the process sees what ended it. Returns if there was none.
    pub fn end_process(&self) {
        if let Some(signal) = self.taken() {
            // It returns only for signals that end nothing.
            let _ = emulate_default_handler(signal);
        }
    }
}

impl Drop for OnSignals {
    fn drop(&mut self) {
        // Who is not told has the default action.
        drop(self.listening.take());
        self.stop.close();
        second().take_kernel();
    }
}

impl fmt::Debug for OnSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnSignals").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

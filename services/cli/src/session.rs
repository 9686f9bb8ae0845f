//! Runs a command in a kernel of its own, with signal handling.

use std::future::Future;

use pikake::{Kernel, interrupt_on_signals};

use crate::stop::Stop;

/// The effect of the first SIGINT or SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalMode {
    /// The signal interrupts the command. A second one ends the process.
    Interrupt,
    /// The command handles signals itself.
    Handled,
}

pub(crate) fn run(
    signals: SignalMode,
    command: impl Future<Output = Result<(), Stop>>,
) -> Result<(), Stop> {
    let kernel = Kernel::new().map_err(|error| Stop::other(format!("no kernel: {error}")))?;
    let on_signals = match signals {
        SignalMode::Handled => None,
        SignalMode::Interrupt => {
            let listening = interrupt_on_signals(&kernel.handle());
            Some(listening.map_err(|error| Stop::other(format!("no signals: {error}")))?)
        }
    };
    let ended = kernel.try_run(command);
    match &ended {
        // Its tasks may wait for a broker that does not answer.
        Ok(Err(stop)) if stop.is_abrupt() => std::mem::forget(kernel),
        _ => kernel.shutdown(),
    }
    let taken = on_signals.as_ref().and_then(pikake::OnSignals::taken);
    match (ended, taken) {
        (Ok(Ok(())), _) => Ok(()),
        // Any error of an interrupted command counts as the signal's.
        (Ok(Err(_)) | Err(_), Some(signal)) => Err(Stop::signal(signal, None)),
        (Ok(Err(stop)), None) => Err(stop),
        (Err(pikake::TaskError::Panicked(panic)), None) => {
            std::panic::resume_unwind(panic.into_payload())
        }
        (Err(error), None) => Err(Stop::other(error)),
    }
}

//! The report of a crash: the last events of the kernel whose main task panics.
//!
//! The panic unwinds the future of the main task, which owns a [`CrashReport`]. So the report has
//! the events up to the panic, and none of the kernel's shutdown.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::thread;

use pikake_kernel::inspect::{kernels, tasks_from};
use pikake_traps::{KernelId, current, try_current};

/// The number of events in a report.
const EVENTS: usize = 40;

/// The number of tasks among which the report looks for names.
const NAMED: usize = 1_000;

/// Writes the report to standard error, if it is dropped by a panic and the kernel records its
/// steps.
pub(crate) struct CrashReport {
    kernel: KernelId,
}

impl CrashReport {
    /// Inside the task whose panic is reported.
    pub(crate) fn new() -> Self {
        Self { kernel: current().kernel() }
    }

    /// The report; `None` if there are no events.
    fn text(&self) -> Option<String> {
        let kernel = kernels().into_iter().find(|kernel| kernel.id() == self.kernel)?;
        let events = kernel.events(EVENTS);
        // Outside of the kernel, as when the program drops the kernel in a panic, there are no
        // names.
        let is_inside = try_current().is_some_and(|task| task.kernel() == self.kernel);
        let tasks = if is_inside { tasks_from(0, NAMED).tasks } else { Vec::new() };
        if events.is_empty() {
            return None;
        }
        let mut text =
            format!("the main task has crashed; the last events of kernel {}:\n", self.kernel);
        for event in events {
            let task = tasks.iter().find(|task| task.id() == event.task);
            // Writing to a string does not fail.
            let _ = write!(text, "  {:?}  task {}", event.at, event.task);
            let _ = match task.map_or("", |task| task.name()) {
                "" => writeln!(text, ": {}", event.what),
                name => writeln!(text, " `{name}`: {}", event.what),
            };
        }
        Some(text)
    }
}

impl Drop for CrashReport {
    fn drop(&mut self) {
        if let Some(text) = thread::panicking().then(|| self.text()).flatten() {
            // A second panic would abort the process.
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

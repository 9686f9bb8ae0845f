//! Stacks of the process's threads.
//!
//! A thread writes its own stack, when it gets the signal SIGPROF: pprof has the handler, which
//! allocates nothing. For a profile, the system sends the signal after each hundredth of a second
//! of processor time, to a thread that uses the processor. For the stack of one thread, a timer
//! sends the signal to that thread, also while the thread is blocked in a system call.
//!
//! The handler has `SA_RESTART`. So a blocking read goes on after the signal, and a sleep of the
//! standard library sleeps for the rest. The system calls that no handler restarts (signal(7)),
//! such as `poll`, return `EINTR`.
//!
//! The first use takes up to 200 MB of memory, for pprof's tables and the names of functions, and
//! the process keeps them.
//!
//! pprof puts its handler in the place of one that the program has. At the end of a stack or
//! profile, it has the system ignore the signal, for the rest of the process's life and in the
//! programs that the process starts. So a signal that comes later, to a thread that was deep in the
//! system, does nothing.

use std::fs;

use crate::model::Stack;

#[cfg(feature = "profile")]
mod by_signal;
#[cfg(feature = "profile")]
pub(crate) use by_signal::Sampler;

/// Why there is no stack, for a client.
pub(crate) type NoStack = String;

/// The stack of one thread of this process. Blocks for some hundredths of a second, the first time
/// for longer.
#[cfg(all(feature = "profile", target_os = "linux", target_env = "gnu"))]
pub(crate) fn of_thread(tid: u32) -> Result<Stack, NoStack> {
    by_signal::of_thread(tid)
}

#[cfg(all(feature = "profile", not(all(target_os = "linux", target_env = "gnu"))))]
pub(crate) fn of_thread(_: u32) -> Result<Stack, NoStack> {
    Err("the stack of one thread needs Linux and its usual C library".into())
}

#[cfg(not(feature = "profile"))]
const NO_FEATURE: &str = "the program was built without pikake's feature `profile`";

#[cfg(not(feature = "profile"))]
pub(crate) fn of_thread(_: u32) -> Result<Stack, NoStack> {
    Err(NO_FEATURE.into())
}

/// No samples.
#[cfg(not(feature = "profile"))]
pub(crate) enum Sampler {}

#[cfg(not(feature = "profile"))]
impl Sampler {
    pub(crate) fn start() -> Result<Self, NoStack> {
        Err(NO_FEATURE.into())
    }

    pub(crate) fn finish(self) -> Result<crate::model::Samples, NoStack> {
        match self {}
    }
}

/// What a thread of this process does, by the system: whether it runs, or in which function of the
/// system's kernel it sleeps. `None` where there is no such file, or no descriptor to read it with.
pub(crate) fn doing(tid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name before may have brackets and spaces (proc_pid_stat(5)).
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    let words = match state {
        'R' => return Some("running".into()),
        'S' => "sleeps",
        'D' => "waits for the disk",
        'T' | 't' => "stopped",
        _ => return None,
    };
    let place = fs::read_to_string(format!("/proc/self/task/{tid}/wchan")).unwrap_or_default();
    Some(match place.as_str() {
        "" | "0" => words.into(),
        place => format!("{words} in {place}"),
    })
}

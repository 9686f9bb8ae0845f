//! Stacks of the process's threads.
//!
//! A thread notes its own stack, when it gets the signal SIGPROF: as addresses, which the client
//! turns into names of functions. So a stack costs this process little memory, and nothing is kept.
//! For a profile, the system sends the signal after each hundredth of a second of processor time,
//! to a thread that uses the processor. For the stack of one thread, the console sends the signal
//! to that thread, also while the thread is blocked in a system call.
//!
//! A blocking read goes on after the signal, and a sleep of the standard library sleeps for the
//! rest. The system calls that no handler restarts (signal(7)), such as `poll`, return `EINTR`.

use std::fs;

#[cfg(all(
    feature = "profile",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod by_signal;
#[cfg(not(all(
    feature = "profile",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
#[path = "stacks/none.rs"]
mod by_signal;

pub(crate) use by_signal::{Sampler, modules_of, names_in_process, of_thread};

/// Why there is no stack, for a client.
pub(crate) type NoStack = String;

/// The state of a thread of this process, as the system abbreviates it (proc_pid_stat(5)).
pub(crate) fn state_of(tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name before may have brackets and spaces.
    stat.rsplit_once(") ")?.1.chars().next()
}

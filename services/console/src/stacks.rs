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
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::model::Stack;

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

use by_signal::of_thread;
pub(crate) use by_signal::{Sampler, modules_of, names_in_process};

/// Why there is no stack, for a client.
pub(crate) type NoStack = String;

/// What a thread of this process does, by the system: whether it runs, or in which function of the
/// system's kernel it sleeps. `None` where there is no such file, or no descriptor to read it with.
fn doing(tid: u32) -> Option<String> {
    let words = match state_of(tid)? {
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

/// The state of a thread in words, and its stack. The thread runs for a moment to note its stack, so nobody
/// else asks for one meanwhile.
pub(crate) fn look(tid: u32) -> (Option<String>, Result<Stack, NoStack>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let doing = doing(tid);
    let stack = of_thread(tid);
    if stack.is_ok() {
        // Until it sleeps again.
        thread::sleep(MOMENT);
    }
    (doing, stack)
}

/// The time that a thread needs to sleep again.
const MOMENT: Duration = Duration::from_millis(2);

/// The state of a thread of this process, as the system abbreviates it (proc_pid_stat(5)).
fn state_of(tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    // The name before may have brackets and spaces.
    stat.rsplit_once(") ")?.1.chars().next()
}

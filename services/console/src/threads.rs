//! A look at one thread of this process: the state of the thread, and its stack.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::model::Stack;
use crate::stacks::{NoStack, of_thread, state_of};

/// The state of a thread in words, and its stack. The thread runs for a moment to note its stack,
/// so nobody else asks for one meanwhile.
pub(crate) fn look_at_thread(tid: u32) -> (Option<String>, Result<Stack, NoStack>) {
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

/// The state of a thread of this process, as the system reports it: running, or asleep in a
/// function of the system's kernel. `None` where there is no such file, or no descriptor to read it
/// with.
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

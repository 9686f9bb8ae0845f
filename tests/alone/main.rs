//! Tests of a whole process: its memory, descriptors, limits, children and punctuality.
//!
//! Each test runs its body in a child process, and one child runs at a time. So no other test
//! changes the counts of the body, and no other test of this binary delays it.

#[path = "../support/live_bytes.rs"]
mod live_bytes;
#[path = "../support/mod.rs"]
mod support;

mod descriptors;
#[cfg(all(target_os = "linux", not(mio_unsupported_force_poll_poll)))]
mod exact_sleeps;
mod growth;
#[cfg(all(feature = "process", feature = "watch"))]
mod leaks;
mod polling;
mod shortage;
#[cfg(target_os = "linux")]
mod wake_descriptor;

use std::sync::{Mutex, PoisonError};

use support::child;

/// Printed by a child whose body has returned.
const DONE: &str = "the body has returned";

/// Runs the body of a test in a child process, after the children of other tests.
///
/// The name of the test is the path that the test harness shows.
#[track_caller]
fn alone(test: &str, body: fn()) {
    static ONE_CHILD: Mutex<()> = Mutex::new(());
    if child::is_child(test) {
        body();
        println!("{DONE}");
        return;
    }
    let _turn = ONE_CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    let (is_good, printed) = child::run(&mut child::child(test));
    assert!(is_good && printed.contains(DONE), "{printed}");
}

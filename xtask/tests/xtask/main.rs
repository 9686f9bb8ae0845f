//! The commands, and what tests get from the library.

mod budget;
mod commands;
mod needs;
mod servers;
mod source;

use std::process::{Command, Output, Stdio};

/// The program.
fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// One of these tests in a process of its own, as the harness runs it; a variable tells the test
/// so.
fn in_child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", test]).env(CHILD, "yes").stdin(Stdio::null());
    command
}

/// Set in processes of [`in_child`].
const CHILD: &str = "XTASK_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Standard output and standard error.
fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

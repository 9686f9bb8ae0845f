//! Runs one test of this binary in a child process.
//!
//! The test returns at once unless [`is_child`] is true. Such a return counts as success, so the
//! parent checks the child's output.

use std::process::Command;

/// Names the test that a child is to run.
const CHILD: &str = "PIKAKE_TEST_CHILD";

/// This binary, to run one test in a child.
pub(crate) fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command
}

/// Whether this process is a child that is to run that test.
pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|asked_for| asked_for == test)
}

/// Runs a child to its end; returns whether it succeeded, and everything that it printed.
pub(crate) fn run(child: &mut Command) -> (bool, String) {
    let output = child.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(printed).unwrap())
}

//! The first program that a new user runs.

use std::process::Command;

#[test]
fn tour_undoes_a_transfer_and_finds_the_deadlock() {
    let tour = env!("CARGO_BIN_EXE_pikake-tour");
    let output = Command::new(tour).env_remove("PIKAKE_SEED").env_remove("PIKAKE_RUNS").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("outcome: Err(TimedOut); ann has 100 coins"), "{printed}");
    assert!(printed.contains("deadlock: 2 tasks wait for each other"), "{printed}");
}

//! The report of a main task that panics.

use pikake::yield_now;

use crate::support::child::{child, is_child, run};
use crate::support::named as spawn_named;

#[pikake::main(console)]
async fn crash() {
    spawn_named("bystander", std::future::pending::<()>()).detach();
    for _ in 0..100 {
        yield_now().await.unwrap();
    }
    panic!("as it must be");
}

/// Runs a test in a child that crashes, with or without a console.
fn output(test: &str, console: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut child = child(&format!("served::crashes::{test}"));
    child.env("XDG_RUNTIME_DIR", folder.path()).env("PIKAKE_CONSOLE", console);
    child.env("RUST_BACKTRACE", "0");
    let (is_good, output) = run(&mut child);
    assert!(!is_good && output.contains("as it must be"), "{output}");
    output
}

#[test]
fn a_crash_of_the_main_task_has_the_last_events() {
    let test = "a_crash_of_the_main_task_has_the_last_events";
    if is_child(&format!("served::crashes::{test}")) {
        return crash();
    }
    let output = output(test, "1");
    let (_, report) = output.split_once("the main task has crashed; the last events of ").unwrap();
    let events: Vec<&str> = report.lines().filter(|line| line.contains("  task ")).collect();
    assert_eq!(events.len(), 40, "{output}");
    let last = events.last().unwrap();
    assert!(last.contains("task 1 `crash`: yield at ") && last.contains("crashes.rs:"), "{output}");
}

/// Each kernel has few events: the report has all of them.
#[pikake::main(console)]
async fn crash_soon() {
    spawn_named("bystander", std::future::pending::<()>()).detach();
    yield_now().await.unwrap();
    panic!("as it must be");
}

#[test]
fn a_crash_names_the_other_tasks() {
    let test = "a_crash_names_the_other_tasks";
    if is_child(&format!("served::crashes::{test}")) {
        return crash_soon();
    }
    let output = output(test, "1");
    assert!(output.contains("task 2 `bystander`: spawned at "), "{output}");
    assert!(output.contains("task 2 `bystander`: stepped"), "{output}");
}

#[test]
fn a_crash_without_a_console_has_no_events() {
    let test = "a_crash_without_a_console_has_no_events";
    if is_child(&format!("served::crashes::{test}")) {
        return crash();
    }
    let output = output(test, "0");
    assert!(!output.contains("the main task has crashed"), "{output}");
}

//! The spans of tasks in the log of a program with the feature `task-spans`, which this binary
//! needs: it runs one of its tests as the program.

use pikake::task::Builder;
use pikake::{other_kernels, yield_now};

#[path = "../support/child.rs"]
mod child;

/// Logs in a task of its own, on this kernel and on another one.
#[pikake::main(threads = 2)]
async fn logs_in_tasks() {
    // The log begins after the first step of the main task.
    yield_now().await.unwrap();
    let here = Builder::new().name("here").spawn(async { tracing::error!("it is said here") });
    here.await.unwrap();
    let there = other_kernels()[0].call(|| async {
        let there = Builder::new().name("there");
        there.spawn(async { tracing::error!("it is said there") }).await.unwrap();
    });
    there.await.unwrap();
    tracing::error!("it is said by the main task");
}

/// The line of the log that ends with this text, if `test` runs with this `RUST_LOG`.
#[track_caller]
fn line(test: &str, log: Option<&str>, text: &str) -> String {
    let mut program = child::child(test);
    match log {
        Some(log) => program.env("RUST_LOG", log),
        None => program.env_remove("RUST_LOG"),
    };
    let (is_good, output) = child::run(&mut program);
    let found = output.lines().find(|line| line.ends_with(text));
    assert!(is_good && found.is_some(), "{output}");
    found.unwrap().to_owned()
}

#[track_caller]
fn check(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn lines_of_the_log_have_the_task() {
    let test = "lines_of_the_log_have_the_task";
    if child::is_child(test) {
        return logs_in_tasks();
    }
    let here = line(test, None, "it is said here");
    check(&here, &["ERROR task{id=2 name=\"here\" kernel=", " parent=1 spawned_at=", "main.rs:"]);
    let there = line(test, None, "it is said there");
    check(&there, &["ERROR task{id=", "name=\"there\" kernel="]);
    let kernel = |line: &str| line.split_once("kernel=").unwrap().1.chars().next();
    assert_ne!(kernel(&here), kernel(&there));
    let main = line(test, None, "it is said by the main task");
    check(&main, &["ERROR task{id=1 name=\"logs_in_tasks\" kernel="]);
}

/// A filter for a part of the program leaves out the target of the spans.
#[test]
fn filters_hide_the_spans() {
    let test = "filters_hide_the_spans";
    if child::is_child(test) {
        return logs_in_tasks();
    }
    let hidden = line(test, Some("task_spans=info"), "it is said here");
    assert!(!hidden.contains("task{"), "{hidden}");
    let shown = line(test, Some("task_spans=info,pikake::task=error"), "it is said here");
    check(&shown, &["ERROR task{id=2 name=\"here\""]);
}

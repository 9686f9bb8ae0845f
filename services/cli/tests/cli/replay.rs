//! Recordings of real processes, which are killed, and read afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ended, Place, Running, application, example, pikake, run, wait_for};

/// A program that records itself, in a world of its own.
struct Recorded {
    runtime: TempDir,
    program: Running,
}

impl Recorded {
    fn new(fault: &str) -> Self {
        let runtime = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(example("cli_hung"));
        command.arg(fault).env("XDG_RUNTIME_DIR", runtime.path()).stdin(Stdio::null());
        command.env("PIKAKE_RECORD", runtime.path().join("recorded"));
        Self { program: Running::start(command), runtime }
    }

    fn folder(&self) -> PathBuf {
        self.runtime.path().join("recorded")
    }

    /// Ends the program by the signal that it cannot handle.
    #[track_caller]
    fn kill(&self) {
        self.program.signal(Signal::KILL);
        let end = "end        none: the process was killed, or it runs";
        assert!(replay(&self.folder(), &[]).good().contains(end));
    }
}

fn replay(path: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(pikake());
    command.arg("replay").arg(path).args(arguments).stdin(Stdio::null());
    run(command)
}

/// The first trigger of a recording, once there is one.
#[track_caller]
fn first_trigger(folder: &Path) -> Value {
    let mut first = Value::Null;
    wait_for("a trigger", || {
        let summary = replay(folder, &["--json"]);
        if summary.code == Some(0) {
            first = summary.json()["triggers"][0].clone();
        }
        !first.is_null()
    });
    first
}

/// The lines of a table without those columns that a moment changes: the id, name and state of each
/// task, and what it waits for.
fn rows(table: &str) -> Vec<String> {
    let row = |line: &str| line.split("  ").filter(|cell| !cell.is_empty()).take(4).collect();
    table.lines().filter(|line| line.contains(" at ")).map(row).collect()
}

#[test]
fn killed_process_is_replayed_as_it_was_shown_alive() {
    let recorded = Recorded::new("deadlock");
    let folder = recorded.folder();
    let pid = recorded.program.id().to_string();
    let live = |view: &str| {
        let mut command = Command::new(pikake());
        command.args([view, &pid]).env("XDG_RUNTIME_DIR", recorded.runtime.path());
        run(command).good()
    };
    let deadlock = "DEADLOCK: 2 tasks wait for each other in a circle";
    wait_for("the deadlock", || {
        let seen = replay(&folder, &["waits"]);
        seen.code == Some(0) && seen.out.contains(deadlock)
    });
    let (ps, waits) = (live("ps"), live("waits"));
    recorded.kill();
    let replayed = replay(&folder, &["waits"]).good();
    let (head, rest) = replayed.split_once('\n').unwrap();
    assert!(head.starts_with("at ") && head.contains("by a snapshot that is "), "{head}");
    assert_eq!(rest, waits);
    assert_eq!(rows(&replay(&folder, &["ps"]).good()), rows(&ps));
    assert_eq!(rows(&replay(&folder, &["top"]).good()).len(), 3);
    let tree = replay(&folder, &["tree"]).good();
    assert!(tree.contains("├─ 2 `ann to bob`: waiting for "), "{tree}");
    let stats = replay(&folder, &["stats"]).good();
    assert!(stats.contains("process\n  memory  "), "{stats}");
    let trace = replay(&folder, &["trace"]).good();
    assert!(trace.contains("task 2 `ann to bob`: stepped, sleep at "), "{trace}");
    let json = replay(&folder, &["waits", "--json"]).json();
    assert_eq!(json["graph"]["deadlocks"][0].as_array().unwrap().len(), 2, "{json}");
    let dot = replay(&folder, &["waits", "--dot"]).good();
    assert!(dot.starts_with("digraph waits {"), "{dot}");
    let perfetto = recorded.runtime.path().join("trace.json");
    replay(&folder, &["trace", "--perfetto", perfetto.to_str().unwrap()]).good();
    let trace: Value = serde_json::from_slice(&fs::read(perfetto).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 10, "{trace}");
}

#[test]
fn moments_are_named_by_lengths_and_times() {
    let recorded = Recorded::new("deadlock");
    let folder = recorded.folder();
    wait_for("a snapshot", || replay(&folder, &["ps"]).code == Some(0));
    recorded.kill();
    let summary = replay(&folder, &["--json"]).json();
    let end = summary["to"].as_str().unwrap();
    for at in ["-0s", "1h", end, "2100-01-01T00:00:00Z"] {
        let shown = replay(&folder, &["ps", "--at", at]).good();
        assert!(shown.contains("ann to bob"), "{at}: {shown}");
    }
    replay(&folder, &["--at", "0s", "ps"]).failed(3, &["the first one is "]);
    replay(&folder, &["ps", "--at", "-1h"]).failed(3, &["the first one is "]);
    replay(&folder, &["ps", "--at", "noon"]).failed(2, &["`noon` is no moment"]);
    replay(&folder.join("missing"), &[]).failed(5, &["cannot be read"]);
    replay(&application(), &[]).failed(5, &["is no recording of pikake"]);
    replay(recorded.runtime.path(), &[]).failed(3, &["has no recording"]);
}

#[test]
fn kernel_that_hangs_is_a_trigger() {
    let recorded = Recorded::new("busy");
    let folder = recorded.folder();
    let trigger = first_trigger(&folder);
    assert_eq!(trigger["kind"], "long step");
    let about = trigger["about"].as_str().unwrap();
    assert!(about.contains(" `search`, spawned at "), "{about}");
    let stuck = "is stuck: task 3 `search`";
    wait_for("the snapshot", || replay(&folder, &["ps"]).good().contains(stuck));
    recorded.kill();
}

#[test]
fn worker_is_recorded_to_its_end() {
    let place = Place::new();
    let folder = place.folder().join("recorded");
    let mut command = place.command(&application(), &["worker"]);
    command.env("PIKAKE_RECORD", &folder).env("PIKAKE_RECORD_MIB", "many");
    let mut worker = Running::start(command);
    worker.until("PIKAKE_RECORD_MIB=many is no whole number from 1 to 1048576: 64 is used");
    worker.until("the worker is ready");
    wait_for("a snapshot", || replay(&folder, &["ps"]).code == Some(0));
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let summary = replay(&folder, &["--json"]).json();
    assert_eq!(summary["has_ended"], true, "{summary}");
    assert_eq!(summary["program"], "cli_test_app");
    let trace = replay(&folder, &["trace"]).good();
    let is_end = |line: &str| line.contains("  task 1") && line.ends_with(": returned");
    assert!(trace.lines().any(is_end), "{trace}");
}

#[test]
fn slow_job_is_a_trigger_with_a_snapshot() {
    let place = Place::new();
    let folder = place.folder().join("recorded");
    let mut command = place.command(&application(), &["worker"]);
    command.env("PIKAKE_RECORD", &folder).env("PIKAKE_RECORD_SLOW", "0");
    let mut worker = Running::start(command);
    worker.until("the worker is ready");
    let id = place.pikake(&["send", "add", "2", "3"]);
    let trigger = first_trigger(&folder);
    assert_eq!(trigger["kind"], "slow job");
    let about = trigger["about"].as_str().unwrap();
    assert!(about.starts_with(&format!("add {id}: ")), "{about}");
    let at = trigger["at"].as_str().unwrap().to_owned();
    wait_for("the snapshot", || {
        let seen = replay(&folder, &["ps", "--json"]);
        seen.code == Some(0) && seen.json()["moment"]["snapshot"].as_str().unwrap() >= &*at
    });
}

#[test]
fn program_without_a_folder_says_so_and_runs() {
    let place = Place::new();
    let file = place.folder().join("file");
    fs::write(&file, "").unwrap();
    let mut command = place.command(&application(), &["worker"]);
    command.env("PIKAKE_RECORD", file.join("folder"));
    let mut worker = Running::start(command);
    worker.until("this process is not recorded (PIKAKE_RECORD=0 turns the recording off)");
    worker.until("the worker is ready");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().code, Some(0));
}

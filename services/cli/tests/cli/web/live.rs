//! The page about a real process.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Page;
use super::browser::{assert_shows, document};
use crate::support::{Running, example, pikake, wait_for};

/// A program that hangs, and the page about it.
struct Hung {
    page: Page,
    _program: Running,
    _runtime: TempDir,
}

impl Hung {
    fn new(fault: &str) -> Self {
        let runtime = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(example("cli_hung"));
        command.arg(fault).env("XDG_RUNTIME_DIR", runtime.path()).stdin(Stdio::null());
        let program = Running::start(command);
        let socket = runtime.path().join(format!("pikake/{}.sock", program.id()));
        wait_for("its console", || socket.exists());
        let mut command = Command::new(pikake());
        command.args(["console", "--web"]).arg(program.id().to_string());
        command.env("XDG_RUNTIME_DIR", runtime.path());
        Self { page: Page::of(command), _program: program, _runtime: runtime }
    }

    /// What the process tells.
    #[track_caller]
    fn told(&self, path: &str) -> Value {
        let answer = self.page.get(&format!("api/{path}"));
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()["answer"].clone()
    }
}

/// The numbers of the tasks with this name.
fn named(answer: &Value, name: &str) -> Vec<String> {
    let tasks = answer["tasks"].as_array().expect("tasks");
    let found = tasks.iter().filter(|task| task["name"] == name);
    found.map(|task| task["id"].as_str().expect("a number").to_owned()).collect()
}

#[test]
fn deadlock_is_told() {
    let hung = Hung::new("deadlock");
    let mut waits = Value::Null;
    wait_for("the deadlock", || {
        waits = hung.told("waits");
        waits["graph"]["deadlocks"] != json!([])
    });
    let ann = named(&waits, "ann to bob").pop().expect("the task");
    let bob = named(&waits, "bob to ann").pop().expect("the task");
    let cycle = waits["graph"]["deadlocks"][0].as_array().expect("a cycle");
    assert!(
        cycle.len() == 2 && cycle.contains(&json!(ann)) && cycle.contains(&json!(bob)),
        "{waits}"
    );
    let detail = hung.told(&format!("task/{ann}"));
    let wait = &detail["tasks"][0]["waits"][0];
    assert_eq!(wait["owners"], json!([bob]), "{detail}");
    assert!(
        wait["about"].as_str().is_some_and(|about| about.contains("account of bob")),
        "{detail}"
    );
    let stats = hung.told("stats");
    assert!(stats["stats"][0]["tasks"].as_u64() >= Some(3), "{stats}");
    assert!(stats["process"]["threads"].as_u64() >= Some(2), "{stats}");
    let traced = hung.told("trace");
    let events = traced["events"].as_array().expect("events");
    assert!(events.iter().any(|event| event["task"] == json!(bob)), "{traced}");
    assert!(hung.told("profile?seconds=0.1")["profile"].is_array());

    if let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() {
        let document = document(&chromium, &hung.page, "waits");
        assert_shows(&document, &["Deadlock of 2 tasks", "ann to bob", "account of ann"]);
    }
}

#[test]
fn tasks_are_cancelled_and_aborted() {
    let hung = Hung::new("leak");
    let mut requests = Vec::new();
    wait_for("two requests", || {
        requests = named(&hung.told("tasks"), "request");
        requests.len() >= 2
    });
    for (how, task) in ["cancel", "abort"].iter().zip(&requests) {
        let answer = hung.page.post(&format!("api/{how}/{task}"), r#"{"reason": "unanswered"}"#);
        assert_eq!(answer.status, 200, "{answer:?}");
        wait_for("the task's end", || !named(&hung.told("tasks"), "request").contains(task));
    }
}

#[test]
fn stuck_kernel_is_told() {
    let hung = Hung::new("busy");
    let mut kernel = Value::Null;
    wait_for("the watchdog", || {
        kernel = hung.told("tasks")["kernels"][0].clone();
        kernel["stuck"]["lasts"].as_u64() > Some(1_000_000_000)
    });
    assert_eq!(kernel["stuck"]["name"], "search");
    assert_eq!(hung.told("blocked")["blocked"][0]["step"]["name"], "search");
    let task = kernel["stuck"]["task"].as_str().expect("a number");
    let refused = hung.page.post(&format!("api/abort/{task}"), "");
    let is_refused = refused.status == 422 || refused.json()["answer"]["ended"][0] == false;
    assert!(is_refused, "{refused:?}");

    if let Some(chromium) = xtask::needs::CHROMIUM.find_or_skip() {
        let document = document(&chromium, &hung.page, "tasks");
        assert_shows(&document, &["(main) is stuck", "search", "has been in one step for"]);
    }
}

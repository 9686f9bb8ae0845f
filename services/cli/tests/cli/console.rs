//! The commands that look into a process, on programs that hang.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Ended, Place, Running, application, example, pikake, run, wait_for};

/// A program that hangs, in a world of its own: no other process has a console there.
struct Hung {
    runtime: TempDir,
    program: Running,
}

impl Hung {
    fn new(fault: &str) -> Self {
        let runtime = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(example("cli_hung"));
        command.arg(fault).env("XDG_RUNTIME_DIR", runtime.path()).stdin(Stdio::null());
        let hung = Self { program: Running::start(command), runtime };
        wait_for("its console", || hung.run(&["ps", &hung.pid()]).code == Some(0));
        hung
    }

    fn pid(&self) -> String {
        self.program.id().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(pikake());
        command.args(arguments).env("XDG_RUNTIME_DIR", self.runtime.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command. It names the process, since other tests may have one in `/tmp`.
    fn run(&self, arguments: &[&str]) -> Ended {
        run(self.command(arguments))
    }

    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        self.run(arguments).good()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        self.run(&arguments).json()
    }

    /// The numbers of the tasks with this name, once there are some.
    fn tasks_named(&self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        wait_for("the tasks", || {
            let tasks = self.json(&["ps", &self.pid()])["tasks"].clone();
            let named = tasks.as_array().unwrap().iter().filter(|task| task["name"] == name);
            found = named.map(|task| task["id"].as_str().unwrap().to_owned()).collect();
            !found.is_empty()
        });
        found
    }
}

#[test]
fn deadlock_is_named_with_its_locks() {
    let hung = Hung::new("deadlock");
    let pid = hung.pid();
    let deadlock = "DEADLOCK: 2 tasks wait for each other in a circle";
    wait_for("the deadlock", || hung.good(&["waits", &pid]).contains(deadlock));
    let waits = hung.good(&["waits", &pid]);
    for said in [
        "task 2 `ann to bob` waits for task 3 `bob to ann`: park at ",
        "task 3 `bob to ann` waits for task 2 `ann to bob`: park at ",
        "(mutex `account of ann`, held by task 2 `ann to bob`",
    ] {
        assert!(waits.contains(said), "{waits}");
    }
    let dot = hung.good(&["waits", &pid, "--dot"]);
    assert!(dot.starts_with("digraph waits {") && dot.contains("color=red"), "{dot}");
    let graph = hung.json(&["waits", &pid])["graph"].clone();
    assert_eq!(graph["deadlocks"][0].as_array().unwrap().len(), 2, "{graph}");
    let tree = hung.good(&["tree", &pid]);
    let beginnings: Vec<&str> = tree.lines().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(beginnings, ["1 `main`", "├─ 2 `ann to bob`", "└─ 3 `bob to ann`"]);
    let detail = hung.good(&["where", &pid, "2"]);
    assert!(detail.starts_with("task 2 `ann to bob`\n"), "{detail}");
    assert!(detail.contains("for mutex `account of bob`, held by task 3"), "{detail}");
    // Without one of the two the other one goes on, and the process ends, possibly before the
    // answer.
    hung.run(&["cancel", &pid, "2", "deadlock"]);
    let ended = hung.program.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn worker_has_a_console_by_the_variable() {
    let runtime = tempfile::tempdir().expect("a folder");
    let place = Place::new();
    let mut command = place.command(&application(), &["worker"]);
    command.env("XDG_RUNTIME_DIR", runtime.path()).env("PIKAKE_CONSOLE", "1");
    let mut worker = Running::start(command);
    worker.until("the worker is ready");
    let pid = worker.id().to_string();
    let look = |what: &str| {
        let mut command = Command::new(pikake());
        command.args([what, &pid]).env("XDG_RUNTIME_DIR", runtime.path()).stdin(Stdio::null());
        run(command)
    };
    wait_for("its console", || look("ps").code == Some(0));
    assert!(look("tree").good().starts_with("1 `main`"), "{:?}", look("tree"));
    worker.signal(Signal::TERM);
    let ended = worker.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn stuck_kernel_is_reported_and_the_console_answers() {
    let hung = Hung::new("busy");
    let pid = hung.pid();
    let is_stuck = || hung.good(&["ps", &pid]).contains("is stuck: task 3 `search`");
    wait_for("the watchdog", is_stuck);
    for command in ["tree", "waits", "stats"] {
        let text = hung.good(&[command, &pid]);
        assert!(text.starts_with("! kernel ") && text.contains("`search`"), "{command}: {text}");
    }
    let kernel = hung.json(&["ps", &pid])["kernels"][0].clone();
    assert_eq!(kernel["stuck"]["name"], "search");
    hung.run(&["cancel", &pid, "3"]).failed(4, &["search"]);
    let listed = hung.json(&[]);
    let listed = listed["processes"].as_array().unwrap();
    let id = Value::from(hung.program.id());
    let this = listed.iter().find(|process| process["pid"] == id).unwrap();
    assert_eq!((&this["program"], &this["tasks"]), (&"cli_hung".into(), &Value::Null));
}

/// The memory of a process in RAM by a field of its status, in KiB.
fn memory(pid: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with(field)).expect("the field");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// The program `pikake` finds the names of functions. The process only gives addresses.
#[test]
fn stacks_cost_the_process_next_to_no_memory() {
    /// Of it, most are pages of the program's file.
    const MOST: [(&str, u64); 2] = [("VmRSS:", 2_048), ("RssAnon:", 1_024)];
    let hung = Hung::new("busy");
    let pid = hung.pid();
    wait_for("the watchdog", || hung.good(&["ps", &pid]).contains("is stuck: task 3 `search`"));
    for command in ["tree", "waits", "stats"] {
        hung.good(&[command, &pid]);
    }
    let before = MOST.map(|(field, _)| memory(&pid, field));
    let check = |when: &str| {
        for ((field, most), before) in MOST.iter().zip(before) {
            let after = memory(&pid, field);
            assert!(after < before + most, "{field} {before} KiB before, {after} KiB after {when}");
        }
    };
    let blocked = hung.good(&["blocked", &pid]);
    assert!(blocked.contains("cli_hung::is_prime"), "{blocked}");
    check("`blocked`");
    let profile = hung.good(&["profile", &pid, "--seconds", "5"]);
    assert!(profile.contains("samples of processor time"), "{profile}");
    check("`profile`");
    let frames = hung.json(&["blocked", &pid])["blocked"][0]["stack"]["frames"].clone();
    let is_named = |frame: &Value| frame.as_str().unwrap().starts_with("cli_hung::is_prime");
    assert!(frames.as_array().unwrap().iter().any(is_named), "{frames}");
}

#[test]
fn leaked_tasks_are_listed_and_ended() {
    let hung = Hung::new("leak");
    let pid = hung.pid();
    let requests = hung.tasks_named("request");
    let ps = hung.good(&["ps", &pid]);
    assert!(ps.contains("  request  waiting  park at "), "{ps}");
    assert!(ps.lines().last().unwrap().contains(" waiting"), "{ps}");
    let ended = hung.json(&["abort", &pid, &requests[0]]);
    assert_eq!((&ended["task"], &ended["ended"]), (&requests[0].as_str().into(), &true.into()));
    hung.run(&["abort", &pid, &requests[0]]).failed(3, &["there is no task"]);
    let stats = hung.good(&["stats", &pid]);
    assert!(stats.starts_with("process\n  memory "), "{stats}");
    // The main task is among those that can be cancelled, and with it ends the process.
    let mut cancel = hung.command(&["cancel", &pid, "1", "closing", "time"]);
    cancel.stderr(Stdio::null()).stdout(Stdio::null());
    cancel.status().expect("it runs");
    let ended = hung.program.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("closing time"), "{ended:?}");
}

#[test]
fn console_reads_commands_until_its_input_ends() {
    let hung = Hung::new("deadlock");
    hung.tasks_named("bob to ann");
    let mut command = hung.command(&["console", &hung.pid()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut console = command.spawn().expect("it runs");
    let lines = "where 1\n\nnonsense\nwhere 99\nps 12\nps --json\n";
    console.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let ended = console.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(ended.stdout), String::from_utf8(ended.stderr));
    let (out, err) = (out.unwrap(), err.unwrap());
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    assert!(out.starts_with("task 1 `main`\n"), "{out}");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!(last["tasks"].as_array().unwrap().len(), 3, "{out}");
    for said in ["unrecognized subcommand 'nonsense'", "there is no task", "leave the number out"] {
        assert!(err.contains(said), "{said}: {err}");
    }
}

#[test]
fn wrong_processes_and_tasks_are_errors() {
    let hung = Hung::new("deadlock");
    let pid = hung.pid();
    // No process has this number: it is above the largest one.
    hung.run(&["ps", "4194305"]).failed(3, &["there is no process 4194305"]);
    let this = std::process::id().to_string();
    hung.run(&["ps", &this]).failed(3, &["has no console", "PIKAKE_CONSOLE=1"]);
    hung.run(&["where", &pid, "99"]).failed(3, &["there is no task"]);
    hung.run(&["where", &pid, "ann"]).failed(2, &["`ann` is no task"]);
    hung.run(&["cancel"]).failed(2, &["pikake cancel"]);
    hung.run(&["top", &pid]).failed(2, &["needs a terminal"]);
    hung.run(&["top", &pid, "--json"]).failed(2, &["ps --json"]);
    hung.run(&["waits", &pid, "--dot", "--json"]).failed(2, &["--dot"]);
    hung.program.signal(Signal::STOP);
    let stopped = hung.run(&["ps", &pid]);
    hung.program.signal(Signal::CONT);
    stopped.failed(4, &["has not answered"]);
}

#[test]
fn list_ends_with_one_line_of_help() {
    let hung = Hung::new("deadlock");
    let list = hung.good(&[]);
    let line = list.lines().find(|line| line.trim_start().starts_with(&hung.pid())).unwrap();
    assert!(line.contains("cli_hung"), "{list}");
    assert_eq!(
        list.lines().last(),
        Some("`pikake ps PID` lists the tasks of a process, and `pikake --help` all commands."),
    );
    assert!(!list.contains("Usage"), "{list}");
}

/// The broker is that of other commands.
#[test]
fn variable_of_the_broker_does_no_harm() {
    let hung = Hung::new("deadlock");
    let mut command = hung.command(&["ps", &hung.pid()]);
    command.env("PIKAKE_BROKER", "sqlite:///jobs.db").env("PIKAKE_RESULTS", "redis://host");
    assert!(run(command).good().contains("ann to bob"));
    hung.run(&["ps", &hung.pid(), "--broker", "sqlite:///jobs.db"])
        .failed(2, &["this command looks into a process, which has no broker"]);
}

/// The commands of an application stay those of its jobs.
#[test]
fn applications_have_no_commands_of_the_console() {
    let mut command = Command::new(example("cli_test_app"));
    command.arg("ps").stdin(Stdio::null());
    run(command).failed(2, &["unrecognized subcommand 'ps'"]);
}

//! Six troubles in a server under load: one command names each of them, and the server's memory
//! stays as it was.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{Running, example, pikake, run, wait_for};

/// The memory that a look may cost the process, in KiB.
const LOOK_COSTS: u64 = 2 * 1024;

/// A server in trouble, and the load on it, in a world of their own.
struct Server {
    runtime: TempDir,
    program: Running,
    _load: Running,
}

impl Server {
    fn new(trouble: &str) -> Self {
        let runtime = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(example("cli_troubled"));
        command.arg(trouble).env("XDG_RUNTIME_DIR", runtime.path()).stdin(Stdio::null());
        let mut program = Running::start(command);
        let line = program.until("serving ");
        let address = line.strip_prefix("serving ").expect("the line begins so");
        let mut command = Command::new(example("cli_troubled"));
        command.args(["load", address]).env("PIKAKE_CONSOLE", "0").stdin(Stdio::null());
        Self { runtime, program, _load: Running::start(command) }
    }

    /// Runs a command on the process.
    #[track_caller]
    fn look(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(pikake());
        command.args(arguments).arg(self.program.id().to_string());
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).stdin(Stdio::null());
        run(command).good()
    }

    /// Runs a command on the process, whose memory must not grow by that.
    #[track_caller]
    fn look_for_free(&self, arguments: &[&str]) -> String {
        let before = self.resident();
        let text = self.look(arguments);
        let grown = self.resident().saturating_sub(before);
        assert!(grown <= LOOK_COSTS, "{arguments:?} took {grown} KiB of the process:\n{text}");
        text
    }

    /// The memory that the process has in RAM, in KiB.
    fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.program.id());
        let status = fs::read_to_string(path).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.expect("Linux has it").trim().trim_end_matches(" kB");
        number.parse().expect("a number")
    }
}

#[track_caller]
fn names(text: &str, words: &[&str]) {
    for words in words {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }
}

#[test]
fn deadlock() {
    let server = Server::new("deadlock");
    wait_for("the deadlock", || server.look(&["waits"]).contains("DEADLOCK"));
    let waits = server.look_for_free(&["waits"]);
    names(&waits, &["DEADLOCK: 2 tasks", "mutex `stock`, held by", "mutex made at"]);
}

#[test]
fn busy_loop() {
    let mut server = Server::new("busy");
    server.program.until("a step takes long");
    let stack = server.look_for_free(&["blocked"]);
    names(&stack, &["`now and then`", "its thread: running", "cli_troubled::search"]);
}

#[test]
fn leak() {
    let server = Server::new("leak");
    // The leak itself takes memory meanwhile.
    let look = || server.look(&["waits", "--leaks"]);
    wait_for("a leak", || look().contains("`notify`"));
    names(&look(), &["`notify`", "oneshot channel"]);
}

#[test]
fn slow_lock() {
    let server = Server::new("slow-lock");
    wait_for("a slow order", || server.look(&["locks"]).contains("`now and then`"));
    let locks = server.look_for_free(&["locks"]);
    names(&locks, &["mutex `stock`", "`now and then`"]);
}

#[test]
fn standard_mutex_over_an_await() {
    let mut server = Server::new("standard-mutex");
    server.program.until("a step takes long");
    let stack = server.look_for_free(&["blocked"]);
    names(&stack, &["its thread: sleeps in futex", "lock_contended", "cli_troubled::write_ledger"]);
}

#[test]
fn intermittent_block() {
    let mut server = Server::new("block");
    server.program.until("a long step is over");
    let stack = server.look_for_free(&["blocked"]);
    names(&stack, &["`now and then`", "cli_troubled::read_settings"]);
    let profile = server.look_for_free(&["profile", "--seconds", "6"]);
    names(&profile, &["cli_troubled::read_settings"]);
}

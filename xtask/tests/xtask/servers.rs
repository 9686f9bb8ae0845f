//! Servers: they answer, and nothing is left of them however their callers end.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use xtask::{Kind, Server};

use crate::{in_child, is_child, texts, xtask};

/// For what has to happen at some time.
const HANG: Duration = Duration::from_secs(60);

/// A folder that is removed with what is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        // PostgreSQL runs as another user, if this runs as root.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, open).unwrap();
        Self(path)
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).unwrap().next().is_none()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < HANG, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The port in the line of a server that is ready.
fn port(line: &str) -> u16 {
    line.trim().strip_prefix("ready ").expect("it is ready").parse().expect("a port")
}

fn started(command: &mut Command) -> (std::process::Child, u16) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("ready ") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it says that it is ready");
    }
    (child, port(&line))
}

#[test]
fn server_ends_with_its_input() {
    let Some(_) = xtask::needs::POSTGRESQL.find_or_skip() else { return };
    let scratch = Scratch::new("input");
    let mut command = xtask(&["server", "postgres"]);
    let (mut child, port) = started(command.stdin(Stdio::piped()).env("TMPDIR", &scratch.0));
    assert!(answers(port) && !scratch.is_empty());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!answers(port) && scratch.is_empty());
}

#[test]
fn server_ends_by_a_signal() {
    let Some(_) = xtask::needs::POSTGRESQL.find_or_skip() else { return };
    let scratch = Scratch::new("signal");
    let mut command = xtask(&["server", "postgres"]);
    let (mut child, port) = started(command.stdin(Stdio::piped()).env("TMPDIR", &scratch.0));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    assert!(!answers(port) && scratch.is_empty());
}

/// Played by the child of the next test: holds a server and waits to be killed.
#[test]
fn holds_a_server() {
    if is_child() {
        let server = Server::start(Kind::Postgres).unwrap();
        println!("ready {}", server.port());
        std::thread::sleep(HANG);
    }
}

/// As the runner of the tests kills what a test program has left.
#[test]
fn server_ends_when_the_group_of_its_caller_is_killed() {
    let Some(_) = xtask::needs::POSTGRESQL.find_or_skip() else { return };
    let scratch = Scratch::new("killed");
    let mut command = in_child("servers::holds_a_server");
    command.arg("--nocapture").env("TMPDIR", &scratch.0).process_group(0);
    let (mut child, port) = started(&mut command);
    assert!(answers(port));
    kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    until("the server ends", || !answers(port));
    until("its folder is removed", || scratch.is_empty());
}

#[test]
fn input_that_has_ended_starts_no_server() {
    let Some(_) = xtask::needs::POSTGRESQL.find_or_skip() else { return };
    let scratch = Scratch::new("ended");
    let output = xtask(&["server", "postgres"]).env("TMPDIR", &scratch.0).output().unwrap();
    assert!(!texts(&output).0.contains("ready"));
    assert!(scratch.is_empty());
}

#[test]
fn rabbitmq_takes_commands() {
    let Some(server) = Server::start_or_skip(Kind::RabbitMq) else { return };
    let (tls, folder) = server.tls();
    assert!(answers(server.port()) && answers(tls));
    assert!(std::fs::exists(format!("{folder}/ca.pem")).unwrap());
    let hosts = server.command("ctl list_vhosts --no-table-headers");
    assert_eq!(hosts, ["/"]);
    server.command("kill");
    assert!(!answers(server.port()));
    server.command("start");
    assert!(answers(server.port()));
    let url = server.fresh_url();
    assert!(url.ends_with(&format!("@127.0.0.1:{}/case1", server.port())), "{url}");
}

#[test]
fn redis_takes_commands() {
    let Some(server) = Server::start_or_skip(Kind::Redis) else { return };
    let (tls, folder) = server.tls();
    assert!(answers(server.port()) && answers(tls));
    assert!(std::fs::exists(format!("{folder}/ca.pem")).unwrap());
    server.command("kill");
    assert!(!answers(server.port()));
    server.command("start");
    assert!(answers(server.port()));
    let url = server.fresh_url();
    assert_eq!(url, format!("redis://:pikake@127.0.0.1:{}/1", server.port()));
}
